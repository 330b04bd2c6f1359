"""results/report --against; run by report_test.py."""

import csv

from report_records import collective, header, step
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


class Folders(Report):
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
        self.assertIn("OLD: NVIDIA H200, 6 runs", self.compared("--against", *folders).words)
        shown = self.compared("--against", *reversed(folders), code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "verdict"), ["-37.5 %", "REGRESSION"])
        shown = self.shown_of(folders[0])
        self.assertEqual(shown.words.splitlines()[0], "NVIDIA H200, on n1")
        self.assertEqual(shown.row("strategies", "ddp, --deterministic")["images/s"], "300")
        latencies = [shown.row("collectives", name) for name in ("all_reduce, --path", "all_reduce")]
        self.assertEqual([next(cell for cell in row.values() if " at " in cell) for row in latencies],
                         ["2000.00 at 1 MiB", "20.00 at 1 MiB"])
