"""launch/variants --sweep: what NCCL's log says, which launches are wrong, what was faster. NCCL is not needed."""

import json
import tempfile
import unittest
from unittest import mock

from tree import TREE
import transcript
from shakedown_launch import sweep
from shakedown_launch.command import UsageError

# As NCCL 2.28 prints it (src/graph/tuning.cc), of two blocks of three algorithms each.
LOG = """vm:71:71 [0] NCCL INFO   Algorithm   |                            Tree                  |                            Ring                  |                   CollNetDirect                  |
vm:71:71 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
vm:71:71 [0] NCCL INFO  Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |              0 |              0 |            640 |
vm:71:71 [0] NCCL INFO     Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     7.6/  46.0 |    14.0/ 220.0 |    18.0/ 240.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
vm:71:71 [0] NCCL INFO     AllReduce |     7.6/  46.0 |    14.0/   0.0 |    18.0/ 240.0 |     7.6/  46.0 |    14.0/   0.0 |    18.0/ 240.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
vm:71:71 [0] NCCL INFO   Algorithm   |                   CollNetChain                   |                            NVLS                  |                            NVLSTree              |
vm:71:71 [0] NCCL INFO   Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
vm:71:71 [0] NCCL INFO     AllReduce |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |    25.0/ 370.0 |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
vm:71:71 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}
vm:71:71 [0] NCCL INFO AllReduce: 134217728 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
"""


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def launch(self, combination, number=0, code=0, times=(), wrong=0, said="", ended=True):
        """A launch whose record has these times of 1 MiB, 2 MiB, ..."""
        times = times or (1,) * bool(wrong)
        path = f"{self.folder.name}/{combination}-{number}"
        with open(f"{path}.jsonl", "w") as file:
            for i, time in enumerate(times, 1):
                file.write(json.dumps({"kind": "collective", "operation": "all_reduce", "dtype": "float32", "in_place": False,
                                       "bytes": i << 20, "count": i << 18, "time_us_p50": time, "wrong_elements": wrong}) + "\n")
            file.write('{"kind": "end", "exit_code": %d}\n' % code if ended else "")
        return sweep.Launch("all_reduce", combination, number, code, path, said)

    def paired(self, *gains):
        """Launches of the default, which take this much longer than those of Tree LL next to them."""
        return [each for i, gain in enumerate(gains)
                for each in (self.launch(sweep.DEFAULT, i, times=(10 * gain,)), self.launch("Tree LL", i, times=(10,)))]

    def wrong(self, of_ll, of_others):
        """Of 20 launches of Ring LL, and 40 of Ring Simple, which do not end."""
        return [*(self.launch("Ring LL", i, wrong=int(i < of_ll)) for i in range(20)),
                *(self.launch("Ring Simple", i, ended=i >= of_others) for i in range(40))]

    def test_cases(self):
        names = {**globals(), **vars(sweep), "launch": self.launch, "paired": self.paired, "wrong": self.wrong, "LOG": LOG}
        transcript.expressions(self, TREE / "tests/launch/sweep.txt", names, {UsageError: "refused"})

    def test_the_number_of_launches_is_said_before_and_bounded(self):
        """Ring LL is wrong in 2 of 20 launches: as many again, and then no more."""
        said, ran = [], []

        def run(runs, operation, combination, number, more=(), log=False):
            ran.append(combination)
            return self.launch(combination, number, times=(10,), said=LOG if log else "",
                               wrong=int(combination == "Ring LL" and number in (3, 7)))
        with mock.patch.object(sweep.Sweep, "run", run):
            what = mock.Mock(words=["collective_perf"], _replace=lambda words: None)
            code = sweep.sweep(what, self.folder.name, {"NCCL_NVLS_ENABLE": "0"}, ["8"], 20, 60, said.append)
        self.assertEqual(code, 1)
        self.assertIn("20 launches of each and of the default, 120 in all, and at most 160 to confirm: a fault in 29 % of "
                      "launches is missed once in 1,000", said[0])
        self.assertIn("as many launches again", said[1])
        self.assertEqual({each: ran.count(each) for each in ran}, {sweep.CHOSEN: 1, sweep.DEFAULT: 40, "8 channels": 40, **dict.fromkeys(
            ("Ring LL", "Ring Simple", "Tree LL", "Tree Simple"), 40)})
        self.assertIn("WARN Ring LL: 2 of 40 launches wrong, of the others 0 of 200", said[-1])

    def test_a_gain_that_further_launches_do_not_have_is_by_chance(self):
        said = []

        def run(runs, operation, combination, number, more=(), log=False):
            again = isinstance(number, str)
            return self.launch(combination, number, said=LOG if log else "", times=(10 if again or combination != "Tree LL" else 7,))
        with mock.patch.object(sweep.Sweep, "run", run):
            what = mock.Mock(words=["collective_perf"], _replace=lambda words: None)
            self.assertEqual(sweep.sweep(what, self.folder.name, {}, [], 1, 60, said.append), 0)
        self.assertIn("43 %: Tree LL", said[2])
        self.assertEqual(said[-1], "Tree LL: not faster in 10 more pairs of launches: its regret above is by chance")


if __name__ == "__main__":
    unittest.main()
