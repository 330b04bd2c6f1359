"""The launchers' messages: a class each. Those that repeat what the exit code says are dropped; a rank's death and
a lost host are reported in one line.

Open MPI has blocks between dashed lines, and a few lines outside of blocks. 4 writes them where
OPAL_OUTPUT_STDERR_FD says, a pipe of their own. 5 (PRRTE) writes them to the standard error that the ranks have
too, which is passed on as it is. Both are read."""

import os
import re
import signal

# Compiled when first used: most jobs end without a message.
DIED = r"rank (\d+) with PID \d+ on\s+node (\S+) exited on\s+(signal \d+(?: \([^)]*\))?)"
ENDED = (r"MPI_ABORT was invoked|exited with non-zero status|returned\s+a non-zero exit code|"
         r'calling\s+"abort"')
# Which rank ended so. A shell and ld.so end with 126 and 127 where a program, or a library that it
# needs, cannot be run.
ENDED_WITH = r"Process name: \[(?:\[\d+,\d+\]|\S+@\d+),(\d+)\]\s+Exit code:\s+(\d+)"
WITHOUT_FINALIZE = r"process rank (\d+) with PID \d+ on\s+node (\S+) exiting\s+improperly"
NOT_RUN = (126, 127)
COULD_NOT_BE_RUN = "its program, or a library that it needs, could not be run"
# Of a rank for which MPI did not start in time (common/mpi_session.cpp): some other is missing.
WAITS = r"^error: rank (\d+) on \S+: MPI_Init did not finish within"
LOST = r"lost communication with a remote daemon[\s\S]*Remote daemon\s*:.* on node (\S+)"
UNREACHED = (r"unable to reliably start one or more|daemon failed to report back after being spawned|"
             r"route a message to the specified daemon|communication connection to the\s+specified daemon")
UNREACHED_NODE = r"(?:target node|Remote host):\s*(\S+)"
DAEMON_DIED = r"Daemon exit status:\s*(?:12[89]|1[3-9]\d)\b"  # of a signal
NO_FOLDER = r"unable to create the desired directory:\s+Directory:\s*(.+)\s+Error:\s*(.+)"
# Of ssh: the host, and why.
SSH = (r"^(?:ssh: connect to host |ssh: Could not resolve hostname |\S+@(?=\S+: Permission denied))"
       r"(\S+?)(?: port \d+)?: (.+)")
SILENT = r"^Timeout, server (\S+) not responding"
NOT_THERE = (r"could not\s+access\s+(?:or execute )?an executable:\s+Executable:\s*(\S+)\s+Node:\s*(\S+)\s+"
             r"while attempting to start process rank (\d+)")
NO_DAEMON = r"daemon has unexpectedly failed after launch"  # Open MPI's guess is a network's fault
# Of MPICH and Intel MPI, where Open MPI's mpirun starts it.
FOREIGN = r"launcher not compatible with PMI1 client|uses unsupported PMI version PMIx"
ABORT = r"help-mpi-api.txt|/show_help.c"  # what may be left of MPI_Abort's block
IDLE = r"orte_base_help_aggregate|plm:(rsh|ssh): Warning: setpgid"
# On mpirun's standard error, each in one write: a signal that it forwards, and libevent's warning
# about a pipe that was closed before, which it gives after some aborts.
IDLE_WRITES = (rb"mpirun: Forwarding signal \d+ to job\n|"
               rb"\[warn\] Epoll \w+\(\d+\) on fd \d+ failed\. .*: Bad file descriptor\n")
LONGEST_BLOCK, LONGEST_LINE = 100, 65536  # lines, bytes: what ranks write may be longer


