"""Deprecated name of `neuraxis.simulation.mesh`, which release 0.1 called `neuraxis.execution.mesh`."""

from __future__ import annotations

from neuraxis.imports import lazy_names
from neuraxis.simulation import mesh

__all__ = list(mesh.__all__)

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    deprecated=dict.fromkeys(__all__, "neuraxis.simulation.mesh"),
    advice="Import it from neuraxis.simulation.mesh",
)
