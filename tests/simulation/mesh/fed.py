"""A network of three nodes whose spikes show which steps of the source each of them missed.

`source` emits given spikes, whatever the others do; so a run in which some of its steps were silence to the
others must be, to the bit, the run of a network without given spikes in those steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from neuraxis.network import STDP, FixedInDegree, Network, Uniform
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import MeshExecutor, Units
from neuraxis.simulation.mesh.executor import RegionTeam

__all__ = ["OTHERS", "UNITS", "alone", "assert_was_silent_in", "fed", "silences_of", "team_of"]

UNITS = Units({"source": [0, 1], "a": [2], "b": [3]})
OTHERS = ("shadow", "a", "b")
_FOR_EVER = 2**31
_LONGEST = 20_000


def fed(silent: Sequence[tuple[int, int | None]] = ()) -> Network:
    """The network; the source does not spike in the steps of `silent`: (first, last or None)."""
    network = Network(dt_ms=0.1, seed=11)
    source = network.population("source", 30, spike_source)
    shadow = network.population("shadow", 30, lif_delta)  # so that the source's node waits for the others
    a = network.population("a", 60, lif_delta, v_mv=Uniform(-70.0, -55.1))
    b = network.population("b", 50, lif_delta, v_mv=Uniform(-70.0, -55.1))
    plastic = STDP.additive(w_max=2.0, learning_rate=0.05)
    network.connect(source, a, FixedInDegree(k=8), Uniform(0.5, 1.5), 1.5, plasticity=plastic, name="learned")
    network.connect(a, b, FixedInDegree(k=8), 0.8, delay_ms=2.0)
    network.connect(b, a, FixedInDegree(k=8), -0.5, delay_ms=1.0)
    network.connect(b, shadow, FixedInDegree(k=8), 0.9, delay_ms=1.5)
    for population in (shadow, a, b):
        network.poisson(population, rate_hz=1100.0, weight=1.5)
    random = np.random.default_rng(4)
    steps = np.sort(random.integers(1, _LONGEST, 12_000))
    ids = random.integers(0, 30, len(steps))
    for first, last in silent:
        received = (steps < first) | (steps > (_FOR_EVER if last is None else last))
        steps, ids = steps[received], ids[received]
    network.spikes(source, steps * network.dt_ms, ids)
    for population in network.populations:
        network.record(population)
    return network


@cache
def alone(steps: int, silent: tuple[tuple[int, int | None], ...] = ()) -> dict[str, Any]:
    """Return the result of one process after a number of steps."""
    with Simulation(fed(silent)) as simulation:
        simulation.advance(steps)
        return _look(simulation, recorded=True)


def assert_was_silent_in(
    simulation: Simulation, silent: Sequence[tuple[int, int | None]], populations: Sequence[str] = OTHERS
) -> None:
    """A run gave what one gives that does not have the source's spikes of some steps, and was no other in anything."""
    expected = alone(simulation.steps, tuple(silent))
    found = _look(simulation, recorded=False)
    for name in populations:
        assert np.array_equal(found[f"{name} v"], expected[f"{name} v"]), f"states of {name}"
        assert np.array_equal(found[f"{name} counts"], expected[f"{name} counts"]), f"counts of {name}"
    if "a" in populations:
        assert np.array_equal(found["weights"], expected["weights"])
        for name in ("a", "b"):
            times, ids = simulation.spikes(name)
            assert np.array_equal(times, expected[name][0])
            assert np.array_equal(ids, expected[name][1])


def silences_of(simulation: Simulation, receiver: str = "a", name: str = "source") -> list[tuple[int, int | None]]:
    """The steps in which a region was silence to another one."""
    executor = simulation._executor
    assert isinstance(executor, MeshExecutor)
    reported = executor.statistics()[receiver]["upstream"][name]["silences"]
    return [(first, last) for first, last, _ in reported]


def team_of(simulation: Simulation) -> RegionTeam:
    executor = simulation._executor
    assert isinstance(executor, MeshExecutor)
    assert executor.team is not None
    return executor.team


def _look(simulation: Simulation, recorded: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": simulation.weights("learned")}
    for name in OTHERS:
        found[f"{name} v"] = simulation.state(name, "v_mv")
        found[f"{name} counts"] = simulation.spike_counts(name)
        if recorded:
            found[name] = simulation.spikes(name)
    if recorded:
        found["source"] = simulation.spikes("source")
    return found
