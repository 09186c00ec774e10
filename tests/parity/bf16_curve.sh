#!/bin/bash
# The quick start in FP32 and in BF16: at every step and at every evaluation the losses are within 2 % of each other.
#   bf16_curve.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive LC_ALL=C
etalon=$1 work=$3
read -ra mpirun <<<"$2"
root=$(dirname "$(readlink -f "$0")")/../..
mkdir -p "$work" || exit 2

curve() { # dtype: lines "step kind loss", in the order of the run
  rm -f "$work/$1.jsonl"
  (cd "$root" && "${mpirun[@]}" -n 4 "$etalon" train configs/quickstart.yaml --set numerics.dtype="$1" --set train.sample_prompt= --set checkpoint.save_interval=0 \
    --set checkpoint.save_final=false --set log.metrics="$work/$1.jsonl") >"$work/$1.log" 2>&1 </dev/null || tail -n 3 "$work/$1.log"
  sed -nE 's/.*"iteration":([0-9]+).*"(lm loss|lm loss validation)":([0-9.e+-]+).*/\1 \2 \3/p' "$work/$1.jsonl" | tr -s ' ' '\t'
}
curve fp32 >"$work/fp32.curve"
curve bf16 >"$work/bf16.curve"
paste "$work/fp32.curve" "$work/bf16.curve" | awk '
  { half = NF / 2; gap = $half - $NF; if (gap < 0) gap = -gap; gap /= $half; n++ }
  $1 != $(half + 1) || !(gap <= 0.02) { print "  " $0; bad++ }
  gap > worst { worst = gap }
  /validation/ { n_valid++; last = $half " and " $NF }
  END { printf "bf16_curve: %d losses, %d of validation sets (the last %s), at most %.2f %% apart, %d too far\n", n, n_valid, last, 100 * worst, bad
        exit bad || n_valid != 3 || n < 30 }'
