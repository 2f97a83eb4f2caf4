"""The process of one region's node, started by a MeshExecutor. What it needs is imported once it is told what to do."""

from __future__ import annotations

import logging
from typing import Any

from neuraxis.errors import LineClosed

__all__ = ["serve_region"]


def serve_region(line: Any) -> None:
    """Build the region that the parent describes, and live until the parent says anything more, or dies."""
    from neuraxis.engine.warm import warm_up
    from neuraxis.execution.mesh.region_node import RegionNode

    root = logging.getLogger()
    if not root.handlers:
        printing = logging.StreamHandler()
        printing.setLevel(logging.WARNING)
        root.addHandler(printing)
    try:
        setup = line.receive()
    except LineClosed:
        return
    warm_up()
    region = RegionNode(setup, stopped=lambda: bool(line.closed or line.poll()))
    region.run()
