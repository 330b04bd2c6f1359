"""What runs amount to, by bin/judge: findings, and one verdict per node."""
