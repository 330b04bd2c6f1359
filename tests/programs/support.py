"""What the program tests share: running programs, their records, small image folders."""

import collections
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

TREE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", TREE / "bin")).resolve()
BUILD = pathlib.Path(os.environ.get("SHAKEDOWN_TEST_BUILD", TREE / "build"))
INJECTED = BUILD.resolve() / "injected"  # late or wrong, as `injected`
SCHEMA = json.loads((TREE / "results/schema.json").read_text())

try:
    import jsonschema
except ImportError:  # then records are only parsed; make test installs it where it may
    jsonschema = None


sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests/support")]
from shakedown_launch import gpus  # noqa: E402

GPUS = gpus.visible(os.environ)
needs_cpu_backend = unittest.skipIf(
    GPUS and subprocess.run([BIN / "train", "--backend", "cpu", "--model", "tiny", "--describe"],
                            capture_output=True).returncode != 0,
    "built without the cpu backend")
# For launch/mpi and the like: this Python, not a shim of pyenv, which takes longer than the start of a job.
os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
# Where programs share cores, threads and ranks that poll keep them from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


def run(*arguments, ranks=1, env=None, timeout=300, gpu_each=True):
    """Runs a program under launch/mpi; the completed process, its output as text.

    Where there are GPUs each rank needs one (`gpu_each`): with fewer the test is skipped.
    """
    if gpu_each and 0 < GPUS < ranks:
        raise unittest.SkipTest(f"{ranks} ranks on {GPUS} GPUs")
    line = [str(TREE / "launch/mpi"), "-n", str(ranks), *map(str, arguments)]
    return run_bare(*line, env=env, timeout=timeout)


def run_bare(*arguments, env=None, timeout=300):
    """Runs a program without a launcher."""
    return subprocess.run(list(map(str, arguments)), cwd=TREE, capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})})


def write_script(path, text):
    """A program that is this text of bash; its path."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def injected(fault="", delay=""):
    """Environment of a program of INJECTED: tests/support/injection.hpp."""
    return {"SHAKEDOWN_TEST_FAULT": str(fault), "SHAKEDOWN_TEST_DELAY": delay}


def wait_until(done, seconds=60):
    """What `done` returns, once that is not empty; the last when it takes longer."""
    limit = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < limit:
        time.sleep(0.02)
    return found


def gone(*pids):
    """Whether the processes end soon; one that nobody reaps has."""
    def runs(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "XZ"
        except OSError:
            return False
    return wait_until(lambda: not any(map(runs, pids)))


def pids_of_ranks(program, word):
    """Of the job of `program` whose command line has this word, in the order of its ranks."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", (path / "environ").read_bytes())
        except OSError:
            continue
        if words[0] == bytes(program) and bytes(word) in words and rank:
            found[int(rank[1])] = int(path.name)
    return [found[rank] for rank in sorted(found)]


def let_work(pid, seconds):
    """Waits until the process has computed so long; on a busy machine that takes longer."""
    def used():
        times = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    limit, until = time.monotonic() + 60, used() + seconds
    while used() < until:
        if time.monotonic() > limit:
            raise TimeoutError(f"process {pid} is idle")
        time.sleep(0.01)


@functools.cache
def validator_of(kind):
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})


def schema_error(line):
    """What is wrong with a record, or None."""
    kind = line.get("kind")
    if kind not in SCHEMA["$defs"]:
        return f"unknown kind {kind}"
    if jsonschema is None:
        return None
    error = jsonschema.exceptions.best_match(validator_of(kind).iter_errors(line))
    return None if error is None else f"{kind}: {'/'.join(map(str, error.path))}: {error.message}"


def refuse_unlike_schema(path, line):
    error = schema_error(line)
    if error:
        raise ValueError(f"{path}: {error}")


def rows_of(path, line):
    """The lines that a table's rows stand for; any other line is itself."""
    if line.get("kind") != "table":
        return [line]
    refuse_unlike_schema(path, line)
    common = {key: value for key, value in line.items() if key not in ("of", "columns", "rows")}
    return [{**common, "kind": line["of"], **{key: cell for key, cell in zip(line["columns"], row) if cell is not None}}
            for row in line["rows"]]


