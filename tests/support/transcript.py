"""Files of cases that people read: what is given, and what comes of it; as transcript.hpp has them."""

import os
import re
import types

CASE = re.compile(r"((?![#>\s]).*\n(?: .*\n)*)((?:>.*\n)*)", re.M)


def check(test, path, answer):
    """Of each case that what is given, lines of which all but the first are indented, still leads to this answer, whose
    lines are after "> ". After a change that is meant: UPDATE_GOLDEN=1, and read the difference."""
    def renewed(case):
        lines = "".join(f"> {line}".rstrip() + "\n" for line in answer(case[1].rstrip("\n")).splitlines() or [""])
        if not os.environ.get("UPDATE_GOLDEN"):
            with test.subTest(given=case[1]):
                test.assertEqual(lines, case[2])
        return case[1] + lines
    blocks = re.split(r"(?m)^((?:#.*)?\n)", path.read_text())
    text = "".join(part if at % 2 else CASE.sub(renewed, part) for at, part in enumerate(blocks))
    test.assertRegex(text, "(?m)^>")
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)


def expressions(test, path, names, refusals=None):
    """Of each case that is a Python expression, in which these names are known: its value, of a generator a line each; or the
    word for an error that is one of the refusals, and what it says."""
    def answer(given):
        try:
            found = eval(f"({given})", names)  # pylint: disable=eval-used
        except tuple(refusals or ()) as error:
            return f"{refusals[type(error)]}: {error}"
        return "\n".join(map(str, found)) if isinstance(found, types.GeneratorType) else str(found)
    check(test, path, answer)
