"""A Slurm cluster of this test run, and its jobs."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))
from support import BIN, TREE, read_record, wait_until  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("cluster")
HOOKS = TREE / "launch/slurm"
TINY = ["--backend", "cpu", "--model", "tiny", "--image-size", 32]
LAUNCHERS = ("mpirun", "srun")
TWO_GPUS = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero"  # any two devices

# On a busy machine MPI_Init of Debian's Open MPI 4.1.4 and PMIx 4.2.2 calls a null pointer in 1 of 140 jobs of srun, in a
# program of MPI_Init and MPI_Finalize alone too: nothing but libc's handler is on the stack. Such a job is submitted again.
PMIX_CRASH = re.compile(r"Segmentation fault \(11\)\n.*\n.*Failing at address: \(nil\)\n.*\[ 0\] \S*/libc\.so\S*\n.*End of error")

# In `make slurm-test`, not in tests/run.
long = unittest.skipUnless(os.environ.get("SHAKEDOWN_LONG_TESTS"), "lasts minutes: make slurm-test")


def skip_where_impossible(service="slurm"):
    """Before anything else: clusters need namespaces, which not every container may make."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([SCRIPT, "can"], env={**os.environ, "CLUSTER": folder,
                                                      "CLUSTER_SERVICE": service},
                                capture_output=True, text=True, timeout=60)
    if result.returncode:
        print(f"SKIPPED: {result.stderr.strip()}", file=sys.stderr, flush=True)
        raise unittest.SkipTest(result.stderr.strip())


def records_of_acceptance(folder):
    return list(map(json.loads, (folder / "acceptance.jsonl").read_text().splitlines()))


def verdicts_of_nodes(folder):
    """{node: its verdict's record} of an acceptance."""
    return {line["name"]: line for line in records_of_acceptance(folder) if line["kind"] == "verdict"
            and line["scope"] == "node" and "stage" not in line}


