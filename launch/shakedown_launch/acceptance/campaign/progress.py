"""What runs and how long the rest will need: a line that is rewritten on a terminal, else one line
per stage; and the log with the times of everything."""

import contextlib
import os
import sys
import time

from ...words import duration


class Log:
    def __init__(self, path):
        self._path = path

    def line(self, text):
        with open(self._path, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")


class Progress:
    """`log` is given each stage once. Nothing is written elsewhere unless `shown`."""

    def __init__(self, log, shown=True, write=None, terminal=None):
        self._log, self._shown = log, shown
        self._write = write or to_standard_error
        self._terminal = os.isatty(2) if terminal is None else terminal
        self._coming = {}  # stage: seconds
        self._number = self._count = 0
        self._stage = self._what = self._last = ""
        self._until = 0.0

    def expect(self, seconds):
        """[(stage, seconds)] of those still to come."""
        self._coming = dict(seconds)
        self._count = self._number + len(self._coming)

    def begin(self, stage, what):
        if stage != self._stage:
            self._number += 1
            self._until = time.monotonic() + self._coming.pop(stage, 0)
        self._stage, self._what = stage, what
        self._log(self._line())
        if self._shown and not self._terminal:
            self._write(f"{self._line()}\n")
        self.tick()

    def note(self, text, shown=False):
        self._log(text)
        if shown and self._shown:
            self.end()
            self._write(f"{text}\n")

    def tick(self):
        if self._shown and self._terminal and self._line() != self._last:
            self._last = self._line()
            self._write(f"\r{self._last}\x1b[K")

    def end(self):
        if self._last:
            self._write("\r\x1b[K")
            self._last = ""

    def _line(self):
        head = f"{self._number}/{self._count} " if self._count else ""
        left = sum(self._coming.values()) + max(0, self._until - time.monotonic())
        tail = f", about {duration(round(left))} left" if self._count else ""
        return f"{head}{self._stage} on {self._what}{tail}"


def to_standard_error(text):
    with contextlib.suppress(OSError):  # nobody reads it
        sys.stderr.write(text)
        sys.stderr.flush()


