#!/bin/bash
# A checkpoint belongs to no layout: a run that is interrupted, and continued on another layout, gives the bits of a run that never stopped.
#   resume.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive
etalon=$1 work=$3
read -ra mpirun <<<"$2"
config=$(dirname "$(readlink -f "$0")")/spine.yaml
mkdir -p "$work" && cd "$work" || exit 2
n_bad=0
for ((i = 0; i < 157; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % 97)))\\0"; done >tokens.u16

# What must be equal after every step: hashes, losses, norms, learning rates, consumed samples (log.metrics without times).
facts() { grep -aE '"hash"|consumed' "$1" | sed -E 's/,"throughput.*//' | awk -F'[:,]' -v from="$2" '$2 >= from' | uniq; }

train() { # ranks, file of metrics, arguments of etalon
  local n=$1 metrics=$2
  shift 2
  rm -f "$metrics"
  "${mpirun[@]}" -n "$n" "$etalon" train "$config" --set log.hash_interval=1 --set log.metrics="$metrics" --set optimizer.lr_decay_iters=7 \
    --set optimizer.lr_warmup_iters=2 --set train.train_iters=7 "$@" >log 2>&1 </dev/null
}

fail() {
  n_bad=$((n_bad + 1))
  echo "DIFFERS  $1"
  tail -n 3 log
}

same() { # title, reference, metrics, first step
  [ -s "$3" ] && diff <(facts "$2" "$4") <(facts "$3" "$4") >difference && return
  fail "$1, from step $4"
  head -n 6 difference
}

expand() { sets=() && for s in "$@"; do sets+=(--set "$s"); done; }

# first part's ranks and settings / second part's: the first stops at step 3, the second goes on to 7, over the end of an epoch or two.
chain() {
  local title="$1 -> $2"
  rm -rf checkpoints
  # shellcheck disable=SC2086
  set -- $1 / $2
  local first=() n=$1 m
  while [ "$1" != / ]; do first+=("$1") && shift; done
  shift && m=$1 && shift
  expand "${first[@]:1}"
  train "$n" part1 --set checkpoint.dir=checkpoints --set checkpoint.save_final=true --set train.train_iters=3 "${sets[@]}" ||
    fail "$title: first part"
  same "$title: first part" whole_to_3 part1 1
  expand "$@"
  train "$m" part2 --set checkpoint.dir=checkpoints --resume checkpoints "${sets[@]}" || fail "$title: second part"
  same "$title" whole part2 4
}

train 1 whole || fail 'the run that never stops'
facts whole 1 | awk -F'[:,]' '$2 <= 3' >whole_to_3
chain '1 train.micro_batch_size=5' '1 train.micro_batch_size=1'
chain '2 layout.ep=2 train.micro_batch_size=1' '3 layout.ep=3 train.micro_batch_size=2 optimizer.shard=false'
chain '4 layout.ep=4 train.micro_batch_size=1 optimizer.shard=false' '2 train.micro_batch_size=3 device.threads=2'
chain '3' '4 layout.ep=2 memory.guard=true device.name=cpu-lag schedule.name=all_forward'

# Three layouts in a row, from a named file.
train 4 part3 --set checkpoint.dir=checkpoints --set checkpoint.save_interval=1 --set train.train_iters=5 --set layout.ep=4 \
  --resume checkpoints/step_00000003.h5 || fail 'step 3 to 5'
train 3 part4 --resume checkpoints/step_00000004.h5 || fail 'step 4 to 7'
same 'third layout' whole part4 5
echo "resume: $n_bad differ"
[ $n_bad = 0 ]
