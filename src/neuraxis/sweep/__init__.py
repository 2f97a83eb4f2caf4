"""Parameter sweeps: a grid of brains on a cluster, and one table of the results."""
