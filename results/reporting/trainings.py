"""Trainings: a run that continues another's checkpoint is of the same training."""

import pathlib
from datetime import datetime, timezone
from typing import NamedTuple

from .records import UsageError, number

STOPPED = 5  # exit code: a signal stopped the run, which saved its state


class Training(NamedTuple):
    runs: list  # in the order of their start
    epochs: list  # their `epoch` records


def trainings_of(parts):
    """[Training] of [(run, its epochs)], in the order of their start. Of what a run did again from an older
    checkpoint, what it did last counts."""
    found = []
    for run, epochs in sorted(parts, key=lambda part: part[0].header.get("started", "")):
        at = next((at for at in reversed(range(len(found)))
                   if continues(run, epochs, found[at].runs[-1])), None)
        if at is None:
            found.append(Training([run], epochs))
        else:
            before = [epoch for epoch in found[at].epochs if epoch["epoch"] < epochs[0]["epoch"]]
            found[at] = Training([*found[at].runs, run], before + epochs)
    return found


def only_training(runs, option):
    """The training of the runs; UsageError where there is none, or several. An evaluation, whose epoch is 0, is none."""
    parts = [(run, [epoch for epoch in run.of("epoch") if (number(epoch, "epoch") or 0) > 0]) for run in runs]
    found = trainings_of([(run, epochs) for run, epochs in parts if epochs])
    if len(found) != 1:
        raise UsageError(f"{option}: needs the record of one training, and its runs: found "
                         f"{'no `epoch` records' if not found else f'{len(found)} trainings'}")
    return found[0]


def continues(run, epochs, earlier):
    """Whether a run starts from the folder of the earlier run's checkpoints. One that starts with
    the first epoch does so only where the earlier one failed, before its first checkpoint."""
    return starts_from(run, earlier) and (
        epochs[0]["epoch"] > 1 or earlier.end is None or earlier.end.get("exit_code") != 0)


def starts_from(run, earlier):
    """Whether a run starts from the folder of the earlier run's checkpoints."""
    source = folder_of_start(run.header)
    return source is not None and source == checkpoint_folder(earlier.header)


class Restarted(NamedTuple):
    """A run, and those before it, which signals stopped and which it continues."""
    run: object
    stopped: list

    @property
    def is_complete(self):
        return exit_code(self.run) == 0

    @property
    def lost_s(self):
        """Seconds between the runs, and of the epochs that were trained again."""
        lost = 0
        for before, after in zip(self.stopped, [*self.stopped[1:], self.run]):
            ended, started = ended_at(before), started_at(after)
            if None not in (ended, started):
                lost += max(0, started - ended)
            again = {epoch.get("epoch") for epoch in after.of("epoch")}
            lost += sum(number(epoch, "epoch_s") or 0 for epoch in before.of("epoch")
                        if epoch.get("epoch") in again)
        return lost


def restarts_of(runs):
    """[Restarted]. A run that was stopped before its first checkpoint is completed by one that starts with
    the first epoch, else a run that starts with it is a training of its own."""
    found = []
    ordered = sorted(runs, key=lambda run: run.header.get("started", ""))
    for at, run in enumerate(ordered):
        chain = [run]
        for earlier in reversed(ordered[:at]):
            if exit_code(earlier) == STOPPED and goes_on(chain[0], earlier):
                chain.insert(0, earlier)
        if len(chain) > 1:
            found.append(Restarted(run, chain[:-1]))
    return found


def goes_on(run, earlier):
    first = run.of("epoch")[:1]
    return starts_from(run, earlier) and run.header.get("program") == earlier.header.get("program") and (
        not earlier.of("epoch") or not first or (number(first[0], "epoch") or 0) > 1)


def exit_code(run):
    return run.end.get("exit_code") if run.end else None


def started_at(run):
    """Seconds since 1970; None where the record does not have it."""
    try:
        time = datetime.fromisoformat(str(run.header.get("started")).replace("Z", "+00:00"))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()


def ended_at(run):
    started, elapsed = started_at(run), number(run.end, "elapsed_s")
    return None if None in (started, elapsed) else started + elapsed


def checkpoint_folder(header):
    folder = header.get("options.checkpoint_dir")
    return pathlib.PurePath(folder) if folder else None


def folder_of_start(header):
    """Folder of the checkpoint to continue from; None where there is none."""
    resume = header.get("options.resume", "auto")
    if resume == "auto":
        return checkpoint_folder(header)
    return None if resume == "none" else pathlib.PurePath(resume).parent
