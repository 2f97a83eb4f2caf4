"""What is done once for each id, however often it is asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["REMEMBERED", "Once"]

REMEMBERED = 10_000


class Once:
    """Calls a function at most once for an id, in the thread that asks first; who asks later gets what came of it.

    What it raised counts, and is raised again. Of the ids that are done the last 10,000 are remembered.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        self._called: OrderedDict[str, Future[Any]] = OrderedDict()

    def call(self, id: str, function: Callable[[], Any], timeout: float) -> Any:
        """What the function returned; TimeoutError where another thread is still calling it after `timeout` seconds."""
        with self._lock:
            known = self._called.get(id)
            if known is None:
                mine: Future[Any] = Future()
                self._called[id] = mine
                self._forget()
        if known is not None:
            return known.result(timeout)
        try:
            mine.set_result(function())
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()

    def __len__(self) -> int:
        return len(self._called)

    def _forget(self) -> None:
        while len(self._called) > self._remembered:
            oldest = next(iter(self._called))
            if not self._called[oldest].done():
                return
            del self._called[oldest]
