"""Whether this host's shared memory is fit: through /dev/shm the ranks of a host reach one another.
As a program it prints that."""

import os
import re
import resource

WHERE = "/dev/shm"
NEEDED_MIB, FREE_MIB = 1000, 64  # NVIDIA's advice for NCCL in a container: --shm-size=1g
# Files of NCCL and Open MPI
OURS = r"nccl-|vader_segment|sm_segment"


def diagnosis():
    """Lines of ✓ and ✗. Reported, not enforced: a run shows more."""
    where = "in a container" if in_container() else "not in a container"
    yield f"shared memory of {os.uname().nodename}, {where}:"
    if os.path.isdir(WHERE):
        for check, name in [(size, "size"), (kind, "kind"), (rights, "rights"),
                            (left_overs, "left-overs")]:
            yield verdict(name, *check())
    else:
        yield verdict("size", False,
                      "there is no /dev/shm: mount a tmpfs there, or set NCCL_SHM_DISABLE=1")
    yield verdict("memlock", *memlock())


def verdict(name, good, text):
    return f"{'✓' if good else '✗'} {name:<10} {text}"


def in_container():
    if any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))) or \
            any(map(os.environ.get, ("APPTAINER_NAME", "SINGULARITY_NAME"))):
        return True
    return re.search(r"docker|kubepods|containerd|libpod|lxc",
                     text_of("/proc/1/cgroup")) is not None


def text_of(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def size():
    blocks = os.statvfs(WHERE)
    total, free = (count * blocks.f_frsize // 2**20 for count in (blocks.f_blocks, blocks.f_bavail))
    if total < NEEDED_MIB:
        return False, (f"only {total} MiB; in a container: --shm-size=1g; NCCL uses about 10 MB "
                       "for each channel and peer")
    if free < FREE_MIB:
        return False, f"{total} MiB, but only {free} MiB of it free"
    return True, f"{total} MiB, {free} MiB free"


def kind():
    mounts = [line.split() for line in text_of("/proc/self/mounts").splitlines()]
    kinds = [words[2] for words in mounts if words[1] == WHERE] or \
        [words[2] for words in mounts if words[1] == "/"] or ["of an unknown kind"]
    if kinds[-1] == "tmpfs":
        return True, "tmpfs"
    return False, f"/dev/shm is {kinds[-1]}, not a tmpfs: it is as slow as that"


def rights():
    path = os.path.join(WHERE, f"shakedown.{os.getpid()}")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(path)
        return True, "this user can make files"
    except OSError:
        import pwd
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            user = f"user {os.geteuid()}"
        return False, (f"{user} cannot make files in /dev/shm: it should be mounted rw with mode "
                       "1777")


def left_overs():
    """Files of NCCL and Open MPI, of this user, that no process seen here has mapped."""
    found = {entry.path for entry in os.scandir(WHERE)
             if re.match(OURS, entry.name) and entry.is_file(follow_symlinks=False)
             and entry.stat(follow_symlinks=False).st_uid == os.geteuid()}
    for pid in filter(str.isdigit, os.listdir("/proc")) if found else []:
        found -= set(re.findall(rf"{WHERE}/\S*", text_of(f"/proc/{pid}/maps")))
    if not found:
        return True, "none"
    return False, (f"{len(found)} of NCCL or Open MPI that no process seen here has open: if no "
                   "job runs, rm /dev/shm/{nccl-,vader_segment,sm_segment}*")


def memlock():
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return True, "unlimited"
    if not os.path.isdir("/sys/class/infiniband"):
        return True, f"{limit // 1024} KiB (no InfiniBand here)"
    return False, (f"{limit // 1024} KiB: InfiniBand needs unlimited locked memory (ulimit -l, "
                   "--ulimit memlock=-1)")


if __name__ == "__main__":
    print(*diagnosis(), sep="\n")
