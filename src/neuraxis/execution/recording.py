"""Keeps what the probes saw: in memory, or spikes in a file while the simulation runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.execution.executor import Recorded, Samples
from neuraxis.execution.sonata import SpikeFile
from neuraxis.network import Network, Population, Probe

__all__ = ["Recording"]


class Recording:
    """What was recorded since the simulation began, or was restored."""

    def __init__(self, network: Network, record_to: Path | None) -> None:
        self._network = network
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._steps: list[NDArray[np.int64]] = []
        self._ids: list[NDArray[np.int64]] = []
        self._samples: dict[int, list[list[Samples]]] = {}
        self._file: SpikeFile | None = None
        self._last = 0
        if record_to is not None:
            probed = {p.population.index for p in network.probes if p.what == "spikes"}
            if not probed:
                raise InvalidArgument(
                    f"record_to={str(record_to)!r}: no spikes are recorded; say network.record(population, 'spikes')"
                )
            populations = [(p.name, p.n) for p in network.populations]
            self._file = SpikeFile(record_to, populations, network.dt_ms, seed=network.seed)

    @property
    def path(self) -> Path | None:
        return None if self._file is None else Path(self._file.path)

    def add(self, recorded: Recorded) -> None:
        """Take what was recorded in the steps after those that were added before."""
        if len(recorded.steps):
            self._last = int(recorded.steps[-1])
        if self._file is not None:
            for population in self._network.populations:
                here = (recorded.ids >= population.first_id) & (recorded.ids < population.first_id + population.n)
                if here.any():
                    self._file.append(recorded.steps[here], population.index, recorded.ids[here] - population.first_id)
        elif len(recorded.steps):
            self._steps.append(recorded.steps)
            self._ids.append(recorded.ids)
        by_probe: dict[int, list[Samples]] = {}
        for sample in recorded.samples:
            by_probe.setdefault(sample.probe, []).append(sample)
        for probe, samples in by_probe.items():
            self._samples.setdefault(probe, []).append(samples)

    def spikes(self, population: Population) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(times in ms, ids within the population), in the order of time and id."""
        probed = [p for p in self._network.probes if p.what == "spikes" and p.population.index == population.index]
        if not probed:
            raise InvalidArgument(
                f"the spikes of {population.name!r} are not recorded; say network.record({population.name!r}, 'spikes')"
            )
        if self._file is not None:
            raise InvalidArgument(f"the spikes are in {self._file.path}; read it with neuraxis.execution.read_spikes")
        steps = np.concatenate([np.zeros(0, np.int64), *self._steps])
        ids = np.concatenate([np.zeros(0, np.int64), *self._ids])
        here = (ids >= population.first_id) & (ids < population.first_id + population.n)
        return steps[here] * self._network.dt_ms, ids[here] - population.first_id

    def samples(self, probe: Probe) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
        """(times in ms, values by time and neuron) of a probe of a state."""
        kind = np.int32 if isinstance(probe.population.model.states[probe.what], int) else np.float32
        times, values = [np.zeros(0)], [np.zeros((0, probe.n), kind)]
        for pieces in self._samples.get(probe.index, []):
            # Each call to `add` may bring several stretches of time from several shards.
            steps = np.unique(np.concatenate([piece.steps for piece in pieces]))
            block = np.zeros((len(steps), probe.n), kind)
            for piece in pieces:
                block[np.searchsorted(steps, piece.steps)[:, None], piece.places[None, :]] = piece.values
            times.append(steps * self._network.dt_ms)
            values.append(block)
        return np.concatenate(times), np.concatenate(values)

    def check_restore(self, step: int) -> None:
        """Raise if the file holds spikes of later steps than `step`: a file of spikes goes on in time."""
        if self._file is not None and self._last > step:
            raise InvalidArgument(
                f"{self._file.path} holds spikes up to step {self._last}; a state of step {step} cannot be gone on "
                "from in the same file: start another simulation with another record_to"
            )

    def clear(self) -> None:
        """Forget what is in memory."""
        self._steps, self._ids, self._samples = [], [], {}

    def abandon(self) -> None:
        """Leave the file as it is, under its temporary name, with what was written so far; an older one stays."""
        if self._file is not None:
            self._file.abandon()

    def close(self) -> None:
        """Finish the file, if there is one."""
        if self._file is not None:
            self._file.close()
