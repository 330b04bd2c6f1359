"""Which node, or which path between nodes, a failure of several nodes belongs to. It is a search over
names: it runs nothing, and a simulated fleet drives it as real jobs do."""
