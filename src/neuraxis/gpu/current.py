"""Which CUDA context this thread works in: the one that it started or entered last, of those that run."""

from __future__ import annotations

import threading
from typing import Any, Protocol

__all__ = ["current_context", "ended", "entered", "left"]


class _Context(Protocol):
    @property
    def is_running(self) -> bool: ...

    def to_gpu(self, array: Any) -> Any: ...


class _Entered(threading.local):
    def __init__(self) -> None:
        self.contexts: list[_Context] = []


_entered = _Entered()


def entered(context: _Context) -> None:
    _entered.contexts.append(context)


def left(context: _Context) -> None:
    """Take back the last `entered` of this context; nothing if another thread entered it."""
    contexts = _entered.contexts
    for place in reversed(range(len(contexts))):
        if contexts[place] is context:
            del contexts[place]
            return


def ended(context: _Context) -> None:
    """Take back all that this thread has `entered` of a context that is stopped; others find out when they look."""
    _entered.contexts[:] = [one for one in _entered.contexts if one is not context]


def current_context() -> _Context | None:
    contexts = _entered.contexts
    while contexts and not contexts[-1].is_running:  # another thread stopped it
        contexts.pop()
    return contexts[-1] if contexts else None
