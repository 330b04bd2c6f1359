"""What the records of the programs say: which GPUs a node has, figures, and findings."""
