"""Figures compared with peers and references, and one verdict per node."""
