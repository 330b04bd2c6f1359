"""One job: a command in a process group of its own, its output, its end.

    job = Job(words, output=Output("train.log"), limit=600)  # seconds, after which it is stopped
    job.start()
    job.wait()
    job.result.code

Its standard output and error pass through this process: to the same of this process, to a log, or
to both. At a signal to this process (INT, TERM, HUP, QUIT) every job that runs is sent its stop
signal, once: at a second one mpirun exits at once and leaves its ranks running. A Ctrl-C reaches a
job only this way, because a job has its own process group. A job that does not end in its grace is
killed with all that it started, and at a second signal to this process at once."""

import collections
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time

from .messages import NoMessages

# code: by Shakedown's rules (README); status: of the command itself, -N after signal N; stopped: by
# stop() or a signal; killed: past its grace, or by a second signal; dead: (rank, host, "signal 9
# (Killed)") of each rank known to have died; lost: (host, what happened); said: the messages about it;
# late: stopped at its limit, which is code 3; seconds: that it took
Result = collections.namedtuple("Result", "code status stopped killed dead lost said late seconds",
                                defaults=(False, 0))

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
PROGRESS = rb"\r[^\r\n]*\x1b\[K"  # a line that is written over: not for a log
# Seconds: from TERM to KILL, from that to no end at all, of silence on pipes that others hold open
KILL_AFTER, GIVE_UP_AFTER, OUTPUT_AFTER = 2, 5, 1
STOP_AGAIN = 0.2  # from a stop signal to the same one in the first second of a job
SAME_STOP = 1  # seconds in which a further signal is the same stop, as for a rank (mpi_session.hpp)


class Stopped(BaseException):
    """A signal came while no job was running."""


class Running:
    """The jobs that run, and the signals to this process. Those ignored (nohup) stay so."""

    def __init__(self):
        self.jobs = []
        self.stopped = 0  # the signal that requested it
        self._stopped_at = None
        self._woken = None  # readable after a signal, a child's end among them

    def install(self):
        if self._woken is not None:
            return
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for numbers, handler in [(STOP_SIGNALS, self._stop), (PASSED_ON_SIGNALS, self._pass_on)]:
            for number in numbers:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, handler)

    def stop_at_all(self):
        """Also the signals that are passed on otherwise end the jobs: Slurm sends one of them before
        a time limit."""
        for number in PASSED_ON_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._stop)

    def _stop(self, number, _):
        now = time.monotonic()
        if not self.stopped:
            self.stopped, self._stopped_at = number, now
        if not self.jobs:
            raise Stopped
        for job in self.jobs:
            if now - self._stopped_at < SAME_STOP:
                job.stop()
            else:
                job.end_now()

    def _pass_on(self, number, _):
        for job in self.jobs:
            job.send(number)

    def serve(self, limit):
        """Waits, until `limit` at most, for what happens next to any job, and sees to it."""
        try:
            self._serve(limit)
        except BaseException:  # this process's own trouble, such as a full disk
            for job in list(self.jobs):
                job.kill()
            raise

    def _serve(self, limit):
        times = [when for job in self.jobs for when in job.times()]
        times += [limit] if limit is not None else []
        timeout = max(0, min(times) - time.monotonic()) if times else None
        pipes = {descriptor: job for job in self.jobs for descriptor in job.pipes}
        poll = select.poll()  # select() has no descriptor above 1023
        for descriptor in (self._woken, *pipes):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(None if timeout is None else 1000 * timeout):
            if descriptor == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(descriptor, 4096)
            else:
                pipes[descriptor].read(descriptor)
        for job in list(self.jobs):
            job.advance(time.monotonic())


RUNNING = Running()


class Output:
    """Where a job's output goes: to this process's own unless `shown` is false, and to the log."""

    def __init__(self, log=None, shown=True):
        self._log = open(log, "wb", buffering=0) if log else None
        self._shown = {1, 2} if shown else set()
        self.reader_left = False  # of this process's standard output, such as a `head`

    def write(self, descriptor, data):
        if descriptor in self._shown:
            try:
                write_all(descriptor, data)
            except BrokenPipeError:
                self._shown.discard(descriptor)
                self.reader_left |= descriptor == 1
            except OSError as error:
                error.filename = ("standard output", "standard error")[descriptor - 1]
                raise
        if self._log:
            try:
                write_all(self._log.fileno(), re.sub(PROGRESS, b"", data))
            except OSError as error:
                error.filename = self._log.name
                raise

    def line(self, text):
        self.write(2, f"{text}\n".encode(errors="surrogateescape"))  # names keep their bytes

    def close(self):
        if self._log:
            self._log.close()


