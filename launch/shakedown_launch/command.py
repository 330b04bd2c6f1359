"""What the commands share: options, messages and exit codes."""

import codecs
import collections
import contextlib
import importlib
import locale
import os
import signal
import sys

from .job import RUNNING, Stopped
from .places import InconclusiveError, UsageError, in_source_tree

# value: what help calls the option's argument; None for a switch
Option = collections.namedtuple("Option", "names value text")
Command = collections.namedtuple("Command", "synopsis summary options notes")
HELP = Option(("-h", "--help"), None, "print this text")


def name():
    """This command as the user calls it: launch/mpi in a source tree, shakedown-mpi where
    installed."""
    folder, base = os.path.split(os.path.abspath(sys.argv[0]))
    if os.path.basename(folder) != "launch":
        return base
    return f"launch/{base}" if in_source_tree() else f"shakedown-{base}"


def say(text, write=None):
    if write:
        write(f"{name()}: {text}")
    else:
        with contextlib.suppress(OSError):  # nobody reads it
            print(f"{name()}: {text}", file=sys.stderr, flush=True)


# ---- options -------------------------------------------------------------------------------------

def parse(command, arguments, keep_unknown=False):
    """({an option's first name: value}, the other words). The options end at the first other word;
    with `keep_unknown` options that are not known here are among the other words."""
    known = {each: option for option in (*command.options, HELP) for each in option.names}
    values, words = {}, []
    arguments = collections.deque(arguments)
    while arguments:
        word = arguments.popleft()
        key, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = known.get(key)
        if option is HELP:
            print(help_text(command))
            raise SystemExit(0)
        if option and option.value:
            if not equals and arguments:
                value = arguments.popleft()
            if not value:
                raise UsageError(f"option {key} requires an argument")
            values[option.names[0]] = value
        elif option and not equals:
            values[option.names[0]] = True
        elif keep_unknown:
            words.append(word)
        elif word == "--":
            return values, list(arguments)
        elif word.startswith("-"):
            raise UsageError(f"unknown option {word}")
        else:
            return values, [word, *arguments]
    return values, words


def refuse(words, own):
    """Options of the program that a command sets itself: {option: why}. The last of two would count."""
    for option in (word.partition("=")[0].replace("_", "-") for word in words):
        if option in own:
            raise UsageError(f"{option} cannot be used: {own[option]}")


def positive(values, option, default, what):
    """The option's value as a number of at least 1."""
    text = values.get(option)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise UsageError(f"{option} {text} is not a number of {what} (1 or more)")
    return int(text)


def help_text(command):
    import textwrap
    lines = [f"usage: {name()} {command.synopsis}", "", *paragraphs(command.summary), ""]
    for option in (*command.options, HELP):
        head = "  " + ", ".join(option.names) + (f" {option.value}" if option.value else "")
        text = textwrap.wrap(option.text, 80 - 22)
        if len(head) < 21:
            head = f"{head:<22}{text.pop(0)}"
        lines += [head, *(f"{'':22}{line}" for line in text)]
    return "\n".join([*lines, "", *paragraphs(command.notes)])


def paragraphs(text):
    import textwrap
    for number, paragraph in enumerate(textwrap.dedent(text).strip().split("\n\n")):
        yield from [""] if number else []
        if paragraph.startswith(" "):
            yield paragraph
        else:
            yield from textwrap.wrap(" ".join(paragraph.split()), 80)


# ---- the program ---------------------------------------------------------------------------------

def open_standard_streams():
    """Those that a daemon closed before it started this: a file opened later would be in their
    place, and get what programs print."""
    file = os.open(os.devnull, os.O_RDWR)
    while file <= 2:
        os.set_inheritable(file, True)
        setattr(sys, ("stdin", "stdout", "stderr")[file], open(file, "w" if file else "r"))
        file = os.open(os.devnull, os.O_RDWR)
    os.close(file)


def print_in_locale():
    """Replaces characters that the locale's encoding lacks. Under LC_ALL=C, where Python itself prints
    UTF-8, that is ASCII; LANG=C and LC_CTYPE=C become C.UTF-8 before this starts."""
    plain = {"✓": "+", "✗": "-"}

    def replaced(error):
        return "".join(plain.get(c, "?") for c in error.object[error.start:error.end]), error.end
    codecs.register_error("plain", replaced)
    is_ascii = locale.nl_langinfo(locale.CODESET) == "ANSI_X3.4-1968"  # glibc's name
    sys.stdout.reconfigure(encoding="ascii" if is_ascii else None, errors="plain")


def run(module):
    """Runs main of a module of this package and ends the process with its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback
    open_standard_streams()
    print_in_locale()
    try:
        RUNNING.install()
        code = importlib.import_module(f"{__package__}.{module}").main(sys.argv[1:])
        sys.stdout.flush()
    except UsageError as error:
        say(f"{error} ({name()} --help)")
        code = 2
    except InconclusiveError as error:
        say(error)
        code = 3
    except Stopped:
        code = 5
    except BrokenPipeError:  # of this process's own lines
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 5
    except OSError as error:  # a full disk, no more processes: nothing was measured
        say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error)
        code = 3
    except Exception:  # else Python would end with 1, which means wrong data
        import traceback
        traceback.print_exc()
        code = 4
    sys.exit(code)
