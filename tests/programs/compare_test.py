"""bin/compare as its users meet it: table, records, what is skipped. Run by tests/run."""

import re
import statistics
import sys
import unittest
from unittest import mock

import support
from support import BIN, SCHEMA, TREE, Folder, make_image_folder, read_record, run

sys.path.insert(0, str(TREE / "results"))
from reporting import what_if  # noqa: E402
from reporting.reading import read_runs  # noqa: E402

COMPARE = BIN / "compare"
TERMS = ("compute_ms", "exposed_comm_ms", "interference_ms", "input_stall_ms", "optimizer_ms")
OVERLAPS = ("ddp", "zero1", "zero2", "fsdp", "peer")
SMALL = ["--model", "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 4,
         "--iterations", 3, "--warmup", 1, "--warmup-seconds", 0]
PARAMETERS = 314954  # of it, with 10 classes
WITHOUT_BATCH = [*SMALL[:6], *SMALL[8:]]
# tests/check_tree holds the schema's list against the table of strategies
STRATEGIES = SCHEMA["$defs"]["configuration"]["properties"]["strategy"]["enum"]
MEASURED = [name for name in STRATEGIES if name != "peer" or support.GPUS >= 2]


def key(line):
    return line["strategy"], line["world_size"]


def rows(text):
    """The cells of the tables' rows, by (strategy, ranks), without the intervals in brackets."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"(\S+?)(?:,? .*?)?  +(\d+) +(\d.*)", line)
        if match and match[1] in STRATEGIES:
            cells = re.sub(r"\(\S+\)", "", match[3]).split()
            found.setdefault((match[1], int(match[2])), []).append(cells)
    return found


def digits(printed):
    """What rounding may have changed: the more a step took, the fewer decimals are printed."""
    return 0.6 * 0.1 ** len(printed.partition(".")[2])


class Comparison(Folder):
    def modelled(self):
        """What results/report predicts."""
        run, = read_runs([self.record])
        return what_if.modelled(run)


class AllStrategies(Comparison):
    def test_table_and_records_agree(self):
        result = run(COMPARE, *SMALL, "--repeats", 2, "--record", self.record, ranks=2)
        self.expect(result, 0, "on 2 ranks on 1 node", "none (single)", "No configuration failed", "Verdict: ",
                    "- Where the time goes: ")  # the headline, which launch/mpi prints
        self.assertEqual("left out: peer on 2 ranks: needs GPUs" in result.stdout, "peer" not in MEASURED)
        self.assertEqual([(line["strategy"], line["world_size"], line["cause"]) for line in self.lines("skipped")],
                         [("peer", 2, "needs GPUs")] * ("peer" not in MEASURED))
        configurations = {("none", 1)} | {(name, 2) for name in MEASURED}
        steps = self.lines("step")
        self.assertEqual(sorted((*key(s), s["repeat"]) for s in steps),
                         sorted((*c, r) for c in configurations for r in (1, 2)))
        for kind in ("certificate", "verdict"):
            self.assertEqual(sorted(map(key, self.lines(kind))), sorted(configurations))
        self.check_ratios(steps)
        self.check_bytes(steps)
        self.check_breakdowns()
        self.check_table(result.stdout, steps)
        self.check_model(steps)
        verdicts = {key(v): v for v in self.lines("verdict")}
        self.assertEqual({v["verdict"] for v in verdicts.values()}, {"PASS"})
        self.assertIn("all-reduce", verdicts["ddp", 2]["cause"])
        certificate = next(c for c in self.lines("certificate") if key(c) == ("ddp", 2))
        self.assertIs(certificate["pass"], True)
        for c in self.lines("certificate"):
            ranks = 1 if c["strategy"] == "parameter-server" else 2
            independent = c["strategy"] in ("none", "parameter-server-async")
            self.assertEqual("waived" in c, independent, c)
            self.assertEqual(c.get("detects_one_rank_in"), None if independent else ranks, c)
            self.assertEqual(c.get("inputs_compared", False), c["strategy"] == "data-parallel", c)
        self.assertEqual(read_record(self.record)[0]["options.strategies"], STRATEGIES)
        self.assertEqual(self.lines("end")[0]["exit_code"], 0)

    def check_ratios(self, steps):
        rate = {(*key(s), s["repeat"]): s["images_per_s"] for s in steps}
        for s in steps:
            none = rate["none", s["world_size"], s["repeat"]]
            single = rate["none", 1, s["repeat"]]
            self.assertAlmostEqual(s["efficiency_vs_none"], s["images_per_s"] / none)
            self.assertAlmostEqual(s["efficiency_vs_single"],
                                   s["images_per_s"] / (s["world_size"] * single))
            self.assertAlmostEqual(s["epoch_s"], 1281167 / s["images_per_s"])

    def check_bytes(self, steps):
        for s in steps:
            self.assertIn(s["bytes_source"],
                          ("communicator", "nvlink") if support.GPUS else ("communicator",))
            self.assertNotIn("throttle_gbs", s)
            for kind in ("predicted", "counted", "measured"):
                self.assertEqual(len(s[f"bytes_per_step_{kind}"]), s["world_size"])
            if s["bytes_source"] == "communicator":
                self.assertEqual(set(s["bytes_per_step_measured"]), {None})
            if s["strategy"] == "none":
                self.assertEqual(set(s["bytes_per_step_predicted"]), {0})
                self.assertEqual(set(s["bytes_per_step_counted"]), {0})
            if s["strategy"] in ("ddp", "all-reduce"):
                self.assertEqual(set(s["bytes_per_step_predicted"]), {4 * PARAMETERS})
            # counted are padding, more of it in a small network, and data-parallel's images
            least, most = (1, 1.1 if s["strategy"] == "data-parallel" else 1.02)
            for predicted, counted in zip(s["bytes_per_step_predicted"],
                                          s["bytes_per_step_counted"]):
                self.assertGreaterEqual(counted, least * predicted, s["strategy"])
                self.assertLessEqual(counted, most * predicted, s["strategy"])

    def check_table(self, text, steps):
        """Medians of what the records say, and the account of the round with the median step."""
        table = rows(text)
        self.assertLessEqual(max(map(len, text[text.index("strategy"):text.index("No configuration")]
                                     .splitlines())), 110)
        rates = [float(cells[0][0]) for cells in table.values()]
        self.assertEqual(rates, sorted(rates, reverse=True))
        for configuration in {key(s) for s in steps}:
            mine = [s for s in steps if key(s) == configuration]

            def median(name, unit=1.0):
                return statistics.median(s[name] for s in mine) / unit
            main, = table[configuration]
            rate = median("images_per_s")
            self.assertAlmostEqual(float(main[0]), rate, delta=max(0.06, 6e-4 * rate))
            self.assertAlmostEqual(float(main[1]), median("step_ms_p50"), delta=0.06)
            self.assertAlmostEqual(float(main[2]), median("efficiency_vs_none", 0.01), delta=0.06)
            self.assertIn(main[-1], ("PASS", "waived"))
            mine = [b for b in self.lines("breakdown") if key(b) == configuration]
            account = min(mine, key=lambda b: b["step_ms"])  # of two rounds
            self.assertAlmostEqual(float(main[3]), account["exposed_comm_ms"], delta=digits(main[3]))
            self.assertAlmostEqual(float(main[4]), account["hidden_comm_ms"], delta=digits(main[4]))

    def check_model(self, steps):
        """What results/report predicts from."""
        ready, = self.lines("ready")
        self.assertEqual(key(ready), ("none", 2))
        self.assertEqual(sum(ready["bytes"]), 4 * PARAMETERS)
        self.assertEqual(len(ready["bytes"]), len(ready["block"]))
        self.assertEqual(ready["block"], sorted(ready["block"], reverse=True))  # as backward finishes them
        self.assertAlmostEqual(max(ready["ready_ms"]), ready["backward_ms"])
        self.assertEqual({link["path"] for link in self.lines("link_cost")}, {"ring", "star"})
        self.assertEqual({s["strategy"] for s in steps if "transfers" not in s},
                         {"peer", "parameter-server-async"} & set(MEASURED))
        self.assertEqual({tuple(s["transfers"]) for s in steps if s["strategy"] == "zero2"},
                         {("gradients pass blocks each_micro_batch", "weights pass whole")})
        self.assertEqual(len(read_record(self.record)[0]["device_memory_bytes"]), 2)
        predicted = {p["strategy"] for p in self.modelled() if p["kind"] == "prediction" and "error" in p}
        self.assertEqual({"none", *predicted}, set(MEASURED) - {"peer", "parameter-server-async"} - (
            set() if support.GPUS else {"parameter-server"}))  # whose share of the host is another

    def check_breakdowns(self):
        for b in self.lines("breakdown"):
            self.assertAlmostEqual(b["step_ms"],
                                   sum(b.get(term, 0) for term in (*TERMS, "residual_ms")))
            serves = b["strategy"] in ("parameter-server", "parameter-server-async")
            self.assertEqual("interference_ms" in b, bool(support.GPUS) or not serves, b)
            if serves and not support.GPUS:  # its own compute
                self.assertLess(abs(b["residual"]), 0.25, b)
            self.assertEqual("serial_step_ms" in b, b["strategy"] in OVERLAPS, b["strategy"])
            if b["strategy"] == "none":
                self.assertLess(b["exposed_comm_ms"], max(0.02 * b["step_ms"], 0.02))
                self.assertEqual((b["comm_ms"], b["interference_ms"]), (0, 0))
            elif b["strategy"] != "parameter-server-async" and not (support.GPUS and b["strategy"] in OVERLAPS):
                # on the cpu backend nothing is hidden
                self.assertGreaterEqual(b["exposed_comm_ms"], 0.9 * b["comm_ms"], b["strategy"])
        for repeat in (1, 2):
            buckets = [b for b in self.lines("bucket")
                       if b["strategy"] == "ddp" and b["repeat"] == repeat]
            self.assertEqual([b["index"] for b in buckets], list(range(len(buckets))))
            self.assertGreater(len(buckets), 1)
            self.assertEqual({b["exchange"] for b in buckets}, {"all_reduce"})
            # padding is exchanged too
            self.check_exchanged(buckets, 4 * PARAMETERS)
            for b in buckets:
                if not support.GPUS:  # the host does all of it
                    self.assertLessEqual(b["ready_ms"], b["launch_ms"])
                self.assertLessEqual(b["launch_ms"], b["start_ms"])
                self.assertLessEqual(b["ready_ms"], b["start_ms"])
                self.assertLess(b["start_ms"], b["end_ms"])
                self.assertIn(b["straggler_rank"], (0, 1))
            for before, after in zip(buckets, buckets[1:]):
                self.assertGreaterEqual(after["start_ms"], before["end_ms"] - 0.01)


class Configurations(Comparison):
    def compare(self, *arguments, ranks=2, options=SMALL):
        return run(COMPARE, *options, "--repeats", 1, "--record", self.record, *arguments,
                   ranks=ranks)

    def test_ranks_that_are_not_there_are_skipped_and_the_global_batch_is_divided(self):
        result = self.compare("--strategies", "ddp", "--ranks", "1,2,3", "--global-batch", 8,
                              options=WITHOUT_BATCH)
        self.expect(result, 3, "skipped: --ranks 3: the job has 2", "batch 8 over all ranks")
        self.assertEqual({(*key(s), s["batch_size"]) for s in self.lines("step")},
                         {("none", 1, 8), ("ddp", 1, 8), ("none", 2, 4), ("ddp", 2, 4)})
        self.assertTrue(all(len(s["peak_memory_bytes"]) == s["world_size"]
                            for s in self.lines("step")))
        skipped = [v for v in self.lines("verdict") if v["verdict"] == "INCONCLUSIVE"]
        self.assertEqual({key(v) for v in skipped}, {("none", 3), ("ddp", 3)})
        self.assertIn("--ranks 3", skipped[0]["cause"])
        self.expect(self.compare("--strategies", "ddp", "--ranks", 3), 2,
                    "--ranks 3: the job has 2 ranks")

    @support.needs_cpu_backend
    def test_peer_that_is_named_and_cannot_run_is_inconclusive(self):
        result = self.compare("--strategies", "ddp,peer", "--backend", "cpu")
        self.expect(result, 3, "INCONCLUSIVE, skipped: peer memory (--strategy peer): only on the gpu")
        self.assertNotIn("left out", result.stdout)

    def test_a_global_batch_that_does_not_divide_is_skipped(self):
        result = self.compare("--strategies", "none", "--global-batch", 9, options=WITHOUT_BATCH)
        self.expect(result, 3, "skipped: --global-batch 9")
        self.assertEqual({key(s) for s in self.lines("step")}, {("none", 1)})

    def test_settings_are_measured_beside_plain_ddp(self):
        result = self.compare("--strategies", "none", "--settings", "all", "--small-bucket-mb", 0.1)
        self.expect(result, 0, "ddp, broadcast-buffers ", "left out: --settings ")
        computes = {"autotune-off", "fp32", "no-graph"} if support.GPUS else set()
        names = computes | {"broadcast-buffers", "no-overlap"}
        steps = {s.get("setting"): s for s in self.lines("step") if s["strategy"] == "ddp"}
        self.assertEqual(set(steps), {None, *names})
        self.assertTrue(names < set(read_record(self.record)[0]["options.settings"]))
        self.assertEqual({name for name, step in steps.items() if step["graph"]},
                         {None, *names} - {"no-graph"} if support.GPUS else set())
        for name in names:
            self.assertAlmostEqual(steps[name]["speedup_vs_plain"],
                                   steps[name]["images_per_s"] / steps[None]["images_per_s"])
            # none was not measured so
            self.assertEqual("efficiency_vs_none" in steps[name], name not in computes)
        for kind in ("certificate", "verdict", "breakdown"):
            found = [line for line in self.lines(kind) if line["strategy"] == "ddp"]
            self.assertEqual({line.get("setting") for line in found}, {None, *names}, kind)
        self.assertEqual({v["verdict"] for v in self.lines("verdict")}, {"PASS"})
        buckets = {}
        for b in self.lines("bucket"):
            buckets.setdefault(b.get("setting"), []).append((b["exchange"], b["bytes"]))
        self.assertEqual(buckets["broadcast-buffers"][0][0], "broadcast")
        self.assertEqual(buckets["broadcast-buffers"][1:], buckets[None])
        predicted = {(p["strategy"], p.get("setting")) for p in self.modelled() if p["kind"] == "prediction"}
        self.assertEqual(predicted, {("ddp", None)})

    def test_a_throttled_exchange_takes_its_bytes_over_the_rate(self):
        result = self.compare("--strategies", "all-reduce,parameter-server", "--throttle-gbs", 0.02,
                              "--ranks", "2,4", "--certificate", "off", ranks=3)  # a part of the job is throttled, too
        self.expect(result, 3, "exchange throttled to 0.02 GB/s each way", "--ranks 4: the job has 3")
        for s in self.lines("step"):
            self.assertGreaterEqual(s["step_ms_p50"], 0.95 * max(s["bytes_per_step_counted"]) / 2e4)
        for line in self.lines("step") + self.lines("verdict"):
            self.assertEqual(line["throttle_gbs"], 0.02)
        self.assertEqual(read_record(self.record)[0]["options.throttle_gbs"], 0.02)
        self.check_model()

    def check_model(self):
        """The links are those of --throttle-gbs, and so slow that they decide what a step takes."""
        for link in self.lines("link_cost"):
            for count, time_us in zip(link["bytes"], link["time_us"]):
                self.assertGreaterEqual(time_us, 0.99 * count / 20)  # what the transfer itself takes comes on top
            self.assertEqual(link["bytes"], sorted(link["bytes"]))
            self.assertEqual(len(link["bytes"]), len(link["time_us"]))
            self.assertEqual("average_gbs" in link, link["path"] == "star")
        with mock.patch.object(what_if, "TRUSTED", 1):
            lines = self.modelled()
        for link in [line for line in lines if line["kind"] == "link_cost"]:
            self.assertLess(link["bandwidth_gbs"], 0.04)  # of a line through times that include others' work
            self.assertGreater(link["bandwidth_gbs"], 0.005)
        measured = [p for p in lines if p["kind"] == "prediction" and "error" in p]
        self.assertEqual({(key(p)) for p in measured}, {("all-reduce", 2)} |
                         ({("parameter-server", 2)} if support.GPUS else set()))
        for p in measured:
            # whatever none took, over a link that was found less than twice as fast as it is
            self.assertGreater(p["exposed_comm_ms_predicted"], 0.9 * 4 * PARAMETERS / 4e4, p)

    def test_what_does_not_fit_is_skipped_and_the_rest_goes_on(self):
        result = self.compare("--strategies", "none", "--batch-sizes", "9000000,4",
                              "--precisions", "fp32,auto", ranks=1)
        self.expect(result, 3, "skipped: --batch-size 9000000", "largest batch that fits")
        self.assertEqual({s["batch_size"] for s in self.lines("step")}, {4})
        verdicts = {(v["batch_size"], v["verdict"]) for v in self.lines("verdict")}
        self.assertEqual(verdicts, {(9000000, "INCONCLUSIVE"), (4, "PASS")})

    def test_nothing_that_fits_is_a_usage_error(self):
        result = self.compare("--strategies", "none", "--batch-sizes", 9000000, ranks=1)
        self.expect(result, 2, "skipped: --batch-size 9000000")
        self.assertEqual(self.lines("end")[0]["exit_code"], 2)

    def test_a_loss_that_is_not_finite_fails_after_everything(self):
        result = self.compare("--strategies", "none,ddp", "--lr", "1e30", "--iterations", 4)
        self.expect(result, 1, "FAIL strategy ddp, 25 MiB on 2 ranks", "loss is not finite")
        self.assertEqual({key(s) for s in self.lines("step")},
                         {("none", 1), ("none", 2), ("ddp", 2)})
        self.assertIn("FAIL", {v["verdict"] for v in self.lines("verdict")})
        self.assertEqual(self.lines("end")[0]["exit_code"], 1)

    def test_an_epoch_is_the_folder_or_what_is_said(self):
        make_image_folder(self.folder / "images", 8)  # 24 images of 3 classes
        self.expect(self.compare("--strategies", "none", "--train-dir", self.folder / "images",
                                 "--augment", "none", "--ignore-idle", ranks=1), 0)
        for s in self.lines("step"):
            self.assertEqual(s["data"], str(self.folder / "images"))
            self.assertAlmostEqual(s["epoch_s"] * s["images_per_s"], 24)
        self.record = self.folder / "said.jsonl"
        self.expect(self.compare("--strategies", "none", "--epoch-images", 500, ranks=1), 0)
        for s in self.lines("step"):
            self.assertAlmostEqual(s["epoch_s"] * s["images_per_s"], 500)


class Hangs(Folder):
    def test_a_rank_that_only_waits_is_not_blamed(self):
        said = self.stop_rank(1, COMPARE, *SMALL, "--iterations", 20, "--strategies", "ddp", "--ranks", 2, "--repeats", 1000,
                              "--certificate", "off", "--timeout", 5, ranks=3, after="none on 2 ranks")
        self.assertIn("no answer from rank 1 on", said)
        self.assertNotRegex(said, r"no answer from .*rank 2")
        self.assertIn(("none", 2), map(key, self.lines("step")))  # what was measured before

    def test_a_rank_that_stops_while_it_measures_alone_is_named(self):
        said = self.stop_rank(0, COMPARE, *SMALL, "--strategies", "none", "--ranks", 1, "--iterations", 1000000, "--timeout", 2,
                              ranks=2, after="compare: ")
        self.assertRegex(said, r"rank 1 on .* no progress within 2 s .*no answer from rank 0 on")


if __name__ == "__main__":
    unittest.main()
