#!/usr/bin/env bash
# Two ranks on two cores with their experts dealt out: how near training comes to what the cores can do in products.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/rig.sh"
models=$(pick "small medium" small)
readonly ranks=2 kinds="native canonical bf16"

measure_peaks() {
  local type
  for type in f32 bf16; do "$build/test_gemm_peak" "$type" "$(pick 0.2 0.05)" >>"$tmp/peak.$type"; done
}
# peaks TYPE: a line a shape, best first: the median of its rates in all rounds, and the shape.
peaks() {
  local shape
  cut -d ' ' -f 2- "$tmp/peak.$1" | sort -u | while read -r shape; do
    echo "$(awk -v shape="$shape" '{ rate = $1; sub(/^[^ ]+ /, "") } $0 == shape { print rate }' "$tmp/peak.$1" | middle) $shape"
  done | sort -rg
}
best_peak() { peaks "$1" | sed -n 1p; }

declare_model() {
  variant "$1.native" $ranks "$1" layout.ep=2 numerics.mode=native
  variant "$1.canonical" $ranks "$1" layout.ep=2
  variant "$1.bf16" $ranks "$1" layout.ep=2 numerics.mode=native numerics.dtype=bf16
}

type_of() { if [[ $1 == bf16 ]]; then echo bf16; else echo f32; fi; }
mode_of() { if [[ $1 == canonical ]]; then echo canonical; else echo native; fi; }

# share GFLOPS TYPE: of one core's peak times the cores in use.
share() { calc %.2f "$1 / ($ranks * $(best_peak "$2" | cut -d ' ' -f 1))"; }

print_row() {
  local v=$1.$2 type seconds whole gflop passes busy
  type=$(type_of "$2")
  seconds=$(median iteration-time "$v")
  whole=$(calc %.6f "$(median tflops "$v") * 1000")
  gflop=$(calc %.6f "$whole * $seconds")
  passes=$(calc %.6f "$gflop / $(median forward-backward-time "$v")")
  busy=$(calc %.6f "$whole / $(median mfu "$v")")
  printf '%-7s %-5s %-10s %6s %9.0f %10.1f %6s %10.1f %6s %11.1f %6s %9.2f\n' "$1" "$type" "$(mode_of "$2")" "$(window_of "$1")" \
    "$(median throughput/tokens_per_sec "$v")" "$passes" "$(share "$passes" "$type")" "$whole" "$(share "$whole" "$type")" \
    "$busy" "$(calc %.2f "$whole / $busy")" "$(start_up "$v")"
}

print_speed() {
  local model kind
  printf '%-7s %-5s %-10s %6s %9s %17s %17s %18s %9s\n' model type mode window tokens/s "forward+backward" "whole step" "of busy ranks" start-up
  printf '%-7s %-5s %-10s %6s %9s %10s %6s %10s %6s %11s %6s %9s\n' "" "" "" "" "" GFLOP/s share GFLOP/s share "peak" share s
  for model in $models; do
    for kind in $kinds; do print_row "$model" "$kind"; done
  done
}

print_ratios() {
  local model
  for model in $models; do
    printf '%s: canonical / native %s in tokens/s, %s forward+backward; bf16 / f32 (native) %s\n' "$model" \
      "$(calc %.2f "$(median throughput/tokens_per_sec "$model.canonical") / $(median throughput/tokens_per_sec "$model.native")")" \
      "$(calc %.2f "$(median forward-backward-time "$model.native") / $(median forward-backward-time "$model.canonical")")" \
      "$(calc %.2f "$(median throughput/tokens_per_sec "$model.bf16") / $(median throughput/tokens_per_sec "$model.native")")"
  done
}

# yaml KEY MODEL: a number of its configuration.
yaml() { sed -n "s/^  $1: *\\([0-9.e-]*\\).*/\\1/p" "$(model_config "$2")"; }

# The same model in PyTorch, all cores one process.
peer() {
  local model=$1
  printf '{"family":"mixtral","vocab":%d,"hidden":%d,"layers":%d,"heads":%d,"kv_heads":%d,"experts":%d,"top_k":%d,"ffn":%d,"batch":%d,"seq":%d,"init_std":0.02}\n' \
    "$(yaml vocab_size "$model")" "$(yaml hidden_size "$model")" "$(yaml num_hidden_layers "$model")" "$(yaml num_attention_heads "$model")" \
    "$(yaml num_key_value_heads "$model")" "$(yaml num_local_experts "$model")" "$(yaml num_experts_per_tok "$model")" \
    "$(yaml intermediate_size "$model")" "$(yaml global_batch_size "$model")" "$(yaml seq_length "$model")" >"$tmp/$model.json"
  OMP_NUM_THREADS=$ranks python3 -c 'import sys; sys.path.insert(0, "tests/oracle"); import moe_oracle as o; o.bench(o.load(sys.argv[1]), float(sys.argv[2]))' \
    "$tmp/$model.json" "$(pick 20 3)" | sed "s/^/PyTorch, $model, /"
}

header "$(pick "4 rounds (small) and 3 (medium)" "2 rounds"); $ranks ranks, ep 2, a thread each; shares: of $ranks x the best product on one core alone"

for model in $models; do
  forget_variants
  declare_model "$model"
  if [[ $model == small ]]; then rounds "$(pick 4 2)" "$(pick 8 5)" measure_peaks; else rounds 3 3 measure_peaks; fi
done
for type in f32 bf16; do
  read -r rate shape < <(best_peak "$type")
  echo "one core alone, $type products: $rate GFLOP/s at best, with $shape; $(peaks "$type" | sed -n 's/ 2048 x 2048 x 2048$//p') with 2048 x 2048 x 2048"
done
if ((quick)); then echo "the medium model is left out"; fi
print_speed
print_ratios
if python3 -c 'import torch, numpy' 2>/dev/null; then
  for model in $models; do peer "$model"; done
else
  echo "PyTorch: not installed, so the oracle's own training steps (tests/oracle) are not timed beside these"
fi
