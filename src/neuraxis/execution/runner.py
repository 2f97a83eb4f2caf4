"""Runs one shard, for an executor: in its own process or in a worker's, with the same code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan
from neuraxis.engine.cuda.factory import Place, make_shard, open_device
from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.placement import Slice
from neuraxis.engine.state import export_state, install_state, state_hash
from neuraxis.execution.checkpoint import SavedState, write_shard
from neuraxis.execution.executor import BuildReport, Counters, Recorded, Samples, WorkerStatus, merge_recorded
from neuraxis.execution.notes import peak_memory_bytes
from neuraxis.execution.resident import INPUT, Mail, OwnMail, Resident, Residents, listeners
from neuraxis.network import Network
from neuraxis.network.grid import to_steps

__all__ = ["ShardRunner"]

# How long to wait for another worker before looking whether the parent is still there.
_SHORTEST_NAP_S = 20e-6
_LONGEST_NAP_S = 2e-3


class ShardRunner:
    """A shard and what it recorded."""

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        outboxes: Outboxes,
        progress: Callable[[int], None],
        patience: tuple[int, int],
        residents: Sequence[Resident] = (),
        mail: Mail | None = None,
        device: Place = "cpu",
    ) -> None:
        self.network = network
        self._patience = patience
        self._taken = 0  # the last step whose samples were taken
        self._device = open_device(device)
        try:
            heard = listeners(residents, placement)
            self.shard = make_shard(network, placement, me, outboxes, progress, heard, self._device)
            # Read once: to ask a shard on a GPU for its parts brings their states back from there.
            self._sampled = [
                (probe, part, places, to_steps(probe.every_ms or 0.0, network.dt_ms, "every_ms"))
                for probe, part, places, _ in self.shard.sampled_parts()
            ]
            self.residents = Residents(network, self.shard, residents, mail or OwnMail())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the device's memory back. Nothing can be asked of the shard any more."""
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def report(self) -> BuildReport:
        shard = self.shard
        return BuildReport(shard.static_synapses, shard.plastic_synapses, shard.synapse_bytes, int(shard.clipped[0]))

    def advance(
        self,
        until: int,
        check: Callable[[], None] = lambda: None,
        fetch: Callable[[], None] | None = None,
        publish: Callable[[], int] | None = None,
    ) -> Recorded:
        """Run to step `until`. While others are late, `check` is called now and then; it may raise.

        Where the others' outboxes do not fill by themselves, `fetch` is called to fill them; where this shard's does
        not empty by itself, `publish` is called now and then, and says at which step it wants to be called next.
        """
        pieces: list[Recorded] = []
        spikes_before = int(self.shard.spike_counts.sum())
        while self.shard.step < until:
            stop = until if publish is None else min(until, publish())
            self._run_to(self.residents.next_stop(stop), pieces, check, fetch)
            self.residents.act()
        self.residents.forget()
        pieces.append(self._take())
        recorded = merge_recorded(pieces)
        return Recorded(
            recorded.steps, recorded.ids, recorded.samples, int(self.shard.spike_counts.sum()) - spikes_before
        )

    def _run_to(
        self, until: int, pieces: list[Recorded], check: Callable[[], None], fetch: Callable[[], None] | None
    ) -> None:
        nap = _SHORTEST_NAP_S
        while True:
            answer = self.shard.advance(until, *self._patience)
            if answer == plan.DONE:
                return
            if answer == plan.FULL:
                nap = _SHORTEST_NAP_S
                pieces.append(self._take())
            elif fetch is not None:
                fetch()
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP_S)
                if nap == _LONGEST_NAP_S:
                    check()

    def counters(self) -> Counters:
        shard = self.shard
        return Counters(shard.step, shard.spike_counts.copy(), shard.events, shard.spike_hash, peak_memory_bytes())

    def status(self) -> WorkerStatus:
        """How this shard is doing."""
        shard, every = self.shard, plan.TIMED_EVERY
        words = {"waiting": plan.P_WAITED, "collecting": plan.P_COLLECTED, "delivering": plan.P_DELIVERED}
        ticks = {name: float(shard.plan[word]) for name, word in {**words, "updating": plan.P_UPDATED}.items()}
        total = sum(ticks.values())
        delivered = {one.projection.index: float(every * one.row[plan.L_TICKS]) for one in shard.plastic_held}
        learned = {one.projection.index: float(one.row[plan.L_LEARN_TICKS]) for one in shard.plastic_held}
        return WorkerStatus(
            worker=shard.me,
            step=shard.step,
            memory_bytes=peak_memory_bytes(),
            spikes_out=int(shard.spike_counts.sum()) - shard.spikes_installed,
            spikes_in=int(shard.plan[plan.P_RECEIVED]),
            shares={name: spent / total if total else 0.0 for name, spent in ticks.items()},
            exchange=float(shard.plan[plan.P_EXCHANGED]) / total if total else 0.0,
            update_ticks={
                part.part.population: float(every * row[plan.S_TICKS])
                for part, row in zip(shard.held, shard.slice_rows, strict=True)
            },
            plastic_ticks={index: spent + learned[index] for index, spent in delivered.items()},
            static_ticks=max(0.0, ticks["delivering"] - sum(delivered.values())),
            busy_ticks=total - ticks["waiting"],
        )

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        self.residents.give(resident, data, source)

    def state_hash(self) -> int:
        return state_hash(self.shard)

    def read_state(self, population: int, name: str) -> NDArray[np.generic] | None:
        for part in self.shard.parts:
            if part.part.population == population:
                return part.state(name)
        return None

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        return self.shard.list_synapses(self.network.projections[projection])

    def level(self, modulator: int) -> float | None:
        return self.shard.level(modulator)

    def set_level(self, modulator: int, level: float) -> None:
        self.shard.set_level(modulator, level)

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64] | None]:
        """For each population the counts of the neurons that are here, None where there are none."""
        here = {part.part.population: part.spike_counts for part in self.shard.parts}
        return [here[one].astype(np.int64) if one in here else None for one in populations]

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        """Set a state; `values` has one for each neuron of the population."""
        self.shard.take_over()
        for part in self.shard.parts:
            if part.part.population == population:
                part.put_state(name, values[part.part.first : part.part.last])

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        self.shard.inject(steps, ids)

    def silence(self, populations: list[int]) -> None:
        self.shard.silence(populations)

    def freeze(self, projections: list[int]) -> None:
        self.shard.freeze(projections)

    def save(self, folder: str | Path) -> str:
        return write_shard(Path(folder), export_state(self.shard), self.shard.me, self.residents.export())

    def restore(self, folder: str | Path, files: list[str]) -> None:
        with SavedState(Path(folder), files) as saved:
            install_state(self.shard, saved)
            self.residents.install(saved.residents())
        self._taken = self.shard.step

    def taken_up(self) -> None:
        """A state was put into the shard from outside: what was sampled before is not asked for again."""
        self._taken = self.shard.step

    def jump(self, step: int) -> None:
        """Go on after `step`, leaving out what is before it; what was recorded and not taken is forgotten."""
        self.shard.take_recorded()
        self.shard.jump(step)
        self.residents.go_on()
        self.taken_up()

    def publish(self) -> None:
        """Let the others see how far this shard is, after its state was replaced."""
        self.shard.publish()

    def _take(self) -> Recorded:
        steps, ids, samples = self.shard.take_recorded()
        now = self.shard.step
        taken = self._split_samples(samples, self._taken + 1, now)
        self._taken = now
        return Recorded(steps, ids, taken)

    def _split_samples(self, samples: NDArray[np.uint32], first: int, last: int) -> list[Samples]:
        """The samples of steps first..last, which lie step after step, as one array for each probe."""
        rows = self._sampled
        if not rows:
            return []
        found: list[list[NDArray[np.uint32]]] = [[] for _ in rows]
        times: list[list[int]] = [[] for _ in rows]
        position = 0
        for step in range(first, last + 1):
            for i, (_, _, places, every) in enumerate(rows):
                if step % every == 0:
                    found[i].append(samples[position : position + len(places)])
                    times[i].append(step)
                    position += len(places)
        split = []
        for i, (probe, part, places, _) in enumerate(rows):
            if times[i]:
                kind = np.int32 if isinstance(part.population.model.states[probe.what], int) else np.float32
                values = np.stack(found[i]).view(kind)
                split.append(Samples(probe.index, places, np.array(times[i], np.int64), values))
        return split
