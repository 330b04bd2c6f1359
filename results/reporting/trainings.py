"""The epochs of each training: a run that continues another's checkpoint is of the same training."""

import pathlib


def trainings_of(parts):
    """[the epochs of one training] of [(run, its epochs)], in the order of their start. Of what a
    run did again from an older checkpoint, what it did last counts."""
    found = []  # (the run that came last, the epochs so far)
    for run, epochs in sorted(parts, key=lambda part: part[0].header.get("started", "")):
        at = next((at for at in reversed(range(len(found)))
                   if continues(run, epochs, found[at][0])), None)
        if at is None:
            found.append((run, epochs))
        else:
            before = [epoch for epoch in found[at][1] if epoch["epoch"] < epochs[0]["epoch"]]
            found[at] = run, before + epochs
    return [epochs for _, epochs in found]


def continues(run, epochs, earlier):
    """Whether a run starts from the folder of the earlier run's checkpoints. One that starts with
    the first epoch does so only where the earlier one failed, before its first checkpoint."""
    source = folder_of_start(run.header)
    if source is None or source != checkpoint_folder(earlier.header):
        return False
    return epochs[0]["epoch"] > 1 or earlier.end is None or earlier.end.get("exit_code") != 0


def checkpoint_folder(header):
    folder = header.get("options.checkpoint_dir")
    return pathlib.PurePath(folder) if folder else None


def folder_of_start(header):
    """Folder of the checkpoint to continue from; None where there is none."""
    resume = header.get("options.resume", "auto")
    if resume == "auto":
        return checkpoint_folder(header)
    return None if resume == "none" else pathlib.PurePath(resume).parent
