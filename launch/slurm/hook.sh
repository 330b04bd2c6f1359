# shellcheck shell=bash disable=SC2034,SC2154 # it sets and uses variables of those that source it
# What health_check, prolog and epilog share. Slurm runs them as root on each node, with little of an
# environment, and waits for them: nothing here waits for a process that hangs in the kernel.

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
tree=$here/../..
hook=${0##*/}
export PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
case ${1-} in
  -h | --help) sed -n '2,${/^# shellcheck/q;/^#/!q;s/^# \?//p}' "$0"; exit 0 ;;
esac

# log TEXT...: to syslog, to hook_log, and for people who call it themselves.
log() {
  local line
  line="$hook on ${SLURMD_NODENAME:-$HOSTNAME}${job:+, job $job}: $*"
  echo "$line"
  timeout 2 logger --tag shakedown -- "$line" 2>/dev/null || true
  [[ -z ${hook_log-} ]] || echo "$(date -u +%FT%TZ) $line" >>"$hook_log"
}

# The site's settings: an error where the file that SHAKEDOWN_SITE names cannot be read.
if [[ -n ${SHAKEDOWN_SITE-} && (! -r $SHAKEDOWN_SITE || -d $SHAKEDOWN_SITE) ]]; then
  log "INCONCLUSIVE: SHAKEDOWN_SITE=$SHAKEDOWN_SITE: the site's settings cannot be read: nothing is checked"
  return 1
fi
# shellcheck source=launch/slurm/site.sh
for site in "${SHAKEDOWN_SITE-}" /etc/slurm/shakedown.sh "$here/site.sh"; do
  [[ -z $site || ! -r $site ]] || { source "$site"; break; }  # whatever its last command returned
done

# within SECONDS CMD...: its output goes to `said`, its exit code is returned; 124 where it takes longer.
within() {
  local seconds=$1 file code
  shift
  file=$(mktemp) || return 124
  if ! read -r -t $((seconds + 1)) code < <(timeout --signal=KILL "$seconds" "$@" >"$file" 2>&1; echo $?); then
    code=124
  fi
  ((code != 137)) || code=124
  said=$(<"$file")
  rm -f "$file"
  return "$code"
}

# The GPUs of the job, for prolog and epilog: 1 where one fails.
check_gpus() {
  [[ -n ${SLURM_JOB_GPUS-} ]] || return 0
  local code seconds=20
  within "$seconds" "$tree/launch/acceptance" --prolog "${prolog_options[@]}"
  code=$?
  case $code in
    0) ;;
    124) log "INCONCLUSIVE: launch/acceptance --prolog did not end within $seconds s: $said" ;;
    *) log "launch/acceptance --prolog ended with $code: $said" ;;
  esac
  return $((code == 1))
}
