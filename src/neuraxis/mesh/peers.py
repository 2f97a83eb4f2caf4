"""Who is here: presence tokens, which Zenoh withdraws when a node closes, dies or is cut off."""

from __future__ import annotations

import base64
import logging
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.declared import Declared
from neuraxis.mesh.keys import check_name, presence_key

__all__ = ["Peer", "Presence", "token_key"]

_log = logging.getLogger("neuraxis.mesh")


@dataclass(frozen=True)
class Peer:
    """A node on the mesh.

    Attributes:
        since: when it came, in seconds since the epoch, by its own clock.
        incarnation: tells the lives of a node with this name apart.
        step: the last step it said it had reached; None if it has none, or did not answer.
        topics: what it publishes: topic → kind; None if it did not answer.
    """

    name: str
    role: str
    host: str
    pid: int
    incarnation: int
    roles: tuple[str, ...] = ()
    step: int | None = None
    topics: dict[str, str] | None = None

    @property
    def since(self) -> float:
        return self.incarnation * 1e-9

    def has_role(self, role: str) -> bool:
        return role == self.role or role in self.roles


def token_key(mesh: str, peer: Peer) -> str:
    """The key of a node's presence: its name, and what there is to know of it before anything was asked."""
    facts = msgspec.msgpack.encode([peer.role, peer.host, peer.pid, peer.incarnation, list(peer.roles)])
    return presence_key(mesh, f"{peer.name}/{base64.urlsafe_b64encode(facts).decode().rstrip('=')}")


def _read_token(prefix: str, key: str) -> Peer | None:
    name, _, facts = key.removeprefix(prefix).rpartition("/")
    try:
        content = base64.urlsafe_b64decode(facts + "=" * (-len(facts) % 4))
        role, host, pid, incarnation, roles = msgspec.msgpack.decode(content, type=tuple[str, str, int, int, list[str]])
        return Peer(check_name(name, "name"), role, host, pid, incarnation, tuple(roles))
    except (ValueError, msgspec.MsgspecError, InvalidArgument):
        return None


class Presence(Declared):
    """The nodes that are here, kept up to date by a thread.

    A second thread calls the handlers, in the order of events: what they do (ask the node that has come, say) may need
    the first.
    """

    def __init__(self, session: Any, mesh: str, me: Peer | None) -> None:
        import zenoh

        self._prefix = presence_key(mesh, "")
        self._me = me
        self._here: dict[tuple[str, int], Peer] = {}
        self._arrivals: dict[tuple[str, int], int] = {}
        self._stays: dict[str, tuple[int, int]] = {}  # by name, of the latest life; looked at by every question
        self._arrived = 0
        self._joined: list[Callable[[Peer], Any]] = []
        self._left: list[Callable[[Peer], Any]] = []
        self._calls: queue.SimpleQueue[tuple[Callable[[Peer], Any], Peer] | None] = queue.SimpleQueue()
        self._has_caller = False
        # Tokens are few; a ring that drops would let us miss that somebody came or went.
        subscriber = session.liveliness().declare_subscriber(
            presence_key(mesh), zenoh.handlers.FifoChannel(100_000), history=True
        )
        super().__init__(subscriber)
        self._put = zenoh.SampleKind.PUT
        self._start("presence", self._read)

    def peers(self) -> list[Peer]:
        """Who is here, by name; of two with one name, the later one last."""
        with self._changed:
            return sorted(self._here.values(), key=lambda peer: (peer.name, peer.incarnation))

    def get(self, name: str) -> Peer | None:
        """The node of a name, the latest if there are several."""
        found = [peer for peer in self.peers() if peer.name == name]
        return found[-1] if found else None

    def stay(self, name: str) -> tuple[int, int] | None:
        """Which life of a node is here, and by which arrival: that changes when it leaves, if only for a moment."""
        return self._stays.get(name)

    def with_role(self, role: str) -> list[Peer]:
        """Those that declare a role, in the order in which they came."""
        return sorted((one for one in self.peers() if one.has_role(role)), key=lambda one: (one.incarnation, one.name))

    def wait_for(self, names: Iterable[str], timeout: float) -> list[str]:
        """Wait until all of these are here; the names of those that are not when the time is over."""
        wanted = set(names)
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                missing = wanted - {peer.name for peer in self._here.values()}
                left = deadline - time.monotonic()
                if not missing or left <= 0 or self.closed:
                    return sorted(missing)
                self._changed.wait(min(left, 0.5))

    def on_join(self, handler: Callable[[Peer], Any]) -> None:
        with self._changed:
            self._joined.append(handler)
            for peer in self._here.values():
                self._calls.put((handler, peer))
            self._start_caller()

    def on_leave(self, handler: Callable[[Peer], Any]) -> None:
        with self._changed:
            self._left.append(handler)
            self._start_caller()

    def stop(self) -> None:
        super().stop()
        self._calls.put(None)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _start_caller(self) -> None:
        if not self._has_caller and not self.closed:
            self._has_caller = True
            self._start("joins and leaves", self._call)

    def _call(self) -> None:
        while (call := self._calls.get()) is not None and not self.closed:
            handler, peer = call
            try:
                handler(peer)
            except BaseException:
                _log.exception("a handler of joins and leaves raised for %s", peer.name)

    def _read(self) -> None:
        receive = self._channel.recv
        while True:
            try:
                sample = receive()
            except Exception:  # undeclared: nothing more comes
                return
            try:
                self._take(str(sample.key_expr), sample.kind == self._put)
            except Exception:
                _log.exception("presence: something odd came")

    def _take(self, key: str, came: bool) -> None:
        peer = _read_token(self._prefix, key)
        if peer is None or peer == self._me:
            return
        if came and self._me is not None and peer.name == self._me.name:
            # Before it came it was looked for; so the two had not yet reached each other then.
            _log.warning("another node called %r is on the mesh: process %d on %s", peer.name, peer.pid, peer.host)
        identity = (peer.name, peer.incarnation)
        with self._changed:
            if came == (identity in self._here):
                return
            if came:
                self._here[identity] = peer
                self._arrived += 1
                self._arrivals[identity] = self._arrived
            else:
                peer = self._here.pop(identity)
                del self._arrivals[identity]
            lives = [one for one in self._here if one[0] == peer.name]
            if lives:
                self._stays[peer.name] = max(lives)[1], self._arrivals[max(lives)]
            else:
                self._stays.pop(peer.name, None)
            self._changed.notify_all()
            for handler in self._joined if came else self._left:
                self._calls.put((handler, peer))
