"""A line on what runs and how long the rest will need: rewritten on a terminal, else one line per
stage."""

import os
import sys
import time


class Progress:
    """`seconds`: [(stage, estimate)], in their order. Writes to standard error."""

    def __init__(self, seconds, write=None, terminal=None):
        self._left = dict(seconds)
        self._total = len(self._left)
        self._write = write or self._to_standard_error
        self._terminal = os.isatty(2) if terminal is None else terminal
        self._shown = ""
        self._number = 0
        self._stage, self._what, self._start = "", "", 0.0

    @staticmethod
    def _to_standard_error(text):
        sys.stderr.write(text)
        sys.stderr.flush()

    def expect(self, seconds):
        """The stages still to come, once more is known of the nodes."""
        self._left = dict(seconds)
        self._total = self._number + len(self._left)

    def begin(self, stage, what):
        self._number += stage != self._stage
        self._stage, self._what, self._start = stage, what, time.monotonic()
        self._now = self._left.pop(stage, 0) or getattr(self, "_now", 0)
        if not self._terminal:
            self._write(f"{self._line()}\n")
        self.tick()

    def tick(self):
        if self._terminal and self._stage:
            line = self._line()
            if line != self._shown:
                self._write(f"\r{line}\x1b[K")
                self._shown = line

    def end(self):
        if self._terminal and self._shown:
            self._write("\r\x1b[K")
        self._shown = ""

    def _line(self):
        left = sum(self._left.values())
        left += max(0, self._now - (time.monotonic() - self._start))
        text = f"{self._number}/{self._total} {self._stage}: {self._what}"
        return f"{text}, about {minutes(left)} left"


def minutes(seconds):
    seconds = round(seconds)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60}:{seconds % 60:02d} min"
