#!/usr/bin/env bash
# What canonical mode costs by the size of its windows: the leaves of every sum over tokens, and the smallest piece that a layout may deal out.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/rig.sh"
models=$(pick "small medium" small)
readonly windows="32 64 128 256 512"

header "$(pick "4 rounds (small) and 2 (medium)" "1 round"); 2 ranks, ep 2, a thread each; FP32"
for model in $models; do
  forget_variants
  variant "$model.native" 2 "$model" layout.ep=2 numerics.mode=native
  for window in $windows; do variant "$model.$window" 2 "$model" layout.ep=2 numerics.window="$window"; done
  if [[ $model == small ]]; then rounds "$(pick 4 1)" "$(pick 6 4)"; else rounds 2 2; fi
done
if ((quick)); then echo "the medium model is left out"; fi

printf '%-7s %-10s %7s %10s %10s %18s %10s\n' model mode window tokens/s "of native" "forward+backward" "of native"
for model in $models; do
  for kind in native $windows; do
    v=$model.$kind
    [[ $kind == native ]] && row=(native -) || row=(canonical "$kind")
    passes=$(median forward-backward-time "$v")
    printf '%-7s %-10s %7s %10.0f %10s %15.1f ms %10s\n' "$model" "${row[@]}" "$(median throughput/tokens_per_sec "$v")" \
      "$(calc %.2f "$(median throughput/tokens_per_sec "$v") / $(median throughput/tokens_per_sec "$model.native")")" \
      "$(calc %.6f "$passes * 1000")" "$(calc %.2f "$(median forward-backward-time "$model.native") / $passes")"
  done
done
echo "a window longer than a sequence is the sequence: 256 tokens (small), 512 (medium)"
