"""launch/mpi, variants, experiments and bench: they start jobs of MPI ranks. Python 3.9, standard
library only."""

import os
import sys

# Of results/: pages and headlines are made with it. It refuses an older Python before that reads newer syntax.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "results"))
import reporting  # noqa: E402,F401
