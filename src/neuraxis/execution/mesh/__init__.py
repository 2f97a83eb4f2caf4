"""A brain over the mesh: a node for each region, and no scheduler between them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuraxis.execution.mesh.executor import MeshExecutor
    from neuraxis.execution.mesh.region_node import RegionNode
    from neuraxis.execution.mesh.setup import Feed, RegionSetup, Units

__all__ = ["Feed", "MeshExecutor", "RegionNode", "RegionSetup", "Units"]

_HOMES = {
    "Feed": "setup",
    "MeshExecutor": "executor",
    "RegionNode": "region_node",
    "RegionSetup": "setup",
    "Units": "setup",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
