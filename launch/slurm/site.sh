# shellcheck shell=bash disable=SC2034 # the scripts that source this use its variables
# Settings of this site, for all scripts in this folder. A copy in /etc/slurm/shakedown.sh, or the file
# that SHAKEDOWN_SITE names, is used in place of this file.

# ---- jobs ------------------------------------------------------------------------------------------

# Modules that the programs were built with. Slurm's hooks may have no `module`.
# ! type module >/dev/null 2>&1 || module load gcc openmpi cuda

# How ranks are started: mpirun (launch/mpi) or srun (srun --mpi=pmix).
: "${SHAKEDOWN_LAUNCHER:=mpirun}"

# Folder of the records, on a file system that all nodes see.
: "${SHAKEDOWN_RUNS:=${SLURM_SUBMIT_DIR:-.}/runs}"

# Options of each srun. The programs divide the cores of a node themselves.
srun_options=(--cpu-bind=none)

# Options of launch/acceptance in acceptance.sbatch, before those of the command line, such as the
# findings that are usual at this site: --accept governor,nics.
acceptance_options=()

# sbatch reads these where this file is sourced before it.
# export SBATCH_PARTITION=gpu SBATCH_ACCOUNT=hpc-staff

# ---- health_check, prolog, epilog --------------------------------------------------------------------

# What each node must have, as options of bin/node_check: --expect-gpus 8.
node_check_options=()

# drain: health_check drains and resumes nodes; print: it only logs the commands.
health_action=drain

# Options of launch/acceptance --prolog.
prolog_options=()

# Folder for health_check's notes, of this node; it should outlive a reboot.
state_folder=/var/lib/shakedown

# File to which all three append, in addition to syslog; empty: none.
hook_log=
