"""Whether those that a region hears are there: who is waited for, asked again, or given up.

What a region has said and did not arrive is asked for in threads of their own, so that the loop need not wait; answers
come to the inbox. A region that says nothing is given up, but not while it is this node that is cut off.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from neuraxis.engine.shard import Shard
from neuraxis.execution.mesh.inbox import Inbox
from neuraxis.execution.mesh.mail import MeshMail
from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.mesh.upstream import AWAITED, MISSING, Upstream
from neuraxis.execution.mesh.upstreams import Upstreams
from neuraxis.execution.mesh.wire import REPLAY
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import LEASE_MS

__all__ = ["Vigil"]

_log = logging.getLogger("neuraxis.region")
_ANSWER_S = 1.0
_LEASE_S = LEASE_MS / 1000 + 0.5


class Vigil:
    """Watches those that one region hears, from `begin` to `end`."""

    def __init__(self, setup: RegionSetup, upstreams: Upstreams, mail: MeshMail, shard: Shard, inbox: Inbox) -> None:
        self._setup = setup
        self._upstreams = upstreams
        self._mail = mail
        self._shard = shard
        self._inbox = inbox
        self._node: Node | None = None
        self._asks: ThreadPoolExecutor | None = None
        self._cut_off_since: float | None = None

    def begin(self, node: Node) -> None:
        self._node = node
        self._asks = ThreadPoolExecutor(4, thread_name_prefix="neuraxis asks")

    def end(self) -> None:
        if self._asks is not None:
            self._asks.shutdown(wait=False, cancel_futures=True)
        self._node = self._asks = None

    # --- who is there -------------------------------------------------------------------------------------------

    def is_here(self, name: str) -> bool:
        return self._node is not None and self._node.peer(name) is not None

    def is_its_life(self, one: Upstream, incarnation: int) -> bool:
        """Whether a message is of the life of a region that is present; a new one may have an older clock."""
        if incarnation == one.incarnation:
            return True
        lives = [] if self._node is None else [peer.incarnation for peer in self._node.lives(one.name)]
        if incarnation not in lives or (one.incarnation in lives and incarnation < one.incarnation):
            return False
        one.incarnation = min(one.incarnation, incarnation - 1)  # whatever its clock says, it is the later one
        return True

    def is_gone(self, one: Upstream, listening_since: float) -> bool:
        """Whether a region has to be given up; not while it is this node that is cut off."""
        now = time.monotonic()
        return self._is_connected(now) and bool(one.is_gone(now, listening_since))

    def watch(self, blocking: list[Upstream], listening_since: float) -> None:
        """Ask again for what was said and did not come; give up whom nothing is heard of, though it is listened to."""
        now = time.monotonic()
        if not self._is_connected(now):
            return
        patience_s = self._setup.patience_s
        if (
            self._node is not None
            and self._node.topology.mode_in_use == "client"
            and now - self._inbox.heard_at > patience_s / 2
        ):
            # Nothing comes from anybody: that it is this node that is cut off, the lease of its link will tell.
            patience_s = max(patience_s, _LEASE_S)
        for one in blocking:
            one.patience_s = max(self._setup.start_wait_s, patience_s) if one.state == AWAITED else patience_s
            if why := one.is_gone(now, listening_since):
                self.give_up(one, why)
            elif one.should_ask(self._shard.step, now):
                self.recover(one)

    def give_up(self, one: Upstream, why: str) -> None:
        if why != "left":
            why = "stuck" if self.is_here(one.name) else "never came" if one.state == AWAITED else "gone"
        self._upstreams.give_up(one, why, self._setup.clock == "lockstep")

    def _is_connected(self, now: float) -> bool:
        """Whether this node reaches anybody, or has not for so long that it goes on alone."""
        assert self._node is not None
        if self._node.connected:
            self._cut_off_since = None
            return True
        if self._cut_off_since is None:
            self._cut_off_since = now
            _log.warning("%s: cut off from the mesh at step %d; waiting", self._setup.name, self._shard.step)
        if now - self._cut_off_since > self._setup.reconnect_s:
            return True
        for one in self._upstreams:
            one.last_sign = max(one.last_sign, now)  # who could not be heard is not taken for gone
        return False

    # --- to ask again -------------------------------------------------------------------------------------------

    def recover(self, one: Upstream, letters_from: int | None = None) -> None:
        """Have a region say again what was not heard of it (and data from a step on); the answer comes to the inbox."""
        now = time.monotonic()
        if self._asks is None or self._node is None or not one.may_ask(now):
            return
        one.asked_at, one.asking = now, True
        first = one.heard + 1 if letters_from is None else min(letters_from, one.heard + 1)
        self._asks.submit(self._ask_again, self._node, one.name, first, letters_from)

    def _ask_again(self, node: Node, name: str, first: int, letters_from: int | None) -> None:
        answer: Any = None
        try:
            answer = node.request(name, REPLAY, {"from": first}, timeout=_ANSWER_S)
        except Exception as error:  # it is gone, or busy; it is asked once more if it is still needed
            _log.info("%s: %s could not be asked again: %s", self._setup.name, name, error)
        self._inbox.put("again", name, answer, letters_from)

    def hear_again(self, name: str, answer: Any, letters_from: int | None) -> None:
        """What a region says again; None where it could not be asked."""
        one = self._upstreams.by_name[name]
        one.asking = False
        if not isinstance(answer, dict):
            return
        incarnation = int(answer["incarnation"])
        # A thread beside the region's loop has answered: that is no sign of life. Who is missing comes back by a word.
        if one.state == MISSING or not self.is_its_life(one, incarnation):
            return
        one.live_as(incarnation)
        self._mail.keep_again(name, answer, letters_from)
        if self._upstreams.take_again(one, answer):
            one.asked_at = 0.0
            self.recover(one)
