"""A message under way between two ranks of shared memory: what of it has moved, and between which places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from neuraxis.comm.backend import Request
from neuraxis.comm.buffers import Buffer, address_of, buffer_of
from neuraxis.comm.rings import HEADER_BYTES
from neuraxis.errors import NeuraxisError

if TYPE_CHECKING:
    from neuraxis.comm.mailbox import Endpoint

__all__ = ["HEADER_WORDS", "Incoming", "Rings", "Transfer"]

HEADER_WORDS = HEADER_BYTES // 8


class Rings(Protocol):
    """Where the rings are."""

    rank: int
    size: int

    def ring_counters(self, source: int, to: int) -> int: ...
    def ring_data(self, source: int, to: int) -> int: ...
    def doorbell(self, rank: int) -> int: ...


class Transfer(Request):
    """A message to be sent or received. One that is `open` takes a message of any length, as `content`."""

    def __init__(self, endpoint: Endpoint, buffer: Buffer, peer: int | None, tag: int, what: str) -> None:
        self.endpoint = endpoint
        self.buffer = buffer
        self.behind: list[Buffer] = []  # what is sent after the buffer, as the same message
        self.open = False
        self.content: np.ndarray | None = None
        self.peer = peer  # None: anybody, until one has begun to send it
        self.begun = False
        self.tag = tag
        self.what = what
        self.header = np.zeros(HEADER_WORDS, np.int64)
        self.header_done = 0
        self.done = 0
        self.finished = False
        self.error: NeuraxisError | None = None

    @property
    def is_written(self) -> bool:
        return self.done == self.buffer.nbytes and not self.behind

    def rest(self) -> np.ndarray:
        """A copy of what is still to be sent."""
        parts = [self.buffer.bytes()[self.done :], *(part.bytes() for part in self.behind)]
        return np.concatenate(parts)

    def keep_rest(self) -> None:
        """Send the rest from a copy."""
        self.buffer, self.done, self.behind = buffer_of(self.rest(), "message", writes=False), 0, []

    def test(self) -> bool:
        return self.endpoint.test(self)

    def wait(self, timeout: float) -> None:
        self.endpoint.wait(self, timeout)

    def cancel(self) -> None:
        self.endpoint.forget(self)


class Incoming:
    """The reading end of one ring, and the message there: its header so far, and where its bytes go."""

    def __init__(self, rings: Rings, source: int) -> None:
        self.counters = rings.ring_counters(source, rings.rank)
        self.data = rings.ring_data(source, rings.rank)
        self.doorbell = rings.doorbell(source)
        self.header = np.zeros(HEADER_WORDS, np.int64)
        self.header_address = address_of(self.header)
        self.header_done = 0
        self.done = 0
        self.target = 0  # the address to which the message's bytes go
        self.transfer: Transfer | None = None
        self.stash: np.ndarray | None = None
