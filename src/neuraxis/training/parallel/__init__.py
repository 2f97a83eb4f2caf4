"""Data parallelism: each rank trains on its own batch, and the ranks average their gradients."""
