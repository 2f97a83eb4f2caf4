"""The shared-memory backend: collectives and messages between the processes of one host."""