class Messages:
    """Of Open MPI 4. Reads both streams. `show` receives what the user should see, `say` our own lines. `ask`: why a
    job may have failed to start, or was lost, in words of Slurm's; "" where it does not know."""

    def __init__(self, say, show, hosts=(), ranks=0, ask=lambda: ""):
        self._say = say
        self._ask = ask
        self._hosts = hosts
        self._ranks = ranks  # 0: unknown
        self._own = Blocks(self._judge_own, self._judge_own_line, paired=True)
        self._shared = Blocks(self._judge, self._judge_line, paired=False)
        self._show = show
        self.dead = []  # (rank, host, "signal 9 (Killed)")
        self.lost = []  # (host; "" where it is not known, what happened to it)
        self.said = []
        self.rank_ended = False  # with an exit code of its own, which mpirun returns
        self._waiting = set()  # ranks
        self._refused = {}  # host that ssh did not reach: why
        self._not_run = self._gave_a_reason = self._foreign = False
        self._code = None  # of the first rank that ended with one, where the launcher names it
        self._no_folder = ""  # that mpirun needs, and why
        self._no_daemon = ""  # Open MPI's text about one that failed
        self._sent = set()  # "signal 12" to the ranks, whose end by it is a stop

    program = "mpirun"
    ends_at_term = False
    instead = {}  # of a signal that the launcher itself ends by: what it passes on

    def streams(self, words, environ, out, error, own):
        """The command, its environment, standard output and standard error with which the launcher's own messages
        go to the descriptor `own`, and those of the ranks to `out` and `error`."""
        return words, {**environ, "OPAL_OUTPUT_STDERR_FD": str(own)}, out, error

    def sent(self, number):
        self._sent.add(f"signal {int(number)}")

    @property
    def job_must_end(self):
        return bool(self.rank_ended or self.dead or self.lost)

    def read_own(self, data):
        self._own.read(data)

    def read_output(self, data):
        """What is to be shown of it. At the end of a stream its data are empty."""
        return data

    def read_shared(self, data):
        """What is to be shown of it."""
        data = re.sub(IDLE_WRITES, b"", data)
        self._shared.read(data)
        return data

    def close(self):
        self._own.close()
        self._shared.close()

    def _judge_own(self, block):
        if not self._judge(block):
            self._show(block)

    def _judge_own_line(self, line):
        self._gave_a_reason = True
        if not self._judge_line(line):
            self._show(line)

    def _judge(self, block):
        """Whether the block reported how the job ended."""
        self._gave_a_reason = True
        died, lost = re.search(DIED, block), re.search(LOST, block)
        if died and died[3].split(" (")[0] in self._sent:
            self.rank_ended = True
        elif died:
            self._die(*died.groups())
        elif lost:
            self._lose([lost[1]], "could not be reached" if lost[1] in self._refused else "was lost: it or its network link failed")
        elif re.search(UNREACHED, block):
            node = re.search(UNREACHED_NODE, block)
            hosts = [node[1]] if node else list(self._refused)
            self._lose(hosts or self._hosts[:len(self._hosts) == 1] or [""], "was lost: its daemon was killed"
                       if re.search(DAEMON_DIED, block) else "could not be reached")
        elif re.search(NOT_THERE, block):
            path, node, rank = re.search(NOT_THERE, block).groups()
            self._not_run = True
            self._report(f"rank {rank} on {node}: {path} is not there or cannot be executed")
        elif re.search(WITHOUT_FINALIZE, block):
            self.rank_ended = self._not_run = True
            self._report("rank {} on {} ended without MPI_Finalize".format(*re.search(WITHOUT_FINALIZE, block).groups()))
        elif re.search(ENDED, block):
            self.rank_ended = True
            ended = re.search(ENDED_WITH, block)
            self._code = int(ended[2]) if ended else None
            if ended and int(ended[2]) in NOT_RUN:
                self._not_run = True
                self._report(f"rank {ended[1]} ended with {ended[2]}: {COULD_NOT_BE_RUN}")
        elif re.search(NO_FOLDER, block):
            self._no_folder = "mpirun cannot make {}: {}; see TMPDIR".format(
                *re.search(NO_FOLDER, block).groups())
        elif re.search(NO_DAEMON, block):
            self._no_daemon = block
        else:
            return False
        return True

    def _judge_line(self, line):
        """Whether a line outside of blocks reports nothing new."""
        waits = re.search(WAITS, line)
        if waits:
            self._waiting.add(int(waits[1]))
        refused, silent = re.search(SSH, line), re.search(SILENT, line)
        if refused:
            self._refused[refused[1]] = refused[2]
        if silent:
            self._lose([silent[1]], "was lost: it or its network link failed")
        self._foreign = self._foreign or bool(re.search(FOREIGN, line))
        if re.search(ABORT, line):
            self.rank_ended = True
            return True
        return bool(re.search(IDLE, line))

    def _die(self, rank, host, of):
        self.dead.append((rank, host, of))
        self._report(f"rank {rank} on {host} died of {of}")

    def _lose(self, hosts, what):
        """Reports the first. `hosts`: [""] where it is not known which."""
        report = not self.lost
        for host in (each for each in hosts if each not in dict(self.lost)):
            why = self._refused.get(host)
            text = f"{f'host {host}' if host else self._other_hosts()} {what}" + (f": {why}" if why else "")
            self.lost.append((host, text))
            if report:
                self._report(text)

    def _report(self, text):
        self.said.append(text)
        self._say(text)

    def _other_hosts(self):
        return f"one of the hosts {' '.join(self._hosts)}" if self._hosts else "a node of the allocation"

    def judge(self, status):
        """(exit code, message) of a launcher that ended with `status`; -N: it died of
        signal N itself."""
        if self._foreign:
            return 2, ("the program was built with MPICH or Intel MPI, and this mpirun is Open MPI's: load the MPI that it "
                       "was built with, or build it again (make clean; make)")
        if self.lost:
            return 3, self._ask() or None
        if self.dead or self._not_run:
            return 3, None
        missing = [str(rank) for rank in range(self._ranks) if rank not in self._waiting]
        if self._waiting and missing:
            ranks = f"rank{'s'[:len(missing) > 1]} {', '.join(missing)}"
            return 3, f"{ranks} did not start MPI, for which the others waited"
        if status == 0:
            return 0, None
        if f"signal {status - 128}" in self._sent:
            return 5, None
        if status < 0 and self._code is not None:  # prterun 3.0 at times ends by an assertion after all is over
            return self._code, None
        if status < 0:
            return 3, f"{self.program} died of signal {-status} ({signal.strsignal(-status)})"
        if status >= 128 and self._refused:  # PRRTE at times ends before it has written its message
            self._lose(list(self._refused), "could not be reached")
            return 3, None
        if 128 < status < 160:  # mpirun 4.1 sometimes ends before it has written its message
            text = signal.strsignal(status - 128)
            return 3, f"a rank died of signal {status - 128} ({text}); {self.program} does not say which"
        if status >= 128:
            return 3, f"a rank or a host was lost ({self.program} ended with {status})"
        if status in NOT_RUN:  # mpirun 4.1 sometimes ends before it has written which
            return 3, f"a rank ended with {status}: {COULD_NOT_BE_RUN}"
        if not self.rank_ended:
            why = self._no_folder or self._ask()
            if self._no_daemon and not why:
                self._show(self._no_daemon)
            why = why or f"{self.program} ended with {status}"
            what = "the job could not be started"
            if status == 1 and not self._gave_a_reason:  # as mpirun ends by a signal
                what = f"{self.program} was stopped by a signal, or {what}"
            return 3, f"{what} ({why})"
        return status, None


