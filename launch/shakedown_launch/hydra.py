"""What Hydra, the launcher of MPICH and Intel MPI, writes. It writes lines to its own standard output and error;
what the ranks write it is made to write elsewhere (`streams`).

Its exit code is the bitwise or of the ranks', and 9 or 255 where one was killed: the ranks' own are read
(-print-all-exitcodes). After MPI_Abort MPICH prints none, and ends with the code of the abort."""

import os
import re
import signal

from . import messages

# "[mpiexec@n1] Exit codes: [n1] 0,256", and a line for each further host: what wait() gave, in the order of the ranks
CODES = r"(?:Exit codes: |^)\[([^\]\s]+?)(?::\d+)?\] (\d+(?:,\d+)*)$"
NOT_THERE = r"^\[proxy:[\d:]+@(\S+)\] .*execvp error on file (\S+)"
LOST = r"control_cb .*assert \(!closed\) failed"
UNREACHED = r"Launch proxy failed|Unable to run bstrap_proxy on (\S+)"
SILENT = r"^Timeout, server (\S+) not responding"  # of ssh
ABORT = rb"Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort\(.*\n"
CLEANED_UP = signal.SIGKILL  # by Intel MPI, the ranks that still run when one has ended


class Messages(messages.Messages):
    program = "mpiexec.hydra"
    instead = {signal.SIGUSR2: signal.SIGUSR1}

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._own = messages.Blocks(None, self._judge_own_line, paired=True)
        self._ranks_ended = []  # (host, what wait() gave)
        self._text = []  # that explains nothing: shown where nothing else does

    def streams(self, words, environ, out, error, own):
        patterns = ["-outfile-pattern", f"/dev/fd/{out}", "-errfile-pattern", f"/dev/fd/{error}"]
        return [words[0], *patterns, *words[1:]], environ, own, own

    def read_shared(self, data):
        return super().read_shared(re.sub(ABORT, b"", data))

    def _judge_own_line(self, line):
        codes, not_there, unreached = re.search(CODES, line), re.search(NOT_THERE, line), re.search(UNREACHED, line)
        if codes:
            self._ranks_ended += [(codes[1], int(code)) for code in codes[2].split(",")]
        elif not_there:
            if not self._not_run:
                self._report(f"a rank on {not_there[1]}: {not_there[2]} is not there or cannot be executed")
            self._not_run = True
        elif re.search(LOST, line):
            self._lose(list(self._refused) or self._hosts[:len(self._hosts) == 1] or [""],
                       "was lost: it or its network link failed")
        elif unreached:
            self._lose([unreached[1]] if unreached[1] else list(self._refused) or [""], "could not be reached")
        elif "BAD TERMINATION" in line:
            self.rank_ended = True
        elif not self._judge_line(line):
            self._text.append(line)

    def _judge_line(self, line):
        silent = re.search(SILENT, line)
        if silent:
            self._refused[silent[1]] = "ssh had no answer"
        return super()._judge_line(line)

    def judge(self, status):
        numbers = [os.WTERMSIG(code) for _, code in self._ranks_ended if os.WIFSIGNALED(code)]
        codes = [os.WEXITSTATUS(code) for _, code in self._ranks_ended if os.WIFEXITED(code) and code]
        first = [number for number in numbers if number != CLEANED_UP] or ([] if codes else numbers)
        if any(f"signal {number}" in self._sent for number in first):
            status = 128 + first[0]
        elif first:
            self._name_dead(first)
            status = 128 + first[0]
        elif codes:  # that of wrong data before those of other trouble
            self.rank_ended, status = True, min(codes)
        elif not self._text and not self._ranks_ended:
            self.rank_ended = True
        code, text = super().judge(status)
        if code == 3 and not (self.lost or self.dead or self.rank_ended):
            self._show("\n".join(self._text[-messages.LONGEST_BLOCK:]))
        return code, text

    def _name_dead(self, numbers):
        """Where one died of the signal; of several only the first did, and which that was is not known."""
        died = [(str(rank), host) for rank, (host, code) in enumerate(self._ranks_ended)
                if os.WIFSIGNALED(code) and os.WTERMSIG(code) in numbers]
        if len(died) == 1:
            (rank, host), number = died[0], numbers[0]
            self.dead.append((rank, host, f"signal {number} ({signal.strsignal(number)})"))
            self._report(f"rank {rank} on {host} died of signal {number} ({signal.strsignal(number)})")