class Cluster:
    """`conf`: lines of slurm.conf; `node`: what all NodeName lines say, or
    {name: what its line says}; @CLUSTER@ is the cluster's folder. `service`: slurm, or ssh for
    hosts without it. `environ`: what differs in the environment of all commands."""

    def __init__(self, nodes="n1 n2", conf="", gres="", node="CPUs=4 RealMemory=8000",
                 service="slurm", environ=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_slurm_"))
        lines = node if isinstance(node, dict) else dict.fromkeys(nodes.split(), node)
        kept = {name: value for name, value in os.environ.items()
                if not re.match("SLURM|SBATCH|SRUN|OMPI|PMIX|CUDA_VISIBLE|SHAKEDOWN_", name)}
        self._environ = {
            **kept, "CLUSTER": str(self.folder), "CLUSTER_NODES": nodes, "CLUSTER_GRES": gres,
            "CLUSTER_SERVICE": service,
            "CLUSTER_CONF": conf.replace("@CLUSTER@", str(self.folder)), "CLUSTER_SHARED": str(TREE),
            "SHAKEDOWN": str(TREE), "SHAKEDOWN_BIN": str(BIN),
            # The nodes share this machine's cores.
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1",
            **{f"CLUSTER_NODE_{name}": text for name, text in lines.items()}, **dict(environ)}
        self._owner, self._held = os.pipe()  # however this process ends, the machines do too
        self._environ["CLUSTER_OWNER"] = str(self._owner)
        self.work = self.folder / "work"  # where jobs are submitted
        for name in ("work", "etc"):
            (self.folder / name).mkdir()

    def up(self):
        self("up", cwd=TREE)

    def down(self):
        self("down", cwd=TREE)
        os.close(self._owner)
        os.close(self._held)

    def start(self, *words, **options):
        """A command on ctl that runs on; subprocess.Popen."""
        return subprocess.Popen([SCRIPT, *map(str, words)], cwd=self.work, stdin=subprocess.DEVNULL,
                                pass_fds=[self._owner], env=self._environ, text=True, **options)

    def __call__(self, *words, cwd=None, code=0, **environ):
        """The output of a command on ctl, or of `cluster`'s own commands."""
        # The daemons that it starts have its standard error as well: a pipe would stay open.
        with tempfile.TemporaryFile("w+") as output:
            result = subprocess.run([SCRIPT, *map(str, words)], cwd=cwd or self.work, stdout=output,
                                    stderr=output, stdin=subprocess.DEVNULL, timeout=240,
                                    pass_fds=[self._owner],
                                    env={**self._environ, **environ})
            output.seek(0)
            text = output.read()
        if code is not None and result.returncode != code:
            raise AssertionError(f"{shlex.join(map(str, words))}: code {result.returncode}: {text}")
        return text

    def submit(self, script, *arguments, options=(), **environ):
        """A job; script: one of launch/slurm, as it is."""
        text = self("sbatch", "--parsable", *options, HOOKS / script, *arguments, **environ)
        return Job(self, text.split()[-1])

    def set_site(self, text):
        """Settings of the site, for job scripts and hooks, in addition to those of the tree."""
        path = self.folder / "etc/shakedown.sh"
        path.write_text(f"source {HOOKS}/site.sh\n{text}\n")

    def node(self, name, field):
        """A field of scontrol's, such as State or Reason; "" where there is none."""
        found = re.search(rf"\b{field}=(.*?)(?: \w+=|$)",
                          self("scontrol", "show", "node", "-o", name), re.M)
        return found[1].strip() if found else ""

    def processes(self, node):
        """Command lines on a node: neither its first process nor its daemon, nor this command
        itself."""
        show = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " <$file; echo; done 2>/dev/null'
        lines = self("on", node, "sh", "-c", show).splitlines()
        return [line for line in lines
                if line and not re.match(r"bash \S+/cluster hold|\S*slurmd |sshd: \S*/sshd |sh -c for|sleep 3600|cat $|tr ", line)]


class Job:
    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number

    def show(self, field):
        text = self.cluster("scontrol", "show", "job", "-o", self.number)
        return re.search(rf"\b{field}=(\S*)", text)[1]

    @property
    def state(self):
        return self.show("JobState")

    @property
    def log(self):
        return "".join(path.read_text() for path in self.cluster.work.glob(f"*-{self.number}.out"))

    @property
    def crashed(self):
        return bool(PMIX_CRASH.search(self.log))

    def wait_for(self, done, seconds=90):
        """Until done() is true; else an error with the log."""
        if not wait_until(done, seconds):
            logs = [self.cluster.folder / "ctl/slurmctld.log",
                    *self.cluster.folder.glob("n*/slurmd.log")]
            said = "\n".join(line for log in logs for line in log.read_text().splitlines()[-15:])
            raise AssertionError(f"{self.cluster('scontrol', 'show', 'job', self.number)}\n{said}\n"
                                 f"{self.log}")

    def wait(self, seconds=180):
        """The exit code of a job that has ended; a lost node may still be COMPLETING."""
        self.wait_for(lambda: self.state not in {"PENDING", "CONFIGURING", "RUNNING"}, seconds)
        return int(self.show("ExitCode").split(":")[0])

    def start_again(self):
        """Soon, unless it has by itself: a requeued job waits for its credential to expire, which a new one of the same
        second is not distinguished from."""
        self.wait_for(lambda: self.state == "PENDING" or self.show("Restarts") != "0")
        self.cluster("scontrol", "update", f"jobid={self.number}", "StartTime=now+2", code=None)

    def records(self, name):
        return read_record(self.cluster.work / f"runs/{name}-{self.number}.jsonl")


class OnCluster(unittest.TestCase):
    """On self.cluster."""

    def assert_nothing_runs(self, *nodes):
        for node in nodes or ["n1", "n2"]:
            self.assertTrue(wait_until(lambda: not self.cluster.processes(node)),
                            f"{node}: {self.cluster.processes(node)}")


class Jobs(OnCluster):
    """On a cluster for all tests of a class."""
    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**cls.OPTIONS)
        cls.addClassCleanup(cls.cluster.down)
        cls.cluster.up()

    def submit(self, script, *arguments, launcher="mpirun", options=("--nodes=2",), **environ):
        job = self.cluster.submit(script, *arguments, options=options, SHAKEDOWN_LAUNCHER=launcher,
                                  **environ)
        self.addCleanup(self.cluster, "scancel", job.number, code=None)
        return job

    def expect(self, job, code, *said):
        self.assertEqual(job.wait(), code, job.log)
        for words in said:
            self.assertIn(words, job.log)
