"""The spikes of the last steps, for a shard on a GPU: between its mail, the host's arrays and the others' outboxes.

The host's history and outbox (`engine/shard.py`, `engine/outboxes.py`) are kept as on the CPU, so whoever reads spikes
from there, or saves them, finds them. The device is told of two kinds of spikes: those of its own last steps lie in its
mail as if it had just written them, and those of other shards enter at the step in which the CPU would feel them at
the earliest, less one.

Nothing of others is read that is not published: a launch goes as far as they allow (`reach`), and the state is
put on the device only when they allow a step at least, so what has entered by then is in their outboxes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Memory
from neuraxis.engine.plan import P_RECEIVED

if TYPE_CHECKING:
    from neuraxis.engine.cuda.shard import CudaShard

__all__ = ["History"]

_FEW = 5  # spikes that fit a line of mail


class History:
    def __init__(self, shard: CudaShard) -> None:
        self._shard = shard
        self._others = [w for w in range(len(shard.placement)) if w != shard.me]
        # When others' spikes enter: one step before they can be felt, so that nothing of them is in a hurry.
        self._enters = np.maximum(1, shard.lags - 1)
        self._entered = np.zeros(len(shard.placement), np.int64)  # by shard: the last step that was
        self._sent: Memory | None = None
        self._past: tuple[Memory, ...] = ()

    # --- own spikes -----------------------------------------------------------------------------------------

    def note(self, before: int, now: int, entries: NDArray[np.uint64]) -> None:
        """A launch ran from `before` to `now`; `entries` (step << 32 | id, sorted) has its spikes of the last steps."""
        shard = self._shard
        slots, me, lag = shard.outboxes.slots, shard.me, int(shard.lags[shard.me])
        # What leaves the outbox for the history goes first: new steps may be written over it.
        for step in range(max(before - lag + 1, now - shard.slots + 1, 1), min(before, now - lag) + 1):
            self._put(step, me, self._box(me, step))
        first = max(before + 1, now - shard._kept_steps + 1)
        steps = np.arange(first, now + 1)
        ids = (entries & np.uint64(0xFFFFFFFF)).astype(np.int32)
        # All at once: where in the entries those of a step and population begin.
        cuts = np.searchsorted(entries.view(np.int64), (steps << 32)[:, None] | shard._first_ids)
        offsets = cuts - cuts[:, :1]
        past = slice(max(0, now - shard.slots + 1 - first), max(0, now - lag + 1 - first))  # those of the history
        slot = steps[past] % shard.slots
        if len(slot):
            begin, end = int(cuts[past][0, 0]), int(cuts[past][-1, -1])
            row = np.repeat(np.arange(len(slot)), offsets[past, -1])
            place = int(shard._history_first[me]) + np.arange(begin, end) - cuts[past][row, 0]
            shard._history_ids[slot[row], place] = ids[begin:end]
            shard._history_offsets[slot, me] = offsets[past]
        for i in range(max(0, now - slots - first + 1), len(steps)):
            box = shard.outboxes.slot(me, int(steps[i]))
            box[: offsets.shape[1]] = offsets[i]
            box[offsets.shape[1] : offsets.shape[1] + offsets[i, -1]] = ids[cuts[i, 0] : cuts[i, -1]]
        # A launch may have ended before its time; what was to enter later has not.
        self._entered = np.minimum(self._entered, now - self._enters)
        self._take_in(now)
        shard.publish()

    def _box(self, shard: int, step: int) -> NDArray[np.int32]:
        """The ids in a slot of an outbox."""
        populations = len(self._shard.network.populations)
        box = self._shard.outboxes.slot(shard, step)
        return box[populations + 1 : populations + 1 + int(box[populations])]

    def _put(self, step: int, of: int, ids: NDArray[np.int32]) -> None:
        """Put a shard's spikes of a step, sorted, into the host's history."""
        shard = self._shard
        slot, first = step % shard.slots, int(shard._history_first[of])
        shard._history_ids[slot, first : first + len(ids)] = ids
        shard._history_offsets[slot, of] = np.searchsorted(ids, shard._first_ids)

    def own(self, step: int) -> NDArray[np.int64]:
        """Ids of this shard's neurons that spiked in one of the last steps."""
        return self._emitted_by(self._shard.me, step)

    def _emitted_by(self, of: int, step: int) -> NDArray[np.int64]:
        """The spikes of a shard in a step, from the history where it is there, else from its outbox."""
        shard = self._shard
        if step < 1:
            return np.zeros(0, np.int64)
        if step > shard.step - int(shard.lags[of]):
            return self._box(of, step).astype(np.int64)
        slot, first = step % shard.slots, int(shard._history_first[of])
        n = int(shard._history_offsets[slot, of, -1])
        return shard._history_ids[slot, first : first + n].astype(np.int64)

    def _own_rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        shard = self._shard
        return shard.grid.row_of(np.searchsorted(shard._ids, ids))

    # --- spikes of others -----------------------------------------------------------------------------------

    def reach(self, until: int) -> int:
        """How far this shard can run with what the others have published."""
        boxes = self._shard.outboxes
        for other in self._others:
            done = ctypes.c_int64.from_address(int(boxes.done[other])).value
            until = min(until, done + int(self._enters[other]))
        return until

    def _take_in(self, now: int) -> None:
        """Put into the host's history what the CPU's engine would have there after step `now`."""
        shard = self._shard
        for other in self._others:
            for step in range(max(1, int(self._noted[other]) + 1), now - int(shard.lags[other]) + 1):
                ids = self._box(other, step)
                self._put(step, other, ids)
                shard.plan[P_RECEIVED] += len(ids)
            self._noted[other] = now - int(shard.lags[other])

    def _rows_of_others(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of others' neurons; -1 for those that nobody here hears."""
        shard = self._shard
        population = np.searchsorted(shard._first_ids, ids, side="right") - 1
        rows = np.full(len(ids), -1, np.int64)
        for index, first in shard._outside.first.items():
            here = population == index
            rows[here] = first + ids[here] - int(shard._first_ids[index])
        return rows

    def enter(self, until: int) -> tuple[int, int]:
        """Upload the others' spikes that enter in the steps to come up to `until`; (address, number)."""
        shard, entries = self._shard, []
        for other in self._others:
            age = int(self._enters[other])
            for step in range(max(1, int(self._entered[other]) + 1), until - age + 1):
                rows = self._rows_of_others(self._box(other, step).astype(np.int64))
                rows = rows[rows >= 0]
                entries.append(np.stack([np.full(len(rows), step + age), rows | age << 32], axis=1))
            self._entered[other] = until - age
        if not entries:
            return 0, 0
        table = np.concatenate(entries).astype(np.int64)
        table = np.ascontiguousarray(table[np.argsort(table[:, 0], kind="stable")])
        self._sent = shard._device.put(table)
        return self._sent.address, len(table)

    def past_of_others(self, until: int) -> dict[str, int]:
        """Upload the others' spikes that may arrive at plastic synapses in the steps to come, step by step."""
        shard = self._shard
        first = max(1, shard.step + 1 - shard.longest_plastic_delay)
        steps = range(first, until)
        found: list[NDArray[np.int64]] = []
        for step in steps:
            # What is not published yet is not felt before `until`.
            heard = [one for one in self._others if step <= until - int(shard.lags[one])]
            rows = [self._rows_of_others(self._emitted_by(one, step)) for one in heard]
            found.append(np.concatenate([*rows, np.zeros(0, np.int64)]))
        starts = np.concatenate(([0], np.cumsum([len(one) for one in found]))).astype(np.int64)
        rows_of_all = np.concatenate([*found, np.zeros(0, np.int64)]).astype(np.uint32)
        self._past = shard._device.put(rows_of_all), shard._device.put(starts)
        return {
            "PAST": self._past[0].address,
            "PAST_STARTS": self._past[1].address,
            "PAST_FIRST": first,
            "PAST_STEPS": len(steps),
        }

    # --- all of them ------------------------------------------------------------------------------------------

    def put_on_device(self) -> None:
        """Set the mail of the last steps, and what is counted of the steps before, by the host's history."""
        shard, grid, now = self._shard, self._shard.grid, self._shard.step
        mail = np.zeros((grid.lines, grid.blocks, 2), np.uint64)
        kept = max(grid.shape.lag, shard.longest_plastic_delay)
        for step in range(max(1, now - kept + 1), now + 1):
            self._put_line(mail[step & (grid.lines - 1)], step)
        shard._device.write(shard._memory["MAIL"], mail)
        self._noted = now - shard.lags.astype(np.int64)
        for other in self._others:
            self._entered[other] = now - int(self._enters[other])
        if grid.shape.counts_populations:
            self._put_counts()

    def _put_line(self, lines: NDArray[np.uint64], step: int) -> None:
        """Write the lines of all blocks for a step, as these would have written them."""
        shard, grid = self._shard, self._shard.grid
        rows = np.sort(self._own_rows(self.own(step)))  # block by block
        block, cell = rows // grid.cells, (rows % grid.cells).astype(np.uint64)
        counts = np.bincount(block, minlength=grid.blocks)
        place = np.arange(len(rows)) - (np.cumsum(counts) - counts)[block]
        lines[:, 0] = np.uint64(step) | counts.astype(np.uint64) << np.uint64(32)
        for k in range(_FEW):
            here = (place == k) & (counts[block] <= _FEW)
            if k == 0:
                lines[block[here], 0] |= cell[here] << np.uint64(48)
            else:
                lines[block[here], 1] |= cell[here] << np.uint64(16 * (k - 1))
        for crowded in np.flatnonzero(counts > _FEW):
            at = 2 * ((step & (grid.lines - 1)) * grid.blocks + int(crowded)) * grid.cells
            shard._device.write(shard._memory["MANY"], cell[block == crowded].astype(np.uint16), at)

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
        shard._device.write(shard._memory["POPULATION_COUNTS"], np.tile(counts, (grid.blocks, 1, 1)))

    def collected(self) -> NDArray[np.uint64]:
        """step << 32 | row of the spikes that the device has collected and that may still be felt."""
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
