#!/bin/bash
# Saves that are killed at every point of their way, that fail there, and that do so again: what counts afterwards is the newest checkpoint that was
# whole, `ckpt list` names what is left, the next save clears it away, and the run goes on with the bits of one that was never hurt.
#   fire_kill.sh ETALON "MPIRUN ..." WORKDIR
# shellcheck source=tests/fault/fire.sh
. "$(dirname "$(readlink -f "$0")")/fire.sh" "$@"

run 1 checkpoint.dir=whole
ended 'a whole run' 0
want=$(last_hash)
[ -n "$want" ] || complain 'no hash'
run 1 train.train_iters=2 optimizer.lr_decay_iters=4 checkpoint.dir=begun
ended 'two steps' 0

ETALON_FAULT=none run 1
ended 'an unknown fault point' 2 'names: ckpt'
points=$(grep -ao 'ckpt\.[a-z_]*' log | sort -u | grep -v ckpt.copy)
[ "$(wc -l <<<"$points")" -ge 8 ] || complain "points: $points"

# What the directory must look like after a save of step 3 was cut at point $1: which step counts, what ckpt list calls unfinished.
begin() {
  rm -rf ckpt && cp -r begun ckpt
  ETALON_FAULT=$1 run 1 --resume ./ckpt checkpoint.keep_last=1
}
resume() {
  "$etalon" ckpt list ckpt >log 2>&1 || complain "$1: ckpt list"
  cp log list
  for f in ckpt/*.part; do
    if [ -e "$f" ] && ! grep -q "^$(basename "$f") .*UNFINISHED" list; then complain "$1: ckpt list does not name $f"; fi
  done
  grep -q 'BROKEN' list && complain "$1: a broken checkpoint"
  run "$2" --resume ./ckpt checkpoint.keep_last=1
  ended "$1: resume" 0
  [ "$(last_hash)" = "$want" ] || complain "$1: other bits: $(last_hash)"
  [ "$(ls ckpt)" = $'latest\nstep_00000004.h5' ] || complain "$1: left: $(ls ckpt)"
}
for point in $points; do
  begin "$point"
  ended "$point: kill" 137
  [ "$point" = ckpt.delete ] && [ "$(cat ckpt/latest)" != step_00000003.h5 ] && complain "$point: latest is $(cat ckpt/latest)"
  [ "$point" != ckpt.delete ] && [ "$(cat ckpt/latest)" != step_00000002.h5 ] && complain "$point: latest is $(cat ckpt/latest)"
  resume "$point: kill" 1
done
# Half-way through the data, on two ranks of which one dies: mpirun ends the other.
rm -rf ckpt && cp -r begun ckpt
ETALON_FAULT='ckpt.piece(moments)@1:5' run 2 layout.ep=2 --resume ./ckpt
ended 'rank 1 killed' 137
[ -e ckpt/step_00000003.h5.part ] || complain 'rank 1 killed: no leftover to clear'
resume 'rank 1 killed' 1
# An error instead of a death: exit code 4, nothing left behind.
for point in ckpt.structure ckpt.sync ckpt.latest; do
  begin "$point=fail"
  ended "$point: fail" 4 'a test said so'
  compgen -G 'ckpt/step_*.part' && complain "$point: fail: a leftover"
done
done_testing "killed at $(wc -w <<<"$points") points, each time resumed"
