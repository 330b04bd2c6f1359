"""tests/faulty: the library of faults, what bin/soak finds of them, the records of tests/faulty/run and the table of power.
Run by tests/run."""

import copy
import json
import pathlib
import subprocess
import sys
import unittest

from support import BIN, BUILD, GPUS, TREE, Folder, needs_cpu_backend, read_record, run, schema_error

LIBRARY = BUILD / ("libfaulty.so" if GPUS else "libfaulty_cpu.so")
sys.path.insert(0, str(TREE / "tests/faulty"))
import injection  # noqa: E402

# One window per phase, of what is left of a second.
QUICK = ["--minutes", 0.004, "--types", "fp32,int8", "--shape", "steady", "--loads", "products",
         *(["--size", 1024] if GPUS else [])]


class Faulty(Folder):
    def model(self, name, **changes):
        """One of tests/faulty/models.json whose faults have other values: products here are small, and few."""
        model = copy.deepcopy(injection.MODELS[name])
        for fault in model["faults"]:
            fault.update(changes)
        return self.write(model)

    def write(self, model):
        path = self.folder / "model.json"
        path.write_text(json.dumps(model))
        return path

    def preload(self, model, **more):
        return [f"{key}={value}" for key, value in {"LD_PRELOAD": LIBRARY, "FAULTY_MODEL": model,
                                                    "FAULTY_LOG": self.folder / "log.json", **more}.items()]

    def soak(self, model, *arguments, ranks=1, code=1, **more):
        """What was wrong, what the library did, and what the program printed."""
        record = self.folder / "r.jsonl"
        record.unlink(missing_ok=True)
        result = run("env", *self.preload(model, FAULTY_RANK=ranks - 1, **more), BIN / "soak", "--record", record, "--output",
                     self.folder, *(arguments or QUICK), ranks=ranks)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        log = json.loads((self.folder / "log.json").read_text())
        self.assertGreater(log["products"] + log["copies"], 0)
        return [line for line in read_record(record) if line["kind"] == "mismatch"], log, result.stdout


class Models(Faulty):
    def refused(self, text, *words):
        self.folder.joinpath("model.json").write_text(text)
        result = subprocess.run(["env", *self.preload(self.folder / "model.json"), "true"], capture_output=True, text=True)
        self.expect(result, 2, f"FAULTY_MODEL {self.folder}/model.json: ", *words)

    def test_what_is_wrong_in_a_model_is_named(self):
        def product(**keys):
            return json.dumps({"class": "x", "faults": [{"on": "product", **keys}]})
        for text, words in {
                "{": "is not JSON",
                "[]": "must be an object",
                '{"class": "x"}': "'faults' not found",
                '{"class": "x", "faults": [], "fault": 1}': 'fault: must be one of ["class","source","faults"]',
                '{"class": "x", "faults": [{"on": "heat"}]}': 'faults[0]: on: must be one of ["product","memory","copy"',
                product(flipp="0x8"): 'faults[0]: flipp: must be one of ["on","types",',
                product(share=1): "faults[0]: flip: must be there",
                product(flip="0x8", share=2): "faults[0]: share: must be a number from 0 to 1",
                product(flip="8"): 'faults[0]: flip: must be "0x" and 1 to 16',
                product(flip="0x8", types=["fp4"]): 'faults[0]: types: must be one of ["fp64","fp32"',
                product(flip="0x8", unit={"warp": 99}): "faults[0]: warp: must be a number from 0 to 7",
                product(flip="0x8", unit={"thread": 1}): "faults[0]: unit.thread: must be one of "}.items():
            with self.subTest(words):
                self.refused(text, words)

    def test_the_models_of_the_tree_are_valid(self):
        for name, model in injection.MODELS.items():
            elsewhere = name == "collective" and not GPUS  # a GPU's alone
            result = subprocess.run(["env", *self.preload(self.write(model)), "true"], capture_output=True, text=True)
            self.expect(result, 2 if elsewhere else 0, *(["faults[0]: on: must be one of"] if elsewhere else []))
        classes = {model["class"] for model in injection.MODELS.values()}
        self.assertEqual(len(classes), len(injection.MODELS))


