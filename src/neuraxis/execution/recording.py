"""Keeps what the probes saw: in memory, or in files while the simulation runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.execution.disk import GrowingFile
from neuraxis.execution.executor import Recorded, Samples
from neuraxis.execution.report_file import ReportFile
from neuraxis.execution.sonata import SpikeFile, checked_name
from neuraxis.network import Network, Population, Probe
from neuraxis.network.grid import to_steps

__all__ = ["Recording"]

_UNITS = {"_mv": "mV", "_pa": "pA", "_ns": "nS"}  # by how the name of a state ends


class Recording:
    """What was recorded since the simulation began, or was restored."""

    def __init__(self, network: Network, record_to: Path | None, keep: bool = True) -> None:
        """`keep`: whether what goes to no file is kept in memory; not where another process has the files."""
        self._network = network
        self._keep = keep
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._steps: list[NDArray[np.int64]] = []
        self._ids: list[NDArray[np.int64]] = []
        self._samples: dict[int, list[list[Samples]]] = {}
        self._file: SpikeFile | None = None
        self._reports: dict[int, ReportFile] = {}  # by probe
        self._last = 0
        if record_to is not None:
            self._make_files(record_to)

    def _make_files(self, record_to: Path) -> None:
        network = self._network
        if not network.probes:
            raise InvalidArgument(
                f"record_to={str(record_to)!r}: no spikes are recorded and no state; say network.record(population)"
            )
        report_paths = _report_paths(record_to, network)
        with ExitStack() as undo:
            if any(probe.what == "spikes" for probe in network.probes):
                populations = [(p.name, p.n) for p in network.populations]
                self._file = SpikeFile(record_to, populations, network.dt_ms, seed=network.seed)
                undo.callback(self._file.abandon)
            for index, path in report_paths.items():
                self._reports[index] = _make_report(path, network.probes[index], network.dt_ms)
                undo.callback(self._reports[index].abandon)
            undo.pop_all()

    @property
    def path(self) -> Path | None:
        return None if self._file is None else Path(self._file.path)

    def add(self, recorded: Recorded) -> None:
        """Take what was recorded in the steps after those that were added before, by all shards."""
        if len(recorded.steps):
            self._last = int(recorded.steps[-1])
        if self._file is not None:
            for population in self._network.populations:
                here = (recorded.ids >= population.first_id) & (recorded.ids < population.first_id + population.n)
                if here.any():
                    self._file.append(recorded.steps[here], population.index, recorded.ids[here] - population.first_id)
        elif self._keep and len(recorded.steps):
            self._steps.append(recorded.steps)
            self._ids.append(recorded.ids)
        by_probe: dict[int, list[Samples]] = {}
        for sample in recorded.samples:
            by_probe.setdefault(sample.probe, []).append(sample)
        for probe, samples in by_probe.items():
            if probe in self._reports:
                self._reports[probe].append(*_frames(self._network.probes[probe], samples))
            elif self._keep:
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
        if probe.index in self._reports:
            path = self._reports[probe.index].path
            raise InvalidArgument(f"the samples are in {path}; read it with neuraxis.execution.read_report")
        times: list[NDArray[np.float64]] = [np.zeros(0)]
        values: list[NDArray[np.generic]] = [np.zeros((0, probe.n), _kind(probe))]
        for pieces in self._samples.get(probe.index, []):
            steps, block = _frames(probe, pieces)
            times.append(np.asarray(steps * self._network.dt_ms, np.float64))
            values.append(block)
        return np.concatenate(times), np.concatenate(values)

    def check_restore(self, step: int) -> None:
        """Raise if a file cannot go on after `step`.

        One of spikes goes on in time; a report needs the very next sample, for its samples lie at equal distances.
        """
        if self._file is not None and self._last > step:
            raise _cannot_go_on(self._file, "spikes", self._last, step)
        for report in self._reports.values():
            every, due = report.every_steps, report.next_step
            if due is not None and due != (step // every + 1) * every:
                raise _cannot_go_on(report, "samples", due - every, step)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._steps, self._ids, self._samples = [], [], {}

    def abandon(self) -> None:
        """Leave the files as they are, under their temporary names, with what was written so far; older ones stay."""
        with ExitStack() as all_of_them:  # also the others if one cannot be written
            for file in self._files():
                all_of_them.callback(file.abandon)

    def close(self) -> None:
        """Finish the files, if there are any."""
        with ExitStack() as all_of_them:
            for file in self._files():
                all_of_them.callback(file.close)

    def _files(self) -> list[GrowingFile]:
        return [*([] if self._file is None else [self._file]), *self._reports.values()]


def _report_paths(record_to: Path, network: Network) -> dict[int, Path]:
    """The file of each state probe, by its index."""
    if record_to.is_dir():
        raise InvalidArgument(f"record_to={str(record_to)!r}: that is a folder, give the name of a file")
    paths: dict[int, Path] = {}
    for probe in network.probes:
        if probe.what == "spikes":
            continue
        name = checked_name(probe.population.name, f"record_to={str(record_to)!r}: there is a population")
        path = record_to.with_name(f"{record_to.stem}.{name}.{probe.what}{record_to.suffix}")
        if path in paths.values():
            raise InvalidArgument(
                f"record_to={str(record_to)!r}: {probe.what!r} of {name!r} is recorded twice, and both would go to "
                f"{path.name!r}; record it once, with a subset that holds all neurons"
            )
        paths[probe.index] = path
    return paths


def _make_report(path: Path, probe: Probe, dt_ms: float) -> ReportFile:
    node_ids = np.arange(probe.population.n) if probe.subset is None else probe.subset
    unit = next((unit for ending, unit in _UNITS.items() if probe.what.endswith(ending)), "")
    every_steps = to_steps(probe.every_ms or 0.0, dt_ms, "every_ms")
    return ReportFile(path, probe.population.name, node_ids, dt_ms, every_steps, probe.what, unit, dtype=_kind(probe))


def _kind(probe: Probe) -> type[np.generic]:
    return np.int32 if isinstance(probe.population.model.states[probe.what], int) else np.float32


def _frames(probe: Probe, pieces: list[Samples]) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """(steps, values by step and neuron), put together from several stretches of time of several shards."""
    steps = np.unique(np.concatenate([piece.steps for piece in pieces]))
    block = np.zeros((len(steps), probe.n), _kind(probe))
    for piece in pieces:
        block[np.searchsorted(steps, piece.steps)[:, None], piece.places[None, :]] = piece.values
    # Executors bring all shards to the same step, so that no frame is ever left incomplete.
    assert sum(piece.values.size for piece in pieces) == block.size, f"frames of {probe.what} are incomplete"
    return steps, block


def _cannot_go_on(file: GrowingFile, content: str, last: int, step: int) -> InvalidArgument:
    return InvalidArgument(
        f"{file.path} holds {content} up to step {last}; a state of step {step} cannot be gone on "
        "from in the same file: start another simulation with another record_to"
    )
