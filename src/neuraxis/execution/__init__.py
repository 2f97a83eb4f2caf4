"""Who runs which shard, and how spikes travel: `Simulation` and its executors. Every name loads when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.execution.executor import BuildReport, Counters, Executor
    from neuraxis.execution.lockstep import LockstepExecutor
    from neuraxis.execution.mesh.executor import MeshExecutor
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
    "MeshExecutor",
    "ParallelExecutor",
    "ReportFile",
    "SequentialExecutor",
    "Simulation",
    "SpikeFile",
    "Summary",
    "read_report",
    "read_spikes",
]

__getattr__ = loads_lazily(
    __name__,
    {
        "BuildReport": "executor",
        "Counters": "executor",
        "Executor": "executor",
        "LockstepExecutor": "lockstep",
        "MeshExecutor": "mesh.executor",
        "ParallelExecutor": "parallel",
        "ReportFile": "report_file",
        "SequentialExecutor": "sequential",
        "Simulation": "simulation",
        "SpikeFile": "sonata",
        "Summary": "summary",
        "read_report": "report_file",
        "read_spikes": "sonata",
    },
)