def read_record(path, with_run_id=True):
    """The lines of a record; each must be JSON as RFC 8259 has it, fit the schema and name its run,
    which a record made before 0.2 does not."""
    def refuse(word):
        raise ValueError(f"{path}: {word} is not JSON")
    lines = [json.loads(text, parse_constant=refuse)
             for text in pathlib.Path(path).read_text().splitlines()]
    lines = [row for line in lines for row in rows_of(path, line)]
    for line in lines:
        refuse_unlike_schema(path, line)
        if with_run_id and "run_id" not in line:
            raise ValueError(f"{path}: a {line['kind']} line without run_id")
    return lines


def read_safetensors(path):
    """{name: values}; a matrix is a list of rows. Of float32 and int64."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = [v for v, in struct.iter_unpack("<f" if entry["dtype"] == "F32" else "<q",
                                                     data[begin:end])]
            if len(entry["shape"]) == 2:
                wide = entry["shape"][1]
                values = [values[i:i + wide] for i in range(0, len(values), wide)]
            tensors[name] = values
    return tensors


def write_png(path, width, height, pixel):
    """An RGB image; pixel(x, y) gives three values of 0..255."""
    rows = b"".join(b"\0" + bytes(v for x in range(width) for v in pixel(x, y))
                    for y in range(height))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(
            ">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pathlib.Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
                                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_image_folder(root, count, classes=("stripes", "dots", "plain")):
    """`count` images per class, which a network learns to classify in a few steps."""
    patterns = {
        "stripes": lambda x, y, i: (255, 30, 30) if (x + i) // 4 % 2 else (20, 20, 20 + i),
        "dots": lambda x, y, i: (30, 255, 30) if (x + i) % 6 < 3 and y % 6 < 3 else (i, 10, 10),
        "plain": lambda x, y, i: (30, 30, 200 + i % 50),
    }
    for name in classes:
        folder = pathlib.Path(root) / name
        folder.mkdir(parents=True)
        for i in range(count):
            write_png(folder / f"{i:03}.png", 32, 32, lambda x, y: patterns[name](x, y, i))


class Folder(unittest.TestCase):
    """A folder for each test."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.record = self.folder / "r.jsonl"

    def expect(self, result, code, *words):
        said = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, said)
        for word in words:  # paragraphs are wrapped
            self.assertIn(" ".join(word.split()), " ".join(said.split()))

    def lines(self, kind):
        return [line for line in read_record(self.record) if line["kind"] == kind]

    def measured(self, program, *arguments, code=0, start=run, **options):
        """Runs a program; what it printed, and its records by kind. `code`: or several. `start`: or run_bare."""
        self.record.unlink(missing_ok=True)
        result = start(program, "--record", self.record, *arguments, **options)
        self.assertIn(result.returncode, (code,) if isinstance(code, int) else code, result.stdout + result.stderr)
        lines = read_record(self.record)
        self.assertEqual((lines[0]["kind"], lines[-1]["kind"], lines[-1]["exit_code"]), ("run", "end", result.returncode))
        found = collections.defaultdict(list)
        for line in lines:
            found[line["kind"]].append(line)
        return result.stdout, found

    def stop_rank(self, rank, program, *arguments, ranks, after):
        """Stops that rank while it works, once it has printed `after`: exit code and output of the job, which ends soon."""
        if 0 < GPUS < ranks:
            self.skipTest(f"{ranks} ranks need {ranks} GPUs")
        job = subprocess.Popen([TREE / "launch/mpi", "-n", str(ranks), program, *map(str, arguments), "--record", self.record],
                               cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(job.terminate)
        for line in job.stdout:
            if re.search(after, line):
                break
        victim = pids_of_ranks(program, self.record)[rank]
        let_work(victim, 0.3)
        os.kill(victim, signal.SIGSTOP)
        started = time.monotonic()
        said = job.communicate(timeout=60)[0]
        self.assertLess(time.monotonic() - started, 45)  # 3 s where the cores are free
        self.assertTrue(gone(victim))
        self.assertEqual(job.returncode, 3, said)
        return said

    def check_exchanged(self, buckets, payload):
        """Together the buckets hold every gradient, and little padding (of the stem's channels)."""
        exchanged = sum(b["bytes"] for b in buckets)
        self.assertGreaterEqual(exchanged, payload)
        self.assertLess(exchanged, 1.03 * payload)
