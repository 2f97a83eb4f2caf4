"""Brains: regions of spiking neurons and of Python, pathways, rhythms, neuromodulators, and tasks to learn."""

from neuraxis.brain.brain import Activity, Brain
from neuraxis.brain.builder import BrainBuilder
from neuraxis.brain.config import BrainConfig, Config, GlobalConfig
from neuraxis.brain.default import default_brain
from neuraxis.brain.files import read_spec, write_spec
from neuraxis.brain.spec import BrainSpec
from neuraxis.execution.resident import Event

__all__ = [
    "Activity",
    "Brain",
    "BrainBuilder",
    "BrainConfig",
    "BrainSpec",
    "Config",
    "Event",
    "GlobalConfig",
    "default_brain",
    "read_spec",
    "write_spec",
]
