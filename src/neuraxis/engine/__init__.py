"""Execution of a network: its shards as arrays, and the kernels that advance them. No processes and no files here."""
