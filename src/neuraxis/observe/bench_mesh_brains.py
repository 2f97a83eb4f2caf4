"""The brains that `neuraxis bench mesh` runs in all ways, each with a note-taker beside every region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neuraxis.brain import default_brain
from neuraxis.brain.checks import validate
from neuraxis.brain.default import CUES
from neuraxis.brain.lowering import lower
from neuraxis.brain.mesh import sensor_thresholds, units_of
from neuraxis.engine.outboxes import lags_between
from neuraxis.engine.placement import Placement, place_regions
from neuraxis.execution import Simulation
from neuraxis.execution.mesh import Units
from neuraxis.execution.resident import Resident
from neuraxis.network import FixedInDegree, Network
from neuraxis.network.models import lif_exp, spike_source
from neuraxis.observe.bench_mesh_ticks import make_tick_file

__all__ = ["BRAINS", "Workload", "make_workload", "region_names", "tick_path"]

# name: (regions, neurons of each, ms from each to the next and back)
_RINGS = {"pair": (2, 4, 1.0), "two": (2, 400, 5.0), "four": (4, 300, 5.0)}
BRAINS = {
    "pair": "2 regions of 4 neurons, 1 ms apart: little but the cost of windows",
    "two": "2 regions of 400 neurons, 5 ms apart",
    "four": "4 regions of 300 neurons in a ring, 5 ms apart",
    "default": "the default brain, which sees a cue",
}
_TICKER = "neuraxis.observe.bench_mesh_ticks:Ticker"


@dataclass(frozen=True)
class Workload:
    """A brain to run.

    Attributes:
        units: which region has which populations.
        window_steps: the shortest delay between two regions.
        placement: for ways in which a process may have several regions.
        rates: the states of sensors, by population.
    """

    network: Network
    residents: tuple[Resident, ...]
    units: Units
    window_steps: int
    placement: Placement
    rates: Mapping[int, tuple[str, np.ndarray]]

    def show(self, simulation: Simulation) -> None:
        """Set what its sensors see."""
        for population, (state, values) in self.rates.items():
            simulation.set_state(self.network.populations[population], state, values)


def region_names(brain: str) -> list[str]:
    if brain in _RINGS:
        return [f"region{number}" for number in range(_RINGS[brain][0])]
    return list(default_brain(1).regions)


def tick_path(folder: Path, region: str) -> Path:
    return folder / f"{region}.ticks"


def make_workload(brain: str, folder: Path, cores: int, *, make_files: bool = False) -> Workload:
    """The brain of a name, where a process may have several regions on as many processes as `cores`.

    Notes of windows go to a folder, in files that one process makes (`make_files`). All processes must be told the same
    number of cores: a launcher may have bound each of them to one.
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
    residents = []
    populations = {name: list(indices) for name, indices in units.populations.items()}
    for name in units.names:
        own, mark = (network.population(f"{name}.{what}", 1, spike_source) for what in ("ticks", "mark"))
        populations[name] += [own.index, mark.index]
        path = tick_path(folder, name)
        if make_files:
            make_tick_file(path)
        config = {"path": str(path), "dt_ms": network.dt_ms}
        residents.append(Resident(f"{name}.ticks", _TICKER, own.index, mark.index, config, tick_steps=window))
    units = replace(units, populations=populations)
    return Workload(network, tuple(residents), units, window, _placement(network, units, residents, workers), rates)


def _placement(network: Network, units: Units, residents: Sequence[Resident], workers: int) -> Placement:
    if workers == len(units.names):
        return units.placement(network)
    whole = {index for one in residents for index in (one.population, one.mark)}
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
