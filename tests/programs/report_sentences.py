"""What results/report says of a soak; run by report_test.py. What else it claims: report_cases.txt."""

from report_support import Report


class Sentences(Report):
    def test_what_a_soak_proves(self):
        def soaked(**numbers):
            verdict = {"kind": "verdict", "scope": "job", "name": "soak", "verdict": "PASS", "cause": "its own words"}
            return self.shown({"kind": "soak_summary", "backend": "gpu", "world_size": 2, "energy_j": None, "products": 2.1e6,
                               "products_self_compared": 0, **numbers}, verdict)
        proved = {"gpu_hours": 0.25, "wrong": 0, "probes": 700, "memory_bytes": 9.8e15, "copied_bytes": 0, "link_bytes": 1.2e15}
        said = "0 wrong in 2.1e6 products, 700 probes of processors, 9.8 PB of memory, 1.2 PB over links"
        self.assertEqual(soaked(**proved).said["Soak"], f"{said}: rate below 12 per GPU-hour at 95 %.")
        self.assertEqual(soaked(**{**proved, "wrong": 3}, would_have_found="power").said["Soak"], said.replace("0 wrong", "3 wrong", 1) + ".")
        for more, words in (({"backend": "cpu"}, "12 per rank-hour"),
                            ({"would_have_found": "power at 95 %: one"}, "per GPU-hour at 95 %; power at 95 %: one."),
                            ({"products_self_compared": 64304}, ", of which 64304 were compared only with themselves,")):
            self.assert_said(soaked(**proved, **more).said["Soak"], words)
        self.assertEqual(soaked(gpu_hours=0, wrong=0, products=0).said["Soak"], "nothing was checked.")
        self.assertEqual(soaked().said["Soak"], "its own words.")  # 0.2
        text = soaked(**proved, memory_share=[0.97, 0.96], memory_passes=[3, 1], memory_patterns_done=[2, 5],
                      processors=[132, 132], processors_reached=[132, 131], slowest_processor=[7, None],
                      slowest_processor_ratio=[1.25, None], copied_to_device_bytes=[1e12, 5e11],
                      checked_over_unchecked=0.976, **{"checked_over_unchecked.bf16": 0.975}).words
        for words in ("96.0 % of a GPU's memory, 1 complete pass and 2 patterns of the next", "1.5 TB host to device",
                      "263 of 264 SMs; the slowest, SM 7 of rank 0, takes 1.250 of the median",
                      "run at 97.6 % of the rate of unchecked ones (bf16 97.5)"):
            self.assertIn(words, text)
