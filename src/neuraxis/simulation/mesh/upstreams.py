"""All upstream regions of one region: their spikes in memory, and the failure detector that watches them.

`Upstreams` validates received windows and writes them to this process's copies of the other regions' spike buffers,
from which the engine reads them when they are due. The spike buffer of a missing region is empty and marked complete
for ever.

`FailureDetector` decides which regions to wait for, which windows to request again, and which regions to give up.
Requests run in separate threads, so that the loop does not wait; replies arrive in the inbox. While this node itself
is cut off from the mesh, no region is given up.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import SpikeBuffers, clear_steps, spikes_are_valid, unpack_outputs, unpack_steps
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import LEASE_MS
from neuraxis.network import Network
from neuraxis.network.network import LARGEST_STEP
from neuraxis.simulation.mesh.inbox import Inbox
from neuraxis.simulation.mesh.payloads import MeshPayloads
from neuraxis.simulation.mesh.setup import RegionSetup
from neuraxis.simulation.mesh.upstream import AWAITED, LIVE, MISSING, Outage, Upstream
from neuraxis.simulation.mesh.wire import REPLAY, Window, unpack_window

__all__ = ["FailureDetector", "Upstreams"]

_log = logging.getLogger("neuraxis.region")
_FOR_EVER = 2**62


class Upstreams:
    """The upstream regions by name; `links` holds the shortest delay between any two regions, or 0."""

    def __init__(
        self, setup: RegionSetup, digest: int, shard: Shard, buffers: SpikeBuffers, links: NDArray[np.int64]
    ) -> None:
        network = setup.network
        self._name = setup.name
        self._digest = digest
        self._shard = shard
        self._buffers = buffers
        self._populations = len(network.populations)
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._index = {name: index for index, name in enumerate(setup.units.names)}
        self._neurons = {name: _ranges(network, shard.placement[index]) for name, index in self._index.items()}
        self._known: dict[str, NDArray[np.int64]] = {}  # realtime: the step in each slot of a spike buffer
        self.by_name: dict[str, Upstream] = {}
        for name, index in self._index.items():
            if index == shard.me:
                continue
            if links[shard.me, index]:
                lag = int(links[shard.me, index])
                self.by_name[name] = Upstream(name, lag, setup.silence_timeout, last_heartbeat=time.monotonic())
            else:
                self._set_done(name, _FOR_EVER)  # not an upstream region: never waited for

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self.by_name.values())

    def check(self, name: str, payload: object) -> Window:
        """Decode and validate a window; raise ValueError if it is invalid. Any thread may call this.

        The window must be of the same brain and contain only neurons of its sender.
        """
        window = unpack_window(payload)
        if window.digest != self._digest:
            raise ValueError(f"{name} runs another brain")
        steps = window.last - window.first + 1
        if steps > self._buffers.slots - 2:
            raise ValueError(f"{name} sent a window of {steps} steps, more than the spike buffers hold")
        if len(window.ids) and not spikes_are_valid(window.after, window.ids, steps, self._neurons[name]):
            raise ValueError(f"{name} sent spikes of neurons that it does not have")
        outputs = int(self._buffers.output_counts[self._index[name]]) * steps
        if window.outputs.size != outputs:
            raise ValueError(f"{name} sent {window.outputs.size} outputs; {outputs} are expected")
        return window

    def begin_at(self, step: int) -> None:
        """Continue after `step`, with only those earlier spikes that are still on their way."""
        for one in self:
            one.begin_at(max(0, step - one.lag))
            self._set_done(one.name, _FOR_EVER if one.state == MISSING else one.received)

    # --- Lockstep -----------------------------------------------------------------------------------------------

    def blocking(self) -> list[Upstream]:
        """Return the regions that the shard's next step waits for."""
        step = self._shard.step
        return [one for one in self if one.blocks(step)]

    def write_ready(self) -> None:
        """Write received windows to the spike buffers, as far as there is room."""
        for one in self:
            if one.ready:
                self._write_ready(one)

    def _write_ready(self, one: Upstream) -> None:
        needed, room = self._needed(one), self._buffers.slots - 1
        written = None
        while one.ready and (one.ready[0].last < needed + room or _is_empty(one.ready[0])):
            window = one.ready.popleft()
            if window.last >= needed + room:  # a long window without spikes: write the part that fits
                if window.first >= needed + room:
                    one.ready.appendleft(window)
                    break
                one.ready.appendleft(window._replace(first=needed + room))
                window = window._replace(last=needed + room - 1)
            if window.first < needed and one.outages:
                one.late += min(window.last, needed - 1) - window.first + 1
            if window.last >= needed:
                self._unpack(one, window, needed)
            written = window.last
        if written is not None and one.state != MISSING:
            self._set_done(one.name, written)

    def give_up(self, one: Upstream, why: str, waited_for: bool) -> None:
        """Mark a region as missing; if it was `waited_for`, clear its spike buffer: the shard continues without it."""
        outage = one.mark_missing(why)
        if waited_for:
            one.ready.clear()
            one.out_of_order.clear()
            first = max(1, self._needed(one))
            clear_steps(self._buffers, self._index[one.name], self._populations, first, first + self._buffers.slots - 1)
            self._set_done(one.name, _FOR_EVER)
        _log.warning("%s: %s is missing from step %d on (%s)", self._name, one.name, outage.first, why)

    def mark_live(self, one: Upstream, waited_for: bool) -> None:
        """Mark a region as live; if it is `waited_for`, wait only for steps that are still needed."""
        outage = one.mark_live(self._shard.step)
        if outage is None:
            return
        if waited_for:
            self._set_done(one.name, max(one.received, self._needed(one) - 1))
        _log.warning(
            "%s: %s is back; it was missing from step %d to %s", self._name, one.name, outage.first, outage.last
        )

    def take_replay(self, one: Upstream, reply: Any) -> bool:
        """Take the windows of a replay; return whether to request more. Raise ValueError if the reply is invalid."""
        windows = [self.check(one.name, payload) for payload in reply["windows"]]
        oldest, began, more = reply["oldest"], int(reply["began"]), bool(reply["more"])
        if isinstance(oldest, int) and oldest > LARGEST_STEP:
            raise ValueError(f"{one.name} begins at step {oldest}")
        if isinstance(oldest, int) and oldest > one.received + 1:
            self._skip_lost(one, oldest - 1, began)
        before = one.received
        for window in windows:
            one.take(window, time.monotonic())
        one.recovered += one.received - before
        return more and one.received > before

    def _skip_lost(self, one: Upstream, last: int, began: int) -> None:
        """Skip steps up to `last` that are unavailable or precede the region's start; record them as an outage."""
        ahead = dict(one.out_of_order)
        first = max(one.received + 1, self._needed(one))
        lost = last - max(one.received, began)
        if lost > 0:
            one.lost += lost
            _log.warning("%s: %d steps of %s before step %d are lost", self._name, lost, one.name, last + 1)
        if first > last:
            one.begin_at(last)
        else:
            one.outages.append(Outage(first, "lost" if lost > 0 else "before it began", last))
            if first > one.received + 1:
                one.begin_at(first - 1)
            nothing = np.zeros(0, np.uint16), np.zeros(0, np.int32)
            one.take(Window(first, last, *nothing, 0, self._digest), time.monotonic())
        one.out_of_order = ahead

    # --- Realtime -----------------------------------------------------------------------------------------------

    def write_realtime(self, one: Upstream, window: Window) -> None:
        """Write a window to the spike buffer, except for steps that are too late."""
        needed, slots = self._needed(one), self._buffers.slots
        if window.last >= needed + slots - 1:
            return  # its clock is far ahead of this one's
        one.late += max(0, min(window.last, needed - 1) - window.first + 1)
        if window.last >= needed:
            self._unpack(one, window, needed)
            steps = np.arange(max(window.first, needed), window.last + 1)
            self._slots_of(one)[steps % slots] = steps
        one.received = max(one.received, window.last)

    def fill_gaps(self, target: int) -> None:
        """Clear the steps that are needed up to `target` and have not arrived."""
        for one in self:
            steps = np.arange(max(1, self._needed(one)), target - one.lag + 1)
            absent = steps[self._slots_of(one)[steps % self._buffers.slots] != steps]
            for step in absent:
                clear_steps(self._buffers, self._index[one.name], self._populations, int(step), int(step))
            if one.state == LIVE:
                one.lost += len(absent)
            self._set_done(one.name, _FOR_EVER)

    def _slots_of(self, one: Upstream) -> NDArray[np.int64]:
        return self._known.setdefault(one.name, np.full(self._buffers.slots, -1, np.int64))

    # --- Helpers ------------------------------------------------------------------------------------------------

    def _needed(self, one: Upstream) -> int:
        """Return the oldest step of a region whose spikes can affect the shard's next step."""
        return self._shard.step + 1 - one.lag

    def _unpack(self, one: Upstream, window: Window, earliest: int) -> None:
        unpack_steps(
            self._buffers, self._index[one.name], self._first_ids, window.first, window.last, window.after, window.ids,
            earliest,
        )  # fmt: skip
        unpack_outputs(self._buffers, self._index[one.name], window.first, window.last, window.outputs, earliest)

    def _set_done(self, name: str, step: int) -> None:
        """Publish to the engine up to which step a region's spike buffer is complete."""
        ctypes.c_int64.from_address(int(self._buffers.done[self._index[name]])).value = step


