"""The kinds of regions that a brain's description can name.

Each kind is a module with a configuration (`CortexConfig`) and a function that creates a region from one
(`create_cortex_region`). `REGION_KINDS` maps each kind to its configuration class and `REGION_CREATORS` to its
function. Every name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuraxis.brain.region import Region, RegionConfig
    from neuraxis.brain.regions.cerebellum import CerebellumConfig, create_cerebellum_region
    from neuraxis.brain.regions.cortex import CortexConfig, create_cortex_region
    from neuraxis.brain.regions.hippocampus import HippocampusConfig, create_hippocampus_region
    from neuraxis.brain.regions.prefrontal import PrefrontalConfig, create_pfc_region
    from neuraxis.brain.regions.striatum import StriatumConfig, create_striatum_region
    from neuraxis.brain.regions.thalamus import ThalamusConfig, create_thalamus_region

    REGION_KINDS: dict[str, type[RegionConfig]]
    REGION_CREATORS: dict[str, Callable[..., Region]]
else:
    from neuraxis.imports import lazy_names

    # For each kind, which is also the name of its module: the configuration and the function that creates a region.
    _CONTENTS = {
        "thalamus": ("ThalamusConfig", "create_thalamus_region"),
        "cortex": ("CortexConfig", "create_cortex_region"),
        "hippocampus": ("HippocampusConfig", "create_hippocampus_region"),
        "prefrontal": ("PrefrontalConfig", "create_pfc_region"),
        "striatum": ("StriatumConfig", "create_striatum_region"),
        "cerebellum": ("CerebellumConfig", "create_cerebellum_region"),
    }

    _load, __dir__ = lazy_names(__name__, {f"{__name__}.{kind}": names for kind, names in _CONTENTS.items()})

    def __getattr__(name):
        if name in ("REGION_KINDS", "REGION_CREATORS"):
            column = 0 if name == "REGION_KINDS" else 1
            registry = {kind: _load(names[column]) for kind, names in _CONTENTS.items()}
            return globals().setdefault(name, registry)  # all threads get the same dict
        return _load(name)
