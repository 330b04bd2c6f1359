"""What results/report makes of bin/compare's records; run by report_test.py."""

import json

from report_records import header, step, training
from report_support import Report, row


class BucketCaps(Report):
    def test_caps_are_methods_of_their_own(self):
        text = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=4),
                            step("all-reduce", 800))
        self.assertIn("ddp (25 MiB) 1,000 images/s, ddp (4 MiB) 900 (10.0 % less", text)
        ddp = json.loads((self.out / "results_baseline_ddp.json").read_text())
        self.assertEqual((ddp["strategy"], ddp["bucket_cap_mb"]), ("ddp", 25))
        self.assertEqual(ddp["other_configurations"][0]["bucket_cap_mb"], 4)
        one = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=25))
        self.assertEqual(row(one, "ddp")[5], "2 runs")

    def test_differing_options_are_told_once(self):
        names = ("none", "ddp", "zero1")
        files = [self.write(f"{rate}.jsonl", *(step(name, 1000) for name in names), *training(
            "ddp", [0.5]), head=header(**{"options.learning_rate": rate, "options.repeats": rate,
                                          "options.strategies": list(names)[:rate]}))
                 for rate in (1, 2)]
        self.report(*files, "--output", self.out, env=self.without("matplotlib"))
        text = (self.out / "performance_report.txt").read_text()
        self.assertEqual(text.count("--learning-rate (1, 2)"), 1)
        self.assertIn("and 3 more configurations", text)
        self.assertNotIn("--repeats", text)
        self.assertNotIn("--strategies", text)
