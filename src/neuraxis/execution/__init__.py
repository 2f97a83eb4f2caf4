"""Deprecated name of `neuraxis.simulation`, which release 0.1 called `neuraxis.execution`."""

from __future__ import annotations

from neuraxis import simulation
from neuraxis.imports import lazy_names

__all__ = list(simulation.__all__)

__getattr__, __dir__ = lazy_names(
    __name__,
    {},
    deprecated=dict.fromkeys(__all__, "neuraxis.simulation"),
    advice="Import it from neuraxis.simulation",
)
