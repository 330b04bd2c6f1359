"""What stands for this host in the tests of launch/mpi, and its mpirun line."""

import os
import pathlib
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
from shakedown_launch import command, mpi, ranks  # noqa: E402


class FakeHost(ranks.Host):
    def __init__(self, listed=(), numa_nodes=2, may_read=True, is_root=False):
        self.name, self.is_root, self.cores = "here.site", is_root, 8
        self._listed, self._numa_nodes, self._may_read = list(listed), numa_nodes, may_read

    def gpus(self):
        return self._listed

    def numa_nodes(self):
        return self._numa_nodes

    def may_read_processes(self):
        return self._may_read


def line(*words, host=None, **environ):
    """The mpirun line, as words."""
    environ = {"PATH": os.environ["PATH"], "BACKENDS": "cpu gpu", **environ}
    values, rest = command.parse(mpi.COMMAND, list(map(str, words)))
    what = mpi.request(values, rest, environ)
    return mpi.line(what, mpi.environment(what, environ), host or FakeHost())


def option(words, name):
    return words[words.index(name) + 1]