class Soak(Faulty):
    def test_without_a_fault_nothing_is_found(self):
        mismatches, log, said = self.soak(self.model("none"), code=0)
        self.assertEqual((mismatches, log["flips"]), ([], 0))
        self.assertIn("PASS job soak: 0 wrong", said)

    def test_what_sticks_to_a_unit_is_found_and_placed_by_a_gpu_alone(self):
        for name, changes in {"sm": {}, "sm_full": {}, "warp_full": {}, "lane_full": {}, "lane_bit": {}, "lane_some": {"share": 0.1},
                              "lane_nan": {"share": 0.1}}.items():
            with self.subTest(name):
                model = self.model(name, **changes)
                mismatches, log, _ = self.soak(model)
                # With four tiles the faulty SM may have one in two turns of three: the vote is wrong then, but not always.
                self.assertIn(True, [injection.placed(line, json.loads(model.read_text()), log["first"]) for line in mismatches],
                              mismatches)
                if name == "lane_nan":
                    self.assertEqual(int(log["first"]["wrong"], 16) & 0x7FC00000, 0x7FC00000)

    def test_the_rank_that_has_it_is_named(self):
        model = self.model("lane_full")
        mismatches, _, _ = self.soak(model, ranks=3)
        self.assertEqual({line["rank"] for line in mismatches}, {2})
        fault = json.loads(model.read_text())
        self.assertTrue(injection.placed(mismatches[0], fault, None, 3))
        self.assertFalse(injection.placed({**mismatches[0], "rank": 1}, fault, None, 3))

    def test_what_all_do_alike_is_beyond_the_bound_of_the_cpu(self):
        mismatches, _, _ = self.soak(self.model("all_alike", share=0.01, flip="0x40000000"))
        self.assertIn("the CPU's result refutes it", mismatches[0]["cause"])

    def test_what_happens_now_and_then_is_found(self):
        mismatches, log, _ = self.soak(self.model("products_1e-3", rate=0.1))
        share = log["wrong_products"] / log["products"]
        self.assertAlmostEqual(share, 0.1, delta=0.6 / log["products"] ** 0.5 + 0.03)
        self.assertLess(mismatches[0]["reproduced"], 50)

    def test_blocks_that_move_contradict_themselves(self):
        mismatches, log, _ = self.soak(self.model("sm_q", q=0.5))
        self.assertTrue(0 < log["wrong_products"] < log["products"], log)
        self.assertLess(mismatches[0]["reproduced"], 100)

    def test_another_type_is_spared(self):
        mismatches, _, _ = self.soak(self.model("lane_one_type", types=["int8"], share=1))
        self.assertEqual({line["load"] for line in mismatches}, {"product int8"})

    def test_a_cell_of_the_operands_memory_is_found(self):
        address = {} if GPUS else {"address": 0.1}  # of A, B and C
        model = self.model("memory_operand", bit=6, **address)
        mismatches, _, _ = self.soak(model)
        self.assertTrue(injection.placed(mismatches[0], json.loads(model.read_text()), None), mismatches[0])

    def test_a_copy_is_found(self):
        loads = [word if word != "products" else "copies" for word in QUICK]
        mismatches, log, _ = self.soak(self.model("copy", rate=1e-4), *loads)
        self.assertGreater(log["copies"], 0)
        self.assertIn("host to device", mismatches[0]["where"])

    def test_the_seed_chooses_the_unit(self):
        model = {"class": "x", "faults": [{"on": "product", "unit": {"sm": None, "warp": None, "lane": None}, "flip": None}]}
        logs = [self.soak(self.write(model), FAULTY_SEED=seed)[1] for seed in (1, 2, 1)]
        for log in logs:  # a lane has this many elements of a block
            self.assertEqual(log["flips"], log["wrong_products"] * (128 if GPUS else 64))
        firsts = [log["first"] for log in logs]
        units = [(first["sm"] if not GPUS else 0,  # there the seed chooses a block
                  first["warp"], first["lane"], int(first["right"], 16) ^ int(first["wrong"], 16)) for first in firsts]
        self.assertEqual(units[0], units[2])
        self.assertNotEqual(units[0], units[1])
        self.assertEqual([bin(unit[3]).count("1") for unit in units], [1, 1, 1])


