"""What the records of the programs say: which GPUs a node has, which machine answered, and findings."""
