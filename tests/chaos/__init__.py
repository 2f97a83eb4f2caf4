"""Seeded fault injection (a "storm") over every part of neuraxis: `python -m tests.chaos --help`."""
