"""The hosts that a user names: what --hosts and --hostfile may say, and which names are of one host."""

import collections
import re

from .places import UsageError

WORD = r"(\w[\w.-]*)(?::([0-9]{1,6}))?"  # a name, and perhaps slots: "h1:4"
LONGEST_NAME = 56  # characters of a host's name, above which Open MPI 4 overruns a buffer


def requested(values):
    """The names of --hosts or --hostfile, each once and without slots."""
    if "--hosts" in values and "--hostfile" in values:
        raise UsageError("--hosts and --hostfile cannot be combined")
    if "--hostfile" in values:
        words, option = words_of(values["--hostfile"]), f"--hostfile {values['--hostfile']}"
    else:
        words = values["--hosts"].split(",") if "--hosts" in values else []
        option = f"--hosts {values.get('--hosts')}"
    return list(dict.fromkeys(name_in(word, option) for word in words))


def ranks(values):
    """The slots of --hosts h1:4,h2:4; None where it has none. A file's are often cores: "slots=96"."""
    words = [re.fullmatch(WORD, word) for word in values.get("--hosts", "").split(",")]
    slots = collections.Counter()
    for found in filter(None, words):
        slots[found[1]] += int(found[2] or 0)
    if len(set(slots.values())) > 1:
        raise UsageError(f"--hosts {values['--hosts']}: the number of ranks is the same on each host: give each as many slots, or use -n")
    return sum(slots.values()) or None


def words_of(path):
    """The first word of each line but those of # ("slots=8" may follow it)."""
    try:
        with open(path) as file:
            lines = [line.split() for line in file]
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--hostfile {path} is not a file that can be read") from None
    words = [line[0] for line in lines if line and not line[0].startswith("#")]
    if not words:
        raise UsageError(f"--hostfile {path} names no host")
    return words


def name_in(word, option):
    found = re.fullmatch(WORD, word)
    if found:
        return found[1]
    if re.fullmatch(r"\[?[\da-fA-F]*:[\da-fA-F:.]*:[\da-fA-F.]*(%\w+)?(\](:\d+)?)?", word):
        raise UsageError(f"{option}: {word} is an IPv6 address, which Open MPI 4 does not reach: "
                         "use the host's name")
    raise UsageError(f"{option}: '{word}' is not a host such as h1, or h1:4 with slots")


def is_address(name):
    """IPv4: the dots of it begin no domain."""
    return name.replace(".", "").isdigit()


def short(name):
    """Without its domain; an address is whole."""
    return name if is_address(name) else name.partition(".")[0]


def same(one, other):
    """Whether both are a name of one host: they are equal, or one is the other without its domain."""
    return one == other or one != short(one) and short(one) == other or short(other) == one


def matched(names, known):
    """{name: the one of `known` that names the same host}: without those that several may be."""
    by_short = {}
    for each in dict.fromkeys(known):
        by_short.setdefault(short(each), []).append(each)
    found = {}
    for name in names:
        alike = [each for each in by_short.get(short(name), ()) if same(each, name)]
        alike = [name] if name in alike else alike
        if len(alike) == 1:
            found[name] = alike[0]
    return found


def is_here(name, own):
    """Whether it is this host, whose name is `own`."""
    return name == "localhost" or same(name, own)


def have_domains(names):
    """Open MPI 4 cuts names at the first dot, unless a parameter keeps them: then hosts that differ
    only in what follows are one host to it."""
    return any(short(name) != name for name in names)
