"""launch/acceptance: the programs, one after the other on every node of an allocation, and one
verdict per node.

Data flows one way. `stages` says what runs. `campaign` has it run on the nodes of a fleet;
`evidence` reads in the records that it left how runs ended and what is no rate. `judge` writes this
to runs.jsonl and has bin/judge conclude, of the rates as well; here nothing is compared. `ladder`
says which node or path a failure of several nodes belongs to. `report` writes the result. All of
them share the types of `model` and `lines`; `main` connects them. tests/check_tree holds who imports
whom."""
