"""launch/variants --sweep: what NCCL's log says, which launches are wrong, what was faster. NCCL is not needed."""

import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch import sweep  # noqa: E402
from shakedown_launch.command import UsageError  # noqa: E402

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

    def test_combinations_are_those_of_nccl_s_table(self):
        self.assertEqual(sweep.plan(LOG, "all_reduce", {}), ["Ring LL", "Ring Simple", "Tree LL", "Tree Simple", "NVLS Simple"])
        self.assertEqual(sweep.plan(LOG, "all_reduce", {"NCCL_NVLS_ENABLE": "0"}), ["Ring LL", "Ring Simple", "Tree LL", "Tree Simple"])
        self.assertEqual(sweep.plan(LOG, "broadcast", {}), ["Ring LL", "Ring LL128", "Ring Simple"])
        self.assertEqual(sweep.plan(LOG, "reduce", {}), [])
        self.assertEqual(sweep.choices(LOG), {("AllReduce", 1 << 20): "Ring LL", ("AllReduce", 128 << 20): "NVLS Simple"})
        self.assertEqual(sweep.settings("Ring LL128"), {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"})
        self.assertEqual([(sweep.settings(each), sweep.options(each)) for each in (sweep.DEFAULT, sweep.CHOSEN, "16 channels")],
                         [({}, []), ({}, []), ({}, ["--ctas", "16"])])

    def test_operations_that_have_algorithms(self):
        self.assertEqual(sweep.operations_of(["collective_perf", "-b", "1M"]), (["all_reduce"], ["collective_perf", "-b", "1M"]))
        self.assertEqual(sweep.operations_of(["c", "--operation", "broadcast,reduce", "-e", "1M"]),
                         (["broadcast", "reduce"], ["c", "-e", "1M"]))
        self.assertEqual(sweep.operations_of(["c", "--operation=all"])[0], list(sweep.FUNCTIONS))
        with self.assertRaisesRegex(UsageError, "--operation all_to_all: NCCL has no choice"):
            sweep.operations_of(["c", "--operation", "all_to_all"])

    def test_the_table_has_what_nccl_chose_and_the_regret(self):
        # code 3: nothing judges the rates
        launches = [self.launch(sweep.DEFAULT, code=3, times=(10, 40)), self.launch("Ring LL", times=(10, 60)),
                    self.launch("Tree Simple", times=(20, 30)), self.launch("Tree LL", code=3, said=sweep.NOT_AVAILABLE)]
        rows = list(sweep.table("all_reduce", launches, sweep.choices(LOG)))
        self.assertEqual(rows, [
            ("all_reduce", "NCCL chose", "us", "Ring LL", "Tree Simple", "regret"),
            ("float32 1 MiB", "Ring LL", "10", "10", "20", ""),
            ("float32 2 MiB", "-", "40", "60", "30", "33 %: Tree Simple")])
        self.assertEqual(sweep.candidates(launches), ["Tree Simple"])

    def test_regret_is_named_where_launches_next_to_one_another_agree(self):
        def launches(gains):
            return [each for i, gain in enumerate(gains)
                    for each in (self.launch(sweep.DEFAULT, i, times=(10 * gain,)), self.launch("Tree LL", i, times=(10,)))]
        self.assertEqual(list(sweep.confirmed(launches([1.2, 1.25, 1.3, 1.22, 1.21]), "Tree LL")),
                         ["float32 1 MiB: NCCL's choice takes 22 % longer than Tree LL (20 to 30 %, 5 pairs of launches)"])
        self.assertEqual(list(sweep.confirmed(launches([1.4, 0.8, 1.3, 0.9, 1.1]), "Tree LL")), [])

    def test_a_combination_that_is_wrong_more_often_than_the_others_is_blamed(self):
        def launches(wrong_of_ll, wrong_of_others):
            return [*(self.launch("Ring LL", i, wrong=int(i < wrong_of_ll)) for i in range(20)),
                    *(self.launch("Ring Simple", i, ended=i >= wrong_of_others) for i in range(40))]
        self.assertEqual(list(sweep.blame(launches(6, 0))),
                         ["FAIL Ring LL: 6 of 20 launches wrong, of the others 0 of 40: by chance in 0.077 % of cases"])
        self.assertEqual([line.split(":")[0] for line in sweep.blame(launches(5, 0))], ["WARN Ring LL"])
        self.assertEqual([line.split(":")[0] for line in sweep.blame(launches(6, 12))], ["WARN Ring LL", "WARN Ring Simple"])
        self.assertEqual(list(sweep.blame([self.launch("Tree LL128", code=3, said=sweep.NOT_AVAILABLE)])), [])

    def test_twenty_launches_find_a_fault_in_thirty_percent(self):
        self.assertAlmostEqual(sweep.found_share(20), 0.29, places=2)
        self.assertAlmostEqual(sweep.found_share(1), 0.999)
        self.assertEqual([sweep.launches_to_find(share) for share in (0.3, 0.1, 0.05, 0.01)], [20, 66, 135, 688])

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
