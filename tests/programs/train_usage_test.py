"""bin/train's options, and what it refuses beyond usage.txt. Run by tests/run."""

import re
import shlex
import subprocess
import unittest

import support
from support import BIN, Folder, read_record, run, run_bare

SMALL = ["--model", "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 8]
TRAIN = BIN / "train"


class Usage(Folder):
    def test_options_are_read_before_mpi_starts(self):
        no_mpi = {"OMPI_MCA_pml": "none"}
        self.assertNotEqual(run_bare(TRAIN, "--describe", env=no_mpi).returncode, 0)
        for program in ("train", "compare", "collective_perf", "all_reduce_perf", "link_matrix"):
            self.expect(run_bare(BIN / program, "--help", "all", env=no_mpi), 0, "Usage: ", program,
                        "--timeout SECONDS")
            self.expect(run_bare(BIN / program, "--version", env=no_mpi), 0,
                        f"{program} (Shakedown) ", "revision ", "backends ", "mpi ")
            self.expect(run_bare(BIN / program, "--bogus", env=no_mpi), 2, "--bogus")
        other = run_bare(TRAIN, "--bogus", env={"OMPI_COMM_WORLD_RANK": "1", **no_mpi})
        self.assertEqual((other.returncode, other.stdout + other.stderr), (2, ""))

    def test_list_recipes_is_the_help_s_earlier_name(self):
        recipes = run_bare(TRAIN, "--help", "recipes").stdout
        self.assertIn("torchvision-v1", recipes)
        self.assertEqual(run_bare(TRAIN, "--list-recipes").stdout, recipes)

    def test_a_usage_error_is_printed_once(self):
        result = run(TRAIN, "--bach-size", 3, ranks=3)
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (2, "", "train: unknown option --bach-size; did you mean --batch-size?; "
                                 "see --help\n"))
        result = run(TRAIN, "--version", ranks=3)
        self.assertEqual((result.returncode, result.stdout.count("revision"), result.stderr),
                         (0, 1, ""))

    def test_a_batch_that_does_not_fit_is_told_before_the_first_step(self):
        result = run_bare(TRAIN, "--model", "resnet50", "--batch-size", 200000)
        self.expect(result, 2, "--batch-size 200000", "needs", "are free", "largest batch that fits")
        self.assertGreater(int(re.search(r"fits is about (\d+)", result.stderr)[1]), 10)

    def test_describe_names_layers_memory_and_buckets(self):
        result = run_bare(TRAIN, "--model", "resnet50", "--describe", "--batch-size", 8)
        self.assertRegex(result.stdout, r"optimizer state +97\.(49|5) MiB")
        self.expect(result, 0, "161 tensors, 25557032 parameters", "layer4.2.conv3",
                    "8196000 bytes", "activations and their gradients")

    def test_a_file_missing_on_one_rank_is_named(self):
        (self.folder / "w.safetensors").write_text("")
        command = f'cd $(if ((OMPI_COMM_WORLD_RANK)); then echo /; else echo {self.folder}; fi);' \
                  f' exec {shlex.quote(str(TRAIN))} --weights w.safetensors --timeout 600'
        result = support.run("bash", "-c", command, ranks=2)  # ends before the 600 s, within which it waits
        self.expect(result, 2, "rank 1 on", "--weights w.safetensors: No such file or directory",
                    "torchvision's resnet50-0676ba61.pth", "training/convert_weights.py")

    def test_a_help_that_cannot_be_written_is_told(self):
        for program in (TRAIN, support.BIN / "judge"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                helped = subprocess.run([program, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual((helped.returncode, "standard output" in helped.stderr), (3, True), helped.stderr)

    def test_weights_that_cannot_be_saved_cost_no_result(self):
        full = self.folder / "full"
        full.symlink_to("/dev/full")
        result = run_bare(TRAIN, *SMALL, "--iterations", 2, "--warmup", 1, "--certificate", "off",
                          "--save", full, "--record", self.folder / "r.jsonl")
        self.expect(result, 3, "images/s", f"--save {full}: cannot be written: No space left")
        self.assertEqual([r["kind"] for r in read_record(self.folder / "r.jsonl")][1], "step")

    @unittest.skipIf(support.GPUS, "a GPU is here")
    def test_requested_gpus_that_are_missing_are_no_reason_for_the_cpu(self):
        request = {"SLURM_JOB_GPUS": "0,1"}
        result = run_bare(TRAIN, *SMALL, env=request)
        built = "built without gpu" not in result.stderr
        self.expect(result, 3 if built else 2, "SLURM_JOB_GPUS=0,1", "--backend cpu")

    @support.needs_cpu_backend
    def test_the_cpu_computes_any_precision_in_fp32_and_says_so(self):
        for precision in ("fp16", "bf16", "tf32"):
            record = self.folder / f"{precision}.jsonl"
            result = run_bare(TRAIN, *SMALL, "--backend", "cpu", "--precision", precision, "--iterations", 2,
                              "--warmup", 1, "--record", record)
            self.expect(result, 0, f"--precision {precision}: computed in fp32, as the cpu backend does", ", fp32, ")
            for line in read_record(record):
                self.assertEqual(line.get("precision", "fp32"), "fp32")
                self.assertNotIn(line.get("grad_dtype"), ("float16", "bfloat16"))
            self.assertEqual(read_record(record)[0]["options.precision"], precision)  # what was requested
        result = run_bare(TRAIN, *SMALL, "--backend", "cpu", "--precision", "fp32", "--describe")
        self.assertNotIn("computed in", result.stdout)

    def test_a_missing_gpu_is_told(self):
        result = run_bare(TRAIN, *SMALL, "--backend", "gpu", env={"CUDA_VISIBLE_DEVICES": ""})
        self.expect(result, 2 if "built without gpu" in result.stderr else 3, "--backend gpu")


@unittest.skipIf(support.GPUS == 0, "no GPU")
class Placement(Folder):
    """How ranks and GPUs may be matched, for real; the decisions are tested without (placement)."""

    def rank_sees(self, devices, ranks):
        """Runs bin/train with CUDA_VISIBLE_DEVICES set by a shell expression on every rank."""
        script = self.folder / "rank"
        script.write_text(f'#!/bin/sh\nexport CUDA_VISIBLE_DEVICES={devices}\nexec "$@"\n')
        script.chmod(0o755)
        return run(script, TRAIN, *SMALL, "--iterations", 1, "--warmup", 1, ranks=ranks,
                   gpu_each=False)

    def test_two_ranks_on_one_gpu_are_told(self):
        self.expect(self.rank_sees("0", 2), 2, "2 ranks and 1 visible GPU", "is held by rank 0")

    def test_a_gpu_missing_on_one_rank_is_told(self):
        result = self.rank_sees('"$([ $OMPI_COMM_WORLD_RANK = 1 ] || echo 0)"', 2)
        self.expect(result, 3, "no GPU is visible to rank 1 on", "while others see some")

    @unittest.skipIf(support.GPUS < 2, "needs two GPUs")
    def test_a_gpu_of_its_own_for_each_rank(self):
        result = self.rank_sees("$OMPI_COMM_WORLD_LOCAL_RANK", 2)
        self.expect(result, 0, "images/s", "2 ranks", "gpu")


class CommittedRecords(unittest.TestCase):
    def test_committed_records_fit_the_schema(self):
        for path in sorted((support.TREE / "results").glob("**/*.jsonl")):
            with self.subTest(path=path):
                read_record(path, with_run_id=False)


if __name__ == "__main__":
    unittest.main()
