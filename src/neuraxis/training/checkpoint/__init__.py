"""Checkpoints of a training run, saved and restored by any number of ranks."""
