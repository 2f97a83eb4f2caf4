"""Recordings of probes, in memory or in SONATA files that grow during a run, and the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Population, Probe
from neuraxis.network.grid import to_steps
from neuraxis.notebook import html_table
from neuraxis.simulation.executor import Recorded, Samples

if TYPE_CHECKING:  # these import h5py, which is needed only for recordings to files
    from neuraxis.formats.sonata import ReportFile, SpikeFile
    from neuraxis.store.growing import GrowingFile

__all__ = ["Recording", "Rounding", "Summary"]


@dataclass(frozen=True)
class Rounding:
    """Synapses of a projection whose weights the fixed-point scale of their receptor changes by more than 1 %.

    Attributes
    ----------
    synapses : int
        Synapses of the projection (the expected number if it is random).
    changed : int
        Synapses whose weight changes by more than 1 %.
    to_zero : int
        Synapses among them whose weight becomes 0.
    """

    synapses: int
    changed: int
    to_zero: int

    @property
    def share(self) -> float:
        """Share of the projection's synapses that are changed, from 0 to 1."""
        return min(1.0, self.changed / max(1, self.synapses))

    def __str__(self) -> str:
        zero = f", {self.to_zero:,} of them to 0" if self.to_zero else ""
        return f"{self.changed:,} of {self.synapses:,} weights changed by more than 1 %{zero}"


