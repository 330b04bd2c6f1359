# shellcheck shell=bash disable=SC2034 # the scripts that source this use its variables
# Settings of this site, for all scripts in this folder. A copy in /etc/slurm/shakedown.sh, or the file
# that SHAKEDOWN_SITE names, is used in place of this file.

# ---- jobs ------------------------------------------------------------------------------------------

# Modules that the programs were built with. Slurm's hooks may have no `module`.
# ! type module >/dev/null 2>&1 || module load gcc openmpi cuda

# How ranks are started: mpirun (launch/mpi) or srun.
: "${SHAKEDOWN_LAUNCHER:=mpirun}"

# What srun --mpi= is given, of those that `srun --mpi=list` prints, such as cray_shasta; empty: pmix where mpirun is
# Open MPI's, pmi2 where it is MPICH's or Intel MPI's.
: "${SHAKEDOWN_SRUN_MPI:=}"

# Folder of the records, on a file system that all nodes see.
: "${SHAKEDOWN_RUNS:=${SLURM_SUBMIT_DIR:-.}/runs}"

# More options of each srun. The programs divide the cores of a node themselves (--cpu-bind=none).
srun_options=()

# Options of launch/acceptance in acceptance.sbatch, before those of the command line, such as the
# findings that are usual at this site: --accept governor,nics.
acceptance_options=()

# sbatch reads these where this file is sourced before it.
# export SBATCH_PARTITION=gpu SBATCH_ACCOUNT=hpc-staff

# ---- health_check, prolog, epilog --------------------------------------------------------------------

# The hooks run as root and read this file only if no other user can change it. Their PATH is that of
# the system; a Slurm, nvidia-smi or mpirun elsewhere is added here.
# PATH=/opt/slurm/bin:$PATH

# What each node must have, as options of bin/node_check: --expect-gpus 8.
node_check_options=()

# print: health_check only logs the commands, as in a first week; drain: it drains nodes; drain+resume: it
# also resumes those that it has drained.
health_action=drain+resume

# Checks in a row in which the driver does not return, after which the node is drained; 0: never.
hangs_until_drained=3

# A GPU (else a check) for which a node was drained this many times in 30 days: it is not resumed again,
# and the reason says RMA; 0: always resumed.
drains_until_kept=3

# N of each /dev/nvidiaN in the order of gres.conf, by which Slurm numbers the GPUs of a node; empty: 0, 1,
# 2, ... as with File=/dev/nvidia[0-7].
gpu_minors=()

# Options of launch/acceptance --prolog.
prolog_options=()

# Minutes for which prolog and epilog do not test a GPU again that has passed; 0: they always test it.
prolog_interval=0

# Folder for notes of the hooks, of this node; it should outlive a reboot.
state_folder=/var/lib/shakedown

# File to which all three append, in addition to syslog; empty: none.
hook_log=
