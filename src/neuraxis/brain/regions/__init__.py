"""The kinds of regions: what each is called in a description, its settings, and what makes it.

Each kind is a module of its own, which loads when it is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuraxis.brain.region import Region, RegionConfig
    from neuraxis.brain.regions.cerebellum import CerebellumConfig, create_cerebellum_region
    from neuraxis.brain.regions.cortex import CortexConfig, create_cortex_region
    from neuraxis.brain.regions.hippocampus import HippocampusConfig, create_hippocampus_region
    from neuraxis.brain.regions.prefrontal import PrefrontalConfig, create_pfc_region
    from neuraxis.brain.regions.striatum import StriatumConfig, create_striatum_region
    from neuraxis.brain.regions.thalamus import ThalamusConfig, create_thalamus_region

    REGION_KINDS: dict[str, type[RegionConfig]]
    REGION_CREATORS: dict[str, Callable[..., Region]]

__all__ = [
    "REGION_CREATORS",
    "REGION_KINDS",
    "CerebellumConfig",
    "CortexConfig",
    "HippocampusConfig",
    "PrefrontalConfig",
    "StriatumConfig",
    "ThalamusConfig",
    "create_cerebellum_region",
    "create_cortex_region",
    "create_hippocampus_region",
    "create_pfc_region",
    "create_striatum_region",
    "create_thalamus_region",
]

# By kind, which is also the name of the module: its settings, and what makes a region of them.
_CONTENTS = {
    "thalamus": ("ThalamusConfig", "create_thalamus_region"),
    "cortex": ("CortexConfig", "create_cortex_region"),
    "hippocampus": ("HippocampusConfig", "create_hippocampus_region"),
    "prefrontal": ("PrefrontalConfig", "create_pfc_region"),
    "striatum": ("StriatumConfig", "create_striatum_region"),
    "cerebellum": ("CerebellumConfig", "create_cerebellum_region"),
}


def __getattr__(name: str) -> object:
    if name in ("REGION_KINDS", "REGION_CREATORS"):
        place = 0 if name == "REGION_KINDS" else 1
        registry = {kind: _load(kind, contents[place]) for kind, contents in _CONTENTS.items()}
        # Kept, so that everyone gets the same dict.
        return globals().setdefault(name, registry)
    for kind, contents in _CONTENTS.items():
        if name in contents:
            return _load(kind, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _load(kind: str, name: str) -> object:
    return getattr(importlib.import_module(f"{__name__}.{kind}"), name)
