"""The command line of launch/slurm/health_check; tests/slurm has Slurm call it."""

import pathlib
import subprocess
import unittest

HEALTH_CHECK = pathlib.Path(__file__).resolve().parents[2] / "launch/slurm/health_check"


class CommandLine(unittest.TestCase):
    def test_an_option_that_is_mistyped_drains_nothing(self):
        for word, code, said in [("--prnt", 2, "unknown option --prnt"), ("--help", 0, "--print")]:
            result = subprocess.run([HEALTH_CHECK, word], stdout=subprocess.PIPE, text=True,
                                    env={"PATH": "/usr/bin:/bin", "SHAKEDOWN_SITE": "/dev/null"})
            self.assertEqual((result.returncode, said in result.stdout), (code, True), result.stdout)


if __name__ == "__main__":
    unittest.main()
