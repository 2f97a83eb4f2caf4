"""Who runs which shard, and how spikes travel: `Simulation` and its executors."""

from __future__ import annotations

from neuraxis.execution.executor import BuildReport, Counters, Executor
from neuraxis.execution.lockstep import LockstepExecutor
from neuraxis.execution.parallel import ParallelExecutor
from neuraxis.execution.report_file import ReportFile, read_report
from neuraxis.execution.sequential import SequentialExecutor
from neuraxis.execution.simulation import Simulation
from neuraxis.execution.sonata import SpikeFile, read_spikes
from neuraxis.execution.summary import Summary

__all__ = [
    "BuildReport",
    "Counters",
    "Executor",
    "LockstepExecutor",
    "ParallelExecutor",
    "ReportFile",
    "SequentialExecutor",
    "Simulation",
    "SpikeFile",
    "Summary",
    "read_report",
    "read_spikes",
]