# A block of PRRTE's on the ranks' standard output or error, line by line; one that has begun.
OF_PRRTE = rb"-{60,}\n(?:prterun|PRTE|MPI_ABORT was|A daemon failed)"
WHOLE_BLOCK = OF_PRRTE + rb"(?:(?!-{60}).*\n)+?-{60,}\n"
BEGUN_BLOCK = rb"(?m)^(?:" + OF_PRRTE + rb"[\s\S]*|-{60,}\n[^\n]*|-+)\Z"
REFUSED = 213  # PRRTE's exit code for options and mappings that it does not accept


class OpenMpi5(Messages):
    """Its blocks are left out of what is shown where a line of ours is in their place."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._held = {1: b"", 2: b""}  # of a block that has begun, by stream

    def read_output(self, data):
        return self._without_blocks(1, data)

    def read_shared(self, data):
        return super().read_shared(self._without_blocks(2, data.replace(b"\0", b"")))

    def _without_blocks(self, stream, data):
        text = self._held[stream] + data
        begun = data and re.search(BEGUN_BLOCK, re.split(WHOLE_BLOCK, text)[-1])
        self._held[stream] = begun[0] if begun and len(begun[0]) < LONGEST_LINE else b""
        return re.sub(WHOLE_BLOCK, self._rest_of, text[:len(text) - len(self._held[stream])])

    def _rest_of(self, block):
        for line in block.string[:block.start()].decode(errors="replace").splitlines():  # why ssh failed
            self._judge_line(line)
        text = block[0].decode(errors="replace")
        return b"" if self._judge(text.strip("-\n")) else block[0]

    def judge(self, status):
        """Of a rank that ended with a code after MPI_Finalize PRRTE at times writes nothing, as where it was ended by
        a signal itself, which is 1."""
        self.rank_ended = self.rank_ended or 1 < status < 128 and not self._gave_a_reason
        return super().judge(1 if status == REFUSED and self._gave_a_reason else status)


class NoMessages(Messages):
    """Of a command other than a launcher, whose output is its own."""

    def __init__(self):
        super().__init__(None, None)

    def streams(self, words, environ, out, error, own):
        return words, environ, out, error

    def read_shared(self, data):
        return data

    def judge(self, status):
        return (status, None) if status >= 0 else (128 - status, None)


class Blocks:
    """Cuts a stream into the blocks between dashed lines, and the lines outside of them. Where
    ranks write too (not `paired`), a dashed line may open or close a block, and each line counts as
    outside also."""

    def __init__(self, on_block, on_line, paired):
        self._on_block, self._on_line, self._paired = on_block, on_line, paired
        self._rest = b""
        self._block = None  # lines; None outside of a block

    def read(self, data):
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST_LINE:]
        for line in lines:
            self._line(line.decode(errors="replace").rstrip("\r"))

    def _line(self, line):
        if line.startswith("----------"):
            self._end_block()
            self._block = [] if self._block is None or not self._paired else None
            return
        if self._block is None or not self._paired:
            self._on_line(line)
        if self._block is not None:
            self._block.append(line)
            if len(self._block) > LONGEST_BLOCK:
                self._end_block()
                self._block = None

    def _end_block(self):
        if self._block:
            self._on_block("\n".join(self._block))

    def close(self):
        if self._rest:
            self._line(self._rest.decode(errors="replace"))
        self._end_block()
        self._rest, self._block = b"", None


# ---- Hydra ---------------------------------------------------------------------------------------

# "[mpiexec@n1] Exit codes: [n1] 0,256", and a line for each further host: what wait() gave, in the order of the ranks
CODES = r"(?:Exit codes: |^)\[([^\]\s]+?)(?::\d+)?\] (\d+(?:,\d+)*)$"
HYDRA_NOT_THERE = r"^\[proxy:[\d:]+@(\S+)\] .*execvp error on file (\S+)"
HYDRA_LOST = r"control_cb .*assert \(!closed\) failed"
HYDRA_UNREACHED = r"Launch proxy failed|Unable to run bstrap_proxy on (\S+)"
HYDRA_ABORT = rb"Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort\(.*\n"
CLEANED_UP = signal.SIGKILL  # by Intel MPI, the ranks that still run when one has ended


class Hydra(Messages):
    """Lines on its own standard output and error; what the ranks write it is made to write elsewhere (`streams`). Its exit
    code is the bitwise or of the ranks', and 9 or 255 where one was killed: the ranks' own are read (-print-all-exitcodes).
    After MPI_Abort MPICH prints none, and ends with the code of the abort."""

    program = "mpiexec.hydra"
    instead = {signal.SIGUSR2: signal.SIGUSR1}

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._own = Blocks(None, self._judge_own_line, paired=True)
        self._ranks_ended = []  # (host, what wait() gave)
        self._unreached = None  # by its daemon; why is written after it
        self._text = []  # that explains nothing: shown where nothing else does

    def streams(self, words, environ, out, error, own):
        patterns = ["-outfile-pattern", f"/dev/fd/{out}", "-errfile-pattern", f"/dev/fd/{error}"]
        return [words[0], *patterns, *words[1:]], environ, own, own

    def read_shared(self, data):
        return super().read_shared(re.sub(HYDRA_ABORT, b"", data))

    def _judge_own_line(self, line):
        codes, unreached = re.search(CODES, line), re.search(HYDRA_UNREACHED, line)
        if codes:
            self._ranks_ended += [(codes[1], int(code)) for code in codes[2].split(",")]
        elif re.search(HYDRA_LOST, line):
            self._lose(list(self._refused) or self._hosts[:len(self._hosts) == 1] or [""],
                       "was lost: it or its network link failed")
        elif unreached:
            self._unreached = unreached
        elif "BAD TERMINATION" in line:
            self.rank_ended = True
        elif not self._judge_line(line):
            self._text.append(line)

    def _judge_line(self, line):
        """Of either stream: what the daemons of other hosts write arrives on that of the ranks."""
        not_there = re.search(HYDRA_NOT_THERE, line)
        if not_there:
            if not self._not_run:
                self._report(f"a rank on {not_there[1]}: {not_there[2]} is not there or cannot be executed")
            self._not_run = True
            return True
        return super()._judge_line(line)

    @property
    def job_must_end(self):
        return super().job_must_end or bool(self._unreached)

    def close(self):
        super().close()
        if self._unreached:
            self._lose([self._unreached[1]] if self._unreached[1] else list(self._refused) or [""], "could not be reached")

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
            self._show("\n".join(self._text[-LONGEST_BLOCK:]))
        return code, text

    def _name_dead(self, numbers):
        """Where one died of the signal; of several only the first did, and which that was is not known."""
        died = [(str(rank), host) for rank, (host, code) in enumerate(self._ranks_ended)
                if os.WIFSIGNALED(code) and os.WTERMSIG(code) in numbers]
        if len(died) == 1:
            (rank, host), number = died[0], numbers[0]
            self._die(rank, host, f"signal {number} ({signal.strsignal(number)})")


# ---- Slurm's srun --------------------------------------------------------------------------------

TASKS_ENDED = r"^srun: error: (\S+): tasks? ([\d,-]+): (?:Exited with exit code (\d+)|(.+?)(?: \(core dumped\))?)$"
NODE_FAILURE = r"^srun: error: Node failure on (\S+)"
SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}


class Srun(Messages):
    """Lines on the standard error that the ranks have too. Its exit code is the largest of the ranks'."""

    program = "srun"
    ends_at_term = True

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self._codes = set()

    def streams(self, words, environ, out, error, own):
        return words, environ, out, error

    def read_shared(self, data):
        return re.sub(TASKS_ENDED.encode() + rb"\n", b"", super().read_shared(data), flags=re.M)

    def _judge_line(self, line):
        ended, failed = re.search(TASKS_ENDED, line), re.search(NODE_FAILURE, line)
        if failed:
            self._lose([failed[1]], "was lost")
        elif ended and ended[3]:
            self.rank_ended = True
            self._codes.add(int(ended[3]))
        elif ended:
            number = SIGNALS.get(ended[4], 0)
            if f"signal {number}" in self._sent:
                self.rank_ended = True
            elif not self.dead:  # others are then ended by Slurm
                self._die(ended[2], ended[1], f"signal {number} ({ended[4]})" if number else ended[4])
        return super()._judge_line(line)

    def judge(self, status):
        return super().judge(min(self._codes or {status}))
