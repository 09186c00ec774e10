#!/usr/bin/env bash
# A Slurm job that trains until it is done: USR1 five minutes before the limit makes etalon save and end with code 75, and the job queues itself again.
#   sbatch --nodes=4 --ntasks-per-node=8 configs/slurm.sh configs/my_run.yaml checkpoints/my_run
#SBATCH --job-name=etalon
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=append
#SBATCH --requeue
set -u
config=$1 checkpoints=$2
resume=()
if [[ -e $checkpoints/latest ]]; then resume=(--resume "$checkpoints"); fi

# The batch shell alone gets the signal: it passes it on to mpirun, which passes it on to every rank.
mpirun --map-by "ppr:${SLURM_NTASKS_PER_NODE:-1}:node" etalon train "$config" --set checkpoint.dir="$checkpoints" "${resume[@]}" &
pid=$!
trap 'kill -USR1 $pid' USR1
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do # the wait was cut short by the signal
  wait "$pid"
  code=$?
done
if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
