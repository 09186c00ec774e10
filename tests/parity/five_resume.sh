#!/bin/bash
# A checkpoint belongs to no layout: a run handed from layout to layout after every step, over all axes and up to 12 ranks, has the bits of one that never stopped.
#   five_resume.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive
etalon=$1 work=$3
read -ra mpirun <<<"$2"
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$work" && cd "$work" || exit 2
for ((i = 0; i < 200; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % 97)))\\0"; done >tokens.u16
declare -A key=([tp]=layout.tp [cp]=layout.cp [pp]=layout.pp [ep]=layout.ep [etp]=layout.etp [chunks]=layout.chunks [mb]=train.micro_batch_size
  [sch]=schedule.name [shard]=optimizer.shard)
n_bad=0 n_run=0 began=$EPOCHREALTIME

facts() { sed -nE -f "$here/facts.sed" "$1" | grep -E "^step $2 " | uniq; }

train() { # ranks, last step, settings
  local n=$1 last=$2 s sets=()
  shift 2
  for s in "${model[@]}" "$@"; do sets+=(--set "${key[${s%%=*}]:-${s%%=*}}=${s#*=}"); done
  n_run=$((n_run + 1))
  rm -f metrics.jsonl
  "${mpirun[@]}" -n "$n" "$etalon" train "$here/spine.yaml" "${sets[@]}" --set train.train_iters="$last" --set optimizer.lr_decay_iters=20 \
    --set log.hash_interval=1 --set log.metrics=metrics.jsonl --set checkpoint.dir=checkpoints "${resume[@]}" >log 2>&1 </dev/null && return
  echo "DIFFERS  exit code $?: $n $*"
  tail -n 3 log
  return 1
}

# The lines of the standard input are layouts, one for each step.
chain() {
  model=("$@" checkpoint.save_final=false) resume=()
  local line before=none words step=0 n_step=0 layouts=()
  while read -r line; do layouts+=("$line") && n_step=$((n_step + 1)); done
  train 1 $n_step mb=5 || { n_bad=$((n_bad + 1)) && return; }
  cp metrics.jsonl whole.jsonl
  rm -rf checkpoints
  model=("$@" checkpoint.save_final=true)
  for line in "${layouts[@]}"; do
    step=$((step + 1))
    read -ra words <<<"$line"
    train "${words[0]}" $step "${words[@]:1}" || { n_bad=$((n_bad + 1)) && return; }
    resume=(--resume checkpoints)
    [ -n "$(facts metrics.jsonl $step)" ] && diff <(facts whole.jsonl $step) <(facts metrics.jsonl $step) >difference && before=$line && continue
    echo "DIFFERS  $*: step $step, $line (the step before: $before)"
    cat difference
    before=$line n_bad=$((n_bad + 1))
  done
}

# Tied embeddings that two stages hold or one, five vocabulary shards of 19 and 20 rows, experts uneven over EP.
chain model.tie_word_embeddings=true numerics.shards=5 <<'END'
12 tp=3 pp=2 ep=3 etp=2 mb=1 sch=zero_bubble
1 mb=2
8 tp=2 pp=2 cp=2 ep=4 mb=2 shard=false
3 pp=3 mb=1 chunks=2 sch=interleaved
12 tp=2 pp=3 cp=2 etp=4 mb=3 checkpoint.async=true
4 tp=4 ep=2 etp=2 mb=5 shard=false
2 ep=2 mb=1 checkpoint.compress=1
1 mb=5 shard=false
END
# BF16 weights with FP32 masters.
chain numerics.dtype=bf16 model.tie_word_embeddings=true numerics.shards=4 <<'END'
6 pp=3 tp=2 ep=2 mb=1
1 mb=5 shard=false
12 tp=3 cp=2 pp=2 etp=3 mb=2 sch=zero_bubble
2 pp=2 mb=3
END
chain numerics.dtype=fp64 model.num_key_value_heads=1 numerics.shards=4 model.first_k_dense_replace=2 <<'END'
2 pp=2 mb=2
12 tp=4 ep=6 etp=2 mb=2 shard=false
6 tp=3 cp=2 ep=2 etp=3 mb=1
3 cp=3 ep=3 mb=3 shard=false
12 tp=2 cp=3 pp=2 ep=3 etp=2 mb=1 chunks=2 sch=interleaved
4 ep=4 mb=2 checkpoint.async=true
8 tp=4 pp=2 ep=4 mb=1
1 mb=3
END
# The last checkpoint, read with other blocks (numerics.shards), has the same weights: after a step of no length their hash is what it was.
weights() { facts metrics.jsonl "$1" | grep -oE 'weights [0-9a-f]+'; }
whole=$(weights 8)
for layout in '3 tp=3 numerics.shards=3' '2 pp=2 numerics.shards=1' '4 etp=4 numerics.shards=7'; do
  read -ra words <<<"$layout"
  train "${words[0]}" 9 "${words[@]:1}" checkpoint.save_final=false optimizer.lr=0 optimizer.min_lr=0 && [ -n "$whole" ] && [ "$whole" = "$(weights 9)" ] && continue
  echo "DIFFERS  $layout: the last checkpoint has $(weights 9), not $whole"
  n_bad=$((n_bad + 1))
done
printf 'five_resume: %d runs, %d differ, %.1f s\n' $n_run $n_bad "$(bc <<<"$EPOCHREALTIME - $began" 2>/dev/null || echo 0)"
[ $n_bad = 0 ]
