"""launch/variants: what it runs, what it says of figures and of errors. NCCL is
played by a script: its switches and error texts need no GPU. Run by tests/run."""

import contextlib
import io
import json
import os
import shlex
import re
import shutil
import tempfile
import unittest

import support
import transcript  # support says where it is
from launch_support import run
from support import BIN, GPUS, TREE, read_record
from shakedown_launch import command, variants  # support says where it is


RUN = {"kind": "run", "transport": "nccl", "program": "fake", "world_size": 2, "backend": "gpu", "hosts": ["h", "h"]}


def collective(size, busbw, time_us, **changes):
    return {"kind": "collective", "operation": "all_reduce", "dtype": "float32", "bytes": size,
            "in_place": False, "busbw_gbs": busbw, "time_us_p50": time_us, "wrong_elements": 0,
            "samples_us": [time_us * (1 + i / 1000) for i in range(6)], "time_us_low": time_us,
            "time_us_high": 1.005 * time_us, **changes}


class Folder(support.Folder):
    """A folder of its own, so that none is left in the runs/ of this tree."""

    def variants(self, *arguments, **changes):
        return run(TREE / "launch/variants", *arguments, cwd=self.folder, timeout=120, **{"SHAKEDOWN_BIN": BIN, **changes})

    def program(self, text):
        """A program that --record FILE is given to, as $record."""
        return support.write_script(self.folder / "program", f"record=${{@: -1}}\n{text}")

    def results(self):
        folders = list((self.folder / "runs").glob("variants-*"))
        self.assertEqual(len(folders), 1)
        return folders[0]

    def rows(self, text):
        """The table's rows, by variant: all cells of its lines."""
        lines = text.split("\nvariant ")[1].splitlines()
        heads = lines[0]
        rows, name = {}, None
        for line in lines[1:lines.index("") if "" in lines else None]:
            name = line.split()[0] if line[0] != " " else name
            rows.setdefault(name, []).append(" ".join(line.split()))
        self.assertIn("remark", heads)
        return rows

    def expect(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        for word in words:
            self.assertIn(word, result.stdout + result.stderr)


class Runs(Folder):
    def test_train(self):
        if GPUS == 1:
            self.skipTest("2 ranks on 1 GPU")
        backend = "gpu" if GPUS else "cpu"
        result = self.variants("-n", 2, "--variants", "default,mpi-tcp", "train", "--model",
                               "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 4,
                               "--iterations", 2, "--warmup", 1, "--certificate", "off",
                               "--backend", backend)
        self.expect(result, 0, f"train: 2 ranks, {backend}, transport {'nccl' if GPUS else 'mpi'}",
                    f"results: {self.results()}")
        self.assertRegex(result.stdout, "(?m)^(shared memory and limits of this host|WARN|FAIL|UNKNOWN)")
        rates = {}
        for name in ["default", "mpi-tcp"]:
            start, step, *_, end = read_record(self.results() / f"{name}.jsonl")
            self.assertEqual((start["kind"], end["exit_code"]), ("run", 0))
            rates[name] = step["images_per_s"]
            self.assertIn("images/s", (self.results() / f"{name}.log").read_text())
        rows = self.rows(result.stdout)
        rate = f"{rates['default']:{',.0f' if rates['default'] >= 1000 else '.4g'}}"
        self.assertRegex(rows["default"][0], rf"default ok tiny ddp, 25 MiB, \w+, batch 4, 2 ranks {re.escape(rate)} images/s")
        self.assertIn(f"{rates['mpi-tcp'] / rates['default']:.2f}", rows["mpi-tcp"][0])
        self.assertIn((self.results() / "table.txt").read_text(), result.stdout)

    def test_a_program_has_the_variants_environment(self):
        program = self.program('env | grep -E "^(NCCL|OMPI_MCA_btl)" >"${record%.jsonl}.env"')
        result = self.variants("-n", 1, "--gpus", "0,1", "--variants", "default,ring", program, BACKENDS="cpu gpu",
                               NCCL_ALGO="CollNet", NCCL_DEBUG="VERSION", LC_ALL="C")
        self.assertTrue(result.stdout.isascii(), result.stdout)
        self.expect(result, 0, "your environment has NCCL_ALGO=CollNet; ring runs with NCCL_ALGO=Ri")
        for name, algorithm in [("default", "CollNet"), ("ring", "Ring")]:
            lines = (self.results() / f"{name}.env").read_text().splitlines()
            for line in [f"NCCL_ALGO={algorithm}", "NCCL_DEBUG=VERSION",
                         f"NCCL_DEBUG_FILE={self.results()}/{name}.nccl.%h.%p"]:
                self.assertIn(line, lines)

    def test_launches_of_a_fault_are_interleaved(self):
        program = self.program('[[ ${NCCL_ALGO:-} == Ring ]] && exit 1; echo \'{"kind": "end", "exit_code": 0}\' >$record')
        result = self.variants("-n", 1, "--find", 97, "--variants", "default,ring", program)
        self.expect(result, 1, "2 launches each, 4 in all: a fault in 97 % of launches is missed once in 1,000",
                    "WARN ring: 2 of 2 launches wrong, of the others 0 of 2: by chance in 17 % of cases")
        self.assertEqual([line.split()[0] for line in (self.results() / "variants.tsv").read_text().splitlines()],
                         ["default", "ring", "default", "ring"])

    def test_a_refused_option_is_refused_once(self):
        program = self.program("[[ $NCCL_ALGO == Ring ]] || exit 0; echo 'no option --wat'; exit 2")
        for names, ran in [("ring,tree", ["ring"]), ("tree,ring,no-ib", ["tree", "ring", "no-ib"])]:
            result = self.variants("-n", 1, "--variants", names, program)
            self.expect(result, 2, "usage error", "last output: no option --wat")
            self.assertEqual(list(self.rows(result.stdout)), ran)
            shutil.rmtree(self.results())

    def test_requested_gpus_that_are_not_visible_are_refused_once(self):
        none = {"CUDA_VISIBLE_DEVICES": "", "BACKENDS": "cpu gpu"}
        program = self.program("touch ran")
        result = self.variants("-n", 1, "--variants", "ring,tree", program, "--backend", "gpu", **none)
        self.expect(result, 3, "launch/variants: --backend gpu: no GPU is visible on this host")
        self.assertEqual(([*self.folder.glob("r*")], result.stdout), ([], ""))
        # Other hosts may have some: here none is reached.
        result = self.variants("-n", 1, "--hosts", "h1.invalid", "--variants", "ring", program, "--backend", "gpu",
                               **none)
        self.assertIn("ring", self.rows(result.stdout))

    def test_a_variant_that_hangs_is_ended_and_the_next_one_runs(self):
        program = self.program('echo $$ >>pids; [[ ${NCCL_ALGO:-} == Ring ]] || exec sleep 60')
        result = self.variants("-n", 2, "--timeout", 2, "--variants", "default,ring", program)
        self.expect(result, 3)
        rows = self.rows(result.stdout)
        self.assertIn("default timeout", rows["default"][0])
        self.assertIn("ring ok", rows["ring"][0])
        pids = (self.folder / "pids").read_text().split()
        self.assertEqual(len(pids), 4)
        self.assertTrue(support.gone(*pids), "still running")


def choose(text=None, words=("true",), gpus=2):
    """Which variants."""
    return [variant.name for variant in variants.choose(text, list(words), {}, "OMPI_", lambda _: gpus)]


def settings(**users):
    """What each variant adds to a user's environment."""
    for variant in variants.VARIANTS:
        made = variants.environment(variant, variant.name, "/f", users)
        yield f"{variant.name}: {' '.join(f'{key}={value}' for key, value in made.items() if users.get(key) != value)}"


def fitness(line, code):
    """Of a node_check that records this line and ends with this code."""
    with tempfile.TemporaryDirectory() as folder:
        support.write_script(f"{folder}/node_check", f"echo '{json.dumps(line)}' >$3; exit {code}")
        yield from variants.fitness(folder, {**os.environ, "SHAKEDOWN_BIN": folder})


def notes(settings_, **environ):
    """Of a file of NCCL's with these settings, and one that is not there."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(settings_)
        file.flush()
        for line in variants.notes(variants.VARIANTS, environ, [file.name, "/nonexistent"]):
            yield line.replace(file.name, "FILE")


def main(line):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            return variants.main(shlex.split(line))
        finally:
            assert out.getvalue() == ""


SMALL = {"kind": "verdict", "scope": "node", "name": "h", "check": "shared-memory", "verdict": "WARN",
         "cause": "/dev/shm: 0.1 of 0.1 GiB free", "action": "--ipc=host"}


def of(busbw, *samples, **ends):
    return collective(8, busbw, 10 / busbw, samples_us=samples, **ends)


def links(*several):
    return [{"kind": "link", "direction": direction, "bandwidth_gbs": each}
            for direction, each in [*(("unidirectional", each) for each in several), ("bidirectional", 100)]]


def visits(*several):
    return {"kind": "table", "of": "visit", "columns": ["forward_gbs", "latency_us"], "rows": [[each, None] for each in several]}


def step(rate, low, high):
    return {"kind": "step", "model": "resnet18", "strategy": "ddp", "batch_size": 4,
            "images_per_s": rate, "images_per_s_low": low, "images_per_s_high": high}


END = {"kind": "end", "exit_code": 0}
MPI = {**RUN, "transport": "mpi"}
NEAR = {"time_us_low": 7, "time_us_high": 11}


class Table(Folder):
    """The table on folders written here: variants.txt."""
    SETTINGS = {"no-shm": "NCCL_SHM_DISABLE=1\tshared memory", "ring": "NCCL_ALGO=Ring\t",
                "mpi-tcp": "OMPI_MCA_btl=tcp,self\tshared memory", "default": "\t"}

    def table(self, **launches):
        """Of a variant: its exit code, what it said, the lines of its record, or texts in their place; ring__2: of its second
        launch."""
        folder = self.folder / "runs/variants-1"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for key, (code, said, *lines) in launches.items():
            name, _, number = key.partition("__")
            name = name.replace("_", "-")
            file = f"{name}.{number}" if number else name
            if name == "file":  # of NCCL's log
                (folder / "default.nccl.host.1").write_text(said)
                continue
            if name == "cut":  # the last line, by a full disk
                with open(folder / "variants.tsv", "a") as out:
                    out.write(said)
                continue
            (folder / f"{file}.log").write_text(said)
            if lines != [None]:
                (folder / f"{file}.jsonl").write_text("".join(
                    x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines))
            with open(folder / "variants.tsv", "a") as out:
                out.write(f"{name}\t{self.SETTINGS[name]}\t{code}\n")
        shown = []
        code = variants.show(folder, shown.append)
        return f"exit code {code}\n" + "\n".join(line for line in "\n".join(shown).splitlines() if line)

    def test_tables(self):
        names = {**globals(), "table": self.table}
        transcript.expressions(self, TREE / "tests/programs/variants.txt", names, {command.UsageError: "refused"})


if __name__ == "__main__":
    unittest.main()
