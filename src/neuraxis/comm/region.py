"""A piece of memory that processes of one host share, for those who bring their own way of using it.

One process creates it and tells the others its name; when all have attached, it is sealed: the name goes, and the
memory cannot outlive the processes that hold it, however they end.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from neuraxis.comm.arena import Segment

__all__ = ["SharedRegion"]


class SharedRegion:
    """Shared memory of `size` bytes, zero at first, at `address` in this process."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.address = segment.address
        self.size = segment.size

    @classmethod
    def create(cls, size: int) -> SharedRegion:
        """A new region. All of it is taken from the system now, so that a full one is an error here and not later."""
        return cls(Segment.create(size, reserved=size))

    @classmethod
    def attach(cls, name: str) -> SharedRegion:
        """The region that another process of this host created."""
        return cls(Segment.attach(Path(name)))

    @property
    def name(self) -> str:
        """What others attach by, until the region is sealed."""
        return str(self._segment.path)

    def seal(self) -> None:
        """Remove the name: nobody can attach any more."""
        self._segment.unlink()

    def close(self) -> None:
        """Let go of the memory. Nothing may use `address` after this."""
        self._segment.close()

    def __enter__(self) -> SharedRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
