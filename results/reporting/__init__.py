"""What results/report is made of. It reads the programs' records and nothing else.

interpreter               which Python runs it
records, reading          files to runs; whether a record is as results/schema.json describes it
options                   options in which runs of one configuration differ
summary, trainings        runs to what was measured of each configuration
intervals                 the statistics
verdict                   the one place that judges
words, colours            figures as text, strategies as colours
headline                  page one: the verdict, its reason and four sentences
tables, communication_tables, machine_tables   what is shown as a table, in text, HTML and CSV alike
step_model, what_if       predictions, from recorded links, ready times and breakdowns; what_if_tables shows them
layers                    the tables of --layers
training_logs             --history, --mllog: a training's epochs for scripts, and as MLPerf's log
findings, soak            the sentences of the appendix, what limits the input among them; of a soak what it proves
plots/                    one PNG file each, for what there are records of
text, page, exports       text, HTML, JSON and CSV
against                   runs compared
power                     which faults a soak finds, and other tools; in docs/burn-in.md
"""

import sys

if sys.version_info < (3, 9):
    sys.stderr.write("%s: Python 3.9 or newer is required; python3 is %d.%d (%s). Put a newer one first in PATH\n"
                     % (sys.argv[0], sys.version_info[0], sys.version_info[1], sys.executable))
    sys.exit(2)