class Injections(Faulty):
    def inject(self, *arguments, code=0):
        result = subprocess.run([TREE / "tests/faulty/run", self.folder, *map(str, arguments)], capture_output=True, text=True)
        self.expect(result, code)
        return result

    def records(self):
        lines = [json.loads(line) for line in (self.folder / "injections.jsonl").read_text().splitlines()]
        self.assertEqual([error for error in map(schema_error, lines) if error], [])
        return lines

    @unittest.skipIf(0 < GPUS < 3, "3 ranks on fewer GPUs")
    def test_training_finds_what_its_last_layer_computes(self):
        self.inject("--tool", "train", "--model", "sm", "--ranks", 3, "--seconds", 60, "--", "--model", "tiny", "--image-size", 32,
                    "--batch-size", 2)
        line, = self.records()
        self.assertTrue(line["found"], line)
        self.assertIn("rank 2 computed other gradients than ranks 0, 1", line["named"])

    @needs_cpu_backend
    def test_invariant_weights_differ_by_a_fault_alone(self):
        self.inject("--tool", "invariant", "--model", "none", "--model", "sm", "--", "--model", "tiny", "--image-size", 32,
                    "--batch-size", 2)
        self.assertEqual([(line["found"], line["products"] > 0) for line in self.records()], [(False, True), (True, True)])

    @needs_cpu_backend
    def test_records_and_their_table(self):
        self.inject("--model", "none", "--model", "sm", "--model", "copy", "--seconds", 0.3, "--", *QUICK[2:])
        none, sm, of_copy = self.records()
        self.assertEqual((none["class"], none["found"], none["flips"]), ("none", False, 0))
        self.assertEqual((sm["tool"], sm["found"]), ("soak", True))
        self.assertIn(sm["exit_code"], (1, 5))  # it had ended, or was stopped
        self.assertLessEqual(sm["first_flip_s"], sm["seconds"])
        self.assertIn("tile", sm["named"])
        self.assertFalse(of_copy["found"])  # no copy is made
        table = subprocess.run([TREE / "tests/faulty/table", self.folder / "injections.jsonl"], capture_output=True, text=True)
        self.expect(table, 0, "| class | soak |", "| SM, any data | 1 of 1 (20.7-100 %), ", "| false alarms | 0 in ",
                    "copies to the GPU, 1e-9 of words | 0 of 1 (0-79.3 %); 1 without a flip |")

    def test_a_tool_without_a_wrapped_call_is_void(self):
        burn = self.folder / "gpu_burn"
        burn.write_text("#!/bin/bash\necho GPU $CUDA_VISIBLE_DEVICES\nprintf '10.0%%  proc.d: 470 (9 Gflop/s)   errors: 0\\r'; sleep 0.2\n"
                        "printf '20.0%%  proc.d: 940 (9 Gflop/s)   errors: 12  (WARNING!)   temps: 45 C\\r'; exec sleep 60\n")
        burn.chmod(0o755)
        said = self.inject("--tool", "gpu-burn", "--gpu-burn", self.folder, "--model", "sm", "--seconds", 5, "--repeats", 2,
                           "--gpus", "3,5")
        self.assertIn("no call was wrapped: see gpu-burn-sm-2/said.log", said.stdout)
        lines = self.records()
        self.assertEqual({line["seed"] for line in lines}, {1, 2})
        for line in lines:
            self.assertTrue(line["found"])
            self.assertIn("errors: 12 (WARNING!)", line["named"])
        gpus = {path.read_text().split("\n")[0] for path in self.folder.glob("gpu-burn-sm-*/said.log")}
        self.assertEqual(gpus, {"GPU 3", "GPU 5"})
        table = subprocess.run([TREE / "tests/faulty/table", self.folder / "injections.jsonl"], capture_output=True, text=True)
        self.expect(table, 0, "| SM, any data | - |")

    def test_a_tool_that_fails_is_void(self):
        said = self.inject("--model", "sm", "--seconds", 0.3, "--", *QUICK[2:], "--size", 64)
        self.assertIn("void", self.records()[0])
        self.assertIn("see soak-sm-1/said.log", said.stdout)
        self.assertIn("--size 64: must be", (self.folder / "soak-sm-1/said.log").read_text())

    def test_a_capsule_becomes_a_model(self):
        mismatches, _, _ = self.soak(self.model("sm"))
        placed = next(line for line in mismatches if "stays at its place" in line["cause"])
        capsule = json.loads(pathlib.Path(placed["capsule"]).read_text())
        model = injection.model_of(capsule, "capsule.json")
        first = {key: int(capsule[key], 16) for key in ("expected_bits", "found_bits")}
        fault = model["faults"][0]
        flip = first["expected_bits"] ^ first["found_bits"]
        self.assertEqual((fault["types"], int(fault["flip"], 16), "rate" in fault), ([capsule["type"]], flip, False))
        _, log, _ = self.soak(self.write(model))
        self.assertEqual(int(log["first"]["right"], 16) ^ int(log["first"]["wrong"], 16), flip)
        capsule["circumstances"].update(cause="follows the data, wherever they are computed", reproduced=7, repeats=100)
        fault = injection.model_of(capsule, "capsule.json")["faults"][0]
        self.assertEqual((int(fault["when"], 16), fault["rate"], "unit" in fault), (first["expected_bits"], 0.07, False))
        del capsule["found_bits"]
        with self.assertRaisesRegex(ValueError, "capsule.json: has no expected_bits"):
            injection.model_of(capsule, "capsule.json")

    @needs_cpu_backend
    def test_no_place_is_no_answer(self):
        said = self.inject("--placement", "--library", BUILD / "fake_nvml.so", "--seconds", 0.3, "--", *QUICK[2:], code=1)
        self.assertIn("soak: no product was seen twice: see ", said.stderr)

    def test_options_are_checked(self):
        self.assertIn("--gpu-burn must name", self.inject("--tool", "gpu-burn", code=2).stderr)
        self.assertIn("--tool must be soak or loop", self.inject("--placement", "--tool", "train", code=2).stderr)
        self.assertIn("there is no such file; models are all_alike, collective", self.inject("--model", "smm", code=2).stderr)

    def test_the_table_counts(self):
        path = self.folder / "made.jsonl"
        base = {"kind": "injection", "class": "c", "tool": "soak", "flips": 1, "ran_s": 1800}
        path.write_text("".join(json.dumps({**base, **line}) + "\n" for line in (
            {"found": True, "seconds": 2, "placed": True}, {"found": True, "seconds": 4, "placed": False},
            {"found": True, "seconds": 1}, {"found": False, "flips": 0}, {"found": False, "void": "x"},
            {"found": True, "tool": "loop", "seconds": 0.5}, {"found": False, "class": "none"},
            {"found": True, "class": "none", "seconds": 9}, {"kind": "soak", "wrong_products": 0},
            {"kind": "soak_summary", "gpu_hours": 0.5, "wrong": 0}, {"kind": "soak_summary", "energy_j": 1})))
        table = subprocess.run([TREE / "tests/faulty/table", path], capture_output=True, text=True).stdout
        self.assertEqual(table.splitlines()[:4], [
            "| class | soak | loop |", "| --- | --- | --- |",
            "| c | 3 of 4 (30.1-95.4 %), 2 s; 1 without a flip; place right 1 of 2 | 1 of 1 (20.7-100 %), 0.5 s |",
            "| false alarms | 1 in 1.5 h | - |"])
        path.write_text("".join(json.dumps({"kind": "placement", "tool": "loop", "type": "bf16", "kernel": "gemm_tn_tilesize1", "blocks": 132,
                                            "seen": seen, **({"q": 0.5, "moved": 0.25} if seen else {})}) + "\n" for seen in (0, 8)))
        table = subprocess.run([TREE / "tests/faulty/table", path], capture_output=True, text=True).stdout
        self.assertEqual(table.splitlines()[2:], ["| loop bf16 | gemm_tn | 132 | 8 | 0.50 | 25 % |"])


if __name__ == "__main__":
    unittest.main()
