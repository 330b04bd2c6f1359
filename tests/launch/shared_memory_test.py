"""What launch/variants says of shared memory, in a /dev/shm of its own, where that is allowed."""

import os
import pathlib
import subprocess
import sys
import unittest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"


class SharedMemory(unittest.TestCase):
    def diagnosis(self, mount, then=":"):
        own = ["unshare", "--mount", "--map-root-user", "bash", "-c", f'mount -t tmpfs -o {mount} tmpfs /dev/shm && "$@"',
               "bash"]
        probe = subprocess.run([*own, "true"], capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"no mount of its own: {probe.stderr.strip()}")
        show = f"{then}; {sys.executable} -m shakedown_launch.shared_memory; exit"
        result = subprocess.run([*own, "bash", "-c", show], capture_output=True, text=True,
                                env={**os.environ, "PYTHONPATH": str(LAUNCH), "LC_ALL": "C.UTF-8"})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_good(self):
        text = self.diagnosis("size=2g")
        for line in ["shared memory of ", "✓ size       2048 MiB, 2048 MiB free", "✓ kind       tmpfs",
                     "✓ rights     this user", "✓ left-overs none"]:
            self.assertIn(line, text)

    def test_small(self):
        self.assertIn("✗ size       only 64 MiB; in a container: --shm-size=1g",
                      self.diagnosis("size=64m"))

    def test_full_with_left_overs(self):
        text = self.diagnosis("size=2g", "fallocate -l 2000M /dev/shm/nccl-AbCdEf")
        self.assertIn("✗ size       2048 MiB, but only 48 MiB of it free", text)
        self.assertIn("✗ left-overs 1 of NCCL or Open MPI that no process seen here has open: if no job "
                      "runs, rm /dev/shm/{nccl-,vader_segment,sm_segment}*\n", text)

    def test_a_file_in_use_is_not_left_over(self):
        holder = ("import mmap, sys; f = open('/dev/shm/nccl-a', 'wb+'); f.truncate(4096);"
                  "m = mmap.mmap(f.fileno(), 4096); print(flush=True); sys.stdin.read()")
        hold = f'coproc exec {sys.executable} -c "{holder}"; read -ru "${{COPROC[0]}}"'
        self.assertIn("✓ left-overs none", self.diagnosis("size=2g", hold))

    def test_not_writable(self):
        self.assertIn("✗ rights     root cannot make files in /dev/shm", self.diagnosis("size=2g,ro"))


if __name__ == "__main__":
    unittest.main()
