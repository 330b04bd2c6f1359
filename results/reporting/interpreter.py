"""Which Python runs the report."""

import logging
import os
import subprocess
import sys

DISTRIBUTION = "/usr/bin/python3"
TRIED = "SHAKEDOWN_REPORT_PYTHON"  # in the environment of the second try


def prefer_one_with_matplotlib():
    """Continues under the distribution's Python when this one lacks matplotlib and that has
    it: apt installs it there, and a pyenv, conda or module often comes first in PATH."""
    # Where HOME is not writable, matplotlib uses a temporary folder for its cache, and warns of it.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib  # noqa: F401
        os.environ.pop(TRIED, None)
        return
    except ImportError:
        pass
    if os.environ.pop(TRIED, None) or not os.access(DISTRIBUTION, os.X_OK):
        return
    probe = [DISTRIBUTION, "-c", "import matplotlib"]
    if subprocess.run(probe, capture_output=True).returncode == 0:
        os.environ[TRIED] = DISTRIBUTION
        os.execv(DISTRIBUTION, [DISTRIBUTION, *sys.argv])
