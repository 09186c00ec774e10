#!/bin/bash
# What goes wrong for a user of `etalon`: the exit code, exactly one message with the right words, nobody left behind.
#   train.sh ETALON "MPIRUN ..." WORKDIR
set -u
export OMP_WAIT_POLICY=passive LC_ALL=C
etalon=$1 work=$3
read -ra mpirun <<<"$2"
config=$(dirname "$(readlink -f "$0")")/../parity/spine.yaml
mkdir -p "$work" && cd "$work" || exit 2
rm -rf checkpoints other metrics.jsonl stop pipe idle.idx trace.routing words.*
mkfifo pipe && mkdir idle.idx
n_case=0 n_bad=0

tokens() { for ((i = 0; i < $1; i++)); do printf '%b' "\\x$(printf %02x $(((i * 37 + i * i) % $2)))\\0"; done; }
tokens 157 97 >tokens.u16
{ tokens 156 97; printf '\x61\0'; } >large.u16 # the last token is 97
tokens 13 97 >short.u16

complain() {
  n_bad=$((n_bad + 1))
  echo "FAILS  $1: $2"
  tail -n 6 log | sed 's/^/    /'
}

# title, exit code, words of the message (extended regular expressions between semicolons), command
expect() {
  local title=$1 want=$2 words=$3 rc w
  shift 3
  "$@" >log 2>&1 </dev/null
  rc=$?
  n_case=$((n_case + 1))
  [ $rc = "$want" ] || { complain "$title" "exit code $rc, not $want" && return; }
  case $want in 0 | 75) ;; *) [ "$(grep -ao 'error: ' log | wc -l)" = 1 ] || complain "$title" 'not exactly one message' ;; esac
  while [ -n "$words" ]; do
    w=${words%%;*} words=${words#"$w"} words=${words#;}
    grep -aEq -- "$w" log || complain "$title" "no \"$w\""
  done
}
that() { # title, command: a check of what the last run left
  n_case=$((n_case + 1))
  "${@:2}" || complain "$1" "not so: ${*:2}"
}
train() { # ranks, then settings; options and their paths go as they are
  local n=$1 args=() s
  shift
  for s in "$@"; do case $s in -* | ./*) args+=("$s") ;; *) args+=(--set "$s") ;; esac; done
  timeout 60 "${mpirun[@]}" -n "$n" "$etalon" train "$config" "${args[@]}"
}
logged() { grep -ao "\"$1\":[^,}]*" metrics.jsonl | cut -d: -f2; } # values of a key of the metrics, one a line
last_hash() { grep -ao 'hash .*' log | tail -n 1; }

# ---- configuration -----------------------------------------------------------------------------------------------------------------------
expect 'ep does not divide the ranks' 2 'layout.ep = 3;layout.dp = 4;allowed: 1, 2, 4' train 4 layout.ep=3
expect 'more ranks wanted than started' 2 '1 x 8 x 1 x 1;layout.dp = 8;number of ranks, 4; start 8' train 4 layout.dp=8
expect 'more tensor-parallel ranks than blocks' 2 'layout.tp = 4;numerics.shards = 3' train 4 layout.tp=4
expect 'more experts a token than there are' 2 'num_experts_per_tok = 7;num_local_experts = 6' train 1 model.num_experts_per_tok=7
expect 'load over the batch needs all forwards' 2 'moe.aux_scope = global;schedule.name = 1f1b' train 2 moe.aux_scope=global
expect 'a key that is not one' 2 'train.global_batch;train.global_batch_size' train 3 train.global_batch=5
expect 'no such file' 2 'absent.yaml' timeout 60 "${mpirun[@]}" -n 2 "$etalon" train absent.yaml
expect 'costs without a simulation' 2 '--cost;--simulate' "$etalon" plan "$config" --cost flops=1e12
expect 'a routing that is not one' 2 'zipf;bound, balanced, all_to_one' "$etalon" plan "$config" --routing zipf
expect 'a rank outside the world' 2 'rank;2' "$etalon" plan "$config" --ranks 2 --rank 2

# ---- data --------------------------------------------------------------------------------------------------------------------------------
expect 'fewer tokens than a sequence and its label' 3 'short.u16;13;14' train 2 data.train=short.u16
expect 'a token beyond the vocabulary' 3 'large.u16;97' train 2 data.train=large.u16
expect 'a bad validation file' 3 'large.u16' train 1 data.valid=large.u16
expect 'no name of data' 2 'data.train is empty' train 2 data.train=
expect 'no data' 3 'absent.u16' train 3 data.train=absent.u16

# ---- outputs that are inputs: refused, and the input stays ---------------------------------------------------------------------------------
cp "$config" mine.yaml
train 1 moe.record=trace.routing log.metrics=metrics.jsonl >/dev/null 2>&1
sums() { md5sum mine.yaml tokens.u16 trace.routing metrics.jsonl words.bin; }
printf 'A text.\n' >words.bin
before=$(sums)
expect 'a trace that is replayed and recorded' 2 'moe.record: "trace.routing" is what moe.replay reads' \
  train 2 moe.routing=replay moe.replay=trace.routing moe.record=trace.routing
expect 'metrics into the configuration' 2 'log.metrics: "mine.yaml" is what the command line reads' \
  "$etalon" train mine.yaml --set log.metrics=mine.yaml
expect 'a trace over the tokens' 2 'train.trace: "tokens.u16" is what data.train reads' train 2 train.trace=tokens.u16
expect 'two outputs into one file' 2 'log.metrics and train.trace: both would write' train 1 log.metrics=metrics.jsonl train.trace=metrics.jsonl
expect 'golden numbers over the configuration' 2 'mine.yaml' "$etalon" golden mine.yaml mine.yaml --steps 1
expect 'golden numbers over a pipe' 2 'no regular file' "$etalon" golden mine.yaml pipe --steps 1
expect 'a report over its metrics' 2 'etalon report: "metrics.jsonl"' "$etalon" report metrics.jsonl metrics.jsonl
expect 'a text packed over itself' 2 'etalon data pack: "words.bin"' "$etalon" data pack words.bin words
expect 'a text packed over a directory' 2 'idle.idx: is there and is no regular file' "$etalon" data pack words.bin idle
that 'all inputs stay' test "$before" = "$(sums)"
that 'so does the pipe' test -p pipe

# ---- outputs that take no more ------------------------------------------------------------------------------------------------------------
cut_off() { "$@" >/dev/full; }
expect 'a plan into a full disk' 2 'standard output cannot be written: No space left' cut_off "$etalon" plan "$config"
expect 'golden numbers, their summary into a full disk' 2 'standard output cannot be written' cut_off "$etalon" golden "$config" full.h5 --steps 1
expect 'a log into a full disk' 0 'warning: standard output' cut_off "$etalon" train "$config"
expect 'a trace into a full disk' 0 'warning: train.trace: /dev/full cannot be written: No space left;step 3/3' train 2 train.trace=/dev/full
expect 'a trace that has no directory' 2 'train.trace: cannot write "nowhere/t"' train 2 train.trace=nowhere/t train.trace_start=3
that 'which is said before the first step' test "$(grep -c '^step' log)" = 0

# ---- memory ------------------------------------------------------------------------------------------------------------------------------
need=$("$etalon" plan "$config" --ranks 2 --set layout.ep=2 | sed -nE 's/^rank [01]: device ([0-9]+) = .*/\1/p' | sort -n | tail -n 1)
expect 'exactly what is needed' 0 '' train 2 layout.ep=2 memory.device_limit="$need"
expect 'a byte less' 5 "memory.device_limit;the smallest that does: $need" train 2 layout.ep=2 memory.device_limit=$((need - 1))
expect 'a byte less of host memory' 5 'memory.host_limit;the smallest that does: ' train 1 memory.host_limit=100
expect 'plan: a byte less' 5 'the smallest that does: ' "$etalon" plan "$config" --set memory.device_limit=1000

# ---- numbers that are not finite ---------------------------------------------------------------------------------------------------------
for n in 1 3; do
  expect "weights beyond reason, $n ranks" 6 'step 1: ;not finite;on_nonfinite' train $n model.initializer_range=1e30 layout.ep=$n
  expect "a learning rate beyond reason, $n ranks" 6 'weights are those of step' \
    train $n optimizer.lr=1e30 optimizer.weight_decay=1 train.train_iters=6
  rm -f metrics.jsonl
  expect "skipped, $n ranks" 0 'NOT FINITE, skipped' \
    train $n model.initializer_range=1e30 optimizer.on_nonfinite=skip log.metrics=metrics.jsonl log.hash_interval=1
  that 'every step was skipped and says so' test "$(logged skipped | tr -d '\n')" = 111
  that 'there is no loss, and JSON knows no NaN' test "$(logged 'lm loss' | sort -u)" = null
  that 'nor a norm' test "$(logged grad-norm | sort -u)" = null
  that 'moments stay' test "$(logged m | sort | uniq -c | grep -c ' 4 ')" = 1
  that 'weights stay' test "$(grep -ao '"hash":{"weights":"[0-9a-f]*' metrics.jsonl | sort -u | wc -l)" = 1
done

# ---- asked to stop -----------------------------------------------------------------------------------------------------------------------
keep='checkpoint.dir=checkpoints'
# title, ranks to continue on: two steps after the stop must be those of a run that never stopped
same_bits_as_without_stopping() {
  at=$(grep -ao 'stopped at step [0-9]*' log | grep -o '[0-9]*$')
  that "$1: a checkpoint is there" test -s "checkpoints/step_$(printf %08d "$at").h5"
  expect "$1: continued" 0 '' train "$2" optimizer.lr_decay_style=constant train.train_iters=$((at + 2)) $keep --resume ./checkpoints
  local resumed
  resumed=$(last_hash)
  expect "$1: never stopped" 0 '' train 1 optimizer.lr_decay_style=constant train.train_iters=$((at + 2))
  that "$1: the same bits" test "${resumed:-none}" = "$(last_hash)"
  rm -rf checkpoints
}
touch stop
log_alone() { "$@" 2>/dev/null; } # what is said of a stop belongs to the log, behind its lines
stop_is_last() { tail -n 2 log | tr '\n' ' ' | grep -q 'checkpoint: checkpoints/step_00000001.h5.*stopped at'; }
expect 'a stop file' 75 'stopped at step 1 because the stop file is there; resume with --resume checkpoints' \
  log_alone train 3 optimizer.lr_decay_style=constant train.stop_file=stop $keep
that 'a stop is said last' stop_is_last
same_bits_as_without_stopping 'a stop file' 2
expect 'a time limit' 75 'stopped at step 1 because train.max_minutes is over' \
  log_alone train 2 layout.ep=2 optimizer.lr_decay_style=constant train.max_minutes=1e-6 checkpoint.async=true $keep
that 'a stop is said last, behind a save in the background' stop_is_last
same_bits_as_without_stopping 'a time limit' 3

gone() { # within two seconds; a zombie that nobody collects is gone
  local i
  for ((i = 0; i < 20; i++)); do
    case $(cut -d' ' -f3 /proc/"$1"/stat 2>/dev/null) in '' | Z) return ;; esac
    sleep 0.1
  done
  return 1
}
# Starts a run without end, waits for its third step, then calls what is asked with the pid of mpirun and those of the ranks.
endless() {
  local begun=$SECONDS launcher ranks rc p
  : >endless
  "${mpirun[@]}" -n 3 "$etalon" train "$config" --set train.train_iters=1000000000 --set optimizer.lr_decay_style=constant --set $keep \
    >endless 2>&1 </dev/null &
  launcher=$!
  until grep -aq 'step 3/' endless || [ $((SECONDS - begun)) -gt 30 ]; do sleep 0.1; done
  mapfile -t ranks < <(pgrep -P $launcher)
  "$1" "$launcher" "${ranks[@]}"
  while kill -0 $launcher 2>/dev/null && [ $((SECONDS - begun)) -lt 50 ]; do sleep 0.1; done
  kill -9 $launcher 2>/dev/null && echo 'still running' # a failure: exit code 137
  wait $launcher
  rc=$?
  cat endless
  for p in "${ranks[@]}"; do gone "$p" || { kill -9 "$p" && echo "error: rank $p was left behind" && rc=99; }; done
  return $rc
}
signal_launcher() { kill -USR1 "$1"; }
signal_last_rank() { kill -TERM "${*: -1}"; }
kill_first_rank() { kill -9 "$2"; }
dies() {
  endless kill_first_rank && return 0
  echo 'error: ended'
  return 1
}
expect 'USR1 to mpirun' 75 'because a signal asked for it' endless signal_launcher
same_bits_as_without_stopping 'USR1 to mpirun' 4
expect 'TERM to one rank' 75 'because a signal asked for it' endless signal_last_rank
same_bits_as_without_stopping 'TERM to one rank' 1
expect 'a rank that dies takes all with it' 1 'step 3/' dies
rm -rf checkpoints

