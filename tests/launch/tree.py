"""The source tree, whose folders the tests of launch/ import from."""

import pathlib
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / each) for each in ("launch", "tests/programs", "tests/simulation", "tests/support", "tests/launch")]
