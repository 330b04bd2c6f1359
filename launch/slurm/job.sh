# shellcheck shell=bash
# What the job scripts in this folder share. They set `shakedown`, the source tree or
# PREFIX/libexec/shakedown, and source this.

say() { echo "slurm/$SLURM_JOB_NAME: $*" >&2; }

source_site() {
  for file in "${SHAKEDOWN_SITE-}" /etc/slurm/shakedown.sh "$shakedown/launch/slurm/site.sh"; do
    [[ -z $file || ! -e $file && ! -L $file && $file != "${SHAKEDOWN_SITE-}" ]] || break
  done
  bash -n "$file" || { say "$file: the site's settings cannot be read"; exit 2; }
  trap 'say "$file: settings of the site that end the job script"; exit 2' EXIT  # 1 would be wrong data
  # shellcheck source=launch/slurm/site.sh
  source "$file"  # whatever its last command returned
  set +eu +o pipefail  # of the site
  trap - EXIT
}

# Variables that the ranks would lack, or must not have.
set_environment() {
  # sbatch --export=NONE is for this script; its steps need what the site's settings export.
  export SLURM_EXPORT_ENV=ALL
  # Without GPUs from Slurm this is the list of the machine where sbatch was called.
  if [[ -n ${CUDA_VISIBLE_DEVICES-} && -z ${SLURM_JOB_GPUS-}${SLURM_GPUS_ON_NODE-} ]]; then
    say "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES of the submission is ignored:" \
      "request GPUs with --gpus-per-node"
    unset CUDA_VISIBLE_DEVICES
  fi
  # Slurm sets it where the job requests tasks; else it is that of the job or srun in which sbatch was called.
  if [[ -n ${SLURM_NTASKS-} && ${SLURM_TASKS_PER_NODE-} =~ ^[0-9(x),]+$ ]] &&
    (($(sed 's/(x/*/g; s/)//g; s/,/+/g' <<<"$SLURM_TASKS_PER_NODE") != SLURM_NTASKS)); then
    say "SLURM_NTASKS=$SLURM_NTASKS of the submission is ignored: request tasks with --ntasks"
    unset SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE
  fi
  # A job that a task of an array, or a heterogeneous job, has submitted is neither.
  if [[ -n ${SLURM_ARRAY_JOB_ID-}${SLURM_HET_SIZE-} ]] &&
    scontrol show job -o "$SLURM_JOB_ID" | grep -q "^JobId=$SLURM_JOB_ID JobName="; then
    say "variables of the array or heterogeneous job that has submitted it are ignored"
    unset SLURM_HET_SIZE "${!SLURM_ARRAY_@}"
  fi
  # One of them may be of that job: srun refuses two of --mem, --mem-per-cpu and --mem-per-gpu.
  local memory
  mapfile -t memory < <(compgen -e SLURM_MEM_PER_)
  ((${#memory[@]} < 2)) || unset "${memory[@]}"
}

# on_ranks PROGRAM [ARGS...]: one of Shakedown's programs on the ranks of the job. The number of ranks
# is launch/mpi's: Slurm's tasks, else one per GPU.
on_ranks() { in_background "$shakedown/launch/mpi" "$@"; }

# in_background CMD...: runs it, passes a signal on, and sets `code` by Shakedown's rules. A signal
# with B: or --batch reaches this script alone; a shell handles it only while it waits.
in_background() {
  local job
  signalled=
  "$@" &
  job=$!
  # Once: a second one would end the ranks in the middle of a checkpoint. USR2, which launch/mpi only
  # passes on: after it the ranks have the time that they need, but 10 s after a failure.
  trap '[[ -n $signalled ]] || kill -USR2 "$job"; signalled=yes' USR2 TERM
  while kill -0 "$job" 2>/dev/null; do wait "$job"; done
  wait "$job"
  code=$?
  trap - USR2 TERM
  if ((code > 127)); then code=$([[ -n $signalled ]] && echo 5 || echo 3); fi  # ended by a signal
}

[[ -n ${SLURM_JOB_ID-} ]] || { echo "$0: not in a Slurm job (SLURM_JOB_ID): submit it by sbatch" >&2; exit 2; }
source_site
set_environment
mkdir -p "$SHAKEDOWN_RUNS" ||
  { say "SHAKEDOWN_RUNS=$SHAKEDOWN_RUNS (site.sh): cannot be made; the records go there"; exit 2; }
# Else its exit code 1 would count as that of wrong data.
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
  { say "python3, which starts the ranks, cannot be run or is older than 3.9"; exit 2; }
number=$SLURM_JOB_ID
[[ -z ${SLURM_ARRAY_JOB_ID-} ]] || number=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
run=$SHAKEDOWN_RUNS/$SLURM_JOB_NAME-$number  # names of records and folders start so
export SHAKEDOWN_RUNS SHAKEDOWN_LAUNCHER SHAKEDOWN_SRUN_MPI SHAKEDOWN_SRUN_OPTIONS="${srun_options[*]}"
say "job $number on $SLURM_JOB_NODELIST${SLURM_RESTART_COUNT:+, restart $SLURM_RESTART_COUNT}," \
  "started by $SHAKEDOWN_LAUNCHER; records $run*"
