"""How farewells travel over gloo: to each rank from each other, into room that has been waiting for them.

gloo sends a message's bytes when the other side has asked for them. A rank that has raised is gone before anybody
could ask, so everybody asks when the group is set up, and a farewell then goes out at once. It travels on the same
connection as everything else: whoever finds the connection closed has the farewell already.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from neuraxis.comm.farewells import FAREWELL_BYTES, Farewell

__all__ = ["GlooLine"]

_TAG = 2**31 - 1  # the largest that there is, which a program has no reason to choose
_PATIENCE_S = 0.1  # for all farewells to be written to their connections; in general they are at once


class GlooLine:
    """The farewells of one rank of a group, over its process group `group`."""

    def __init__(self, torch: Any, group: Any, rank: int, size: int) -> None:
        self._torch = torch
        self._group = group
        self._others = [other for other in range(size) if other != rank]
        self._room = {other: torch.zeros(FAREWELL_BYTES, dtype=torch.uint8) for other in self._others}
        # Nobody waits for these: the bytes come by themselves.
        self._receiving = [group.recv([room], other, _TAG) for other, room in self._room.items()]

    def say(self, farewell: Farewell) -> None:
        """Tell everybody who can still be told."""
        content = self._torch.from_numpy(farewell.packed())
        sending = []
        for other in self._others:
            with suppress(RuntimeError):  # its connection is broken: it has left already
                sending.append(self._group.send([content], other, _TAG))
        deadline = time.monotonic() + _PATIENCE_S
        for work in sending:
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def heard(self) -> Iterator[tuple[int, Farewell]]:
        """The farewells that have come, with their senders' ranks."""
        for other, room in self._room.items():
            farewell = Farewell.unpacked(room.numpy())
            if farewell is not None:
                yield other, farewell

    def close(self) -> None:
        """Let go of the group."""
        self._receiving.clear()
        self._group = None
