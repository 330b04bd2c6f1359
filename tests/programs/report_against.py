"""results/report --against and --side-by-side; run by report_test.py."""

import csv

from report_records import collective, header, link, step
from report_support import Report


class Against(Report):
    """What it says of records: report_cases.txt."""

    def test_csv_has_the_figures_unrounded_with_their_units(self):
        sides = [self.write(f"{rate}.jsonl", step("ddp", rate, 0.005)) for rate in (1000, 900)]
        self.report("--against", *sides, "--csv", "--output", self.out, code=1)
        with (self.out / "against_steps.csv").open(newline="") as file:
            found, = csv.DictReader(file)
        self.assertEqual({key: round(float(found[key]), 4) for key in found if "(" in key}, {
            "OLD (images/s)": 1000, "OLD low (images/s)": 995, "OLD high (images/s)": 1005, "NEW (images/s)": 900,
            "NEW low (images/s)": 895.5, "NEW high (images/s)": 904.5, "change (fraction)": -0.1,
            "change low (fraction)": -0.109, "change high (fraction)": -0.091})

    def test_runs_that_are_in_both_are_left_out_of_old(self):
        for rate in (100, 101, 2):
            self.write(f"{rate}.jsonl", step("ddp", rate, 0.01))
        self.assertIn("left out of OLD: 1 run that NEW has too", self.compared(
            "--against", self.folder, self.folder / "2.jsonl", code=1).words)
        self.assertIn("the same runs", self.report("--against", self.folder, self.folder, code=2).stderr)


class SideBySide(Report):
    def test_machines_in_one_table_without_a_verdict(self):
        sides = [self.write(f"{gpu}.jsonl", step("ddp", rate), step("none", 1000), link(0, 1, gbs),
                            collective(2 ** 20, 100 * 330 / gbs), head=header(gpu=gpu))
                 for gpu, rate, gbs in (("H100", 500, 300), ("H200", 800, 330))]
        shown = self.compared("--side-by-side", *sides)
        self.assertEqual([shown.row("side_by_side_steps", name) for name in ("ddp", "none")],
                         [{"H100": "500", "H200": "800", "ratio": "1.60"}, {"H100": "1,000", "H200": "1,000", "ratio": "1.00"}])
        ratios = {table.name: table.rows[0][-1] for table in shown.tables}
        self.assertEqual((ratios["side_by_side_links"], ratios["side_by_side_collectives"]), ("1.10", "1.10"))
        self.assertNotIn("erdict", shown.words)
        sides.append(self.write("B200.jsonl", step("ddp", 2000), head=header(gpu="B200")))
        self.assertIn("not measured by all: 1 more", self.report(
            "--side-by-side", *sides, "--csv", "--output", self.out).stdout)
        with (self.out / "side_by_side_steps.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual(rows[0][2:], ["H100 (images/s)", "H200 (images/s)", "H200 ratio", "B200 (images/s)", "B200 ratio"])
        self.assertEqual(rows[1][1:], ["ddp", "500", "800", "1.6", "2000", "4.0"])

    def test_folders_of_an_acceptance(self):
        """Its own record, and node_check's, name the host alone: those of what computed name the machine, the nodes'
        folders two of one kind. Its stages are no repetitions: train is deterministic and slower than throughput, path
        includes NCCL's logging."""
        for node, rate in (("n1", 500), ("n2", 800)):
            (self.folder / node).mkdir()
            for program in ("acceptance", "node_check"):
                self.write(f"{node}/{program}.jsonl",
                           head={"kind": "run", "program": program, "host": node, "hosts": [node]})
            for stage, record, options in (
                    ("throughput", step("ddp", rate, 0.001), {}),
                    ("train", step("ddp", 300), {"options.deterministic": True}),
                    ("path", collective(2 ** 20, 1e6 / rate), {"options.path": True}),
                    ("collectives", collective(2 ** 20, 20), {"options.path": False})):
                self.write(f"{node}/{stage}.jsonl", record, head=header(host=node, hosts=[node] * 4, **options))
        folders = self.folder / "n1", self.folder / "n2"
        shown = self.compared("--side-by-side", *folders)
        self.assertEqual([list(shown.row("side_by_side_steps", name).values()) for name in ("ddp", "ddp, --deterministic")],
                         [["500", "800", "1.60"], ["300", "300", "1.00"]])
        self.assertEqual(list(shown.row("side_by_side_collectives", "all_reduce").items()),
                         [("n1", "78.64"), ("n2", "78.64"), ("ratio", "1.00")])
        self.assertIn("OLD: NVIDIA H200, 6 runs", self.compared("--against", *folders).words)
        shown = self.compared("--against", *reversed(folders), code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "verdict"), ["-37.5 %", "REGRESSION"])
        shown = self.shown_of(folders[0])
        self.assertEqual(shown.words.splitlines()[0], "NVIDIA H200, on n1")
        self.assertEqual(shown.row("strategies", "ddp, --deterministic")["images/s"], "300")
        latencies = [shown.row("collectives", name) for name in ("all_reduce, --path", "all_reduce")]
        self.assertEqual([next(cell for cell in row.values() if " at " in cell) for row in latencies],
                         ["2000.00 at 1 MiB", "20.00 at 1 MiB"])

    def test_what_cannot_stand_side_by_side_is_named(self):
        a, b = self.write("a.jsonl", step("ddp", 500)), self.write("b.jsonl", step("ddp", 500, batch_size=1))
        (self.folder / "two").mkdir()
        for gpu in ("H100", "H200"):
            self.write(f"two/{gpu}.jsonl", step("ddp", 1), head=header(gpu=gpu))
        for paths, code, cause in (([a], 2, "needs two RUNs"), ([a, b], 3, "in common"),
                                   ([a, self.folder / "gone.jsonl"], 2, "gone.jsonl: No such file"),
                                   ([a, self.folder / "two"], 2, "runs of several machines (H100, H200)")):
            self.assertIn(cause, self.report("--side-by-side", *paths, code=code).stderr)
