"""The brains that `neuraxis bench mesh` runs by all methods, each with a ticker in every region.

A ticker is Python code that runs next to the region's neurons. It stores the time at which each window ended in a
memory-mapped file, which another process reads and which outlives the process that wrote it. Every method runs the same
code, so that methods can be compared; times are those of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.brain import default_brain
from neuraxis.brain.checks import validate
from neuraxis.brain.default import CUES
from neuraxis.brain.lowering import lower
from neuraxis.brain.mesh import sensor_thresholds, units_of
from neuraxis.engine.placement import Placement, place_regions
from neuraxis.engine.spikes import lags_between
from neuraxis.network import FixedInDegree, Network
from neuraxis.network.models import lif_exp, spike_source
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import Units
from neuraxis.simulation.python_populations import PythonPopulation

__all__ = [
    "BRAINS",
    "Ticker",
    "Workload",
    "make_tick_file",
    "make_workload",
    "read_pid",
    "read_ticks",
    "region_names",
    "tick_path",
]

_KEPT = 1 << 16  # ticks in a ring buffer
_HEAD = 2  # words before them: the process id, and the count of ticks
_BYTES = 8 * (_HEAD + 2 * _KEPT)


class Ticker:
    """Python code of a region that stores the time at the end of each window and emits nothing."""

    stateless = True

    def __init__(self, config: Mapping[str, Any], device: str) -> None:
        self._dt_ms = float(config["dt_ms"])
        with open(config["path"], "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._words = memoryview(self._map).cast("q")
        self._words[0] = os.getpid()

    def process_events(self, now_ms: float, events: Sequence[Any]) -> tuple[()]:
        words = self._words
        count = words[1]
        place = _HEAD + 2 * (count % _KEPT)
        words[place + 1] = time.monotonic_ns()
        words[place] = round(now_ms / self._dt_ms)
        words[1] = count + 1
        return ()


def make_tick_file(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(_BYTES)


def read_pid(path: Path) -> int:
    """Return the process id of a region; 0 before it has started."""
    return int(np.fromfile(path, np.int64, 1)[0])


def read_ticks(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps at the ends of windows, and the times at which they were reached, in ns."""
    words = np.fromfile(path, np.int64)
    count = int(words[1])
    ticks = words[_HEAD:].reshape(-1, 2)
    kept = ticks[:count] if count <= _KEPT else np.roll(ticks, -(count % _KEPT), axis=0)
    return kept[:, 0], kept[:, 1]


# name: (regions, neurons of each, ms from each to the next and back)
_RINGS = {"pair": (2, 4, 1.0), "two": (2, 400, 5.0), "four": (4, 300, 5.0)}
BRAINS = {
    "pair": "2 regions of 4 neurons, 1 ms apart: little but the cost of windows",
    "two": "2 regions of 400 neurons, 5 ms apart",
    "four": "4 regions of 300 neurons in a ring, 5 ms apart",
    "default": "the default brain, which sees a cue",
}
_TICKER = "neuraxis.bench.mesh.workloads:Ticker"


@dataclass(frozen=True)
class Workload:
    """A brain to run.

    Attributes:
        units: the populations of each region.
        window_steps: the shortest delay between two regions.
        placement: for methods in which a process may run several regions.
        rates: the states of sensors, by population.
    """

    network: Network
    python_populations: tuple[PythonPopulation, ...]
    units: Units
    window_steps: int
    placement: Placement
    rates: Mapping[int, tuple[str, np.ndarray]]

    def show(self, simulation: Simulation) -> None:
        """Set the input of its sensors."""
        for population, (state, values) in self.rates.items():
            simulation.set_state(self.network.populations[population], state, values)


def region_names(brain: str) -> list[str]:
    if brain in _RINGS:
        return [f"region{number}" for number in range(_RINGS[brain][0])]
    return list(default_brain(1).regions)


def tick_path(folder: Path, region: str) -> Path:
    return folder / f"{region}.ticks"


def make_workload(brain: str, folder: Path, cores: int, *, make_files: bool = False) -> Workload:
    """Return the brain of a name; where a process may run several regions, it is placed on `cores` processes.

    Ticks go to files in `folder`, which one process creates (`make_files`). All processes must pass the same number of
    cores, because a launcher may have bound each of them to one.
    """
    rates: dict[int, tuple[str, np.ndarray]] = {}
    if brain in _RINGS:
        network, units = _ring(*_RINGS[brain])
        workers = len(units.names)
    else:
        spec = validate(default_brain(1), brain)
        lowered = lower(spec, 1, brain)
        network, units = lowered.network, units_of(spec, lowered)
        for feed in (feed for feeds in units.feeds.values() for feed in feeds):
            value = np.eye(CUES)[0] if feed.config["name"] == "cue" else None
            rates[feed.population] = (feed.state, sensor_thresholds(value, feed.config))
        units = replace(units, feeds={})
        workers = min(len(units.names), cores)
    apart = ~np.eye(len(units.names), dtype=bool)
    window = int(lags_between(network, units.placement(network))[apart].min())
    python_populations = []
    populations = {name: list(indices) for name, indices in units.populations.items()}
    for name in units.names:
        own, mark = (network.population(f"{name}.{what}", 1, spike_source) for what in ("ticks", "mark"))
        populations[name] += [own.index, mark.index]
        path = tick_path(folder, name)
        if make_files:
            make_tick_file(path)
        config = {"path": str(path), "dt_ms": network.dt_ms}
        python_populations.append(
            PythonPopulation(f"{name}.ticks", _TICKER, own.index, mark.index, config, tick_steps=window)
        )
    units = replace(units, populations=populations)
    return Workload(
        network,
        tuple(python_populations),
        units,
        window,
        _placement(network, units, python_populations, workers),
        rates,
    )


def _placement(
    network: Network, units: Units, python_populations: Sequence[PythonPopulation], workers: int
) -> Placement:
    if workers == len(units.names):
        return units.placement(network)
    whole = {index for one in python_populations for index in (one.population, one.marker)}
    return place_regions(network, workers, [list(one) for one in units.populations.values()], whole=whole)


def _ring(regions: int, neurons: int, delay_ms: float) -> tuple[Network, Units]:
    network = Network(dt_ms=0.1, seed=3)
    cells = [network.population(f"region{number}", neurons, lif_exp()) for number in range(regions)]
    inputs = min(30, neurons // 2)
    for one in cells:
        network.poisson(one, 9000.0, weight=90.0)
    for number, one in enumerate(cells):
        # Excited by the one before, inhibited by the one after.
        network.connect(cells[number - 1], one, FixedInDegree(inputs), weight=30.0, delay_ms=delay_ms)
        after = cells[(number + 1) % regions]
        network.connect(after, one, FixedInDegree(inputs), weight=-50.0, delay_ms=delay_ms)
    return network, Units({f"region{number}": [one.index] for number, one in enumerate(cells)})
