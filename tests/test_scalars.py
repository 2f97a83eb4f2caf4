"""NumPy scalars are accepted wherever a number is, with the same results as Python's numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from agreement import needed_votes
from roles import check_timeout

from neuraxis.arguments import is_number, is_whole, plain
from neuraxis.brain import Brain, BrainBuilder, BrainConfig, GlobalConfig
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.mesh.services import check_threads
from neuraxis.network import (
    STDP,
    AllToAll,
    Constant,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    HomeostaticScaling,
    LogNormal,
    Network,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
    neuron_model,
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
from neuraxis.request_reply import check_timeout as seconds
from neuraxis.simulation import ParallelExecutor, Simulation

SCALE = np.float32(0.5)  # a module's number that a model uses

# Ways to give a number n: a whole one in each way, any other in the last three.
WHOLE: list[Callable[[int], Any]] = [int, np.int64, np.int32, np.uint16, lambda n: np.array(n)]
REAL: list[Callable[[float], Any]] = [float, np.float64, np.float32, lambda x: np.array(x), lambda x: np.array(x, "f4")]
FLAG: list[Callable[[bool], Any]] = [bool, np.bool_, lambda b: np.array(b)]


def as_one(results: list[Any]) -> None:
    """All are equal, and nothing of NumPy is left in them."""
    assert all(one == results[0] for one in results), results
    assert len({str(one) for one in results}) == 1, results


def network(w: Callable[[int], Any], x: Callable[[float], Any], b: Callable[[bool], Any]) -> Network:
    """Every number that a network takes; all of them are exact in float32."""
    made = Network(dt_ms=x(0.125), seed=w(7))
    made.neuromodulator("level", baseline=x(0.5), tau_ms=x(64.0))
    made.rhythm("beat", frequency_hz=x(8.0), phase=x(0.25), floor=x(-0.5))
    made.population("a", w(4), lif_exp_two(tau_m_ms=x(20.0), refractory_ms=x(2.0), c_m_pf=w(200)), v_mv=x(-60.0))
    made.population("b", w(4), lif_delta(tau_m_ms=w(20)), refractory=w(1))
    every, one = x(16.0), x(1.0)
    rules = (
        AllToAll(autapses=b(False), groups=w(2)),
        PairwiseBernoulli(x(0.5), groups=w(2)),
        FixedInDegree(w(2), multapses=b(True), autapses=b(False)),
        FixedOutDegree(w(2)),
        FixedTotalNumber(w(5)),
        OneToOne(),
    )
    for rule in rules:
        made.connect("a", "b", rule, weight=x(0.5), delay_ms=x(0.25))
    for weight in (
        Constant(x(0.5)),
        Uniform(x(0.25), x(0.5)),
        Normal(x(0.5), x(0.125), low=x(0.0), high=x(1.0)),
        LogNormal(x(0.5), x(0.125), high=x(4.0)),
    ):
        made.connect("a", "b", OneToOne(), weight, delay_ms=w(1))
    for plasticity in (
        STDP(w_max=one, tau_plus_ms=x(16.0), tau_minus_ms=w(20), learning_rate=x(0.125), alpha=one, mu_plus=x(0.5)),
        STDP.power_law(w_max=one, mu=x(0.5), w0=one),
        RewardSTDP(w_max=one, a_plus=x(0.5), a_minus=x(0.25), every_ms=every, modulator="level", tau_forget_ms=x(64.0)),
        HomeostaticScaling(x(8.0), w_max=one, w_min=x(0.0), every_ms=every, strength=x(0.5)),
        TsodyksMarkram(u=x(0.5), tau_recovery_ms=x(64.0), tau_facilitation_ms=w(20)),
    ):
        made.connect("a", "b", OneToOne(), weight=x(0.5), plasticity=plasticity)
    made.poisson("a", rate_hz=x(64.0), weight=w(20), start_ms=x(1.0), stop_ms=w(9))
    made.current("a", x(256.0), start_ms=w(1), stop_ms=x(4.5))
    made.spikes("b", [x(1.0), x(2.5)], [w(0), w(1)])
    made.modulate("a", "level", amount=x(0.5), delay_ms=x(0.5))
    made.record("a", "v_mv", every_ms=x(0.5), subset=w(2))
    return made


def numbers(w: Callable[[int], Any], x: Callable[[float], Any], b: Callable[[bool], Any]) -> list[Any]:
    """Other places that take numbers, and what they make of them."""
    built = BrainBuilder("b", seed=w(3), dt_ms=x(0.125)).sensor("eye", w(8), groups=w(2), rate_hz=x(64.0))
    built.region("sheet", "cortex", neurons=w(60))
    built.pathway("eye", "sheet", x(1.0), weight=x(0.5), in_degree=w(4), topographic=b(False))
    one = GlobalConfig(seed=w(5), dt_ms=x(0.125))
    two = BrainConfig(
        parallel=b(True), workers=w(2), batch_tolerance_ms=x(0.125), checkpoint_every_ms=w(500),
        regions={"sheet": {"neurons": w(80)}},
    )  # fmt: skip
    return [
        built.spec(),
        *(msgspec.json.encode(config) for config in (one, two)),
        ParallelExecutor(w(2)).workers,
        needed_votes(w(100), x(0.75)),
        check_threads(w(3)),
        check_timeout(x(2.5)),
        check_timeout(w(2)),
        seconds(x(2.5)),
        *(repr(model(tau_m_ms=w(20))) for model in (lif_exp, lif_exp_two, lif_alpha, lif_delta)),
        repr(lif_cond_exp(g_leak_ns=x(16.5))),
        repr(adex(a_ns=w(4))),
        repr(izhikevich(a=x(0.5))),
        repr(poisson_source(rate_hz=w(20))),
    ]


@pytest.mark.parametrize("make", [network, numbers], ids=lambda one: one.__name__)
def test_every_number_can_be_numpys(make: Callable[..., Any]) -> None:
    ways = [(WHOLE[i], REAL[i], FLAG[i % len(FLAG)]) for i in range(len(WHOLE))]
    results = [make(*way) for way in ways]
    for one in zip(*results, strict=True) if isinstance(results[0], list) else [results]:
        as_one(list(one))


@pytest.mark.parametrize(("w", "x"), list(zip(WHOLE, REAL, strict=True)))
def test_interventions_take_numpy_scalars(w: Callable[[int], Any], x: Callable[[float], Any], tmp_path: Path) -> None:
    made = Network(dt_ms=0.125)
    made.neuromodulator("level")
    made.population("a", 4, lif_delta, v_mv=-60.0)
    made.record("a", "v_mv", every_ms=0.5)
    with Simulation(made, workers=w(1), checkpoint_every_ms=x(500.0)) as simulation:
        simulation.run(x(1.5))
        simulation.run(w(1))
        simulation.step(w(2))
        simulation.advance(w(1))
        simulation.inject("a", [x(5.0)], [w(2)])
        simulation.set_state("a", "v_mv", x(-62.5))
        simulation.set_state("a", "refractory", w(2))
        simulation.release("level", x(0.5))
        assert (simulation.steps, simulation.level("level")) == (23, 0.5)
        assert simulation.state("a", "v_mv").tolist() == [-62.5] * 4


@pytest.mark.parametrize(("w", "x"), list(zip(WHOLE, REAL, strict=True)))
def test_a_models_own_numbers_can_be_numpys(w: Callable[[int], Any], x: Callable[[float], Any]) -> None:
    @neuron_model(
        states={"v_mv": x(0.5), "count": w(3)},
        receptors=("input",),
        parameters={"tau_ms": x(16.0), "most": w(9)},
        signals={"gain": x(0.5)},
        constants=lambda p, dt_ms: {"leak": x(0.25)},
    )
    def counting(v_mv, count, input, tau_ms, most, gain, leak):
        return v_mv > tau_ms, v_mv * leak + input * gain * SCALE, count + 1 if count < most else count

    made = Network()
    made.population("c", 2, counting(tau_ms=w(8)))
    with Simulation(made) as simulation:
        simulation.step(2)
        assert simulation.state("c", "count").tolist() == [5, 5]
        assert simulation.state("c", "count").dtype == np.int32
        assert simulation.state("c", "v_mv").tolist() == [0.5 / 16] * 2


def test_a_brain_takes_numpy_scalars() -> None:
    spec = BrainBuilder("b").sensor("eye", 4).region("sheet", "cortex", neurons=60).pathway("eye", "sheet", 1.0).spec()
    with Brain(spec, workers=np.int64(1), batch_tolerance_ms=np.float32(0.5)) as brain:
        brain.run(np.int64(2))
        brain.step(None, np.int32(3))
        assert brain.steps == 23


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_training_takes_numpy_scalars() -> None:
    from neuraxis.training.parallel.compression import TopK
    from neuraxis.training.server.staleness import Membership

    assert TopK(fraction=np.float32(0.5)).fraction == 0.5
    assert (
        Membership("async", staleness=np.int64(3), workers=np.int32(2), straggler_timeout=np.float32(2.0)).staleness
        == 3
    )


@pytest.mark.parametrize("wrong", [True, np.bool_(True), "3", None, [3], np.array([3]), 3j])
def test_non_numbers_are_refused(wrong: Any) -> None:
    assert not is_number(wrong)
    assert not is_whole(wrong)
    with pytest.raises((InvalidType, InvalidArgument)):  # a list and an array are values of the neurons: one for three
        Network().population("a", 3, lif_exp(tau_m_ms=wrong))
    with pytest.raises((InvalidType, InvalidArgument)):
        Network(dt_ms=wrong)
    with pytest.raises((InvalidType, InvalidArgument)):
        Network().population("a", wrong, lif_exp)


def test_plain_numbers_are_pythons_own() -> None:
    for value, kind in ((np.float32(0.5), float), (np.int8(3), int), (np.array(2), int), (np.bool_(True), bool)):
        assert type(plain(value)) is kind
    assert plain("text") == "text"
    assert is_number(np.longdouble(2.5))
    assert not is_whole(3.0)
