"""Backends of the collectives: local, shared memory, torch (gloo and NCCL), MPI."""
