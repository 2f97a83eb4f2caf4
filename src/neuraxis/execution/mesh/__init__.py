"""A brain over the mesh: a node for each region, and no scheduler between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.execution.mesh.executor import MeshExecutor
    from neuraxis.execution.mesh.region_node import RegionNode
    from neuraxis.execution.mesh.setup import Feed, RegionSetup, Units

__all__ = ["Feed", "MeshExecutor", "RegionNode", "RegionSetup", "Units"]

__getattr__ = loads_lazily(
    __name__,
    {
        "Feed": "setup",
        "MeshExecutor": "executor",
        "RegionNode": "region_node",
        "RegionSetup": "setup",
        "Units": "setup",
    },
)
