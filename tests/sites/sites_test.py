#!/usr/bin/env python3
"""Two MPIs other than the machine's: bin/train on two ranks, and its faults; tests/sites/run has all programs. Skipped
without PyPI, and where build/ has other objects."""

import os
import pathlib
import unittest

import sites

BUILT = sites.TREE / "build"
STEPS = ("builds", "MPI", "train --self-test", "kill -9", "kill -STOP", "stopped")  # with the one program that is linked


@unittest.skipUnless(pathlib.Path(os.environ.get("SHAKEDOWN_TEST_BUILD", BUILT)) == BUILT, "only of objects in build/")
class OtherMpis(unittest.TestCase):
    def check(self, name):
        site = sites.Site(name, ["train"], (), most=4)
        for step, do in sites.STEPS:
            if step in STEPS:
                try:
                    said = do(site)
                except sites.NotHere as error:
                    self.skipTest(str(error))
                except sites.Failed as error:
                    self.fail(f"{step}: {error}: see {site.folder}/*.log")
                if step == "MPI":
                    self.assertIn(sites.PACKAGES[name][0].partition("==")[2], said)

    def test_open_mpi_5(self):
        self.check("openmpi5")

    def test_mpich(self):
        self.check("mpich4")


if __name__ == "__main__":
    unittest.main()
