"""The process of one region's node, started by a MeshExecutor; heavy imports wait until its setup arrives."""

from __future__ import annotations

import logging
from typing import Any

from neuraxis.errors import LineClosed
from neuraxis.process.pickling import install

__all__ = ["serve_region"]


def serve_region(line: Any) -> None:
    """Build and run the region of the setup that the parent sends, until the parent sends anything else or dies.

    The parent sends the result of `main_objects` first.
    """
    from neuraxis.engine.precompile import warm_up
    from neuraxis.simulation.mesh.region_node import RegionNode

    root = logging.getLogger()
    if not root.handlers:
        printing = logging.StreamHandler()
        printing.setLevel(logging.WARNING)
        root.addHandler(printing)
    try:
        install(line.receive())
        setup = line.receive()
    except LineClosed:
        return
    warm_up(setup.network, packing=True)
    region = RegionNode(setup, stopped=lambda: bool(line.closed or line.poll()))
    region.run()
