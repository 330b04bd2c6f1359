"""launch/mpi, variants, experiments and bench: they start jobs of MPI ranks. Python 3.9, standard
library only."""

import os
import sys

# It stands here, where an older Python gets before it reads newer syntax.
if sys.version_info < (3, 9):
    sys.stderr.write("%s: Python 3.9 or newer is required; python3 is %d.%d (%s). "
                     "Put a newer one first in PATH\n"
                     % (sys.argv[0], sys.version_info[0], sys.version_info[1], sys.executable))
    sys.exit(2)

# Of results/, `reporting`: pages and headlines are made with it.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))), "results"))
