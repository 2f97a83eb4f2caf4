"""What a backend is: the collectives of one group, on contiguous buffers, between group ranks.

A backend knows nothing of users' arrays, of world ranks, of async calls or of other groups: `Communicator`
has done all that before. Every call blocks until this rank's part is done, or raises by its deadline.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from neuraxis.comm.buffers import Buffer
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import CollectiveTimeout, NeuraxisError

if TYPE_CHECKING:
    from neuraxis.comm.short_ways import ShortWays

__all__ = ["Backend", "Exchange", "Operation", "Request", "describe_call"]

Exchange = Callable[[bytes], list[bytes]]
"""Hands in this rank's bytes and gives back everybody's, in rank order: what a backend is set up with."""


class Operation(enum.IntEnum):
    """The operations, by their number on the wire."""

    BARRIER = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_REDUCE = 4
    GATHER = 5
    ALL_GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    REDUCE_SCATTER = 9

    @property
    def label(self) -> str:
        return self.name.lower()


def describe_call(operation: Operation, element: ElementType, op: ReduceOp, root: int, count: int) -> str:
    """A call as an error shows it, e.g. `broadcast(float32[4], root 0)`."""
    if operation is Operation.BARRIER:
        return "barrier()"
    parts = [f"{element.label}[{count}]"]
    if operation in (Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
        parts.append(op.name)
    if root >= 0:
        parts.append(f"root {root}")
    return f"{operation.label}({', '.join(parts)})"


class Request(ABC):
    """A point-to-point transfer under way."""

    source: int = -1  # for a finished receive: the group rank it came from

    @abstractmethod
    def test(self) -> bool:
        """Whether it is finished, without waiting; raises if it failed."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Wait until it is finished; CollectiveTimeout after `timeout` seconds, and it goes on."""

    def cancel(self) -> None:
        """Give it up, as far as that is still possible."""


class Backend(ABC):
    """The collectives of one group. `rank` and all roots are ranks within the group."""

    name: ClassVar[str]
    device: str = "cpu"  # where buffers must be
    rank: int
    size: int

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def broadcast(self, buffer: Buffer, root: int) -> None: ...

    @abstractmethod
    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        """In place on the root; the other ranks' buffers stay as they are."""

    @abstractmethod
    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None: ...

    @abstractmethod
    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        """`outputs` is empty on all but the root."""

    @abstractmethod
    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None: ...

    @abstractmethod
    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        """`inputs` is empty on all but the root."""

    @abstractmethod
    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None: ...

    @abstractmethod
    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None: ...

    @abstractmethod
    def isend(self, buffer: Buffer, to: int, tag: int) -> Request: ...

    @abstractmethod
    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        """From any rank where `source` is None."""

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float) -> None:
        """Send and wait until the buffer may be used again."""
        _wait(self.isend(buffer, to, tag), timeout)

    def receive(self, buffer: Buffer, source: int | None, tag: int, timeout: float) -> int:
        """Receive and wait; the group rank it came from."""
        return _wait(self.ireceive(buffer, source, tag), timeout)

    def send_bytes(self, parts: Sequence[Buffer], to: int, tag: int, timeout: float) -> None:
        """Send what lies in several places as one message, for `receive_bytes`. Only shm can."""
        raise NotImplementedError

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        """Receive a message of any length; its bytes, and the group rank it came from. Only shm can."""
        raise NotImplementedError

    def keep_going(self) -> None:
        """Make sure that messages under way get on even while nobody waits for them."""

    def short_ways(self, lock: threading.Lock, fail: Callable[[BaseException], None]) -> ShortWays | None:
        """Short ways for plain NumPy arrays, where the backend has them. They take `lock` and report to `fail`."""
        return None

    @abstractmethod
    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> Backend:
        """A backend for some ranks of this group, called by exactly those ranks; `exchange` is among them.

        `check_calls` is whether it compares calls before it makes them, where that is a choice; None is as here.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything. Never waits for others and never raises because of them."""

    def interrupt(self, error: NeuraxisError) -> None:
        """Make a call that waits in another thread raise `error` soon, where the backend can."""

    def abandon(self) -> None:
        """Called in a forked child: forget what belongs to the parent, without touching it."""

    def poison(self, error: BaseException) -> None:
        """Make a failure of this rank in this group known to the others, where the backend can."""

    def say_farewell(self, error: BaseException) -> None:
        """Tell the others that this rank is about to leave because of `error`, where they would not see it."""


def _wait(request: Request, timeout: float) -> int:
    try:
        request.wait(timeout)
    except CollectiveTimeout:
        request.cancel()
        raise
    return request.source
