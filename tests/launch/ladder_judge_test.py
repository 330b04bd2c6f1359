"""acceptance/judge: the outcome of a group of nodes for the ladder, and what of its rates is
left to judge after it."""

import pathlib
import sys
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch.acceptance import stages  # noqa: E402
from shakedown_launch.acceptance.judge import judge  # noqa: E402
from shakedown_launch.acceptance.ladder import ladder  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    CONFIG, FAIL, INCONCLUSIVE, PASS, Figure, Finding, Run)

GROUP = Run(stages.LADDER, ("n0", "n1"), 0, "", 1, "", "")
SLOW = Finding(stages.LADDER, FAIL, GROUP.nodes, "92 % of the reference", check="collective/busbw")
PATH = Finding(stages.LADDER, FAIL, GROUP.nodes, "NVLS is off", CONFIG, check="path")
OTHER = Finding(stages.LADDER, INCONCLUSIVE, ("n0",), "another model", check="not-comparable")


class Judged(unittest.TestCase):
    def setUp(self):
        self.judge = judge.Judge("")
        self.judge.findings = lambda run: []
        self.found = []
        self.judge.compared = lambda measured: self.found
        patch = unittest.mock.patch.object(judge.figures, "figures", return_value=[])
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_group_that_cannot_be_compared_is_not_searched(self):
        for found, outcome in [([OTHER], PASS), ([SLOW, OTHER], FAIL), ([PATH], FAIL)]:
            self.found = found
            self.assertEqual(self.judge.outcomes([GROUP]), [outcome])

    def test_a_group_slower_than_its_peers_fails_without_a_reference(self):
        def of_group(run, _):
            value = 300 if "n6" in run.nodes else 400
            return [Figure(run.stage, run.nodes, "split/all/all_reduce/busbw", value, "GB/s")]
        judge.figures.figures.side_effect = of_group
        runs = [Run(stages.LADDER, (f"n{i}", f"n{i + 1}"), 0, "", 1, "", "") for i in (0, 2, 4, 6)]
        self.assertEqual(self.judge.outcomes(runs), [PASS] * 3 + [FAIL])

    def test_a_slow_group_is_what_the_ladder_made_of_it(self):
        self.found = [SLOW, PATH, OTHER]
        isolated = {stages.LADDER: ladder.Isolation(good=GROUP.nodes)}
        self.assertEqual(self.judge.all_findings([GROUP], [], isolated), [PATH, OTHER])
        self.assertEqual(self.judge.all_findings([GROUP], [], {}), [SLOW, PATH, OTHER])


if __name__ == "__main__":
    unittest.main()
