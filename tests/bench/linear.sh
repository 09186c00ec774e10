#!/usr/bin/env bash
# Cost grows linearly in tokens, layers and experts: the time per unit, and per unit that was added since the row above (constant where it is linear; what
# does not grow, such as head and vocabulary, is only in the first).
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/rig.sh"
modes=$(pick "native canonical" canonical)

# WHAT UNITS SETTING: the first column, the second, and what makes it so. Experts hold the work of a token (top-2) and grow the weights and their update.
table() {
  cat <<'END'
tokens 4096 train.global_batch_size=16
tokens 8192 train.global_batch_size=32
tokens 16384 train.global_batch_size=64
layers 2 model.num_hidden_layers=2
layers 4 model.num_hidden_layers=4
layers 8 model.num_hidden_layers=8
experts 4 model.num_local_experts=4
experts 8 model.num_local_experts=8
experts 16 model.num_local_experts=16
experts 32 model.num_local_experts=32
END
}

print_table() {
  local mode=$1 what units before="" seconds added last_units=0 last=0 passes
  printf '%-10s %-8s %6s %10s %12s %14s %20s %12s\n' mode what units "ms a step" "us a unit" "us added unit" "forward+backward ms" "us a token"
  while read -r what units _; do
    seconds=$(median iteration-time "$mode.$what.$units")
    passes=$(median forward-backward-time "$mode.$what.$units")
    added=-
    if [[ $what == "$before" ]]; then added=$(calc %.2f "1e6 * ($seconds - $last) / ($units - $last_units)"); fi
    printf '%-10s %-8s %6d %10.1f %12s %14s %20.1f %12.2f\n' "$mode" "$what" "$units" "$(calc %.6f "1000 * $seconds")" \
      "$(calc %.2f "1e6 * $seconds / $units")" "$added" "$(calc %.6f "1000 * $passes")" "$(calc %.6f "1e6 / $(median throughput/tokens_per_sec "$mode.$what.$units")")"
    before=$what last=$seconds last_units=$units
  done < <(table)
}

header "$(pick "2 rounds" "1 round"); configs/bench_small.yaml with one size changed; 2 ranks, ep 2, a thread each; FP32, window $(window_of small)"
for mode in $modes; do
  while read -r what units setting; do variant "$mode.$what.$units" 2 small layout.ep=2 numerics.mode="$mode" "$setting"; done < <(table)
done
rounds "$(pick 2 1)" "$(pick 5 3)"
for mode in $modes; do print_table "$mode"; done
