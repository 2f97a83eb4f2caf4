"""The Zenoh session of a node, and declarations on it with the threads that read from them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from neuraxis.errors import ForkedProcess, MeshClosed, MeshError
from neuraxis.mesh.asynchronous import SyncHandler

__all__ = ["Declaration", "GuardedSession"]

_END_S = 2.0  # how long `close` waits for a running handler


class GuardedSession:
    """The Zenoh session of a node, as a context manager around calls of Zenoh.

    It turns errors of Zenoh into `MeshClosed` if the node has been closed meanwhile, and `MeshError` otherwise.
    """

    def __init__(self, session: Any, name: str) -> None:
        self.session = session
        self.name = name
        self.closed = False
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise if the session cannot be used."""
        if os.getpid() != self._pid:
            raise ForkedProcess(f"node {self.name!r} belongs to the parent process. Create another one in this process")
        if self.closed:
            raise MeshClosed(f"node {self.name!r} has been closed. Create another one")

    def __enter__(self) -> Any:
        return self.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.raise_mesh_error(error)

    def raise_mesh_error(self, error: BaseException) -> None:
        """Raise the mesh error for an error of Zenoh; ignore other errors."""
        import zenoh

        if isinstance(error, zenoh.ZError):
            self.check()
            raise MeshError(f"node {self.name!r}: {error}") from None


class Declaration:
    """A Zenoh subscriber or queryable with its reader threads, closed together from any thread.

    In a forked process `close` does nothing.
    """

    def __init__(self, declaration: Any) -> None:
        self.closed = False
        self._handler: Callable[..., Any] | None = None
        self._declaration = declaration
        self._channel: Any = declaration.handler  # read here: after `undeclare` there is none
        self._pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()  # notified on close, and by subclasses

    def _start(self, name: str, target: Callable[[], None], threads: int = 1) -> None:
        begun = [threading.Thread(target=target, name=f"neuraxis {name}", daemon=True) for _ in range(threads)]
        self._threads += begun
        for thread in begun:
            thread.start()

    def close(self) -> None:
        """Stop receiving, and wait up to two seconds for running handlers (not from within a handler)."""
        if os.getpid() != self._pid:
            return
        self._stop()
        self._wait_for_end(time.monotonic() + _END_S)

    def _stop(self) -> None:
        """Stop receiving, without waiting for handlers."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
        try:
            self._declaration.undeclare()
        except Exception:  # the session may be closed already
            pass

    def _wait_for_end(self, deadline: float) -> None:
        if isinstance(self._handler, SyncHandler) and self._handler.waits_for_this_thread():
            return  # the event loop of this thread has to run the coroutine
        if not self._runs_here():  # a thread cannot join itself, nor two threads each other
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _runs_here(self) -> bool:
        """Return True if the current thread is one of the reader threads."""
        return threading.current_thread() in self._threads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
