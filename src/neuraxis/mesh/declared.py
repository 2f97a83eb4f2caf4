"""What was declared on a session and the threads that read from it: ended together, from whichever thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

__all__ = ["Declared"]

_END_S = 2.0  # how long to wait for a handler that is at work


class Declared:
    """A declaration of Zenoh's, with threads of its own. `close` ends it; a forked process leaves it alone."""

    def __init__(self, declared: Any) -> None:
        self.closed = False
        self._declared = declared
        self._channel: Any = declared.handler  # not by its threads: what is undeclared before they run has none
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()  # told when it is closed, and of what else its readers wait for

    def _start(self, name: str, target: Callable[[], None], threads: int = 1) -> None:
        begun = [threading.Thread(target=target, name=f"neuraxis {name}", daemon=True) for _ in range(threads)]
        self._threads += begun
        for thread in begun:
            thread.start()

    def close(self) -> None:
        """Hear nothing more. A handler that is at work is waited for, a few seconds at most (not by itself)."""
        if os.getpid() != self._pid:
            return
        self.stop()
        self.wait_for_end(time.monotonic() + _END_S)

    def stop(self) -> None:
        """Hear nothing more, and wait for nobody."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
        try:
            self._declared.undeclare()
        except Exception:  # the session may be closed already
            pass

    def wait_for_end(self, deadline: float) -> None:
        if not self.runs_here():  # two threads that wait for each other would wait in vain
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def runs_here(self) -> bool:
        """Whether the current thread is one of its own."""
        return threading.current_thread() in self._threads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
