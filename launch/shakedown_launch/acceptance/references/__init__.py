"""What good nodes of each kind measured (results/reference), and figures compared with it."""

from .comparison import judge, match
from .file import load
from .likeness import SETTINGS
from .recording import record

__all__ = ["load", "match", "judge", "record", "SETTINGS"]
