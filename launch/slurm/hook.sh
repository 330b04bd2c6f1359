# shellcheck shell=bash disable=SC2034,SC2154 # it sets and uses variables of those that source it
# What health_check, prolog and epilog share. Slurm runs them as root on each node, with little of an
# environment, and waits for them: nothing here waits for a process that hangs in the kernel, and
# nothing trusts what another user can change (docs/slurm.md).

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
tree=$here/../..
hook=${0##*/}
case ${1-} in
  -h | --help) sed -n '2,${/^# shellcheck/q;/^export PATH=/q;/^#/!q;s/^# \?//p}' "$0"; exit 0 ;;
esac
for name in $(compgen -e); do  # the caller's
  case $name in
    PATH | SLURM_CONF | SLURMD_NODENAME | SLURM_JOB_ID | SLURM_JOB_GPUS | SHAKEDOWN_SITE) ;;
    *) unset "$name" ;;
  esac
done
cd /
umask g-w,o-w  # what its group can write, as where slurmd has 002, is not trusted
trap '' XFSZ  # a log that cannot grow is no reason to drain the node
node=${SLURMD_NODENAME:-$(hostname -s)}
# A site may set these too, as tests do.
cgroup_folder=/sys/fs/cgroup driver_folder=/proc/driver/nvidia
prolog_seconds=20 epilog_seconds=5 node_check_seconds=15 apart_seconds=30
logged=()         # lines of this call, each once
logged_before=()  # of the call before: these are printed, and not logged again

