#!/bin/bash
# Runs that hang, die, meet a NaN, a full disk, a file that shrinks, or a request to stop in the middle of an evaluation: exit code, exactly one message,
# nobody left, and a checkpoint that goes on with the bits of a run that was never hurt.
#   fire_run.sh ETALON "MPIRUN ..." WORKDIR
# shellcheck source=tests/fault/fire.sh
. "$(dirname "$(readlink -f "$0")")/fire.sh" "$@"

run 1 checkpoint.dir=whole
ended 'a whole run' 0
want=$(last_hash)

# goes_on WHAT RANKS STEP: the newest checkpoint is that of STEP, and the rest of the run has the bits it should.
goes_on() {
  [ "$(cat ckpt/latest 2>/dev/null)" = "step_0000000$3.h5" ] || complain "$1: latest is $(cat ckpt/latest 2>/dev/null), not of step $3"
  run "$2" --resume ./ckpt
  ended "$1: resume" 0
  [ "$(last_hash)" = "$want" ] || complain "$1: other bits: $(last_hash)"
  rm -rf ckpt
}

# ---- a rank that hangs --------------------------------------------------------------------------------------------------------------------
ETALON_FAULT='exec.ins(L01.moe.up/dX mb0)@1:3=hang' run 2 layout.ep=2 train.hang_seconds=0.7
ended 'a rank hangs' 8 'rank 1: step 3, L01.moe.up/dX mb0, waits for nobody'
grep -aEq '  rank 0: step 3, .*, waits for rank 1 \(group (dp|ep)\)' log || complain 'nothing of the one that waits'
goes_on 'a rank hangs' 2 2
ETALON_FAULT='exec.ins(L00.attn.core mb1)@0:2=hang' run 2 layout.pp=2 train.hang_seconds=0.5
ended 'a stage hangs' 8 'rank 0: step 2, L00.attn.core mb1, waits for nobody'
grep -aEq '  rank 1: step 2, .*, waits for rank 0 \(group pp\)' log || complain 'nothing of the stage that waits'
goes_on 'a stage hangs' 1 1
ETALON_FAULT='ckpt.sync@1:2=hang' run 2 train.hang_seconds=0.5
ended 'a save hangs' 8 'rank 1: step 2, saving a checkpoint, waits for nobody'
goes_on 'a save hangs' 1 1
run 2 train.hang_seconds=0.3 train.train_iters=200 optimizer.lr_decay_iters=4 checkpoint.save_interval=0 log.interval=100
ended 'a run that takes its time' 0
rm -rf ckpt

# ---- a rank that dies ---------------------------------------------------------------------------------------------------------------------
ETALON_FAULT='exec.ins(L00.attn.q mb0)@1:3=kill' run 2
ended 'a rank is killed' 137
[ "$(grep -acE '^(error|fatal)' log)" = 0 ] || complain 'a rank is killed: it could not have said that'
goes_on 'a rank is killed' 2 2

# ---- numbers --------------------------------------------------------------------------------------------------------------------------------
ETALON_FAULT='exec.ins(L00.attn.q mb0)@1:4=nan' run 2
ended 'a NaN' 6 'error: step 4: .*the first value that is not comes from L00.attn[^ ]* mb[01] on rank 1; the weights are those of step 3'
goes_on 'a NaN' 2 3
ETALON_FAULT='exec.ins(L00.attn.q mb0):4=nan' run 1 checkpoint.async=true checkpoint.save_interval=1
ended 'a NaN while a save is under way' 6 'step 4'
goes_on 'a NaN while a save is under way' 1 3

# ---- requests to stop ---------------------------------------------------------------------------------------------------------------------
touch stop
run 1 data.valid=tokens.u16 train.eval_interval=2 train.stop_file=stop train.train_iters=1
ended 'stop in the last evaluation' 75 'step 1 . evaluation given up: the stop file is there'
grep -q 'validation loss' log && complain 'stop in the last evaluation: it was not given up'
rm stop
run 1 --resume ./ckpt data.valid=tokens.u16 train.train_iters=1
ended 'the evaluation that was given up' 0 'validation loss'
rm -rf ckpt
run 2 data.valid=tokens.u16 train.eval_interval=1 train.max_minutes=1e-9 checkpoint.save_interval=0 checkpoint.async=true
ended 'stop in an evaluation' 75 'stopped at step 1 because train.max_minutes is over'
grep -q 'validation loss' log && complain 'stop in an evaluation: it was not given up'
goes_on 'stop in an evaluation' 1 1

# ---- files ----------------------------------------------------------------------------------------------------------------------------------
run 1 log.metrics=/dev/full
ended 'no room for metrics' 0 'warning: log.metrics: /dev/full cannot be written: No space left'
[ "$(grep -ac '^warning' log)" = 1 ] || complain 'no room for metrics: said more than once'
[ "$(last_hash)" = "$want" ] || complain 'no room for metrics: other bits'
rm -rf ckpt
for size in 0 150; do
  cp tokens.u16 shrinks.u16
  run 2 data.train=shrinks.u16 train.train_iters=100000 log.interval=10 checkpoint.save_interval=0 optimizer.lr_decay_iters=4 &
  while ! grep -aq 'step 10/' log 2>/dev/null; do sleep 0.1; done
  truncate -s $size shrinks.u16
  wait $!
  n=$(grep -acE '^(error|fatal): .*shrinks.u16: had 314 bytes when it was opened' log)
  [ "$n" = 1 ] || complain "a file that shrinks to $size bytes: $n messages"
  pgrep -f -- "$work/tiny.yaml" >left && complain 'a file that shrinks: still running'
  rm -rf log ckpt
done
if mkdir full && mount -t tmpfs -o size=1700k none full 2>/dev/null; then
  run 1 checkpoint.dir=full
  ended 'a full disk' 4 'step_0000000[234].h5: a checkpoint of [0-9]* bytes does not fit'
  "$etalon" ckpt list full >log || complain 'ckpt list'
  grep -q 'UNFINISHED' log && complain 'a full disk: leftovers'
  cp -r full ckpt
  umount full
  goes_on 'a full disk' 1 "$(sed 's/[^1-9]*0*//; s/.h5//' ckpt/latest)"
fi
done_testing 'every fault: one message, its exit code, nobody left, and the run went on'
