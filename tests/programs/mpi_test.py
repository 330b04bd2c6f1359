"""launch/mpi on ranks of a small program, or with a script in mpirun's place. What it makes of
options, environment and messages is tested without ranks in tests/launch/. Run by tests/run."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from launch_support import environment
from support import BIN, TREE, gone, needs_cpu_backend, write_script

MPI = TREE / "launch/mpi"
PROBE = r"""
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char out[1 << 20], in[1 << 20];
int main(int argc, char** argv) {
  const char* what = argv[1];
  const int number = atoi(argv[2]);
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Sendrecv(out, sizeof out, MPI_CHAR, (rank + 1) % size, 0, in, sizeof in, MPI_CHAR,
               (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  fprintf(stderr, "rank %d of %d, pid %d\n", rank, size, (int)getpid());
  if (!strcmp(what, "abort") && rank == size - 1) MPI_Abort(MPI_COMM_WORLD, number);
  if (!strcmp(what, "die") && rank == size - 1) raise(number);
  if (strcmp(what, "return")) sleep(60);
  MPI_Finalize();
  return number;
}
"""


def default_signals():
    """After an & of a script these are ignored, and a program that starts so leaves them ignored."""
    for number in [signal.SIGINT, signal.SIGQUIT]:
        signal.signal(number, signal.SIG_DFL)


class Mpi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="mpi_test."))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)

    def mpi(self, *words, **changes):
        return subprocess.run([MPI, *map(str, words)], env=environment(**changes), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def start(self, *words, program=MPI, **options):
        job = subprocess.Popen([str(word) for word in (program, *words)], stderr=subprocess.PIPE,
                               env=environment(), preexec_fn=default_signals, **options)
        self.addCleanup(job.stderr.close)
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)
        return job


class Ranks(Mpi):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.probe = cls.folder / "probe"
        (cls.folder / "probe.c").write_text(PROBE)
        subprocess.run(["mpicc", cls.folder / "probe.c", "-o", cls.probe], check=True)

    def test_exit_codes(self):
        for code in (0, 1, 5):
            result = self.mpi("-n", 2, self.probe, "return", code)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertRegex(result.stderr, r"\A(rank [01] of 2, pid \d+\n){2}\Z")

    def test_abort(self):
        result = self.mpi("-n", 3, self.probe, "abort", 4)
        self.assertEqual(result.returncode, 4)
        self.assertRegex(result.stderr, r"\A(rank [012] of 3, pid \d+\n)+\Z")

    def test_a_rank_dies(self):
        result = self.mpi("-n", 2, self.probe, "die", int(signal.SIGKILL))
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stderr,
                         r"(?m)^launch/mpi: rank 1 on \S+ died of signal 9 \(Killed\)$")
        self.assertNotIn("Primary job", result.stderr)

    def test_a_signal_stops_everything(self):
        for stop, code in [(signal.SIGTERM, 5), (signal.SIGINT, 5), (signal.SIGKILL, -signal.SIGKILL)]:  # the last cannot be caught
            job = self.start("-n", 2, self.probe, "sleep", 0)
            pids = [job.stderr.readline().split()[-1].decode() for _ in range(2)]
            job.send_signal(stop)
            self.assertEqual(job.wait(timeout=60), code, stop)
            self.assertTrue(gone(*pids), f"ranks are still running after {stop}")

    def test_a_reader_that_leaves(self):
        """`launch/mpi ... | head` ends the ranks without a word of mpirun's about SIGPIPE."""
        job = self.start("-n", 2, "bash", "-c", "while :; do echo line; done",
                         stdout=subprocess.PIPE)
        self.assertEqual(job.stdout.readline(), b"line\n")
        job.stdout.close()
        self.assertEqual((job.wait(timeout=60), job.stderr.read()), (5, b""))

    def test_more_ranks_than_cores(self):
        self.assertEqual(self.mpi("-n", 2 * os.cpu_count(), "--bind", "core", "true").returncode, 0)

    def test_a_terminal_is_made_known_to_the_ranks(self):
        ours, theirs = os.openpty()
        self.addCleanup(os.close, ours)
        result = subprocess.run([MPI, "-n", "1", "bash", "-c",
                                 "echo terminal=$SHAKEDOWN_TERMINAL"], stderr=theirs,
                                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())
        os.close(theirs)
        self.assertEqual(result.stdout, b"terminal=2\n")  # the descriptor
        self.assertEqual(self.mpi("-n", 1, "bash", "-c",
                                  "echo terminal=$SHAKEDOWN_TERMINAL").stdout, "terminal=\n")


class Usage(Mpi):
    def test_no_mpi(self):
        another = write_script(self.folder / "fakes/mpirun", "echo Another MPI")
        alone = self.folder / "python"
        alone.mkdir()
        (alone / "python3").symlink_to(sys.executable)
        for path, found in [(f"{another.parent}:{os.environ['PATH']}", "Another MPI"), (alone, "none")]:
            result = self.mpi("-n", 1, MPI, PATH=path)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"the mpirun of Open MPI, MPICH or Intel MPI is required (found: {found})", result.stderr)

    def test_what_this_machine_lacks_is_no_result(self):
        self.assertEqual(self.mpi("-n", 1, "true", TMPDIR="/proc").returncode, 3)
        self.assertEqual(self.mpi("-n", 1, "true", PATH="/nonexistent").returncode,
                         127)  # no python3

    def test_refused_in_one_line(self):
        (self.folder / "python3").symlink_to(sys.executable)
        for words in [["--grace", "0", "true"], ["no_such_program"], ["--wat", "true"], ["-n", "9" * 5000, "true"]]:
            result = self.mpi(*words)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), words)
            self.assertIn(words[0], result.stderr)
        result = self.mpi("--launcher", "hydra", MPI, PATH=self.folder)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("--launcher hydra: mpiexec.hydra is not in PATH", result.stderr)

    def test_dry_run(self):
        result = self.mpi("--dry-run", "-n", 2, "true", "a b")
        self.assertRegex(result.stdout, r"\Ampirun -n 2 .*--bind-to none true 'a b'\n\Z")