# ---- checkpoints -------------------------------------------------------------------------------------------------------------------------
expect 'three steps' 0 '' train 2 layout.ep=2 $keep checkpoint.save_final=true
saved=$(last_hash)
expect 'nothing left to do' 0 'resumed from ./checkpoints/step_00000003.h5: step 3, 15 samples;nothing left to train: train.train_iters is 3' train 3 $keep --resume ./checkpoints
no_gradients() { cut -d' ' -f2,3,6-; }
that 'what was saved is what is loaded' test "$(last_hash | no_gradients)" = "$(no_gradients <<<"$saved")"
show() { "$etalon" ckpt show checkpoints | sed -n "s/$1/\\1/p"; }
that 'which program wrote it' test "$(show '  code: \(.*\), isa .*')" = "$("$etalon" --version | sed -n 's/^etalon \([0-9].*\)/\1/p')"
that 'not more bytes than the file has' test "$(show '.* tensors .*links to weights), \([0-9]*\) bytes')" -le "$(stat -c %s checkpoints/step_00000003.h5)"
expect 'another model' 4 'step_00000003.h5' train 2 model.hidden_size=24 $keep --resume ./checkpoints
expect 'more experts than were saved' 4 'step_00000003.h5;gate;\[6, 16\];\[7, 16\]' \
  train 1 model.num_local_experts=7 $keep --resume ./checkpoints
