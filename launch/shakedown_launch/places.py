"""Where programs lie, what one prints, and where results go. Works from a source tree, from a read-only
prefix, and through links."""

import collections
import contextlib
import os
import signal
import subprocess
import time

# The folder that holds launch/: a source tree, or PREFIX/libexec/shakedown
TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class UsageError(Exception):
    """What the user must change: exit code 2."""


class InconclusiveError(Exception):
    """What could not be measured: exit code 3."""


def in_source_tree():
    return os.path.exists(os.path.join(TREE, "Makefile"))


def is_executable(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def program_folders(environ):
    """In order: SHAKEDOWN_BIN; bin/ next to launch/."""
    return [*filter(None, [environ.get("SHAKEDOWN_BIN")]), os.path.join(TREE, "bin")]


def own_program(name, environ):
    """Shakedown's program of this name, or None."""
    paths = (os.path.join(folder, name) for folder in program_folders(environ))
    return next(filter(is_executable, paths), None)


def find_program(word, environ):
    """The program that `word` names: a path, else one of Shakedown's programs, else one in PATH."""
    if "/" in word and is_executable(word):
        return word
    own = own_program(word[len("bin/"):] if word.startswith("bin/") else word, environ)
    if not own and "/" in word and os.path.exists(word):
        raise UsageError(f"{word}: {'a folder' if os.path.isdir(word) else 'not executable'}")
    if not own and not which(word, environ):
        remedy = "run make first" if in_source_tree() else "shakedown --help lists the programs"
        raise UsageError(f"{word}: not found in PATH or {program_folders(environ)[0]} ({remedy})")
    return own or word  # other hosts may have it elsewhere in their PATH


def which(word, environ):
    folders = [""] if "/" in word else environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder, word) for folder in folders)
    return next((path for path in paths if is_executable(path)), None)


Said = collections.namedtuple("Said", "code output error", defaults=(None, "", ""))


def ask(words, limit_s=10, environ=None):
    """Said of a program that is run to its end. Its code is None where it cannot be started, or does not end
    in time: it may hang in the kernel, and is not waited for."""
    try:
        process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)  # a Ctrl-C is not its own
    except OSError as error:
        return Said(error=error.strerror)
    try:
        said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0.2)
        return Said(error=f"did not end within {limit_s:.0f} s")
    return Said(process.returncode, *(each.decode(errors="replace") for each in said))


def text_of(path):
    """"" of a file that cannot be read."""
    try:
        with open(os.path.expanduser(path), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def runs_folder(environ):
    """Results go here, never into the tree, which may be read-only."""
    return environ.get("SHAKEDOWN_RUNS") or os.path.join(os.getcwd(), "runs")


def new_folder(kind, environ):
    """A results folder that no other run has."""
    runs = runs_folder(environ)
    folder = os.path.join(runs, f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    try:
        os.makedirs(runs, exist_ok=True)
        os.mkdir(folder)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; start in another folder, or set "
                         "SHAKEDOWN_RUNS") from None
    return folder
