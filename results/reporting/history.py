"""The training_history.json that bin/train --history writes: {quantity: a value per epoch}."""

import json

from .reading import text_of
from .records import UsageError

FILE = "training_history.json"


def read(folder):
    """The file's lists; all are as long as that of the epochs."""
    path = folder / FILE
    try:
        lists = json.loads(text_of(path))
        if all(len(values) == len(lists["epoch"]) for values in lists.values()):
            return lists
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UsageError(f"{path}: not a history of bin/train")
