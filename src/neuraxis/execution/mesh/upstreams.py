"""All regions that one hears, and the memory in which its shard finds their spikes.

Windows come as messages, are looked at, and put into this process's copies of the others' outboxes, from which the
engine takes them when they are due. Where a region is missing its outbox is empty, and is said to be complete for ever.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.packing import clear_steps, is_sound, unpack_steps
from neuraxis.engine.placement import Slice
from neuraxis.engine.shard import Shard
from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.mesh.upstream import LIVE, MISSING, Silence, Upstream
from neuraxis.execution.mesh.wire import Window, unpack_window
from neuraxis.network import Network
from neuraxis.network.network import LARGEST_STEP

__all__ = ["Upstreams"]

_log = logging.getLogger("neuraxis.region")
_FOR_EVER = 2**62


class Upstreams:
    """The regions that a region hears, by name. `links` has the shortest delay between any two, or 0."""

    def __init__(
        self, setup: RegionSetup, digest: int, shard: Shard, boxes: Outboxes, links: NDArray[np.int64]
    ) -> None:
        network = setup.network
        self._who = setup.name
        self._digest = digest
        self._shard = shard
        self._boxes = boxes
        self._populations = len(network.populations)
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._index = {name: index for index, name in enumerate(setup.units.names)}
        self._held = {name: _ranges(network, shard.placement[index]) for name, index in self._index.items()}
        self._known: dict[str, NDArray[np.int64]] = {}  # by the wall clock: which step is in each slot of an outbox
        self.by_name: dict[str, Upstream] = {}
        for name, index in self._index.items():
            if index == shard.me:
                continue
            if links[shard.me, index]:
                lag = int(links[shard.me, index])
                self.by_name[name] = Upstream(name, lag, setup.patience_s, last_sign=time.monotonic())
            else:
                self._set_done(name, _FOR_EVER)  # not heard: never waited for

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self.by_name.values())

    def check(self, name: str, payload: object) -> Window:
        """A window of a region; ValueError if it is none, of another brain, or of neurons that it does not have.

        May be called by any thread.
        """
        window = unpack_window(payload)
        if window.digest != self._digest:
            raise ValueError(f"{name} runs another brain")
        steps = window.last - window.first + 1
        if steps > self._boxes.slots - 2:
            raise ValueError(f"{name} sent a window of {steps} steps; nobody who hears it would")
        if len(window.ids) and not is_sound(window.after, window.ids, steps, self._held[name]):
            raise ValueError(f"{name} sent spikes of neurons that it does not have")
        return window

    def begin_at(self, step: int) -> None:
        """The shard goes on after `step`: of the others only what can be felt is heard."""
        for one in self:
            one.begin_at(max(0, step - one.lag))
            self._set_done(one.name, _FOR_EVER if one.state == MISSING else one.heard)

    # --- in lockstep --------------------------------------------------------------------------------------------

    def blocking(self) -> list[Upstream]:
        """Those that the shard's next step waits for."""
        step = self._shard.step
        return [one for one in self if one.blocks(step)]

    def place(self) -> None:
        """Put what was heard where the shard reads it, as far as there is room."""
        for one in self:
            if one.early:
                self._place(one)

    def _place(self, one: Upstream) -> None:
        needed, room = self._needed(one), self._boxes.slots - 1
        placed = None
        while one.early and (one.early[0].last < needed + room or not len(one.early[0].ids)):
            window = one.early.popleft()
            if window.last >= needed + room:  # a long silence: as much of it as there is room for
                if window.first >= needed + room:
                    one.early.appendleft(window)
                    break
                one.early.appendleft(window._replace(first=needed + room))
                window = window._replace(last=needed + room - 1)
            if window.first < needed and one.silences:
                one.late += min(window.last, needed - 1) - window.first + 1
            if window.last >= needed:
                self._unpack(one, window, needed)
            placed = window.last
        if placed is not None and one.state != MISSING:
            self._set_done(one.name, placed)

    def give_up(self, one: Upstream, why: str, waited_for: bool) -> None:
        """A region is missing: silence from the first step that was not heard, which is needed now if `waited_for`."""
        silence = one.give_up(why)
        if waited_for:
            one.early.clear()
            one.ahead.clear()
            first = max(1, self._needed(one))
            clear_steps(self._boxes, self._index[one.name], self._populations, first, first + self._boxes.slots - 1)
            self._set_done(one.name, _FOR_EVER)
        _log.warning("%s: %s is missing from step %d on (%s)", self._who, one.name, silence.first, why)

    def welcome(self, one: Upstream, waited_for: bool) -> None:
        """A region is live; where it is `waited_for`, what nobody needs of it any more is not."""
        silence = one.welcome(self._shard.step)
        if silence is None:
            return
        if waited_for:
            self._set_done(one.name, max(one.heard, self._needed(one) - 1))
        _log.warning(
            "%s: %s is back; it was silence from step %d to %s", self._who, one.name, silence.first, silence.last
        )

    def take_again(self, one: Upstream, answer: Any) -> bool:
        """What a region says again of what was missed; whether there is more of it. ValueError if it makes no sense."""
        windows = [self.check(one.name, payload) for payload in answer["windows"]]
        oldest, began, more = answer["oldest"], int(answer["began"]), bool(answer["more"])
        if isinstance(oldest, int) and oldest > LARGEST_STEP:
            raise ValueError(f"{one.name} begins at step {oldest}")
        if isinstance(oldest, int) and oldest > one.heard + 1:
            self._leave_out(one, oldest - 1, began)
        before = one.heard
        for window in windows:
            one.take(window, time.monotonic())
        one.recovered += one.heard - before
        return more and one.heard > before

    def _leave_out(self, one: Upstream, last: int, began: int) -> None:
        """Nobody has what a region said up to step `last`, or it began only then: silence, and recorded."""
        ahead = dict(one.ahead)
        first = max(one.heard + 1, self._needed(one))
        lost = last - max(one.heard, began)
        if lost > 0:
            one.lost += lost
            _log.warning("%s: %d steps of %s before step %d are lost", self._who, lost, one.name, last + 1)
        if first > last:
            one.begin_at(last)
        else:
            one.silences.append(Silence(first, "lost" if lost > 0 else "before it began", last))
            if first > one.heard + 1:
                one.begin_at(first - 1)
            nothing = np.zeros(0, np.uint16), np.zeros(0, np.int32)
            one.take(Window(first, last, *nothing, 0, self._digest), time.monotonic())
        one.ahead = ahead

    # --- by the wall clock --------------------------------------------------------------------------------------

    def take_in_time(self, one: Upstream, window: Window) -> None:
        """Put a window where the shard reads it, as far as it is not too late for that."""
        needed, slots = self._needed(one), self._boxes.slots
        if window.last >= needed + slots - 1:
            return  # of a clock far ahead of this one's
        one.late += max(0, min(window.last, needed - 1) - window.first + 1)
        if window.last >= needed:
            self._unpack(one, window, needed)
            steps = np.arange(max(window.first, needed), window.last + 1)
            self._slots_of(one)[steps % slots] = steps
        one.heard = max(one.heard, window.last)

    def fill_in(self, target: int) -> None:
        """What has not come and is needed up to step `target` is silence."""
        for one in self:
            steps = np.arange(max(1, self._needed(one)), target - one.lag + 1)
            absent = steps[self._slots_of(one)[steps % self._boxes.slots] != steps]
            for step in absent:
                clear_steps(self._boxes, self._index[one.name], self._populations, int(step), int(step))
            if one.state == LIVE:
                one.lost += len(absent)
            self._set_done(one.name, _FOR_EVER)

    def _slots_of(self, one: Upstream) -> NDArray[np.int64]:
        return self._known.setdefault(one.name, np.full(self._boxes.slots, -1, np.int64))

    # --- helpers --------------------------------------------------------------------------------------------------

    def _needed(self, one: Upstream) -> int:
        """The step of a region that the shard's next step feels first."""
        return self._shard.step + 1 - one.lag

    def _unpack(self, one: Upstream, window: Window, earliest: int) -> None:
        unpack_steps(
            self._boxes, self._index[one.name], self._first_ids, window.first, window.last, window.after, window.ids,
            earliest,
        )  # fmt: skip

    def _set_done(self, name: str, step: int) -> None:
        """Say to the engine how far a region's outbox is complete."""
        ctypes.c_int64.from_address(int(self._boxes.done[self._index[name]])).value = step


def _ranges(network: Network, slices: Sequence[Slice]) -> NDArray[np.int64]:
    """The neurons of some slices, as rows (first, last + 1)."""
    first = [network.populations[part.population].first_id for part in slices]
    rows = [[at + part.first, at + part.last] for at, part in zip(first, slices, strict=True)]
    return np.array(rows, np.int64).reshape(-1, 2)
