"""launch/slurm/rolling: which nodes get a job, what is known of each. sinfo, squeue and sbatch are scripts."""

import fcntl
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

from tree import TREE
import transcript
import report_records
from support import write_script

FAKES = {
    "sinfo": "cat $FAKE/nodes",
    "squeue": "cat $FAKE/queue",
    "sbatch": 'n=$(($(cat $FAKE/count) + 1)); echo $n >$FAKE/count; echo "$SHAKEDOWN_RUNS $*" >>$FAKE/submitted; '
              '[[ $* =~ --nodelist\ ([^ ]+) ]]; echo "${BASH_REMATCH[1]}|PENDING|$n|Priority" >>$FAKE/queue; echo $n',
    # Jobs from 1000 on are of another campaign.
    "scontrol": 'if [[ $* == show* ]]; then ((${*: -1} < 1000)) && echo " StdOut=$FAKE/campaign/n1/x.out"; '
                'else echo "scontrol $*" >>$FAKE/submitted; fi'}


class Rolling(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.fake = pathlib.Path(folder.name)
        self.output = self.fake / "campaign"
        for name, text in FAKES.items():
            write_script(self.fake / "bin" / name, text)
        self.queue("")
        (self.fake / "count").write_text("0\n")
        self.nodes(n1="allocated", n2="idle", n3="drained", n4="idle", n5="mixed")

    def nodes(self, **states):
        (self.fake / "nodes").write_text("".join(f"{name}|{state}|{'broken fan' if state == 'drained' else 'none'}\n"
                                                 for name, state in states.items()))

    def queue(self, text):
        (self.fake / "queue").write_text(text)

    def result(self, node, job, verdict, cause="", ended=True, code=0):
        folder = self.output / node / f"rolling-{job}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [{"kind": "run"}, {"kind": "verdict", "scope": "node", "name": node, "verdict": verdict, "cause": cause, "stages": ["x"]}]
        lines += [{"kind": "end", "exit_code": code}] if ended else []
        (folder / "acceptance.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def night(self, node, job, busbw):
        """A result with a rate."""
        self.result(node, job, "PASS")
        folder = self.output / node / f"rolling-{job}"
        rate = report_records.collective(2**20, 1e6 / busbw)
        head = report_records.header(program="collective_perf", host=node, hosts=[node] * 4, started=f"2026-11-{job + 1:02}T02:00:00Z")
        (folder / "collectives.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (
            head, rate, {"kind": "end", "exit_code": 0})))
        os.utime(folder / "acceptance.jsonl", (job, job))

    def run_it(self, words):
        """Its exit code, and what it prints."""
        done = subprocess.run([TREE / "launch/slurm/rolling", "--output", self.output, "--partition", "gpu", *shlex.split(words)],
                              env={**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake / 'bin'}:{os.environ['PATH']}"},
                              capture_output=True, text=True, timeout=60)
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"

    def do(self, line):
        """A line of rolling.txt; what is shown of it."""
        what, _, rest = line.strip().partition(" ")
        words = rest.split()
        if what == "rolling":
            return self.run_it(rest)
        if what == "submitted":
            path = self.fake / "submitted"
            return path.read_text() if path.exists() else "nothing submitted\n"
        if what == "nodes":
            self.nodes(**dict(word.split("=") for word in words))
        elif what == "queue":
            self.queue(f"{rest}\n" if rest else "")
        elif what == "result":
            self.result(words[0], words[1], words[2], " ".join(words[3:]))
        elif what == "cut":  # without an end
            self.result(words[0], "cut", "PASS", ended=False)
        elif what == "cancelled":
            self.result(words[0], "cancelled", "INCONCLUSIVE", code=5)
        elif what == "folder":
            return f"the output's folder: {'there' if self.output.exists() else 'none'}\n"
        elif what == "locked":
            self.output.mkdir(exist_ok=True)
            with open(self.output / "rolling.tsv", "a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return self.run_it(rest)
        elif what == "old":
            os.utime(self.output / words[0] / "acceptance.jsonl", (0, 0))
        elif what == "nights":
            for job, busbw in enumerate(map(int, words[2:]), int(words[1])):
                self.night(words[0], job, busbw)
        elif what == "noted":  # in rolling.tsv
            self.output.mkdir(exist_ok=True)
            (self.output / "rolling.tsv").write_text(rest.replace("\\t", "\t").replace("\\n", "\n"))
        elif what in ("sinfo", "sbatch"):
            write_script(self.fake / "bin" / what, rest)
        else:
            raise ValueError(line)
        return ""

    def answer(self, given):
        self.setUp()
        text = "".join(self.do(line) for line in given.splitlines())
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE", text).replace(f"{TREE}/", "TREE/").replace(str(self.fake), "FOLDER")
        return text

    def test_cases(self):
        transcript.check(self, TREE / "tests/launch/rolling.txt", self.answer)


if __name__ == "__main__":
    unittest.main()