expect 'fewer layers than were saved' 4 'step_00000003.h5;layers.2' train 2 model.num_hidden_layers=2 $keep --resume ./checkpoints
expect 'another model of the same shapes' 0 'note: not as in the run that wrote the checkpoint: model.rope_theta 77 \(was 10000\), data.shuffle false \(was true\), train.train_iters 4 \(was 3\)$' \
  train 2 model.rope_theta=77 data.shuffle=false train.train_iters=4 layout.ep=2 checkpoint.save_final=false --resume ./checkpoints
expect 'weights in another model' 0 'note: the weights were trained as another model; here model.rope_theta 77 \(was 10000\)$' \
  "$etalon" eval "$config" --resume checkpoints --set data.valid=tokens.u16 --set model.rope_theta=77
that 'weights in their model' test -z "$("$etalon" eval "$config" --resume checkpoints --set data.valid=tokens.u16 2>&1 | grep 'another model')"
expect 'another window' 0 'note: the checkpoint was written with' train 1 numerics.window=5 train.train_iters=4 $keep --resume ./checkpoints
expect 'no checkpoint' 4 'absent' train 2 --resume ./absent
head -c 100000 checkpoints/step_00000003.h5 >half && mv half checkpoints/step_00000003.h5
expect 'half a checkpoint' 4 'step_00000003.h5' train 3 $keep --resume ./checkpoints

