"""Run one shard and its Python populations; every executor uses this class, in its own process or in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as plan
from neuraxis.engine.cpu.synapses import CHANGED, CLIPPED, TO_ZERO
from neuraxis.engine.placement import Slice
from neuraxis.engine.shards import Place, make_shard, open_device
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import export_state, install_state, state_hash
from neuraxis.network import Network
from neuraxis.network.grid import to_steps
from neuraxis.simulation.checkpoint import SavedState, write_shard
from neuraxis.simulation.crash_report import peak_memory_bytes
from neuraxis.simulation.executor import BuildReport, Counters, Recorded, Samples, WorkerStatus, merge_recorded
from neuraxis.simulation.python_populations import (
    INPUT,
    LocalPayloads,
    PayloadTransport,
    PythonPopulation,
    PythonPopulationRunner,
    listeners,
)

__all__ = ["ShardRunner"]

# Sleeps while waiting for another worker; after the longest, `check` is called, which raises if the parent is gone.
_SHORTEST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 2e-3


class ShardRunner:
    """A shard, its Python populations, and its recordings not yet taken.

    The public methods are the commands that executors send (`ShardedExecutor.ask`).
    """

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        spike_buffers: SpikeBuffers,
        progress: Callable[[int], None],
        spin_limits: tuple[int, int],
        python_populations: Sequence[PythonPopulation] = (),
        transport: PayloadTransport | None = None,
        device: Place = "cpu",
    ) -> None:
        self.network = network
        self._spin_limits = spin_limits
        self._taken = 0  # last step whose samples were taken
        self._device = open_device(device)
        try:
            listening = listeners(python_populations, placement)
            self.shard = make_shard(network, placement, me, spike_buffers, progress, listening, self._device)
            # Read once: reading the parts of a shard on a GPU copies their states to the host.
            self._sampled = [
                (probe, part, places, to_steps(probe.every_ms or 0.0, network.dt_ms, "every_ms"))
                for probe, part, places, _ in self.shard.sampled_parts()
            ]
            self.python_populations = PythonPopulationRunner(
                network, self.shard, python_populations, transport or LocalPayloads()
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the memory of the device. The shard cannot be used afterwards."""
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def report(self) -> BuildReport:
        shard = self.shard
        tallies = shard.found.tallies
        return BuildReport(
            shard.static_synapses + shard.rates.synapses, shard.plastic_synapses,
            shard.synapse_bytes + shard.rates.nbytes, int(tallies[:, CLIPPED].sum()) + shard.rates.clipped,
            tallies[:, [CHANGED, TO_ZERO]].tolist(),
        )  # fmt: skip

    def advance(
        self,
        until: int,
        check_last: bool = False,
        *,
        check: Callable[[], None] = lambda: None,
        fetch: Callable[[], None] | None = None,
        publish: Callable[[], int] | None = None,
    ) -> Recorded:
        """Run to step `until` and return the recordings.

        Parameters
        ----------
        until : int
            Last step to run.
        check_last : bool
            Also check in step `until` that all states are finite.
        check : callable
            Called regularly while the shard waits for others; it may raise.
        fetch : callable, optional
            Called when the shard needs spikes of others that do not arrive in shared memory; it fills their buffers.
        publish : callable, optional
            Called regularly to send this shard's spikes; it returns the step at which to call it next.
        """
        pieces: list[Recorded] = []
        self.shard.begin_check(until if check_last else 0)
        spikes_before = int(self.shard.spike_counts.sum())
        while self.shard.step < until:
            stop = until if publish is None else min(until, publish())
            self._run_to(self.python_populations.next_stop(stop), pieces, check, fetch)
            self.python_populations.call_due()
        self.python_populations.discard_delivered()
        pieces.append(self._take())
        recorded = merge_recorded(pieces)
        return Recorded(
            recorded.steps, recorded.ids, recorded.samples, int(self.shard.spike_counts.sum()) - spikes_before,
            min((one for one in (self.shard.unstable, self._unstable_sample(recorded.samples)) if one), default=[]),
        )  # fmt: skip

    def _unstable_sample(self, samples: Sequence[Samples]) -> list[float]:
        """Return the first recorded value that is not finite, as `Recorded.unstable`; the shard looks at few steps."""
        found: list[list[float]] = []
        for one in samples if self.network.checks_finite else ():
            if one.values.dtype.kind == "f" and not np.isfinite(one.values).all():
                row, column = (int(at) for at in np.argwhere(~np.isfinite(one.values))[0])
                probe, place = self.network.probes[one.probe], int(one.places[column])
                neuron = place if probe.subset is None else int(probe.subset[place])
                state = list(probe.population.model.states).index(probe.what)
                found.append(
                    [int(one.steps[row]), probe.population.index, neuron, state, float(one.values[row, column])]
                )
        return min(found, default=[])

    def _run_to(
        self, until: int, pieces: list[Recorded], check: Callable[[], None], fetch: Callable[[], None] | None
    ) -> None:
        sleep_s = _SHORTEST_SLEEP_S
        while True:
            outcome = self.shard.advance(until, *self._spin_limits)
            if outcome == plan.DONE:
                return
            if outcome == plan.FULL:
                sleep_s = _SHORTEST_SLEEP_S
                pieces.append(self._take())
            elif fetch is not None:
                fetch()
            else:
                time.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
                if sleep_s == _LONGEST_SLEEP_S:
                    check()

    def counters(self) -> Counters:
        shard = self.shard
        return Counters(shard.step, shard.spike_counts.copy(), shard.events, shard.spike_hash, peak_memory_bytes())

    def status(self) -> WorkerStatus:
        """Return the status of this shard."""
        shard, every = self.shard, plan.TIMED_EVERY
        words = {"waiting": "waited", "collecting": "collected", "delivering": "delivered"}
        ticks = {name: float(shard.control[word]) for name, word in {**words, "updating": "updated"}.items()}
        total = sum(ticks.values())
        delivered = {one.projection.index: float(every * one.row["ticks"]) for one in shard.plastic_held}
        learned = {one.projection.index: float(one.row["learn_ticks"]) for one in shard.plastic_held}
        return WorkerStatus(
            worker=shard.me,
            step=shard.step,
            memory_bytes=peak_memory_bytes(),
            spikes_out=int(shard.spike_counts.sum()) - shard.spikes_installed,
            spikes_in=int(shard.control["received"]),
            shares={name: spent / total if total else 0.0 for name, spent in ticks.items()},
            exchange=float(shard.control["exchanged"]) / total if total else 0.0,
            update_ticks={
                part.part.population: float(every * row["ticks"])
                for part, row in zip(shard.held, shard.slice_rows, strict=True)
            },
            plastic_ticks={index: spent + learned[index] for index, spent in delivered.items()},
            static_ticks=max(0.0, ticks["delivering"] - sum(delivered.values())),
            busy_ticks=total - ticks["waiting"],
        )

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        self.python_populations.give(name, data, source)

    def state_hash(self) -> int:
        return state_hash(self.shard)

    def read_state(self, population: int, name: str) -> NDArray[np.generic] | None:
        for part in self.shard.parts:
            if part.part.population == population:
                return part.state(name)
        return None

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        return self.shard.list_synapses(self.network.projections[projection])

    def read_rate_synapses(self, place: int) -> dict[str, NDArray[np.generic]]:
        return self.shard.list_synapses(self.network.rate_projections[place])

    def level(self, modulator: int) -> float | None:
        return self.shard.level(modulator)

    def set_level(self, modulator: int, level: float) -> None:
        self.shard.set_level(modulator, level)

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64] | None]:
        """Return, per population, the spike counts of the neurons in this shard, or None if there are none."""
        here = {part.part.population: part.spike_counts for part in self.shard.parts}
        return [here[one].astype(np.int64) if one in here else None for one in populations]

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        """Set a state; `values` has one value for each neuron of the population."""
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
        return write_shard(Path(folder), export_state(self.shard), self.shard.me, self.python_populations.export())

    def restore(self, folder: str | Path, files: list[str]) -> None:
        with SavedState(Path(folder), files) as saved:
            install_state(self.shard, saved)
            self.python_populations.install(saved.python_populations())
        self._taken = self.shard.step

    def discard_samples(self) -> None:
        """Take no samples of steps before the state that was just installed in the shard."""
        self._taken = self.shard.step

    def jump(self, step: int) -> None:
        """Continue after `step`, skipping the steps before it; recordings not yet taken are lost."""
        self.shard.take_recorded()
        self.shard.jump(step)
        self.python_populations.skip_to_now()
        self.discard_samples()

    def publish(self) -> None:
        """Show the other shards the step of this one, after its state was replaced."""
        self.shard.publish()

    def _take(self) -> Recorded:
        steps, ids, samples = self.shard.take_recorded()
        now = self.shard.step
        taken = self._split_samples(samples, self._taken + 1, now)
        self._taken = now
        return Recorded(steps, ids, taken)

    def _split_samples(self, samples: NDArray[np.uint32], first: int, last: int) -> list[Samples]:
        """Split the samples of steps first..last, stored step by step, into one array for each probe."""
        rows = self._sampled
        if not rows:
            return []
        found: list[list[NDArray[np.uint32]]] = [[] for _ in rows]
        times: list[list[int]] = [[] for _ in rows]
        position, words = 0, 2 if self.shard.network.is_wide else 1
        for step in range(first, last + 1):
            for i, (_, _, places, every) in enumerate(rows):
                if step % every == 0:
                    size = len(places) * words
                    found[i].append(samples[position : position + size])
                    times[i].append(step)
                    position += size
        split = []
        for i, (probe, part, places, _) in enumerate(rows):
            if times[i]:
                kind = part.population.model.dtype_of(probe.what)
                values = np.stack(found[i]).view(np.int64 if words == 2 and kind == np.int32 else kind).astype(kind)
                split.append(Samples(probe.index, places, np.array(times[i], np.int64), values))
        return split
