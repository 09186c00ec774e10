#!/usr/bin/env bash
# The rig of the benches (sourced). A bench names variants of a training run, the rig runs them in turn, round after round, so that noise hits all alike, and
# answers with medians of what their metrics (log.metrics) say. The first step of a run touches its memory for the first time and counts for nothing.
# A bench is called `bash tests/bench/NAME.sh BUILD [--quick]` by ./run bench, which sets MPI's environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=${1:?usage: bench BUILD [--quick]}
[[ ${2:-} == --quick ]] && quick=1 || quick=0
bench=$(basename "$0" .sh)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

variants=()
declare -A ranks_of arguments_of

# pick FULL QUICK: the one that is asked for.
pick() { if ((quick)); then echo "$2"; else echo "$1"; fi; }

# calc FORMAT EXPRESSION
calc() { awk "BEGIN { printf \"$1\", ($2) }"; }

# What every figure depends on, and must be read with.
header() {
  local cpu load cores
  cores=$(getconf _NPROCESSORS_ONLN)
  cpu=$(sed -n 's/^model name[[:space:]]*: *//p' /proc/cpuinfo | head -n 1)
  read -r load _ </proc/loadavg
  printf '\n== %s%s ==\n' "$bench" "$( ((quick)) && echo ', quick')"
  printf 'machine: %s, %d cores, load %s\n' "${cpu:-unknown}" "$cores" "$load"
  "$build/etalon" --version | sed -n 's/^isa \(.*\)/instruction set: \1/p; s/^gemm \(.*\)/gemm: \1/p'
  printf 'medians over steps of %s\n' "$1"
  if [[ $(calc %d "$load > 0.3 * $cores") == 1 ]]; then echo "note: other work is running here: these figures are no measure of the machine"; fi
}

# model_config MODEL: its configuration. window_of, seq_length_of MODEL: its numerics.window, data.seq_length.
model_config() { echo "configs/bench_$1.yaml"; }
window_of() { sed -n 's/^  window: *\([0-9]*\).*/\1/p' "$(model_config "$1")"; }
seq_length_of() { sed -n 's/^  seq_length: *\([0-9]*\).*/\1/p' "$(model_config "$1")"; }

# variant NAME RANKS MODEL [KEY=VALUE...]
variant() {
  local name=$1 model=$3 setting
  variants+=("$name")
  ranks_of[$name]=$2
  [[ -f $tmp/$model.u16 ]] || make_tokens "$model"
  arguments_of[$name]="$(model_config "$model") --set data.train=$tmp/$model.u16 --set moe.routing=balanced"
  for setting in "${@:4}"; do arguments_of[$name]+=" --set $setting"; done
}
forget_variants() { variants=(); }

make_tokens() { "$build/test_random_tokens" "$tmp/$1.u16" 400000 "$(sed -n 's/^  vocab_size: *//p' "$(model_config "$1")")"; }

mpi() { mpirun -q --oversubscribe --bind-to none "$@"; }

# run_variant NAME ROUND STEPS
run_variant() {
  local out=$tmp/$1.$2
  date +%s.%N >"$out.launched"
  # shellcheck disable=SC2086  # words
  mpi -n "${ranks_of[$1]}" "$build/etalon" train ${arguments_of[$1]} --set train.train_iters="$3" --set log.interval=1 \
    --set log.metrics="$out.jsonl" >"$out.out" 2>&1 && return
  cat "$out.out" >&2
  echo "$bench: the run '$1' failed" >&2
  exit 1
}

# rounds N STEPS [HOOK]: HOOK ROUND is called before each round.
rounds() {
  local round name
  for ((round = 1; round <= $1; round++)); do
    if [[ -n ${3:-} ]]; then "$3" "$round"; fi
    for name in "${variants[@]}"; do run_variant "$name" "$round" "$2"; done
  done
}

# numbers METRIC FILE...: of its training steps, with the number of the iteration before it.
numbers() {
  awk -v key="\"$1\":" '/"lm loss":/ && (at = index($0, key)) {
    it = substr($0, index($0, "\"iteration\":") + 12)
    printf "%d %s\n", it, substr($0, at + length(key)) + 0
  }' OFMT=%.9g CONVFMT=%.13g "${@:2}"
}
middle() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.9g\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

# median METRIC NAME: over the steps of all rounds.
median() { numbers "$1" "$tmp/$2".*.jsonl | awk '$1 > 1 { print $2 }' | middle; }

# start_up NAME: seconds from the launch to the beginning of the first step.
start_up() {
  local f
  for f in "$tmp/$1".*.jsonl; do
    calc '%.4f\n' "$(numbers time "$f" | awk '$1 == 1 { print $2 }') - $(numbers iteration-time "$f" | awk '$1 == 1 { print $2 }') - $(cat "${f%.jsonl}.launched")"
  done | middle
}

# plan_variant NAME [ARGS...]: what `etalon plan` says of it.
plan_variant() {
  # shellcheck disable=SC2086  # words
  "$build/etalon" plan ${arguments_of[$1]} --ranks "${ranks_of[$1]}" --routing balanced "${@:2}"
}