# ---- the directory of the checkpoints ------------------------------------------------------------------------------------------------------
rm -rf checkpoints
holds() { test "$(cd checkpoints && echo step_* "$(cat latest)")" = "$(printf 'step_0000000%d.h5 ' "$@" | sed 's/ $//')"; } # steps, and the latest
saves=checkpoint.save_final=true
no_step() { ! grep -q '^step' log; }
expect 'a run that saves each step' 0 'checkpoint: checkpoints/step_00000002.h5 ' train 1 $keep checkpoint.save_interval=1
cp -r checkpoints other
expect 'another run into its directory' 2 'checkpoint.dir: "checkpoints" holds checkpoints of another run, up to step 3;--resume checkpoints,;checkpoint.overwrite' \
  train 2 $keep $saves
expect 'one that resumes from elsewhere' 2 'holds checkpoints of another run' train 1 $keep checkpoint.save_interval=4 train.train_iters=4 --resume ./other/step_00000002.h5
expect 'one that saves if it is stopped' 2 'holds checkpoints of another run' train 1 $keep train.stop_file=stop
that 'which is said before the first step' no_step
expect 'one that does not save' 0 'note: checkpoint.dir: "checkpoints" holds .* will not save' train 2 $keep
expect 'not even when it is told to' 4 'the state of step [0-9]* is not saved' endless signal_launcher
that 'all checkpoints stay' diff -r checkpoints other
expect 'back to an earlier step' 0 'note: later checkpoints in "checkpoints", up to step 3, are of a run that this one leaves behind: its saves' \
  train 2 $keep $saves checkpoint.keep_last=2 train.train_iters=4 --resume ./checkpoints/step_00000001.h5
that 'what was passed is gone, and is not counted' holds 1 4 4
expect 'back, not as far' 0 '' train 1 $keep $saves train.train_iters=2 --resume ./checkpoints/step_00000001.h5
that 'what is ahead stays' holds 1 2 4 2
expect 'back, the rest deleted' 0 'its first save deletes them' train 1 $keep $saves checkpoint.overwrite=true --resume ./checkpoints/step_00000002.h5
that 'the rest is gone' holds 1 2 3 3
expect 'another run over it' 0 '' train 2 $keep checkpoint.save_interval=1 checkpoint.overwrite=true train.train_iters=2
that 'only its own are there' holds 1 2 2
expect 'a directory that cannot be made' 2 'checkpoint.dir: /proc/nowhere: the directory cannot be made' train 2 checkpoint.dir=/proc/nowhere $saves
that 'which is said before the first step' no_step
expect 'a directory that is a file' 2 'checkpoint.dir: tokens.u16: not a directory' train 1 checkpoint.dir=tokens.u16 $saves
rm -rf checkpoints

echo "faults: $n_case cases, $n_bad fail"
[ $n_bad = 0 ]
