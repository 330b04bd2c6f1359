"""launch/experiments: the three classic experiments on real images, and their report; and the steps
that launch/bench has in common with it."""

import glob
import os
import shutil
import sys

from . import mpi, places
from .command import Command, Option, UsageError, parse, positive, refuse, say
from .job import RUNNING, Job, Stopped

COMMAND = Command(
    "--data-dir DIR [options] [other options of bin/train]",
    """Trains a network with DDP, all-reduce and the parameter server, one after the other from the
    same start on real images, and writes a report.""",
    [Option(("--data-dir", "--data_dir"), "DIR",
            "folder with train/ and val/, each with a sub-folder of images per class"),
     Option(("--epochs",), "N", "epochs of each experiment (default: 3)"),
     Option(("--quick",), None, "train one epoch"),
     Option(("--strategies",), "A,B",
            "strategies to train (default: ddp,all-reduce,parameter-server)"),
     Option(("-n",), "N",
            "number of ranks, the parameter server included (default: as launch/mpi)"),
     Option(("--output",), "DIR",
            "folder of the results (default: experiments-DATE-TIME-PID in runs/ of the current "
            "folder, or in SHAKEDOWN_RUNS)")],
    """
    An option of bin/train that a strategy does not use is ignored for it.

    What a strategy refuses is refused before the first trains. Ends with 0 when all trained, else
    with the exit code of the first that did not; what was measured is reported in any case. A
    signal stops it at once (5).
    """)


# Options of bin/train that this command sets, and what to use
OWN = {"--record": "each experiment writes its own record", "--strategy": "use --strategies",
       "--train-dir": "use --data-dir", "--iterations": "use --epochs",
       "--checkpoint-dir": "the second experiment would continue the first",
       "--save": "each experiment would replace the weights of the one before"}


def output_folder(path, environ):
    if path is None:
        return places.new_folder("experiments", environ)
    if os.path.lexists(path):
        raise UsageError(f"--output {path} exists already: every run has a folder of its own")
    try:
        os.makedirs(path)
    except OSError as error:
        raise UsageError(f"--output {path} cannot be made: {error.strerror}") from None
    return path


def finish(job):
    """The exit code of a job that is run to its end; one that was stopped ends the command."""
    job.start()
    job.wait()
    if RUNNING.stopped or job.result.code == 5:
        raise Stopped
    return job.result.code


class Steps:
    """Jobs one after the other, then their report. `code` is that of the first that did not end with 0."""

    def __init__(self, folder, environ, ranks=()):
        self._folder, self._environ, self._ranks = folder, environ, dict(ranks)
        self.code = 0

    def job(self, words, **where):
        return mpi.job(mpi.request(self._ranks, words, self._environ), self._environ, **where)

    def step(self, name, words):
        """What the job prints is kept in NAME.log, its record in NAME.jsonl."""
        print(flush=True)
        log = f"{self._folder}/{name}.log"
        code = finish(self.job([*words, "--record", f"{self._folder}/{name}.jsonl"], log=log))
        if code:
            say(f"{name} ended with {code}: {log}")
        self.code = self.code or code
        return code

    def report(self, what):
        print(flush=True)
        code = finish(Job([f"{places.TREE}/results/report", *what, "--output", f"{self._folder}/report"],
                          self._environ))
        self.code = self.code or code


def check_each(steps, commands, output):
    """Before the first trains for hours: SystemExit with the exit code of what refuses its options."""
    log = f"{output}/describe.log"
    for words in commands:
        code = finish(steps.job([*words, "--describe"], log=log, shown=False))
        if code:
            sys.stderr.write(places.text_of(log))
            shutil.rmtree(output)
            raise SystemExit(code)
    os.unlink(log)


def main(arguments):
    values, options = parse(COMMAND, arguments, keep_unknown=True)
    environ = dict(os.environ)
    refuse(options, OWN)
    if "--quick" in values and "--epochs" in values:
        raise UsageError("--quick and --epochs cannot be combined")
    data = values.get("--data-dir")
    if not os.path.isdir(data or ""):
        raise UsageError(f"--data-dir {data} is not a folder" if data else "--data-dir is required")
    epochs = 1 if "--quick" in values else positive(values, "--epochs", 3, "epochs")
    names = values.get("--strategies", "ddp,all-reduce,parameter-server").split(",")
    ranks = {"-n": values["-n"]} if "-n" in values else {}
    train = {name: ["train", "--data-dir", data, "--ignore-idle", *options, "--strategy", name] for name in names}
    mpi.check_launcher(mpi.request(ranks, train[names[0]], environ), environ)
    output = output_folder(values.get("--output"), environ)
    steps = Steps(output, environ, ranks)
    check_each(steps, train.values(), output)
    for name, words in train.items():
        steps.step(name, [*words, "--epochs", str(epochs)])
    made = sorted(glob.glob(f"{glob.escape(output)}/*.jsonl"))
    if made:
        steps.report(made)
    print(f"results: {output}", flush=True)
    return steps.code