def write_all(descriptor, data):
    while data:
        try:
            data = data[os.write(descriptor, data):]
        except BlockingIOError:  # a terminal or pipe that another program has made so
            select.select([], [descriptor], [])


class Job:
    """`messages` reads the output of mpirun, and judges how it ended. `say` is given this class's
    own line. stop() sends `stop_signal`. `elsewhere`: whether it also runs on other hosts."""

    def __init__(self, words, environ=None, output=None, messages=None, grace=10, say=None,
                 stop_signal=signal.SIGTERM, elsewhere=False, limit=None):
        self._words = words
        self._environ = dict(os.environ if environ is None else environ)
        self._output = output or Output()
        self._messages = messages or NoMessages()
        self._grace, self._elsewhere, self._limit = grace, elsewhere, limit
        self._started, self._stop_at, self._late = 0, None, False
        self._say = say or self._output.line
        self._process = None
        self.pipes = {}  # descriptor: what is given its bytes
        self._family = []
        self._next_step = None  # (when, what) of ending a job that does not end
        self._output_until = None
        self._stop_signal = stop_signal  # None once it was sent
        self._asked_to_stop = self._killed = self._given_up = self._ended_now = False
        self.result = None

    # ---- its start and end ----

    def start(self):
        RUNNING.install()
        sys.stdout.flush()  # what was printed before comes first
        self._started = time.monotonic()
        self._stop_at = None if self._limit is None else self._started + self._limit
        try:
            if RUNNING.stopped:
                raise Stopped
            RUNNING.jobs.append(self)
            self._launch()
        except BaseException:
            self._forget()
            raise
        if self._asked_to_stop:  # a signal came meanwhile
            self.stop()

    def _launch(self):
        (out, out_end), (error, error_end), (own, own_end) = os.pipe(), os.pipe(), os.pipe()
        # The errors first: why ssh failed is there before what its launcher makes of it.
        self.pipes = {error: self._on_error, own: self._messages.read_own,
                      out: lambda data: self._output.write(1, self._messages.read_output(data))}
        words, environ, stdout, stderr = self._messages.streams(self._words, self._environ, out_end, error_end, own_end)
        try:
            self._process = subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                pass_fds={out_end, error_end, own_end} - {stdout, stderr}, preexec_fn=own_group())
        finally:
            for descriptor in (out_end, error_end, own_end):
                os.close(descriptor)

    def stop(self):
        """Requests its end; past its grace it is killed. A signal that mpirun passes on is sent again while it may have no
        ranks yet; they take it as one stop."""
        self._asked_to_stop, self._stop_at = True, None
        if self._process and self._stop_signal:
            self.send(self._stop_signal)
            again = time.monotonic() + STOP_AGAIN
            if self._stop_signal in PASSED_ON_SIGNALS and again < self._started + SAME_STOP:
                self._stop_at = again
            else:
                self._stop_signal = None
            self._expect_end()

    def end_now(self):
        """Kills it, whatever its grace."""
        if self._process and self._process.returncode is None:
            self._asked_to_stop = self._ended_now = self._killed = True
            self._family = family(self._process.pid)
            self._kill()

    def send(self, number):
        if self._process and self._process.returncode is None:
            number = self._messages.instead.get(number, number)
            self._messages.sent(number)
            self._process.send_signal(number)

    def _expect_end(self):
        if self._next_step is None:
            self._next_step = (time.monotonic() + self._grace, self._terminate)

    def _terminate(self):
        self._killed = True
        # Slurm's srun cancels its step at a SIGTERM; mpirun 4.1 would crash at one.
        self._messages.sent(signal.SIGTERM)
        self._family = family(self._process.pid)
        signal_all(self._family if self._messages.ends_at_term else self._family[:-1], signal.SIGTERM)
        self._next_step = (time.monotonic() + KILL_AFTER, self._kill)

    def _kill(self):
        # itself first: it would start what comes after a child that ends
        pid = self._process.pid
        signal_all([pid, *self._family, *family(pid)], signal.SIGKILL)
        self._next_step = (time.monotonic() + GIVE_UP_AFTER, self._give_up)

    def _give_up(self):
        self._given_up = True

    # ---- waiting for it ----

    def wait(self):
        """Until it has ended. The other jobs are served meanwhile."""
        while self.result is None:
            RUNNING.serve(None)

    def kill(self):
        """At once, with all that it started."""
        if self._process and self._process.poll() is None:
            signal_all(family(self._process.pid), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GIVE_UP_AFTER)
        self._forget()

    def times(self):
        """When `advance` has something to do at the latest."""
        if self._next_step:
            yield self._next_step[0]
        if self._output_until:
            yield self._output_until
        if self._stop_at:
            yield self._stop_at

    def read(self, descriptor):
        data = os.read(descriptor, 65536)
        self.pipes[descriptor](data)
        if data:
            self._output_until = self._output_until and time.monotonic() + OUTPUT_AFTER
        else:
            del self.pipes[descriptor]
            os.close(descriptor)

    def advance(self, now):
        if self._output.reader_left and not self._asked_to_stop:
            self.stop()
        if self._stop_at and now >= self._stop_at and self._process.poll() is None:
            self._late |= not self._asked_to_stop
            self.stop()
        if self._messages.job_must_end:
            self._expect_end()
        if self._next_step and now >= self._next_step[0]:
            self._next_step[1]()
        if self._process.poll() is not None:
            self._next_step = self._stop_at = None
            self._output_until = self._output_until or now + OUTPUT_AFTER
        if self._given_up or self._output_until and (not self.pipes or now >= self._output_until):
            self._finish()

    def _on_error(self, data):
        self._output.write(2, self._messages.read_shared(data))

    def _finish(self):
        status = self._process.returncode
        status = 3 if status is None else status  # it cannot even be killed
        for take in self.pipes.values():  # which another process holds open
            take(b"")
        self._messages.close()
        code, text = self._messages.judge(status)
        if self._killed or self._given_up:
            program = os.path.basename(self._words[0])
            code, text = 3, f"{program} did not end within {self._grace} s and was killed"
            if self._elsewhere and not self._messages.ends_at_term:
                text += ": a host or its link is lost; ranks may still run there"
        if self._ended_now:
            text = f"a second signal: {program} was killed, with all that it started on this host"
        stuck = uninterruptible(self._family) if self._killed else []
        if stuck:
            text += f"; cannot be killed, as they wait in the kernel (state D): {', '.join(stuck)}"
        if self._asked_to_stop and status:
            code, text = 5, text if self._killed else None
        if code == 3:  # PRRTE at times leaves ranks of this host running when another host is lost
            signal_all(of_session(self._process.pid), signal.SIGKILL)
        said = self._messages.said
        if text:
            self._say(text)
            said.append(text)
        if self._late:
            code, said = 3, [f"did not end within {self._limit:.0f} s and was stopped", *said]
        self._forget()
        self.result = Result(code, status, self._asked_to_stop, self._killed, self._messages.dead,
                             self._messages.lost, said, self._late, time.monotonic() - self._started)

    def _forget(self):
        for descriptor in self.pipes:
            os.close(descriptor)
        self.pipes = {}
        self._output.close()
        if self in RUNNING.jobs:
            RUNNING.jobs.remove(self)


# ---- processes -----------------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1


def own_group():
    """What a child does before it becomes the command: it leaves this process's group, and is
    terminated where this process is killed. It has no terminal, on which ssh would wait for a
    password."""
    try:
        import ctypes
        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return os.setsid

    def prepare():
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return prepare


def family(pid):
    """All that a process has started on this host, and then itself."""
    found = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    found += family(int(child))
    return [*found, pid]


def of_session(pid, proc="/proc"):
    """The processes of the session that `pid` began, also once it has ended: the number is not given to another
    process before they have, too."""
    found = []
    for each in filter(str.isdigit, os.listdir(proc)):
        with contextlib.suppress(OSError), open(f"{proc}/{each}/stat") as file:
            if file.read().rpartition(")")[2].split()[3] == str(pid):
                found.append(int(each))
    return found


def uninterruptible(pids, proc="/proc"):
    """Those that no signal reaches, such as in a driver or a file system that hangs: "train (pid
    7)"."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"{proc}/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
            if rest.split()[0] == "D":
                found.append(f"{name} (pid {pid})")
    return found


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