@dataclass(frozen=True)
class Summary:
    """Figures of one call of `Simulation.run`; print it, or use `as_json` in programs.

    Attributes
    ----------
    workers : int
        Number of shards.
    device : str
        Devices of the shards.
    time_ms : float
        Model time of this call in ms.
    build_seconds, run_seconds : float
        Wall-clock time to build the network, and of this call.
    compile_seconds : float
        Wall-clock time to compile what was missing before the network was built; 0 if all was in the cache.
    spikes : int
        Spikes of all populations in this call.
    rates_hz : mapping
        Mean rate of each population in Hz.
    synaptic_events : int
        Delivered synaptic events.
    synapses : int
        Synapses of the network.
    bytes_per_synapse : float
        Mean memory of a synapse.
    clipped_delays : int
        Synapses whose delay was clipped.
    peak_memory_bytes : int
        Peak memory of all processes.
    fingerprint : str
        See `Simulation.fingerprint`.
    rounding : mapping
        Projections whose weights are not delivered as described: see `Rounding`.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_delta
    >>> from neuraxis.simulation import Simulation
    >>> network = Network(dt_ms=0.1, seed=1)
    >>> cells = network.population("cells", 10, lif_delta())
    >>> with Simulation(network, progress=False) as simulation:
    ...     summary = simulation.run(10.0)
    >>> summary.spikes, dict(summary.rates_hz)
    (0, {'cells': 0.0})
    """

    workers: int
    device: str
    time_ms: float
    build_seconds: float
    run_seconds: float
    spikes: int
    rates_hz: Mapping[str, float]
    synaptic_events: int
    synapses: int
    bytes_per_synapse: float
    clipped_delays: int
    peak_memory_bytes: int
    fingerprint: str
    rounding: Mapping[str, Rounding] = field(default_factory=dict)
    compile_seconds: float = 0.0

    @property
    def real_time_factor(self) -> float:
        """Run time divided by model time; below 1 is faster than real time."""
        return self.run_seconds / (self.time_ms * 1e-3) if self.time_ms else 0.0

    @property
    def synaptic_events_per_second(self) -> float:
        """Delivered synaptic events per second of run time."""
        return self.synaptic_events / self.run_seconds if self.run_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            **asdict(self),
            "rates_hz": dict(self.rates_hz),
            "rounding": {name: asdict(one) for name, one in self.rounding.items()},
            "real_time_factor": self.real_time_factor,
            "synaptic_events_per_second": self.synaptic_events_per_second,
        }

    def __str__(self) -> str:
        clipped = f" ({self.clipped_delays / self.synapses:.2%} of the delays clipped)" if self.clipped_delays else ""
        cores = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        if self.device != "cpu":
            cores += f" ({self.device})"
        took = f"{self.run_seconds:.3f}" if self.run_seconds >= 0.1 else f"{self.run_seconds:.2g}"
        ran = f"{self.time_ms:,.1f} ms of model time in {took} s on {cores}"
        size = f"{self.synapses:,} synapses, {self.bytes_per_synapse:.2f} bytes each{clipped}"
        compiled = f"compiled in {self.compile_seconds:.1f} s, once; " if self.compile_seconds >= 0.05 else ""
        memory = f"memory at most {self.peak_memory_bytes / 2**20:,.0f} MiB"
        rate = self.synaptic_events_per_second
        events = f"{self.synaptic_events:,} synaptic events ({float(f'{rate:.3g}'):,.0f} a second)"
        lines = [
            f"{ran}: real-time factor {self.real_time_factor:.3g}",
            f"{compiled}built in {self.build_seconds:.2f} s: {size}; {memory}",
            f"{self.spikes:,} spikes, {events}",
            "rates: " + ", ".join(f"{name} {rate:.2f} Hz" for name, rate in self.rates_hz.items()),
            *(f"rounded in fixed point: {name}: {one}" for name, one in self.rounding.items()),
            f"fingerprint {self.fingerprint}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        head, *rest = str(self).splitlines()
        return "\n".join([f"<Summary of {head}", *(f"  {line}" for line in rest)]) + ">"

    def _repr_html_(self) -> str:
        facts = [line for line in str(self).splitlines() if not line.startswith("rates: ")]
        rows = ((name, f"{rate:.2f}") for name, rate in self.rates_hz.items())
        return html_table("; ".join(facts), ("population", "rate (Hz)"), rows)


_UNITS = {"_mv": "mV", "_pa": "pA", "_ns": "nS"}  # by the suffix of a state's name


class Recording:
    """Recordings since the simulation began or was restored."""

    def __init__(self, network: Network, record_to: Path | None, keep: bool = True) -> None:
        """`keep` stores recordings without a file in memory; False if another process writes the files."""
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
        from neuraxis.formats.sonata import SpikeFile

        network = self._network
        if not network.probes:
            raise InvalidArgument(
                f"record_to={str(record_to)!r}: the network has no probes. Add network.record(population)"
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
        """Add the recordings of all shards for the steps after those added before."""
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
        """Return (times in ms, ids within the population), ordered by time and id."""
        probed = [p for p in self._network.probes if p.what == "spikes" and p.population.index == population.index]
        if not probed:
            raise InvalidArgument(
                f"the spikes of {population.name!r} are not recorded. Add network.record({population.name!r}, 'spikes')"
            )
        if self._file is not None:
            raise InvalidArgument(f"the spikes are in {self._file.path}. Read it with neuraxis.simulation.read_spikes")
        steps = np.concatenate([np.zeros(0, np.int64), *self._steps])
        ids = np.concatenate([np.zeros(0, np.int64), *self._ids])
        here = (ids >= population.first_id) & (ids < population.first_id + population.n)
        return steps[here] * self._network.dt_ms, ids[here] - population.first_id

    def samples(self, probe: Probe) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
        """Return (times in ms, values by time and neuron) of a state probe."""
        if probe.index in self._reports:
            path = self._reports[probe.index].path
            raise InvalidArgument(f"the samples are in {path}. Read it with neuraxis.simulation.read_report")
        times: list[NDArray[np.float64]] = [np.zeros(0)]
        values: list[NDArray[np.generic]] = [np.zeros((0, probe.n), _kind(probe))]
        for pieces in self._samples.get(probe.index, []):
            steps, block = _frames(probe, pieces)
            times.append(np.asarray(steps * self._network.dt_ms, np.float64))
            values.append(block)
        return np.concatenate(times), np.concatenate(values)

    def check_restore(self, step: int) -> None:
        """Raise if a file cannot continue after `step`.

        Spikes must be in order of time; a report needs exactly the next sample, because its samples are equidistant.
        """
        if self._file is not None and self._last > step:
            raise _cannot_continue(self._file, "spikes", self._last, step)
        for report in self._reports.values():
            every, due = report.every_steps, report.next_step
            if due is not None and due != (step // every + 1) * every:
                raise _cannot_continue(report, "samples", due - every, step)

    def clear(self) -> None:
        """Drop the recordings in memory."""
        self._steps, self._ids, self._samples = [], [], {}

    def abandon(self) -> None:
        """Close the files under their temporary names with the data so far; older files stay."""
        with ExitStack() as stack:  # closes the others even if one cannot be written
            for file in self._files():
                stack.callback(file.abandon)

    def close(self) -> None:
        """Finish the files, if there are any."""
        with ExitStack() as stack:
            for file in self._files():
                stack.callback(file.close)

    def _files(self) -> list[GrowingFile]:
        return [*([] if self._file is None else [self._file]), *self._reports.values()]


def _report_paths(record_to: Path, network: Network) -> dict[int, Path]:
    """Return the report file of each state probe, by its index."""
    from neuraxis.formats.sonata import checked_name

    if record_to.is_dir():
        raise InvalidArgument(f"record_to={str(record_to)!r}: that is a folder. Give the name of a file")
    paths: dict[int, Path] = {}
    for probe in network.probes:
        if probe.what == "spikes":
            continue
        name = checked_name(probe.population.name, f"record_to={str(record_to)!r}: there is a population")
        path = record_to.with_name(f"{record_to.stem}.{name}.{probe.what}{record_to.suffix}")
        if path in paths.values():
            raise InvalidArgument(
                f"record_to={str(record_to)!r}: two probes record {probe.what!r} of {name!r} and would write to "
                f"{path.name!r}. Record it once, with a subset that holds all neurons"
            )
        paths[probe.index] = path
    return paths


def _make_report(path: Path, probe: Probe, dt_ms: float) -> ReportFile:
    from neuraxis.formats.sonata import ReportFile

    node_ids = np.arange(probe.population.n) if probe.subset is None else probe.subset
    unit = next((unit for ending, unit in _UNITS.items() if probe.what.endswith(ending)), "")
    every_steps = to_steps(probe.every_ms or 0.0, dt_ms, "every_ms")
    kind = np.int32 if _kind(probe) == np.int32 else np.float32  # SONATA has no float64
    return ReportFile(path, probe.population.name, node_ids, dt_ms, every_steps, probe.what, unit, dtype=kind)


def _kind(probe: Probe) -> type[np.generic]:
    return probe.population.model.dtype_of(probe.what)


def _frames(probe: Probe, pieces: list[Samples]) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Assemble (steps, values by step and neuron) from the samples of several shards and pieces of a run."""
    steps = np.unique(np.concatenate([piece.steps for piece in pieces]))
    block = np.zeros((len(steps), probe.n), _kind(probe))
    for piece in pieces:
        block[np.searchsorted(steps, piece.steps)[:, None], piece.places[None, :]] = piece.values
    # Executors bring all shards to the same step, so every frame is complete.
    assert sum(piece.values.size for piece in pieces) == block.size, f"frames of {probe.what} are incomplete"
    return steps, block


def _cannot_continue(file: GrowingFile, content: str, last: int, step: int) -> InvalidArgument:
    return InvalidArgument(
        f"{file.path} holds {content} up to step {last}, so a state of step {step} cannot continue in the same file. "
        "Start another simulation with another record_to"
    )
