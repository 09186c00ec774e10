#!/bin/bash
# What people look at a run with: eval and sample give the same on every layout, and what the run itself said.
#   people.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive TERM=dumb
etalon=$1 mpirun=$2 work=$3
config=$(dirname "$(readlink -f "$0")")/people.yaml
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 2
n_bad=0
for ((i = 0; i < 60; i++)); do printf 'abcdefghijklmnopqrstuvw, '; done >line.txt
printf 'A line.\n\nAnother one, and this has no newline at its end' >valid.txt

fail() {
  n_bad=$((n_bad + 1))
  echo "FAILED  $1"
  shift
  printf '  %s\n' "$@"
}
same() { [ "$2" = "$3" ] && [ -n "$2" ] || fail "$1" "wanted: $2" "   got: $3"; }
differs() { [ "$2" != "$3" ] && [ -n "$2" ] && [ -n "$3" ] || fail "$1" "both: $2"; }
# RANKS ARGS...: what etalon prints
run() {
  local n=$1
  shift
  # shellcheck disable=SC2086
  $mpirun -n "$n" "$etalon" "$@" 2>&1 </dev/null
}
# CODE TEXT RANKS ARGS...: one error that says TEXT
refused() {
  local code=$1 text=$2 out rc
  shift 2
  out=$(run "$@")
  rc=$?
  [ $rc = "$code" ] && [ "$(grep -c '^error: ' <<<"$out")" = 1 ] && grep -qF -- "$text" <<<"$out" || fail "$*" "exit code $rc, not $code: $out"
}

out=$(run 2 train "$config" --set layout.ep=2 --set train.sample_prompt='ghij' --set train.sample_tokens=30) || fail train "$out"
same 'the text at the end of training' 'ghijklmnopqrstuvw, abcdefghijklmno' "$(tail -n 1 <<<"$out")"
said=$(sed -n 's/.*validation loss \([0-9.]*\) over \([0-9]*\) tokens.*/\1 \2/p' <<<"$out")
number() { sed -n 's/.*step 80 | validation loss \([0-9.]*\) over \([0-9]*\) tokens.*/\1 \2/p'; }
first=$(run 1 eval "$config" --resume run | number)
same 'eval: the loss that training printed' "$said" "$(awk '{ printf "%.6f %d", $1, $2 }' <<<"$first")"
same 'eval: 2 ranks' "$first" "$(run 2 eval --resume run --set layout.ep=2 | number)"
same 'eval: 3 ranks, other micro-batches' "$first" "$(run 3 eval --resume run/step_00000080.h5 --set train.micro_batch_size=1 | number)"
same 'eval: FP64, weights converted' "$(awk '{ printf "%.4f %d", $1, $2 }' <<<"$first")" \
  "$(run 1 eval --resume run --set numerics.dtype=fp64 | number | awk '{ printf "%.4f %d", $1, $2 }')"

# Longer than the window: the context moves on.
line='xy abcdefghijklmnopqrstuvw, abcdefghijklmnopqrstuvw, abcdefg'
same 'sample: a long line' "$line" "$(run 1 sample "$config" --resume run --prompt 'xy abcdef' --temperature 0 --tokens 51)"
loose=$(run 1 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 | md5sum)
same 'sample: 2 ranks' "$loose" "$(run 2 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 --set layout.ep=2 | md5sum)"
same 'sample: 4 ranks' "$loose" "$(run 4 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 5 --set layout.ep=4 | md5sum)"
differs 'sample: another seed' "$loose" "$(run 1 sample --resume run --prompt 'abc' --temperature 3 --tokens 60 --seed 6 | md5sum)"

refused 2 '--resume is missing' 1 eval "$config"
refused 2 'data.valid is empty' 2 eval --resume run --set data.valid=
refused 4 'nowhere' 2 sample "$config" --resume nowhere
refused 2 'not a number from 0' 1 sample --resume run --temperature hot
refused 2 'model.vocab_size = 300' 2 sample "$config" --resume run --set model.vocab_size=300
refused 4 'another model' 2 eval "$config" --resume run --set model.hidden_size=16
echo "people: $n_bad failed"
[ $n_bad = 0 ]
