"""Errors of a session, as those of the node that has it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from neuraxis.errors import ForkedProcess, MeshClosed, MeshError

__all__ = ["Owned"]


class Owned:
    """A session and the node that owns it, by name. `with owned:` around calls of Zenoh turns its errors into ours:
    MeshClosed where the node has been closed meanwhile, MeshError else."""

    def __init__(self, session: Any, name: str) -> None:
        self.session = session
        self.name = name
        self.closed = False
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise where it cannot be used (any more)."""
        if os.getpid() != self._pid:
            raise ForkedProcess(f"node {self.name!r} belongs to the process that made it; make one in this process")
        if self.closed:
            raise MeshClosed(f"node {self.name!r} has been closed")

    def __enter__(self) -> Any:
        return self.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.raise_ours(error)

    def raise_ours(self, error: BaseException) -> None:
        """Raise what an error of Zenoh's is for us; nothing for any other."""
        import zenoh

        if isinstance(error, zenoh.ZError):
            self.check()
            raise MeshError(f"node {self.name!r}: {error}") from None
