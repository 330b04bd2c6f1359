"""What is written of an Acceptance: text, page, records, history, Nagios line, Slurm lines."""
