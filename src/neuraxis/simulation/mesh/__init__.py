"""Run a brain over the mesh: one node for each region, without a central scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Feed", "MeshExecutor", "RegionNode", "RegionSetup", "Units"]

if TYPE_CHECKING:
    from neuraxis.simulation.mesh.executor import MeshExecutor
    from neuraxis.simulation.mesh.region_node import RegionNode
    from neuraxis.simulation.mesh.setup import Feed, RegionSetup, Units
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.simulation.mesh.executor": ["MeshExecutor"],
            "neuraxis.simulation.mesh.region_node": ["RegionNode"],
            "neuraxis.simulation.mesh.setup": ["Feed", "RegionSetup", "Units"],
        },
    )