@needs_cpu_backend
class Reasons(Mpi):
    def test_ranks_with_one_reason_give_it_once(self):
        """Also where the launcher takes a while to end the others."""
        slow = self.folder / "slow.so"
        source = self.folder / "slow.c"
        source.write_text("#include <mpi.h>\n#include <unistd.h>\n"
                          "int MPI_Abort(MPI_Comm comm, int code) { sleep(2); return PMPI_Abort(comm, code); }\n")
        subprocess.run(["mpicc", "-shared", "-fPIC", source, "-o", slow], check=True)
        result = self.mpi("-n", 3, "env", f"LD_PRELOAD={slow}", BIN / "soak", "--backend", "gpu",
                          CUDA_VISIBLE_DEVICES="")
        self.assertIn(result.returncode, (2, 3), result.stderr)
        self.assertEqual(result.stderr.count("error: rank"), 1, result.stderr)
        self.assertIn("error: rank 0 on ", result.stderr)


@needs_cpu_backend
class HostNames(unittest.TestCase):
    """In a UTS namespace, where a host name is that of a few processes."""

    def setUp(self):
        if subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode:
            self.skipTest("no UTS namespace can be made here")

    def under(self, name, *words, code):
        script = 'printf "$1" >/proc/sys/kernel/hostname && shift && exec "$@"'
        result = subprocess.run(["unshare", "--uts", "sh", "-c", script, "sh", name, *map(str, words)], timeout=120,
                                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
        text = result.stdout.decode(errors="replace")
        self.assertEqual(result.returncode, code, text)
        return text

    def test_one_that_is_too_long_for_open_mpi(self):
        """Its own abort has the exit code of wrong data."""
        size = ["--backend", "cpu", "--max-bytes", "1K"]
        for launcher in ([], [MPI, "-n", 1]):
            text = self.under(57 * "n", *launcher, BIN / "collective_perf", *size, code=3)
            self.assertIn(f"the host name {57 * 'n'} has 57 characters; Open MPI ", text)
            self.assertIn("supports 56", text)
            self.under(f"{56 * 'n'}.site", *launcher, BIN / "collective_perf", *size, code=0)

    def test_bytes_that_are_not_utf8(self):
        text = self.under("gp\\374node7", BIN / "soak", "--backend", "cpu", "--minutes", "0.05", "--loads", "products",
                          "--inject-fault", "product:0", code=1)
        self.assertIn("FAIL", text)


if __name__ == "__main__":
    unittest.main()
