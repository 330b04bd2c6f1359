"""launch/acceptance: the programs, one after the other on every node of an allocation, and one
verdict per node.

Data flows one way. `stages` says what runs. `campaign` has it run on the nodes of a fleet;
`evidence` reads the records that it left: figures and findings. `judge` compares the figures with
`references` and with one another, and gives one verdict per node. `ladder` says which node or path
a failure of several nodes belongs to. `report` writes the result. All of them share the types of
`model`; `main` connects them. tests/check_tree holds who imports whom."""
