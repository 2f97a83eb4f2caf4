"""Run a network: `Simulation`, the executors that distribute it, and the files that it records.

The executors differ in where the shards of a network run and how spikes travel between them: in this process
(`SequentialExecutor`), in worker processes of this machine (`ParallelExecutor`), on the ranks of a group
(`LockstepExecutor`), or on the nodes of a mesh (`MeshExecutor`, with `Units` and `Feed`). Every name loads on first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "BuildReport",
    "Counters",
    "Executor",
    "Feed",
    "LockstepExecutor",
    "MeshExecutor",
    "ParallelExecutor",
    "ReportFile",
    "SequentialExecutor",
    "Simulation",
    "SpikeFile",
    "Summary",
    "Units",
    "read_report",
    "read_spikes",
]

if TYPE_CHECKING:
    from neuraxis.formats.sonata import ReportFile, SpikeFile, read_report, read_spikes
    from neuraxis.simulation.executor import BuildReport, Counters, Executor
    from neuraxis.simulation.lockstep import LockstepExecutor
    from neuraxis.simulation.mesh.executor import MeshExecutor
    from neuraxis.simulation.mesh.setup import Feed, Units
    from neuraxis.simulation.parallel import ParallelExecutor
    from neuraxis.simulation.recording import Summary
    from neuraxis.simulation.sequential import SequentialExecutor
    from neuraxis.simulation.simulation import Simulation
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.formats.sonata": ["ReportFile", "SpikeFile", "read_report", "read_spikes"],
            "neuraxis.simulation.executor": ["BuildReport", "Counters", "Executor"],
            "neuraxis.simulation.lockstep": ["LockstepExecutor"],
            "neuraxis.simulation.mesh.executor": ["MeshExecutor"],
            "neuraxis.simulation.mesh.setup": ["Feed", "Units"],
            "neuraxis.simulation.parallel": ["ParallelExecutor"],
            "neuraxis.simulation.recording": ["Summary"],
            "neuraxis.simulation.sequential": ["SequentialExecutor"],
            "neuraxis.simulation.simulation": ["Simulation"],
        },
    )
