"""A copy of launch/slurm's hooks, with what they call replaced, for tests without Slurm."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time
import tempfile
import unittest

import tree  # noqa: F401 - support is in its folders
from support import write_script

HOOKS = pathlib.Path(__file__).resolve().parents[2] / "launch/slurm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def verdict(name, outcome, scope="node", **fields):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, **fields}


class HookCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state, self.scontrol = self.folder / "state", self.folder / "scontrol"
        shutil.copytree(HOOKS, self.folder / "launch/slurm")
        self.settings()
        self.replace("fakes/python3", '[[ $1 != -I ]] || shift; exec "$@"')
        self.replace("fakes/scontrol", f'printf "%s\\n" "${{*:3}}" >>{self.scontrol}')
        self.replace("fakes/logger", f'printf "%s\\n" "${{*:4}}" >>{self.folder}/syslog')
        self.replace("fakes/sleep", "exec /bin/sleep 0.01")
        self.node_check_passes()
        # A GPU that is idle, and Slurm's cgroups without a process of the job.
        self.replace("launch/acceptance", f"echo ran >>{self.folder}/ran; echo 'PASS n1 (rates not judged)'")
        self.cgroup("freezer/slurm_n1/uid_0/job_8/step_0", os.getpid())
        self.gpus({"0000:18:00.0": 0})
        self.replace("fakes/nvidia-smi", "echo '00000000:18:00.0, 4'")

    def settings(self, *lines):
        (self.folder / "site.sh").write_text("\n".join([
            f"source {HOOKS}/site.sh", f"state_folder={self.state}", f"PATH={self.folder}/fakes:$PATH",
            f"cgroup_folder={self.folder}/cgroup driver_folder={self.folder}/driver",
            "epilog_seconds=0 apart_seconds=0", *lines, ""]))

    def replace(self, path, script):
        write_script(self.folder / path, script)

    def run_hook(self, hook, *arguments, **environ):
        return subprocess.run(
            [self.folder / "launch/slurm" / hook, *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=60, umask=0o002,  # as slurmd may have it
            env={"PATH": "/usr/bin:/bin", "SHAKEDOWN_SITE": str(self.folder / "site.sh"),
                 "SLURMD_NODENAME": "n1", **environ})

    def call(self, hook, code, *, arguments=(), **environ):
        """What it prints."""
        result = self.run_hook(hook, *arguments, **environ)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout

    def runs(self):
        """How often the GPUs were tested."""
        path = self.folder / "ran"
        return len(path.read_text().split()) if path.exists() else 0

    def syslog(self):
        path = self.folder / "syslog"
        return path.read_text() if path.exists() else ""

    def scontrol_calls(self):
        return self.scontrol.read_text().splitlines() if self.scontrol.exists() else []

    # ---- for health_check ----

    def slurm_says(self, state, *others):
        """state: "idle|none" of n1; others: lines of NODE|STATE|TIME|REASON."""
        lines = "\n".join(["n1|idle|Unknown|none", *others])
        self.replace("fakes/sinfo", f"[[ $* == *--nodes* ]] && echo '{state}' || echo '{lines}'")

    def node_check(self, code, *lines, before=""):
        """It ends with this code, and has recorded these lines."""
        record = "\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        self.replace("bin/node_check", f"""{before}
            while [[ $1 != --record ]]; do shift; done
            cat >"$2" <<'END'\n{record}\nEND
            echo "its last line"\nexit {code}""")

    def node_check_passes(self, **before):
        self.node_check(0, verdict("node_check", "PASS", scope="job"), **before)

    def node_check_fails(self, check="gpu-count", cause="7 GPUs, 8 expected", serial="", **fields):
        self.node_check(1, verdict("GPU-7" if serial else "n1", "FAIL", check=check, cause=cause, action="reboot", **fields),
                        {"kind": "health", "serial": serial, "uuid": "GPU-7"},
                        verdict("node_check", "FAIL", scope="job", cause="checks passed: 0"))

    def node_check_hangs(self, code=3, outcome="INCONCLUSIVE", cause="it did not end within 5 s"):
        self.node_check(code, verdict("n1", outcome, check="hung-check", cause=cause),
                        verdict("node_check", outcome, scope="job"))

    # ---- for prolog and epilog ----

    def gpus(self, minors, numa="", mig=False):
        """The driver's table; minors: {PCI address: N of /dev/nvidiaN}."""
        shutil.rmtree(self.folder / "driver", ignore_errors=True)
        for address, minor in minors.items():
            place = self.folder / "driver/gpus" / address
            place.mkdir(parents=True)
            (place / "information").write_text(
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{address[5:7]}\nDevice Minor: \t {minor}\n")
            if numa:
                (place / "numa_status").write_text(f"Node: {numa}\nStatus: online\n")
        if mig:
            (self.folder / "driver/capabilities/gpu0/mig/gi1").mkdir(parents=True)

    def cgroup(self, path, *pids):
        folder = self.folder / "cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    # ---- for health_check.txt and prolog.txt ----

    COMMANDS = {"acceptance": "launch/acceptance", "node_check": "bin/node_check", "sinfo": "fakes/sinfo", "smi": "fakes/nvidia-smi",
                "find": "fakes/find", "mktemp": "fakes/mktemp"}

    def said(self, hook, words):
        """Its exit code and what it prints. `words`: variables, options, and "twice" and so on; "job": one on GPU 0."""
        times = {"twice": 2, "three": 3, "five": 5}
        environ, arguments, answers = {}, [], {}
        for word in words:
            name, _, value = word.partition("=")
            if value or word == "job":
                environ |= {name: value} if value else {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
            elif word not in times:
                arguments.append(word)
        count = next((times[word] for word in words if word in times), 1)
        for number in range(count):
            result = self.run_hook(hook, *arguments, **environ)
            answers.setdefault(f"exit code {result.returncode}: {result.stdout.strip() or 'nothing'}", []).append(number + 1)
        for answer, numbers in answers.items():
            yield f"{hook}{f' ({len(numbers)} times)' if len(numbers) > 1 else ''}: {answer}"

    def do(self, line):
        """A line of health_check.txt and prolog.txt; what is shown of it."""
        what, _, rest = line.strip().partition(" ")
        if what in ("health_check", "prolog", "epilog"):
            yield from self.said(what, shlex.split(rest))
        elif what in self.COMMANDS:
            self.replace(self.COMMANDS[what], rest)
        elif what == "settings":
            self.settings(*filter(None, [rest]))
        elif what == "slurm":  # {20}: 20 minutes ago
            state, *others = re.sub(r"\{(-?\d+)\}", lambda ago: time.strftime(
                "%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 60 * int(ago[1]))), rest).split("; ")
            self.slurm_says(state, *others)
        elif what == "records":
            code, *lines = json.loads(f"[{rest}]")
            self.node_check(code, *lines)
        elif what in ("passes", "fails", "hangs"):
            getattr(self, f"node_check_{what}")(**json.loads(rest or "{}"))
        elif what == "gpus":
            self.gpus(**json.loads(rest))
        elif what == "note":
            name, _, text = rest.partition(" ")
            self.state.mkdir(exist_ok=True)
            (self.state / name).write_text(text.replace("\\n", "\n"))
        elif what == "old":  # a note, of this many seconds ago
            name, seconds = rest.split()
            os.utime(self.state / name, (time.time() - float(seconds),) * 2)
        elif what == "open":  # anybody can write notes
            self.state.chmod(0o777)
        elif what == "tested":
            yield f"GPUs tested: {self.runs()} times"
        elif what == "notes":
            kept = sorted(self.state.iterdir()) if self.state.exists() else []
            yield "notes: " + ("; ".join(f"{path.name} {path.read_text().strip()}" for path in kept
                                         if path.name not in ("logged", "lock", "drains")) or "none")
        elif what == "syslog":
            yield from self.syslog().splitlines()
        else:
            raise ValueError(line)

    def answer(self, given):
        """Of a case of health_check.txt and prolog.txt."""
        self.setUp()
        lines = [shown for line in given.splitlines() for shown in self.do(line)]
        lines += [f"scontrol: {call}" for call in self.scontrol_calls()]
        lines += [f"GPUs tested: {self.runs()} times"] if self.runs() else []
        return "\n".join(lines).replace(str(self.folder), "FOLDER")
