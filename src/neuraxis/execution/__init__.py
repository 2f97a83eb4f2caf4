"""Who runs which shard, and how spikes travel: `Simulation` and its executors."""

from __future__ import annotations

from neuraxis.execution.executor import BuildReport, Counters, Executor
from neuraxis.execution.parallel import ParallelExecutor
from neuraxis.execution.sequential import SequentialExecutor
from neuraxis.execution.simulation import Simulation
from neuraxis.execution.sonata import SpikeFile, read_spikes
from neuraxis.execution.summary import Summary

__all__ = [
    "BuildReport",
    "Counters",
    "Executor",
    "ParallelExecutor",
    "SequentialExecutor",
    "Simulation",
    "SpikeFile",
    "Summary",
    "read_spikes",
]