def _is_empty(window: Window) -> bool:
    """Return True for a window that may be split anywhere."""
    return not len(window.ids) and not window.outputs.size


def _ranges(network: Network, slices: Sequence[Slice]) -> NDArray[np.int64]:
    """Return the neurons of some slices as rows (first, last + 1)."""
    first = [network.populations[part.population].first_id for part in slices]
    rows = [[at + part.first, at + part.last] for at, part in zip(first, slices, strict=True)]
    return np.array(rows, np.int64).reshape(-1, 2)


_REPLY_S = 1.0
_LEASE_S = LEASE_MS / 1000 + 0.5


class FailureDetector:
    """Failure detector for the upstream regions of one region, active from `begin` to `end`."""

    def __init__(
        self, setup: RegionSetup, upstreams: Upstreams, transport: MeshPayloads, shard: Shard, inbox: Inbox
    ) -> None:
        self._setup = setup
        self._upstreams = upstreams
        self._transport = transport
        self._shard = shard
        self._inbox = inbox
        self._node: Node | None = None
        self._requests: ThreadPoolExecutor | None = None
        self._cut_off_since: float | None = None

    def begin(self, node: Node) -> None:
        self._node = node
        self._requests = ThreadPoolExecutor(4, thread_name_prefix="neuraxis replay")

    def end(self) -> None:
        if self._requests is not None:
            self._requests.shutdown(wait=False, cancel_futures=True)
        self._node = self._requests = None

    # --- Membership ---------------------------------------------------------------------------------------------

    def is_present(self, name: str) -> bool:
        return self._node is not None and self._node.peer(name) is not None

    def is_present_as(self, name: str, incarnation: int) -> bool:
        """Return True if a node of this name and incarnation is present, or is the one known last."""
        one = self._upstreams.by_name.get(name)
        if one is not None and one.incarnation == incarnation:
            return True
        return self._node is not None and any(peer.incarnation == incarnation for peer in self._node.incarnations(name))

    def is_current(self, one: Upstream, incarnation: int) -> bool:
        """Return True if a message is from the present incarnation of a region."""
        if incarnation == one.incarnation:
            return True
        lives = [] if self._node is None else [peer.incarnation for peer in self._node.incarnations(one.name)]
        if incarnation not in lives or (one.incarnation in lives and incarnation < one.incarnation):
            return False
        one.incarnation = min(
            one.incarnation, incarnation - 1
        )  # a restarted node may have an older clock, and so a smaller number
        return True

    def should_give_up(self, one: Upstream, listening_since: float) -> bool:
        """Return True if a region is to be given up; False while this node itself is cut off."""
        now = time.monotonic()
        return self._is_connected(now) and bool(one.why_missing(now, listening_since))

    def check(self, blocking: list[Upstream], listening_since: float) -> None:
        """Request replays of missing windows, and give up regions without a sign of life."""
        now = time.monotonic()
        if not self._is_connected(now):
            return
        silence_timeout = self._setup.silence_timeout
        if (
            self._node is not None
            and self._node.topology.mode_in_use == "client"
            and now - self._inbox.received_at > silence_timeout / 2
        ):
            # No region sends anything: wait until the lease of the link shows if this node is cut off.
            silence_timeout = max(silence_timeout, _LEASE_S)
        for one in blocking:
            first = self._setup.start_timeout if one.state == AWAITED else 0.0
            one.silence_timeout = max(first, silence_timeout)
            if why := one.why_missing(now, listening_since):
                self.give_up(one, why)
            elif one.needs_replay(self._shard.step, now):
                self.request_replay(one)

    def give_up(self, one: Upstream, why: str) -> None:
        if why != "left":
            why = "stuck" if self.is_present(one.name) else "never joined" if one.state == AWAITED else "gone"
        self._upstreams.give_up(one, why, self._setup.clock == "lockstep")

    def _is_connected(self, now: float) -> bool:
        """Return True if this node reaches the mesh, or was cut off for so long that it continues alone."""
        assert self._node is not None
        if self._node.connected:
            self._cut_off_since = None
            return True
        if self._cut_off_since is None:
            self._cut_off_since = now
            _log.warning("%s: cut off from the mesh at step %d; waiting", self._setup.name, self._shard.step)
        if now - self._cut_off_since > self._setup.reconnect_timeout:
            return True
        for one in self._upstreams:
            one.last_heartbeat = max(one.last_heartbeat, now)  # a region that could not be received is not missing
        return False

    # --- Replays ------------------------------------------------------------------------------------------------

    def request_replay(self, one: Upstream, payloads_from: int | None = None) -> None:
        """Request the windows that were not received (and payloads from a step on); the reply comes to the inbox."""
        now = time.monotonic()
        if self._requests is None or self._node is None or not one.may_request(now):
            return
        one.requested_at, one.replay_pending = now, True
        first = one.received + 1 if payloads_from is None else min(payloads_from, one.received + 1)
        self._requests.submit(self._fetch_replay, self._node, one.name, first, payloads_from)

    def _fetch_replay(self, node: Node, name: str, first: int, payloads_from: int | None) -> None:
        reply: Any = None
        try:
            reply = node.request(name, REPLAY, {"from": first}, timeout=_REPLY_S)
        except Exception as error:  # gone or busy; requested again if still needed
            _log.info("%s: no replay from %s: %s", self._setup.name, name, error)
        self._inbox.put("replay", name, reply, payloads_from)

    def handle_replay(self, name: str, reply: Any, payloads_from: int | None) -> None:
        """Handle the reply to a replay request, None if it failed."""
        one = self._upstreams.by_name[name]
        one.replay_pending = False
        if not isinstance(reply, dict):
            return
        incarnation = int(reply["incarnation"])
        # A service thread sent the reply, so it is no sign of life: only a status or window makes a region live.
        if one.state == MISSING or not self.is_current(one, incarnation):
            return
        one.set_incarnation(incarnation)
        self._transport.keep_replayed(name, reply, payloads_from)
        if self._upstreams.take_replay(one, reply):
            one.requested_at = 0.0
            self.request_replay(one)
