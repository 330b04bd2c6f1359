"""One job that meets a fault: its start, its ranks, its end, and what it leaves."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/programs"))
import support  # noqa: E402

MARKER = "SHAKEDOWN_FAULT_CASE"  # of every process that the job starts, in its environment
START_S = 60  # until the program is at work, on a busy machine


class Unexpected(Exception):
    """The job did not do what it must."""


def processes(marker):
    """{pid: environment} of those that live and have this marker."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"{MARKER}={marker}".encode() in environment and state not in "XZ":
            pairs = (pair.partition(b"=") for pair in environment.split(b"\0"))
            found[int(folder.name)] = {name.decode(): value.decode(errors="replace")
                                       for name, _, value in pairs}
    return found


def program_of(pid):
    try:
        return pathlib.Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


class Job:
    """A command in a session of its own, all of whose processes carry a marker."""

    def __init__(self, words, environment, folder, record="r.jsonl"):
        self.marker = uuid.uuid4().hex
        self.record = pathlib.Path(folder) / record
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(word) for word in words], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            env={name: str(value) for name, value in
                 {**os.environ, **environment, MARKER: self.marker}.items() if value is not None})

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if error:
            error.output = self.said()
        self.close()

    @property
    def pid(self):
        return self._process.pid

    def said(self):
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def recorded(self):
        return self.record.read_text() if self.record.exists() else ""

    def process_of(self, *programs):
        """The pid of the one that runs one of these."""
        for pid in processes(self.marker):
            if program_of(pid) in programs:
                return pid
        raise Unexpected(f"none of {programs} runs")

    def rank(self, number, program):
        """The pid of this rank once it runs the program."""
        def find():
            for pid, environment in processes(self.marker).items():
                if environment.get("OMPI_COMM_WORLD_RANK") == str(number) and \
                        program_of(pid) == program:
                    return pid
            return None
        pid = support.wait_until(find, START_S)
        if not pid:
            raise Unexpected(f"rank {number} of {program} does not run")
        return pid

    def wait_until(self, at_work):
        support.wait_until(lambda: self._process.poll() is not None or at_work(), START_S)
        if self._process.poll() is not None or not at_work():
            raise Unexpected("it was not at work")

    def ended(self):
        """The exit code, or None."""
        return self._process.poll()

    def end(self, seconds):
        """The exit code with which it ends within that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Unexpected(f"it still runs after {seconds} s") from None

    def left(self):
        """The processes that it leaves."""
        support.wait_until(lambda: not processes(self.marker), 10)
        return processes(self.marker)

    def close(self):
        """Leaves nothing, whatever happened."""
        for pid in processes(self.marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self._process.wait()
        self._output.close()
