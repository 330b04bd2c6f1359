"""The headline of results/report, which launch/mpi prints after bin/train, bin/compare and bin/soak, from their record."""

import contextlib
import os
import re
import tempfile

from .command import say

RECORD = "SHAKEDOWN_RECORD"  # the programs' --record, where that is not given; set, the job's launcher reports
PROGRAMS = ("train", "compare", "soak")
USAGE = 2  # exit code


def record_of(words):
    """The last value of --record among a program's words, as the program uses; empty without one."""
    path = ""
    for at, word in enumerate(words):
        if word.startswith("--record="):
            path = word.partition("=")[2]
        elif word == "--record":
            path = "".join(words[at + 1:at + 2])
    return path


class Headline:
    """`words`: the program's. `host`: rank 0's, where that is not this one; then its record is read only if both
    hosts see it. The record of a program without --record is a temporary file."""

    def __init__(self, words, host="", quiet=False):
        self._shown = not quiet and os.path.basename(words[0]) in PROGRAMS and "--describe" not in words
        self._host, self._kept, self._temporary = host, record_of(words), None
        if self._shown and not self._kept and not host:
            with contextlib.suppress(OSError):  # no space: the job itself does not need it
                self._temporary = tempfile.NamedTemporaryFile(prefix="shakedown_", suffix=".jsonl")
        self.path = self._kept or (self._temporary.name if self._temporary else "")
        self._start = os.path.getsize(self.path) if os.path.isfile(self.path) else 0

    def environment(self):
        return {RECORD: self.path if self._shown else ""}

    def show(self, code):
        """After the job, whatever its exit code but that of a usage error. A program that recorded nothing and
        passed, as with --help, has nothing to report; one that failed measured nothing."""
        if self._shown and code != USAGE:
            if os.path.isfile(self.path):
                if code or os.path.getsize(self.path) > self._start:
                    self._print(code)
            elif self._kept and self._host:
                say(f"record: {self._host}:{self._kept}", print)
        if self._temporary:
            self._temporary.close()

    def _print(self, code):
        try:
            from reporting.headline import text_of
            text = text_of(self.path, self._start, code)
        except Exception as error:  # the job's own end counts
            say(f"no headline: {error}")
            return
        if not self._kept:  # the file goes now
            text = re.sub(rf"\s+\({re.escape(self.path)}\)", "", text)
        how = f"results/report {self._kept}" if self._kept else "--record FILE keeps what results/report reads"
        try:
            print(f"\n{text}\nreport: {how}" if text else f"report: {how}", flush=True)
        except OSError:  # nobody reads it, or the disk is full: as the program's own output shows
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
