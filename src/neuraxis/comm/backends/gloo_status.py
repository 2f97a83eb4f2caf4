"""Progress and last messages of the ranks of a gloo group: in shared memory within a host, over gloo between hosts.

A message over a connection can be lost with the process that sends it, and its receiver cannot distinguish that from no
message. Shared memory keeps what a process has written, however the process ends. So a rank that first checks which
processes have ended, and then reads the shared memory, sees everything that they have published (`GroupStatus`).

Each rank has a row there: the number of exchanges it has completed, its last message, and a notice of the loss that it
has observed. The notice counts if its process exits without a last message (os._exit), so that a rank that ends because
of another's death is not taken for the cause. A rank that was killed by a signal is a cause of its own.

Between hosts, last messages travel over gloo (`LastMessageChannel`). gloo sends a message only after its receiver has
posted a receive, and a rank that raised exits before the others could post one. So every rank posts these receives when
the group is set up, and a last message goes out at once. It uses the same connection as all other data, so a rank that
finds the connection closed has the message already.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np

from neuraxis.comm.backends.shm.memory import SharedRegion
from neuraxis.comm.failures import LAST_MESSAGE_BYTES, LastMessage, ProcessExit
from neuraxis.errors import BackendUnavailable, ResourceExhausted

__all__ = ["GroupStatus", "LastMessageChannel"]

_ROUNDS = slice(0, 8)
_LAST_MESSAGE = slice(128, 128 + LAST_MESSAGE_BYTES)
_NOTICE = slice(640, 640 + LAST_MESSAGE_BYTES)
_ROW_BYTES = 1152
_TAG = 2**31 - 1  # the largest tag, which a program has no reason to use
# Timeout for writing all last messages to their connections, which normally takes no time. When a wait of gloo times
# out, gloo closes all connections, and messages that are not yet written are lost.
_SEND_TIMEOUT_S = 1.0


class GroupStatus:
    """The rows of the group ranks `ranks`, which share a host, as rank `rank` reads and writes them."""

    def __init__(self, region: SharedRegion, rank: int, ranks: Sequence[int]) -> None:
        self._region = region
        self._rank = rank
        rows = region.array().reshape(-1, _ROW_BYTES)
        self._rows = {other: rows[index] for index, other in enumerate(ranks)}
        self._rounds = self._rows[rank][_ROUNDS].view(np.int64)

    @classmethod
    def create(cls, rank: int, ranks: Sequence[int]) -> GroupStatus | None:
        """Allocate memory for these ranks; return None if the system has none left."""
        try:
            return cls(SharedRegion.create(len(ranks) * _ROW_BYTES), rank, ranks)
        except (BackendUnavailable, ResourceExhausted):
            return None

    @classmethod
    def attach(cls, name: str, rank: int, ranks: Sequence[int]) -> GroupStatus | None:
        """Attach to the memory that another rank created as `name`; return None if that is not possible."""
        try:
            return cls(SharedRegion.attach(name), rank, ranks) if name else None
        except (BackendUnavailable, ResourceExhausted):
            return None

    @property
    def name(self) -> str:
        return self._region.name

    def seal(self) -> None:
        """Remove the name, once all ranks have attached."""
        self._region.seal()

    def finish_round(self, rounds: int) -> None:
        """Publish the number of exchanges that this rank has completed."""
        self._rounds[0] = rounds

    def rounds_of(self, rank: int) -> int | None:
        """Return the number of exchanges that a rank has completed; None for a rank on another host."""
        row = self._rows.get(rank)
        return None if row is None else int(row[_ROUNDS].view(np.int64)[0])

    def write(self, message: LastMessage) -> None:
        """Publish this rank's last message."""
        _store(self._rows[self._rank][_LAST_MESSAGE], message)

    def notice(self, message: LastMessage) -> None:
        """Publish the loss that counts as the cause if this rank exits without a last message."""
        _store(self._rows[self._rank][_NOTICE], message)

    def last_messages(self, ended: Mapping[int, ProcessExit]) -> Iterator[tuple[int, LastMessage]]:
        """Yield the last messages with the ranks of their senders; `ended` holds the exits of processes."""
        for other, row in self._rows.items():
            if other != self._rank:
                message = LastMessage.unpacked(row[_LAST_MESSAGE])
                if message is None and other in ended and ended[other].signal is None:
                    message = LastMessage.unpacked(row[_NOTICE])
                if message is not None:
                    yield other, message

    def close(self) -> None:
        """Close the descriptor. The memory is unmapped when no thread of this process reads it any more."""
        self._region.close()


class LastMessageChannel:
    """Last messages to and from the ranks of a group, over torch's process group `group`."""

    def __init__(self, torch: Any, group: Any, rank: int, size: int) -> None:
        self._torch = torch
        self._group = group
        self._others = [other for other in range(size) if other != rank]
        self._room = {other: torch.zeros(LAST_MESSAGE_BYTES, dtype=torch.uint8) for other in self._others}
        # gloo writes into the buffers in the background; no thread waits for these receives.
        self._receiving = [group.recv([room], other, _TAG) for other, room in self._room.items()]

    def send(self, message: LastMessage) -> None:
        """Send a message to every rank that is still connected."""
        content = self._torch.from_numpy(message.packed())
        sending = []
        for other in self._others:
            with suppress(RuntimeError):  # its connection is broken: it has left already
                sending.append(self._group.send([content], other, _TAG))
        deadline = time.monotonic() + _SEND_TIMEOUT_S
        for work in sending:
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def received(self) -> Iterator[tuple[int, LastMessage]]:
        """Yield the messages received so far, with the ranks of their senders."""
        for other, room in self._room.items():
            message = LastMessage.unpacked(room.numpy())
            if message is not None:
                yield other, message

    def close(self) -> None:
        """Release the process group."""
        self._receiving.clear()
        self._group = None


def _store(room: np.ndarray, message: LastMessage) -> None:
    content = message.packed()
    room[-1] = 0
    room[:-1] = content[:-1]
    room[-1] = content[-1]  # last, because readers wait for this byte
