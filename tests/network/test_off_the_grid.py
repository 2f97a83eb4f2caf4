"""Times that are not a whole number of steps are rounded with a warning that names them, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuraxis.brain import Brain, BrainBuilder
from neuraxis.errors import InvalidArgument, RoundingWarning
from neuraxis.network import (
    AllToAll,
    HomeostaticScaling,
    LogNormal,
    Network,
    Normal,
    OneToOne,
    RewardSTDP,
    Uniform,
)
from neuraxis.network.models import (
    adex,
    izhikevich,
    lif_alpha,
    lif_cond_exp,
    lif_delta,
    lif_exp,
    lif_exp_two,
    poisson_source,
)
from neuraxis.simulation import Simulation


def two(dt_ms: float = 0.1) -> Network:
    network = Network(dt_ms=dt_ms)
    network.neuromodulator("dopamine")
    network.population("a", 3, lif_delta)
    network.population("b", 3, lif_delta)
    return network


def reward(every_ms: float) -> RewardSTDP:
    return RewardSTDP(w_max=2.0, a_plus=0.1, a_minus=0.1, every_ms=every_ms)


# A description with a time off the grid, the name in the warning, and the time that is used instead.
ROUNDED: dict[str, tuple[Callable[[Network], Any], str, Callable[[Any], Any], Any]] = {
    "delay": (
        lambda n: n.connect("a", "b", OneToOne(), 1.0, 0.17),
        "projection 'a->b': delay_ms=0.17",
        lambda p: p.delay_ms.value,
        0.2,
    ),
    "delays": (
        lambda n: n.connect("a", "b", OneToOne(), 1.0, [0.1, 0.26, 0.34]),
        "projection 'a->b': delay_ms: 2 of 3 times",
        lambda p: p.delay_ms.array.tolist(),
        [0.1, 0.3, 0.3],
    ),
    "modulation": (lambda n: n.modulate("a", "dopamine", 1.0, 0.26), "delay_ms=0.26", lambda m: m.delay_ms, 0.3),
    "probe": (lambda n: n.record("a", "v_mv", every_ms=0.25), "every_ms=0.25", lambda p: p.every_ms, 0.3),
    "poisson": (
        lambda n: n.poisson("a", 10.0, 1.0, start_ms=0.52, stop_ms=2.0),
        "poisson into 'a': start_ms=0.52",
        lambda p: p.start_ms,
        0.5,
    ),
    "current": (
        lambda n: n.current("a", 10.0, stop_ms=1.98),
        "current into 'a': stop_ms=1.98",
        lambda c: c.stop_ms,
        2.0,
    ),
    "spikes": (
        lambda n: n.spikes("a", [1.0, 1.16, 3.0], [0, 1, 2]),
        "times_ms: 1 of 3 times",
        lambda s: s.times_ms.tolist(),
        [1.0, 1.2, 3.0],
    ),
    "reward": (
        lambda n: n.connect("a", "b", OneToOne(), 1.0, 0.1, plasticity=reward(10.03)),
        "RewardSTDP.every_ms=10.03",
        lambda p: p.pairing.every_ms,
        10.0,
    ),
    "scaling": (
        lambda n: n.connect("a", "b", OneToOne(), 1.0, plasticity=HomeostaticScaling(5.0, w_max=2.0, every_ms=9.99)),
        "HomeostaticScaling.every_ms=9.99",
        lambda p: p.scaling.every_ms,
        10.0,
    ),
    "refractory": (
        lambda n: n.population("c", 1, lif_exp(refractory_ms=2.04)),
        "refractory_ms=2.04",
        lambda c: c.model.constants["refractory_steps"],
        20,
    ),
    "refractory to nothing": (
        lambda n: n.population("c", 1, lif_exp_two(refractory_ms=0.04)),
        "refractory_ms=0.04: is not a whole number of steps of 0.1 ms; 0 ms (0 steps)",
        lambda c: c.model.constants["refractory_steps"],
        0,
    ),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_times_are_rounded_with_one_warning_at_the_users_line(what: str) -> None:
    describe, name, used, expected = ROUNDED[what]
    with pytest.warns(RoundingWarning) as warned:
        made = describe(two())
    (one,) = warned
    assert name in str(one.message)
    assert re.search(r"not (a )?whole numbers? of steps of 0\.1 ms.* is used", str(one.message))
    assert one.filename == __file__
    assert used(made) == pytest.approx(expected)


def test_times_within_rounding_error_of_the_grid_do_not_warn() -> None:
    network = two()
    assert network.connect("a", "b", OneToOne(), 1.0, 0.3).delay_ms.value == 0.3  # 3 * 0.1 is another number
    network.connect("a", "b", AllToAll(), 1.0, 0.1 * np.arange(1, 10))
    network.spikes("a", 0.1 * np.arange(1, 1000), np.zeros(999, int))
    assert network.record("a", "v_mv", every_ms=0.7).every_ms == 0.7
    assert network.current("a", 1.0, start_ms=1e6 + 0.1, stop_ms=3e6 + 0.7).start_ms == 1e6 + 0.1
    for delay in (Uniform(0.17, 2.0), Normal(1.5, 0.7), LogNormal(0.0, 0.3)):  # rounding is a part of drawing
        network.connect("a", "b", OneToOne(), 1.0, delay)


# The same error at 1e5, 1e6 and 1e7 ms: half a step, and a hundredth of one.
LATE = [
    (late + off, dt_ms)
    for late in (1e5, 1e6, 1e7)
    for off, dt_ms in ((0.05, 0.1), (0.001, 0.1), (0.5, 1.0), (0.02, 0.025))
]
DESCRIBED: dict[str, tuple[Callable[[Network, float], Any], Callable[[Any], float]]] = {
    "spikes": (lambda n, t: n.spikes("a", [1.0, t], [0, 1]), lambda s: s.times_ms[1]),
    "current from": (lambda n, t: n.current("a", 1.0, start_ms=t), lambda c: c.start_ms),
    "current to": (lambda n, t: n.current("a", 1.0, stop_ms=t), lambda c: c.stop_ms),
    "poisson from": (lambda n, t: n.poisson("a", 9.0, 1.0, start_ms=t), lambda p: p.start_ms),
    "probe": (lambda n, t: n.record("a", "v_mv", every_ms=t), lambda p: p.every_ms),
}


@pytest.mark.parametrize(("time_ms", "dt_ms"), LATE)
@pytest.mark.parametrize("what", DESCRIBED)
def test_late_times_are_rounded_like_early_ones(what: str, time_ms: float, dt_ms: float) -> None:
    describe, used = DESCRIBED[what]
    with pytest.warns(RoundingWarning, match=re.escape(repr(time_ms))) as warned:
        made = describe(two(dt_ms), time_ms)
    assert len(warned) == 1
    steps = int(time_ms / dt_ms + 0.5)
    assert used(made) == steps * dt_ms != time_ms


@pytest.mark.parametrize(("time_ms", "dt_ms"), LATE)
def test_late_runs_are_refused_like_early_ones(time_ms: float, dt_ms: float) -> None:
    with Simulation(two(dt_ms)) as simulation:
        with pytest.raises(InvalidArgument, match=rf"time_ms={re.escape(repr(time_ms))}: a whole number of steps"):
            simulation.run(time_ms)
        with pytest.warns(RoundingWarning, match=re.escape(repr(time_ms))):
            simulation.inject("a", [time_ms], [0])


@pytest.mark.parametrize("steps", [999, 4095, 65534])
def test_long_delays_and_refractory_times_are_rounded_like_short_ones(steps: int) -> None:
    time_ms = (steps + 0.01) * 0.1
    with pytest.warns(RoundingWarning, match="delay_ms="):
        made = two().connect("a", "b", OneToOne(), 1.0, time_ms)
    assert made.delay_ms.bounds() == (steps * 0.1, steps * 0.1)
    with pytest.warns(RoundingWarning, match="refractory_ms="):
        cells = two().population("c", 1, lif_exp(refractory_ms=time_ms))
    assert cells.model.constants["refractory_steps"] == steps


def test_the_rounded_time_is_the_one_that_is_simulated() -> None:
    network = two()
    with pytest.warns(RoundingWarning):
        network.record("a", "v_mv", every_ms=0.25)
    with Simulation(network) as simulation:
        simulation.run(1.0)
        np.testing.assert_allclose(simulation.samples("a", "v_mv")[0], [0.3, 0.6, 0.9])


def test_the_length_of_a_run_is_refused() -> None:
    with Simulation(two()) as simulation:
        with pytest.raises(InvalidArgument, match=r"time_ms=0\.25: a whole number of steps of 0\.1 ms"):
            simulation.run(0.25)
        with pytest.warns(RoundingWarning, match=r"times_ms\[0\]=0\.26, for which 0\.3 ms"):
            simulation.inject("a", [0.26], [0])


def test_a_brain_warns_too() -> None:
    def of(delay_ms: float, tick_ms: float) -> Brain:
        built = BrainBuilder(dt_ms=0.1).sensor("eye", 4).region("sheet", "cortex")
        built.python_region("own", "tests.brain.python_regions:Log", neurons=2, tick_ms=tick_ms)
        return Brain(built.pathway("eye", "own", delay_ms).spec())

    with pytest.warns(RoundingWarning) as warned, of(1.03, 5.02):
        pass
    assert {str(one.message).partition(": is no")[0] for one in warned} == {
        "pathway 'eye->own': delay_ms=1.03",
        "region 'own': tick_ms=5.02",
    }


# --- numbers that make no sense ---


@pytest.mark.parametrize("model", [lif_alpha, lif_cond_exp, lif_delta, lif_exp, lif_exp_two], ids=lambda m: m.name)
@pytest.mark.parametrize("reset", [-50.0, -55.0, 0.0, -55.0000001])  # the last one is the threshold in float32
def test_a_reset_that_is_not_below_the_threshold_is_refused(model: Any, reset: float) -> None:
    given = model(v_reset_mv=reset, v_threshold_mv=-55.0)
    with pytest.raises(InvalidArgument, match=rf"v_reset_mv={reset}: must be below v_threshold_mv=-55\.0"):
        Network().population("c", 1, given)
    Network().population("c", 1, model(v_threshold_mv=-75.0, v_reset_mv=-80.0))  # below the rest: fires by itself


def test_so_it_is_for_models_with_a_peak() -> None:
    with pytest.raises(InvalidArgument, match=r"v_reset_mv=10\.0: must be below v_peak_mv=0\.0"):
        Network().population("c", 1, adex(v_reset_mv=10.0))
    with pytest.raises(InvalidArgument, match=r"c_mv=30\.0: must be below v_peak_mv=30\.0"):
        Network().population("c", 1, izhikevich(c_mv=30.0))


@pytest.mark.parametrize("value", [0.0, -1.0])
@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model, name)
        for model in (adex, lif_alpha, lif_cond_exp, lif_delta, lif_exp, lif_exp_two)
        for name in model.parameters
        if name.startswith(("tau_", "c_m", "g_leak", "delta_t"))
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_time_constants_and_capacities_are_above_zero(model: Any, name: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=rf"{name}={value}: a number above 0"):
        Network().population("c", 1, model(**{name: value}))


def test_a_source_cannot_spike_more_than_once_in_a_step() -> None:
    Network(dt_ms=0.1).population("c", 1, poisson_source(rate_hz=10_000.0))
    with pytest.raises(InvalidArgument, match=r"rate_hz=10001\.0: more than one spike in a step of 0\.1 ms"):
        Network(dt_ms=0.1).population("c", 1, poisson_source(rate_hz=10_001.0))
