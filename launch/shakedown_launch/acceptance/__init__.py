"""launch/acceptance: the programs, one after the other on every node of an allocation, and one
verdict per node.

Data flows one way. `stages` says what runs; `fleet` runs it on nodes; `figures` and `findings`
read the records that it left, as `records` has them; `references`, `peers` and `peer_groups`
judge the figures; `ladder` says which node or link a failure of several nodes belongs to, by the
switches that `topology` knows, and `isolation` what that amounts to; `verdicts` makes one answer
per node; `report`, `page`, `jsonl`, `history`, `nagios` and `slurm_lines` write it, with what
they share in `digest`, `series` and `words`. All of them know the types of `model` and nothing of
one another; `main` alone connects them, by `campaign`, which has the stages run, and `judge`."""