# trusted PATH: whether root, the user of this process and the owner of this script are the only ones who
# can change it; and slurm, if the folder is its, as /etc/slurm may be: slurm.conf names what slurmd runs as root.
trusted() {
  local ours link owner mode holder folder
  ours=" 0 $EUID $(stat -Lc %u "$here") "
  link=$(stat -c %u -- "$1") && read -r owner mode < <(stat -Lc '%u %a' -- "$1") &&
    read -r holder folder < <(stat -Lc '%u %a' -- "$(dirname -- "$1")") || return
  [[ $ours == *" $link "* && $ours == *" $owner "* && "$ours$(id -u slurm) " == *" $holder "* ]] &&
    (((8#$mode & 8#22) == 0 && ((8#$folder & 8#2) == 0 || (8#$folder & 8#1000) != 0)))
} 2>/dev/null

# Whether hook_log is a file that nobody else can replace.
may_write_log() {
  if [[ -e $hook_log || -L $hook_log ]]; then
    [[ -f $hook_log ]] && trusted "$hook_log"
  else
    ((($(stat -Lc 8#%a -- "$(dirname -- "$hook_log")" 2>/dev/null || echo 2) & 2) == 0))
  fi
}

# log TEXT...: one line to syslog, to hook_log, and for people who call it themselves.
log() {
  local text line each
  text=${*//[[:cntrl:]]/ }
  text=${text%"${text##*[! ]}"}
  for each in "${logged[@]}"; do [[ $each != "$text" ]] || return 0; done
  line="$hook on $node${job:+, job $job}: $text"
  echo "$line"
  logged+=("$text")
  for each in "${logged_before[@]}"; do [[ $each != "$text" ]] || return 0; done
  timeout 2 logger --tag shakedown -- "$line" 2>/dev/null || true
  [[ -n ${hook_log-} ]] || return 0
  if may_write_log; then
    echo "$(date -u +%FT%TZ) $line" >>"$hook_log"
  else
    echo "$hook: hook_log=$hook_log is not written: others can replace it" >&2
  fi
}

# The site's settings: an error where they cannot be read, as by a link to nothing, where others can change
# them, or where bash would read a part of it: health_action=print may be behind.
# shellcheck source=launch/slurm/site.sh
source "$here/site.sh"
for site in "${SHAKEDOWN_SITE-}" /etc/slurm/shakedown.sh; do
  [[ -n $site && (-e $site || -L $site || $site == "${SHAKEDOWN_SITE-}") ]] || continue
  if [[ ! -r $site || -d $site ]]; then
    log "INCONCLUSIVE: $site: the site's settings cannot be read: nothing is checked"
    return 1
  fi
  if ! trusted "$site"; then
    log "INCONCLUSIVE: $site: the site's settings can be changed by others than root" \
      "(chown root, chmod go-w): nothing is checked"
    return 1
  fi
  if ! said=$(bash -n "$site" 2>&1); then
    log "INCONCLUSIVE: $said: nothing is checked"
    return 1
  fi
  # An `exit`, or a variable that is not set with `set -u`: Slurm drains a node whose prolog ends with 1.
  trap 'log "INCONCLUSIVE: $site: settings of the site that end $hook: nothing is checked"
    [[ $hook == health_check ]] && exit 3; exit 0' EXIT
  # shellcheck source=launch/slurm/site.sh
  source "$site"  # whatever its last command returned
  set +eu +o pipefail  # of the site
  node=${SLURMD_NODENAME:-$(hostname -s)}  # which its loops may have set
  trap - EXIT
  break
done

# Files of this call: no other user can make, find or change one there, as in /tmp.
if ! TMPDIR=$(mktemp -d /run/shakedown.XXXXXX 2>/dev/null || mktemp -d); then
  log "INCONCLUSIVE: a folder in /run or /tmp cannot be made: nothing is checked"
  return 1
fi
export TMPDIR
trap end EXIT
end() {
  rm -rf "$TMPDIR"
  [[ -z ${keeps_log-} ]] || keep logged "$(printf '%s\n' "${logged[@]}")"
}

# within SECONDS CMD...: its output goes to `said`, its exit code is returned; 124 where it takes longer.
# No file is needed, which a full disk would leave empty; what a process that hangs has printed is kept.
within() {
  local seconds=$1 code='' output part start=$SECONDS
  shift
  exec {output}< <(
    [[ -z ${lock-} ]] || exec {lock}>&-  # a process that hangs does not hold it
    timeout --signal=KILL "$seconds" "$@" 2>&1
    printf '\n\0%d\n' $?
  )
  said=''
  while IFS= read -r -d '' -t $((seconds + 1)) part <&"$output"; do  # the code is behind a NUL; others are the program's
    said+=$part
    read -r -t 1 part <&"$output"
    if [[ $part =~ ^[0-9]{1,3}$ ]]; then code=$part; break; fi
    said+=$part$'\n'
  done
  [[ -n $code ]] || said+=$part code=124
  exec {output}<&-
  while [[ $said == *$'\n' ]]; do said=${said%$'\n'}; done
  if ((code == 137 && SECONDS - start >= seconds)); then code=124; fi  # killed by timeout
  return "$code"
}

# lines PATTERN: those of `said` that match.
lines() { printf '%s\n' "$said" | grep -aE -- "$1"; }
# in_one_line: of several from its standard input.
in_one_line() { sed -e ':a' -e '$!{N;ba' -e '}' -e 's/\n/; /g'; }

# ---- notes in state_folder, which outlive this call --------------------------------------------------

# Whether it can have notes, and nobody else can write them.
can_keep() {
  mkdir -p "$state_folder" 2>/dev/null && [[ -d $state_folder && -w $state_folder ]] &&
    trusted "$state_folder"
}

# keep NAME TEXT: all of it, or what was there before.
keep() {
  printf '%s\n' "$2" >"$state_folder/$1.new" && mv -f "$state_folder/$1.new" "$state_folder/$1"
} 2>/dev/null

# reason TEXT: as Slurm keeps it.
reason() { printf %s "$*" | tr -cd 'A-Za-z0-9 _.,:;/()%+=<>-' | cut -c-120 | sed 's/ *$//'; }

# ---- for prolog and epilog ---------------------------------------------------------------------------

# fail CAUSE: logged, and kept as the reason that health_check gives Slurm in place of "Prolog error".
fail() {
  log "FAIL: $*"
  ! can_keep || keep "$hook" "$job $(reason "shakedown:$hook: $*")"
}

# job_of HOOK: that which failed last there.
job_of() { can_keep && head -n 1 "$state_folder/$1" 2>/dev/null | cut -d' ' -f1; }

# The numbers in SLURM_JOB_GPUS, "0,2-3".
gpu_numbers() {
  local each
  [[ ${SLURM_JOB_GPUS-} =~ ^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$ ]] || return
  for each in ${SLURM_JOB_GPUS//,/ }; do seq "${each%-*}" "${each#*-}"; done
}

# Slurm's numbers are indices into its list of the node's GPUs: those of their device files take their place.
if ((${#gpu_minors[@]} > 0)) && numbers=$(gpu_numbers); then
  minors=''
  for number in $numbers; do minors+=,${gpu_minors[10#$number]-unknown}; done
  export SLURM_JOB_GPUS=${minors#,}
fi

# Whether all have passed within the last prolog_interval minutes, and since the node was booted.
passed_lately() {
  local number numbers when age up
  [[ $prolog_interval =~ ^[1-9][0-9]{0,5}$ ]] && can_keep && numbers=$(gpu_numbers) || return
  read -r up _ </proc/uptime
  for number in $numbers; do
    when=$(stat -c %Y "$state_folder/passed-$number" 2>/dev/null) || return
    age=$(($(date +%s) - when))
    ((age >= 0 && age < 60 * prolog_interval && age < ${up%.*})) || return
  done
}

# The GPUs of the job: 1 where one fails.
check_gpus() {
  [[ -n ${SLURM_JOB_GPUS-} ]] || return 0
  local code outcome found cause number
  ! passed_lately || return 0
  within "$prolog_seconds" python3 -I "$tree/launch/acceptance" --prolog "${prolog_options[@]}"
  code=$?
  outcome=$(lines '^(PASS|INCONCLUSIVE|FAIL) ' | sed 's/ .*//;q')
  found=$(printf '%s\n' "$said" | grep -avE '^(WARN|UNKNOWN) ' | in_one_line)
  case $code-$outcome in
    0-PASS)
      ! can_keep || for number in $(gpu_numbers); do : >"$state_folder/passed-$number"; done
      # Not of another job, by which Slurm has drained the node: on shared nodes epilogs go on then.
      [[ $(job_of "$hook") != "$job" ]] || rm -f "$state_folder/$hook"
      ;;
    1-FAIL)
      ! can_keep || for number in $(gpu_numbers); do rm -f "$state_folder/passed-$number"; done
      cause=$(lines '^FAIL ' | sed '1d;s/^FAIL //' | in_one_line)
      fail "${cause:-$found}"
      return 1
      ;;
    0-INCONCLUSIVE) log "$found" ;;
    124-*) log "INCONCLUSIVE: launch/acceptance --prolog did not end within $prolog_seconds s: $found" ;;
    *) log "INCONCLUSIVE: launch/acceptance --prolog ended with $code: ${found:-no output}" ;;
  esac
  return 0
}
