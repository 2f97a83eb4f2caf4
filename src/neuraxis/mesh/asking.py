"""Questions that wait in threads of their own, so that several nodes can be asked at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuraxis.mesh.node import Node

__all__ = ["Outcome", "ask_in_background"]


@dataclass(frozen=True)
class Outcome:
    """What became of a question to a node: its answer, or why there is none."""

    node: str
    answer: Any = None
    error: Exception | None = None


def ask_in_background(
    node: Node, name: str, topic: str, value: Any, timeout: float, done: Callable[[Outcome], Any], *, type: Any = None
) -> threading.Thread:
    """Ask a node, and call `done` from another thread, once, within `timeout`. Nobody has to wait for that thread."""

    def ask() -> None:
        try:
            outcome = Outcome(name, node.request(name, topic, value, timeout, type=type))
        except Exception as error:  # whatever it is, who asked is told
            outcome = Outcome(name, error=error)
        done(outcome)

    thread = threading.Thread(target=ask, name=f"neuraxis asks {name}", daemon=True)
    thread.start()
    return thread
