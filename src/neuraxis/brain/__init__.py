"""Brains: regions of spiking neurons or of Python code, pathways, rhythms, neuromodulators, and tasks to learn.

`BrainBuilder` or a TOML file (`read_spec`) describes a brain as a `BrainSpec`; `Brain` runs it. The kinds of regions
are in `neuraxis.brain.regions`. Every name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Activity",
    "Brain",
    "BrainBuilder",
    "BrainConfig",
    "BrainSpec",
    "Config",
    "CueActionTask",
    "Diagnostics",
    "EffectorSpec",
    "Event",
    "GlobalConfig",
    "ModulatorSource",
    "ModulatorSpec",
    "PathwaySpec",
    "RegionSpec",
    "RewardSpec",
    "RhythmSpec",
    "SensorSpec",
    "Timing",
    "Trial",
    "default_brain",
    "mesh_executor",
    "read_spec",
    "regions",
    "write_spec",
]

if TYPE_CHECKING:
    from neuraxis.brain import regions
    from neuraxis.brain.brain import Activity, Brain
    from neuraxis.brain.builder import BrainBuilder
    from neuraxis.brain.config import BrainConfig, Config, GlobalConfig
    from neuraxis.brain.default import default_brain
    from neuraxis.brain.diagnostics import Diagnostics
    from neuraxis.brain.files import read_spec, write_spec
    from neuraxis.brain.mesh import mesh_executor
    from neuraxis.brain.spec import (
        BrainSpec,
        EffectorSpec,
        ModulatorSource,
        ModulatorSpec,
        PathwaySpec,
        RegionSpec,
        RewardSpec,
        RhythmSpec,
        SensorSpec,
    )
    from neuraxis.brain.tasks import CueActionTask, Timing, Trial
    from neuraxis.simulation.python_populations import Event
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.brain.brain": ["Activity", "Brain"],
            "neuraxis.brain.builder": ["BrainBuilder"],
            "neuraxis.brain.config": ["BrainConfig", "Config", "GlobalConfig"],
            "neuraxis.brain.default": ["default_brain"],
            "neuraxis.brain.diagnostics": ["Diagnostics"],
            "neuraxis.brain.files": ["read_spec", "write_spec"],
            "neuraxis.brain.mesh": ["mesh_executor"],
            "neuraxis.brain.spec": [
                "BrainSpec",
                "EffectorSpec",
                "ModulatorSource",
                "ModulatorSpec",
                "PathwaySpec",
                "RegionSpec",
                "RewardSpec",
                "RhythmSpec",
                "SensorSpec",
            ],
            "neuraxis.brain.tasks": ["CueActionTask", "Timing", "Trial"],
            "neuraxis.simulation.python_populations": ["Event"],
        },
        modules=["regions"],
    )
