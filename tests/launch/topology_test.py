"""acceptance/topology: the leaf switch of each node, from what Slurm prints."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch import slurm  # noqa: E402
from shakedown_launch.places import Said  # noqa: E402

TREE = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[000-001]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[002,004]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[000-002,004] Switches=leaf[0-1]
"""
BLOCKS = """BlockName=rack1 BlockIndex=0 Nodes=n[000-002] BlockSize=3
BlockName=rack2 BlockIndex=1 Nodes=n004 BlockSize=3
"""
JOB = {"SLURM_JOB_ID": "1"}


def domains(nodes, environ, printed):
    return slurm.domains(nodes, environ, lambda words: Said(0, printed))


class Domains(unittest.TestCase):
    def test_leaves_of_a_tree(self):
        self.assertEqual(domains(["n000", "n002.site", "n004"], JOB, TREE),
                         {"n000": "leaf0", "n002.site": "leaf1", "n004": "leaf1"})

    def test_blocks(self):
        self.assertEqual(domains(["n001", "n004"], JOB, BLOCKS),
                         {"n001": "rack1", "n004": "rack2"})

    def test_names_that_differ_in_their_domain(self):
        tree = "SwitchName=a Level=0 Nodes=w.1.foo\nSwitchName=b Level=0 Nodes=w.2.foo\n"
        self.assertEqual(domains(["w.1.foo", "w.2.foo"], JOB, tree),
                         {"w.1.foo": "a", "w.2.foo": "b"})
        self.assertIsNone(domains(["w"], JOB, tree))
        self.assertIsNone(domains(["n1"], JOB, "SwitchName=a Level=0 Nodes=n[000x111]\n"))

    def test_unknown(self):
        for text in ("", "No topology information available\n", TREE):
            self.assertIsNone(domains(["n000", "n003"], JOB, text))
        self.assertIsNone(domains(["n000"], {}, TREE))


if __name__ == "__main__":
    unittest.main()
