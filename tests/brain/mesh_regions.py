"""Python regions for brains on the mesh; nodes must be able to import them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.brain import Event

__all__ = ["Reporter"]


class Reporter:
    """Publish source and sum of each received array on the topic "seen", and spike for every event."""

    stateless = True
    node: Any = None

    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass

    def process_events(self, now: float, events: list[Event]) -> np.ndarray:
        for event in events:
            if isinstance(event.data, np.ndarray) and self.node is not None:
                self.node.publish("seen", {"source": event.source, "sum": float(np.sum(event.data)), "now": now})
        return np.arange(min(len(events), 4))
