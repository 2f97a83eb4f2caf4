"""Regions of Python for brains over the mesh, which must be importable where nodes are."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.brain import Event

__all__ = ["Reporter"]


class Reporter:
    """Tells on its node's topic "seen" which arrays it was given: source and sum. It spikes for all it hears."""

    stateless = True
    node: Any = None

    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass

    def process_events(self, now: float, events: list[Event]) -> np.ndarray:
        for event in events:
            if isinstance(event.data, np.ndarray) and self.node is not None:
                self.node.publish("seen", {"source": event.source, "sum": float(np.sum(event.data)), "now": now})
        return np.arange(min(len(events), 4))
