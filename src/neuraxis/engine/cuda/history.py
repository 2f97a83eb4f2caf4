"""Spikes of the last steps of a shard on a GPU: transfer between the device, the host's history and the spike buffers.

The host's history and spike buffer (`engine/cpu/shard.py`, `engine/spikes.py`) are maintained as on the CPU, for
readers and checkpoints. The device gets two kinds of spikes. Those of its own last steps are written to its messages as
if it had just published them. Those of other shards enter one step before they can arrive on the CPU.

Only published spikes of other shards are read: a launch runs as far as they allow (`reach`), and the state is copied to
the device only if they allow at least one step, so that all spikes that have entered are in the spike buffers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Memory
from neuraxis.engine.cuda.tables import OUTSIDE_SPIKE

if TYPE_CHECKING:
    from neuraxis.engine.cuda.shard import CudaShard

__all__ = ["History"]

_SHORT_MESSAGE = 5  # spikes that fit a message


class History:
    def __init__(self, shard: CudaShard) -> None:
        self._shard = shard
        self._others = [w for w in range(len(shard.placement)) if w != shard.me]
        # Age at which spikes of other shards enter: one step before they can arrive, so that none is urgent.
        self._enters = np.maximum(1, shard.lags - 1)
        self._entered = np.zeros(len(shard.placement), np.int64)  # by shard: the last step that has entered
        self._sent: Memory | None = None
        self._past: tuple[Memory, ...] = ()

    # --- own spikes -----------------------------------------------------------------------------------------

    def add(self, before: int, now: int, entries: NDArray[np.uint64]) -> None:
        """Update host arrays after a launch; `entries` are its sorted spikes (step << 32 | id)."""
        shard = self._shard
        slots, me, lag = shard.spike_buffers.slots, shard.me, int(shard.lags[shard.me])
        # First move older steps from the spike buffer to the history: new steps may overwrite them.
        for step in range(max(before - lag + 1, now - shard.slots + 1, 1), min(before, now - lag) + 1):
            self._put(step, me, self._ids_in_slot(me, step))
        first = max(before + 1, now - shard._kept_steps + 1)
        steps = np.arange(first, now + 1)
        ids = np.ascontiguousarray(entries, "<u8").view(np.int32)[::2]  # the low halves
        # Start of each step and population in the entries.
        cuts = np.searchsorted(entries.view(np.int64), (steps << 32)[:, None] | shard._first_ids)
        offsets = cuts - cuts[:, :1]
        past = slice(max(0, now - shard.slots + 1 - first), max(0, now - lag + 1 - first))  # steps of the history
        slot = steps[past] % shard.slots
        place = int(shard._history_first[me])
        for row, (begin, end) in zip(slot, cuts[past][:, [0, -1]], strict=True):
            shard._history_ids[row, place : place + end - begin] = ids[begin:end]
        shard._history_offsets[slot, me] = offsets[past]
        for i in range(max(0, now - slots - first + 1), len(steps)):
            buffer = shard.spike_buffers.slot(me, int(steps[i]))
            buffer[: offsets.shape[1]] = offsets[i]
            buffer[offsets.shape[1] : offsets.shape[1] + offsets[i, -1]] = ids[cuts[i, 0] : cuts[i, -1]]
        # A launch may have ended early; later spikes have not entered then.
        self._entered = np.minimum(self._entered, now - self._enters)
        self._take_in(now)
        shard.publish()

    def _ids_in_slot(self, shard: int, step: int) -> NDArray[np.int32]:
        """Return the ids in a slot of a spike buffer."""
        populations = len(self._shard.network.populations)
        buffer = self._shard.spike_buffers.slot(shard, step)
        return buffer[populations + 1 : populations + 1 + int(buffer[populations])]

    def _put(self, step: int, of: int, ids: NDArray[np.int32]) -> None:
        """Write the sorted spikes of a shard in a step to the host's history."""
        shard = self._shard
        slot, first = step % shard.slots, int(shard._history_first[of])
        shard._history_ids[slot, first : first + len(ids)] = ids
        shard._history_offsets[slot, of] = np.searchsorted(ids, shard._first_ids)

    def own(self, step: int) -> NDArray[np.int64]:
        """Return the ids of this shard's neurons that spiked in one of the last steps."""
        return self._emitted_by(self._shard.me, step)

    def _emitted_by(self, of: int, step: int) -> NDArray[np.int64]:
        """Return the spikes of a shard in a step, from the history if it has them, else from the spike buffer."""
        shard = self._shard
        if step < 1:
            return np.zeros(0, np.int64)
        if step > shard.step - int(shard.lags[of]):
            return self._ids_in_slot(of, step).astype(np.int64)
        slot, first = step % shard.slots, int(shard._history_first[of])
        n = int(shard._history_offsets[slot, of, -1])
        return shard._history_ids[slot, first : first + n].astype(np.int64)

    def _own_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        shard = self._shard
        return shard.grid.row_of(np.searchsorted(shard._ids, ids))

    # --- spikes of others -----------------------------------------------------------------------------------

    def reach(self, until: int) -> int:
        """Return the step to which this shard can run with the published spikes of other shards."""
        buffers = self._shard.spike_buffers
        for other in self._others:
            done = ctypes.c_int64.from_address(int(buffers.done[other])).value
            until = min(until, done + int(self._enters[other]))
        return until

    def _take_in(self, now: int) -> None:
        """Copy the spikes of other shards to the host's history, as the CPU engine does up to step `now`."""
        shard = self._shard
        for other in self._others:
            for step in range(max(1, int(self._noted[other]) + 1), now - int(shard.lags[other]) + 1):
                ids = self._ids_in_slot(other, step)
                self._put(step, other, ids)
                shard.control["received"] += len(ids)
            self._noted[other] = now - int(shard.lags[other])

    def _rows_of_others(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of neurons of other shards; -1 for those that do not project here."""
        shard = self._shard
        population = np.searchsorted(shard._first_ids, ids, side="right") - 1
        rows = np.full(len(ids), -1, np.int64)
        for index, first in shard._outside.first.items():
            here = population == index
            rows[here] = first + ids[here] - int(shard._first_ids[index])
        return rows

    def enter(self, until: int) -> tuple[int, int]:
        """Upload the spikes of other shards that enter up to step `until`; return (address, number)."""
        shard, entries = self._shard, []
        for other in self._others:
            age = int(self._enters[other])
            for step in range(max(1, int(self._entered[other]) + 1), until - age + 1):
                rows = self._rows_of_others(self._ids_in_slot(other, step).astype(np.int64))
                rows = rows[rows >= 0]
                spikes = np.zeros(len(rows), OUTSIDE_SPIKE)
                spikes["step"], spikes["row"], spikes["age"] = step + age, rows, age
                entries.append(spikes)
            self._entered[other] = until - age
        if not entries:
            return 0, 0
        table = np.concatenate(entries)
        self._sent = shard._device.put(table[np.argsort(table["step"], kind="stable")])
        return self._sent.address, len(table)

    def past_of_others(self, until: int) -> dict[str, int]:
        """Upload the spikes of other shards that may arrive at plastic synapses up to step `until`, ordered by step."""
        shard = self._shard
        first = max(1, shard.step + 1 - shard.longest_plastic_delay)
        steps = range(first, until)
        found: list[NDArray[np.int64]] = []
        for step in steps:
            # Spikes that are not published yet do not arrive before `until`.
            published = [one for one in self._others if step <= until - int(shard.lags[one])]
            rows = [self._rows_of_others(self._emitted_by(one, step)) for one in published]
            found.append(np.concatenate([*rows, np.zeros(0, np.int64)]))
        starts = np.concatenate(([0], np.cumsum([len(one) for one in found]))).astype(np.int64)
        rows_of_all = np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.uint32)
        self._past = shard._device.put(rows_of_all), shard._device.put(starts)
        return {
            "past": self._past[0].address,
            "past_starts": self._past[1].address,
            "past_first": first,
            "past_steps": len(steps),
        }

    # --- all spikes -------------------------------------------------------------------------------------------

    def put_on_device(self) -> None:
        """Write the messages of the last steps and the counts of spikes to the device, from the host's history."""
        shard, grid, now = self._shard, self._shard.grid, self._shard.step
        messages = np.zeros((grid.message_slots, grid.blocks, 2), np.uint64)
        kept = max(grid.shape.lag, shard.longest_plastic_delay)
        for step in range(max(1, now - kept + 1), now + 1):
            self._put_messages(messages[step & (grid.message_slots - 1)], step)
        shard._device.write(shard._memory["messages"], messages)
        self._noted = now - shard.lags.astype(np.int64)
        for other in self._others:
            self._entered[other] = now - int(self._enters[other])
        if grid.shape.counts_populations:
            self._put_counts()

    def _put_messages(self, messages: NDArray[np.uint64], step: int) -> None:
        """Set the messages of all blocks for a step."""
        shard, grid = self._shard, self._shard.grid
        rows = np.sort(self._own_rows(self.own(step)))  # block by block
        block, cell = rows // grid.cells, (rows % grid.cells).astype(np.uint64)
        counts = np.bincount(block, minlength=grid.blocks)
        place = np.arange(len(rows)) - (np.cumsum(counts) - counts)[block]
        messages[:, 0] = np.uint64(step) | counts.astype(np.uint64) << np.uint64(32)
        for k in range(_SHORT_MESSAGE):
            here = (place == k) & (counts[block] <= _SHORT_MESSAGE)
            if k == 0:
                messages[block[here], 0] |= cell[here] << np.uint64(48)
            else:
                messages[block[here], 1] |= cell[here] << np.uint64(16 * (k - 1))
        for full in np.flatnonzero(counts > _SHORT_MESSAGE):
            at = 2 * ((step & (grid.message_slots - 1)) * grid.blocks + int(full)) * grid.cells
            shard._device.write(shard._memory["long_messages"], cell[block == full].astype(np.uint16), at)

    def _put_counts(self) -> None:
        shard, grid, now = self._shard, self._shard.grid, self._shard.step
        slots, populations = shard._count_slots, len(shard.network.populations)
        counts = np.zeros((slots, populations), np.int32)
        entered = self._entered.copy()
        entered[shard.me] = now - grid.shape.lag
        for step in range(max(1, now - shard.longest_delay + 1), now + 1):
            for of in np.flatnonzero(step <= entered):
                found = np.searchsorted(self._emitted_by(int(of), step), shard._first_ids)
                counts[step % slots] += np.diff(found).astype(np.int32)
        shard._device.write(shard._memory["population_counts"], np.tile(counts, (grid.blocks, 1, 1)))

    def collected(self) -> NDArray[np.uint64]:
        """Return step << 32 | row of the spikes that the device has collected and that can still arrive."""
        shard, now = self._shard, self._shard.step
        entries = [np.zeros(0, np.uint64)]
        for step in range(max(1, now - shard.longest_delay + 1), now + 1):
            rows = [self._own_rows(self.own(step))] if step <= now - shard.grid.shape.lag else []
            for other in self._others:
                if step <= self._entered[other]:
                    found = self._rows_of_others(self._emitted_by(other, step))
                    rows.append(found[found >= 0])
            for one in rows:
                entries.append(np.uint64(step << 32) | one.astype(np.uint64))
        return np.concatenate(entries)
