"""Runs the stages on the nodes, and isolates what failed on several of them."""
