#!/bin/bash
#SBATCH --job-name=infolm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
# Two machines, four processes of two threads on each. runs/ is on a file system that both see.
set -euo pipefail
export OMP_NUM_THREADS=2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 4 --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:29500" \
  -m infolm train awd-lstm/ptb --out runs/ptb --resume
