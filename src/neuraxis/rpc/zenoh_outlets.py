"""What a node of the mesh publishes to: for each party and lane an outlet, shared by the threads of this process.

Zenoh lets nobody undeclare a publisher while another thread publishes by it. So an outlet that is no longer wanted (its
party is out of sight, or there are too many) is undeclared by the last thread that uses it; who comes later makes a new
one, and nothing is lost by it.

Where the other side does not read, Zenoh holds up who publishes until it gives up the link, after about a second. A
message that may meet with that, and has less time, is published by a thread of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from neuraxis.errors import CallTimeout
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Party

__all__ = ["Outlets"]

_MOST = 1000
_LONGEST_PUT_S = 2.0  # more than Zenoh holds anybody up: see mesh.topology
_LARGE_BYTES = 65536  # a message that can fill what lies between two nodes
_CLOSE_S = 0.5


class _Retired(Exception):
    """The outlet is not to be used any more."""


class _Outlet:
    """A publisher, and who uses it now: each adds a mark before it looks whether the outlet is retired, so whoever
    retires it sees the mark, or is seen."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._users: list[None] = []
        self._retired = False
        self._ending = threading.Lock()
        self._ended = False

    @property
    def in_use(self) -> bool:
        return bool(self._users)

    def put(self, payload: Any, note: bytes | None) -> None:
        self._users.append(None)
        try:
            if self._retired:
                raise _Retired
            if note is None:
                self._publisher.put(payload)
            else:
                self._publisher.put(payload, attachment=note)
        finally:
            self._users.pop()
            if self._retired:
                self._end()

    def retire(self) -> None:
        self._retired = True
        self._end()

    def _end(self) -> None:
        with self._ending:
            last = not self._users and not self._ended
            self._ended = self._ended or last
        if last:
            self._publisher.undeclare()


class Outlets:
    """The outlets of one node; `declare` makes the publisher for a party's lane."""

    def __init__(self, declare: Callable[[Party, int], Any]) -> None:
        self._declare = declare
        self._lock = threading.Lock()
        self._outlets: OrderedDict[tuple[Party, int], _Outlet] = OrderedDict()  # the newest at the end
        self._threads = Threads("neuraxis rpc put")

    def __len__(self) -> int:
        return len(self._outlets)

    def must_not_wait(self, to: Party, lane: int, nbytes: int, timeout: float) -> bool:
        """Whether a message is to be published by a thread of its own: it must stay as it is until that is done."""
        if timeout >= _LONGEST_PUT_S:
            return False
        outlet = self._outlets.get((to, lane))
        return nbytes >= _LARGE_BYTES or (outlet is not None and outlet.in_use)

    def put(self, to: Party, lane: int, payload: Any, note: bytes | None = None) -> None:
        """Publish a message, with a note attached to it or none. Whatever Zenoh raises is raised."""
        while True:
            outlet = self._outlets.get((to, lane)) or self._make(to, lane)
            try:
                outlet.put(payload, note)
                return
            except _Retired:  # since it was looked up
                with self._lock:
                    if self._outlets.get((to, lane)) is outlet:
                        del self._outlets[to, lane]

    def put_within(self, timeout: float, to: Party, lane: int, payload: Any, note: bytes | None = None) -> None:
        """The same in a thread; CallTimeout if that takes longer, and it goes on."""
        done = threading.Event()
        failure: list[Exception] = []

        def work() -> None:
            try:
                self.put(to, lane, payload, note)
            except Exception as error:
                failure.append(error)
            done.set()

        self._threads.run(work)
        if not done.wait(timeout):
            raise CallTimeout(f"{to.name!r} takes no message within {timeout:g} s", to.name)
        if failure:
            raise failure[0]

    def _make(self, to: Party, lane: int) -> _Outlet:
        made = _Outlet(self._declare(to, lane))
        spare = None
        with self._lock:
            outlet = self._outlets.setdefault((to, lane), made)
            self._outlets.move_to_end((to, lane))
            if len(self._outlets) > _MOST:
                _, spare = self._outlets.popitem(last=False)
        if outlet is not made:
            made.retire()
        if spare is not None:
            spare.retire()
        return outlet

    def drop(self, party: Party) -> None:
        """A party is out of sight."""
        with self._lock:
            dropped = [self._outlets.pop(key) for key in list(self._outlets) if key[0] == party]
        for outlet in dropped:
            outlet.retire()

    def close(self) -> None:
        """Wait for what threads still publish; publishers end with their session."""
        self._threads.close(_CLOSE_S)
