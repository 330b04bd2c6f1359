"""What results/report is made of. It reads the programs' records and nothing else.

records     a run and its records; what names a configuration
reading     files to runs
shape       whether a record is as results/schema.json describes it
summary     runs to what was measured of each configuration
exchanges   a step's exchanges, over the rounds
what_if     what the step model says, and how far it is off
intervals   the statistics
words       figures as text
tables      what is printed as a table, in text and HTML alike
sentences/  what is said, one file a topic; each sentence is made from the figures it names
plots/      one PNG file each, for what there are records of
text, page, exports   performance_report.txt, comparison_report.html, results_<strategy>.json
against     two runs compared
"""
