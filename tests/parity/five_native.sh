#!/bin/bash
# Native mode over every axis: on one layout two runs have the same bits; on all of them losses and gradient norms are those of canonical mode but for rounding.
#   five_native.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive
etalon=$1 work=$3
read -ra mpirun <<<"$2"
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$work" && cd "$work" || exit 2
for ((i = 0; i < 200; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % 97)))\\0"; done >tokens.u16
head -c 60 tokens.u16 >valid.u16
declare -A key=([tp]=layout.tp [cp]=layout.cp [pp]=layout.pp [ep]=layout.ep [etp]=layout.etp [chunks]=layout.chunks [mb]=train.micro_batch_size
  [sch]=schedule.name [shard]=optimizer.shard)
n_bad=0 n_run=0 began=$EPOCHREALTIME

run() { # ranks, settings: what the run says into $out
  local n=$1 s sets=()
  shift
  for s in "$@"; do sets+=(--set "${key[${s%%=*}]:-${s%%=*}}=${s#*=}"); done
  n_run=$((n_run + 1))
  rm -f metrics.jsonl
  "${mpirun[@]}" -n "$n" "$etalon" train "$here/spine.yaml" --set data.valid=valid.u16 --set log.hash_interval=1 --set log.metrics=metrics.jsonl \
    "${sets[@]}" >log 2>&1 </dev/null || tail -n 3 log
  out=$(sed -nE -f "$here/facts.sed" metrics.jsonl)
}
numbers() { grep -oE '"(lm loss|lm loss validation|grad-norm)":[0-9.e+-]+' <<<"$1"; }

fail() {
  echo "DIFFERS  $1"
  n_bad=$((n_bad + 1))
}
# Two columns of name:number, the canonical first.
far() { paste -d: <(numbers "$1") <(numbers "$2") | awk -F: '{ d = $2 - $4; if (d < 0) d = -d } $1 != $3 || !(d <= 1e-4 * $2) { print "  " $0; n++ } END { exit !n }'; }

group() { # settings of the model; layouts on the standard input
  local canonical first layout words
  run 1 "$@" mb=2
  canonical=$out
  [ "$(numbers "$canonical" | wc -l)" = 7 ] || fail "$*: canonical"
  while read -r layout; do
    read -ra words <<<"$layout"
    run "${words[@]}" "$@" numerics.mode=native
    first=$out
    far "$canonical" "$first" && fail "$*: $layout: not near canonical mode"
    run "${words[@]}" "$@" numerics.mode=native
    [ "$first" = "$out" ] || fail "$*: $layout: run to run"
  done
}

group numerics.shards=4 model.tie_word_embeddings=true <<'END'
1 mb=5
2 tp=2
2 cp=2 mb=2
3 pp=3 mb=1
2 ep=2 mb=3
4 tp=4 etp=2 mb=2 shard=false
8 tp=2 cp=2 pp=2 ep=2 etp=2 mb=2 sch=zero_bubble
END
group numerics.shards=4 model.num_key_value_heads=1 model.sliding_window=5 numerics.dtype=fp64 <<'END'
3 tp=3 ep=3
6 cp=3 pp=2 etp=3 chunks=2 sch=interleaved mb=1
END
printf 'five_native: %d runs, %d differ, %.1f s\n' $n_run $n_bad "$(bc <<<"$EPOCHREALTIME - $began" 2>/dev/null || echo 0)"
[ $n_bad = 0 ]
