"""bin/judge: what it makes of records that are cut off or of several machines, and --record-reference of noisy ones."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import support
import transcript
from support import BIN

END = {"kind": "end", "exit_code": 0}


def run(program="soak", boot="b1", gpus=("GPU-a", "GPU-b"), **more):
    return {"kind": "run", "program": program, "hosts": ["n1"] * 2, "boot_ids": [boot] * 2, "gpu_uuids": gpus, **more}


def verdict(scope, name, outcome, **more):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, "cause": "why", **more}


def metric(**more):
    return {"kind": "metric", "metric": "memory/copy", "unit": "GB/s", "scope": "rank", "name": "0", "ranks": [0],
            "hosts": ["n1"], "backend": "cpu", "board": "A processor", "samples": [20], "check": "verified",
            "outcome": "measured", **more}


def training(program="train", started="2026-11-29T13:21:00Z", epochs=(3,), code=0, first="c", **options):
    """One that was stopped after two epochs, with checkpoints in `first`, and a later run with these options that passed."""
    def of(program, started, epochs, code, options):
        return [run(program, started=started, **{f"options.{key}": value for key, value in options.items()}),
                *({"kind": "epoch", "epoch": number} for number in epochs), {"kind": "end", "exit_code": code}]
    later = of(program, started, epochs, code, options)
    return (of("train", "2026-11-29T13:20:03Z", (1, 2), 5, {"checkpoint_dir": first, "resume": "auto"}),
            [*later[:-1], verdict("job", "gradients", "PASS"), later[-1]])


def judged(*records):
    """What bin/judge prints of files with these lines."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / f"{number}.jsonl" for number in range(len(records))]
        for path, lines in zip(paths, records):
            path.write_text("".join(
                json.dumps({"kind": line["kind"], "run_id": path.stem, **line}, separators=(",", ":")) + "\n"
                if isinstance(line, dict) else line for line in lines))
        said = subprocess.run([BIN / "judge", *paths], capture_output=True, text=True, timeout=60)
        return f"{said.stdout}{said.stderr}exit code {said.returncode}".replace(f"{folder}/", "")


class Records(unittest.TestCase):
    def test_what_is_made_of_them(self):
        names = {"judged": judged, "run": run, "verdict": verdict, "metric": metric, "training": training, "END": END}
        transcript.expressions(self, pathlib.Path(__file__).with_name("judge_records.txt"), names)


class Noisy(support.Folder):
    def written(self, *metrics):
        """Of three CPU ranks, whose samples the metrics have."""
        path = self.folder / "r.jsonl"
        run = {"kind": "run", "run_id": "2026-11-26T01:02:03Z-n1-1", "program": "compute_perf", "hosts": ["n1"] * 3}
        lines = [{"kind": "metric", "run_id": run["run_id"], "metric": metric, "unit": "GB/s", "scope": "rank",
                  "name": str(rank), "ranks": [rank], "hosts": ["n1"], "backend": "cpu", "board": "A processor",
                  "look": 1, "samples": [value * (1 + i / 1000) for i in range(10)], "check": "verified",
                  "outcome": "measured"}
                 for metric, values in metrics for rank, value in enumerate(values)]
        end = {"kind": "end", "run_id": run["run_id"], "exit_code": 0}
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [run, *lines, end]))
        return path

    def judge(self, *arguments):
        return subprocess.run([BIN / "judge", *map(str, arguments)], capture_output=True, text=True, timeout=60)

    def test_a_pipe_in_a_folder_is_refused(self):
        os.mkfifo(self.folder / "a.jsonl")
        said = self.judge(self.folder)
        self.assertEqual((said.returncode, said.stderr), (2, f"error: {self.folder}/a.jsonl: is no regular file\n"))

    def test_only_noise_is_refused_without_a_file(self):
        reference = self.folder / "site.json"
        said = self.judge(self.written(("memory/copy", (20, 2, 0.5))), "--record-reference", reference)
        self.assertEqual(said.returncode, 3, said)
        self.assertIn(f"--record-reference {reference}: not written: memory/copy: too noisy", said.stderr)
        self.assertIn("measure again with nothing else running", said.stderr)
        self.assertFalse(reference.exists())

    def test_a_list_leaves_the_operands_behind_it(self):
        said = self.judge("--rates", "memory,products", self.written(("memory/read", (20, 20.1, 19.9))))
        self.assertIn("INCONCLUSIVE node n1: memory not judged: its ranks ran on the CPU", said.stdout)

    def test_a_noisy_metric_is_left_out_and_the_file_can_be_read(self):
        reference = self.folder / "site.json"
        record = self.written(("memory/copy", (20, 2, 0.5)), ("memory/read", (20, 20.1, 19.9)))
        said = self.judge(record, "--record-reference", reference)
        self.assertEqual(said.returncode, 0, said)
        self.assertIn(f"{reference}: without memory/copy: too noisy", said.stdout)
        self.assertEqual([figure["metric"] for figure in json.loads(reference.read_text())["figures"]], ["memory/read"])
        self.assertEqual(self.judge(record, "--reference", reference).returncode, 0)


if __name__ == "__main__":
    unittest.main()
