"""States that become infinite or NaN: the run stops, and the error says where."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import neuraxis.launch
from neuraxis.comm import DistributedContext
from neuraxis.engine.cpu.advance import is_check_step
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda.shard import CudaShard
from neuraxis.engine.placement import place
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import state_hash
from neuraxis.engine.tables import DONE
from neuraxis.errors import InvalidArgument, NeuraxisError, NumericalInstability
from neuraxis.network import AllToAll, Network, OneToOne, neuron_model
from neuraxis.network.models import lif_exp, spike_source
from neuraxis.simulation import LockstepExecutor, Simulation
from tests.engine.cuda.twin import TwinDevice, compiler

DT = 0.1

CHECKS = [t for t in range(1, 1000) if is_check_step.py_func(t)]  # steps in which states are looked at in every run


def look_after(step: int) -> int:
    """Return the first step, from `step` on, in which states are looked at."""
    return next(t for t in CHECKS if t >= step)


A, B, C = look_after(32), look_after(48), look_after(300)


@neuron_model(states={"count": 0, "calm": 0.0, "v": 1.0}, receptors=("input",), parameters={"growth": 1.0, "sign": 1.0})
def growing(count, calm, v, input, growth, sign):
    """Grows by a factor; `input` makes it grow at once."""
    v = v * growth + sign * input * 1e30 * 1e30
    return v > 3e38, count + 1, calm, v


@neuron_model(states={"a": 0.0, "b": 0.0}, receptors=("input",))
def undefined(a, b, input):
    return False, a + input, input / input if input > 0.0 else (a - a) / (input * 0.0) if input < 0.0 else b


def kicked(steps: dict[int, int], n: int = 3000, **model: float) -> Network:
    """`n` neurons in "cells" behind some that stay finite; neuron i is kicked so that it diverges in step steps[i]."""
    network = Network(dt_ms=DT, seed=1)
    source = network.population("source", n, spike_source)
    network.population("others", 100, lif_exp)
    cells = network.population("cells", n, growing(**model))
    ids = np.array(list(steps))
    network.spikes(source, (np.array(list(steps.values())) - 1) * DT, ids)
    network.connect(source, cells, OneToOne(), weight=1.0, delay_ms=DT)
    network.record(cells)
    return network


def raised_by(simulation: Simulation, time_ms: float) -> NumericalInstability:
    with pytest.raises(NumericalInstability) as caught:
        simulation.run(time_ms)
    return caught.value


def facts(error: NumericalInstability) -> tuple[Any, ...]:
    return error.population, error.neuron, error.state, error.value, error.step, round(error.time_ms, 9)


@neuron_model(states={"count": 0, "v": 0.0}, receptors=("input",))
def recovering(count, v, input):
    """Is infinite for one step when it gets input."""
    return False, count + 1, input * 1e30 * 1e30 if input > 0.0 else 0.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_recorded_value_that_is_not_finite_is_noticed_in_any_step(workers: int) -> None:
    def network(recorded: list[int]) -> Network:
        network = Network(dt_ms=DT, seed=1)
        source = network.population("source", 3000, spike_source)
        network.population("others", 100, lif_exp)
        cells = network.population("cells", 3000, recovering)
        network.spikes(source, [(A + 4) * DT, (A + 2) * DT], [2900, 17])
        network.connect(source, cells, OneToOne(), weight=1.0, delay_ms=DT)
        network.record(cells, "v", every_ms=DT, subset=recorded)
        network.record(cells, "count", every_ms=DT)
        return network

    assert not {A + 3, A + 5} & set(CHECKS)
    with Simulation(network([2900, 17, 5]), workers) as simulation:
        assert facts(raised_by(simulation, 30.0))[:5] == ("cells", 17, "v", np.inf, A + 3)
    with Simulation(network([2900, 5]), workers) as simulation:
        assert facts(raised_by(simulation, 30.0))[:5] == ("cells", 2900, "v", np.inf, A + 5)
    with Simulation(network([5]), workers) as simulation:
        simulation.run(30.0)  # which is documented
    with Simulation(network([17]), workers, check_finite=False) as simulation:
        simulation.run(30.0)
        assert np.isinf(simulation.samples("cells", "v")[1]).any()


def test_the_error_names_the_first_state_and_advises() -> None:
    with Simulation(kicked({2500: B, 2100: B, 70: B + 1})) as simulation:
        error = raised_by(simulation, 30.0)
        assert facts(error) == ("cells", 2100, "v", np.inf, B, round(B * DT, 9))
        for word in (
            "'cells'",
            "neuron 2100",
            "v ",
            "inf",
            f"noticed at {B * DT:g} ms",
            f"step {B};",
            "one step of 16",
            "dt_ms",
            "parameters",
            "weights",
            "check_finite=False",
        ):
            assert word in str(error), word
        assert isinstance(error, NeuraxisError)
        assert isinstance(error, FloatingPointError)
        again = pickle.loads(pickle.dumps(error))
        assert facts(again) == facts(error)
        assert str(again) == str(error)


def test_the_simulation_stays_open_and_goes_on_once_its_states_are_finite(tmp_path: Any) -> None:
    with Simulation(kicked({1: B}, n=5)) as simulation:
        simulation.run(2.0)
        simulation.save(tmp_path)
        raised_by(simulation, 8.0)
        assert simulation.steps >= B
        assert np.isinf(simulation.state("cells", "v")[1])
        assert 1 in simulation.spikes("cells")[1]
        assert facts(raised_by(simulation, 2.0))[:3] == ("cells", 1, "v")
        simulation.set_state("cells", "v", 0.0)
        simulation.run(1.0)
        simulation.restore(tmp_path)
        assert simulation.time_ms == 2.0
        assert facts(raised_by(simulation, 8.0))[:5] == ("cells", 1, "v", np.inf, B)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_number_of_workers_reports_the_same(workers: int) -> None:
    network = kicked({2500: C, 2100: C, 400: C + 1, 70: C + 200}, sign=-1.0)
    with Simulation(network) as simulation:
        expected = raised_by(simulation, 100.0)
    with Simulation(network, workers=workers) as simulation:
        found = raised_by(simulation, 100.0)
        assert np.isneginf(simulation.state("cells", "v")[2100])
    assert facts(found) == facts(expected) == ("cells", 2100, "v", -np.inf, C, round(C * DT, 9))
    assert str(found) == str(expected)


@neuron_model(states={"step": 0, "v": 0.0}, parameters={"period": 2, "phase": 1})
def blinks(step, v, period, phase):
    """Is infinite in one step of each period, and finite in all others."""
    step = step + 1
    return False, step, float(step) * 1e38 * 1e38 if step % period == phase else 0.0


def blinking(period: int, phase: int = 1) -> Network:
    network = Network(dt_ms=DT)
    network.population("cells", 3, blinks(period=period, phase=phase))
    return network


def test_one_step_in_each_16_is_looked_at_and_no_period_escapes() -> None:
    assert [t // 16 for t in CHECKS] == list(range(len(CHECKS)))
    assert max(later - t for t, later in pairwise(CHECKS)) <= 31  # so a lasting one is noticed at most 30 steps later
    for period in (2, 3, 4, 8, 16, 32, 48):
        for phase in range(period):
            assert any(t % period == phase for t in range(1, 16 * 400) if is_check_step.py_func(t)), (period, phase)


@pytest.mark.parametrize(("period", "phase"), [(2, 0), (2, 1), (16, 0), (16, 1)])
def test_a_state_that_is_infinite_now_and_then_is_noticed(period: int, phase: int) -> None:
    with Simulation(blinking(period, phase)) as simulation:
        error = raised_by(simulation, 99.0)
    assert error.step == next(t for t in CHECKS if t % period == phase)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_last_step_of_each_call_is_looked_at(workers: int) -> None:
    assert not any(is_check_step.py_func(t) for t in (3, 12, 13, 14, 15))
    network = kicked({3: 12, 2: 12, 4: 13}, n=2000)
    with Simulation(network, workers=workers) as simulation:
        simulation.step(3)
        assert facts(raised_by(simulation, 1.2)) == ("cells", 2, "v", np.inf, 15, 1.5)
        with pytest.raises(NumericalInstability, match=r"neuron 2 .* at 1\.6 ms"):
            simulation.step(1)
        with pytest.raises(NumericalInstability, match=r"neuron 2 .* at 1\.7 ms"):
            simulation.advance(1)


def test_non_finite_states_are_not_saved(tmp_path: Any) -> None:
    network = kicked({3: 12, 2: 12}, n=5)
    with Simulation(network) as simulation:
        raised_by(simulation, 1.5)
        with pytest.raises(NumericalInstability) as caught:
            simulation.save(tmp_path)
        assert facts(caught.value) == ("cells", 2, "v", np.inf, 15, 1.5)
        assert not any(tmp_path.iterdir())
        simulation.set_state("cells", "v", 0.0)
        simulation.save(tmp_path)
    with Simulation(network, check_finite=False) as simulation:
        simulation.run(1.5)
        simulation.save(tmp_path)


def test_whether_states_are_checked_is_no_matter_of_the_network() -> None:
    network = kicked({1: 10}, n=5)
    assert not hasattr(network, "check_finite")
    with pytest.raises(AttributeError):
        network.checks_finite = False  # type: ignore[misc]
    with Simulation(network, check_finite=False) as simulation:
        simulation.run(3.0)
        again = simulation.network.copy()
        assert again == network == simulation.network
    with Simulation(again) as simulation:
        raised_by(simulation, 3.0)


def test_the_error_does_not_claim_more_than_it_knows() -> None:
    """Two neurons diverge between two checks; the error names the lower one, which was not the first."""
    before, noticed = CHECKS[2], CHECKS[3]
    assert noticed - before > 3
    with Simulation(kicked({70: before + 2, 50: before + 3})) as simulation:
        error = raised_by(simulation, 30.0)
    assert facts(error)[:5] == ("cells", 50, "v", np.inf, noticed)
    assert f"is inf, noticed at {noticed * DT:g} ms (step {noticed}; it may have become so before" in str(error)


def test_an_infinity_between_two_checks_can_pass_unnoticed() -> None:
    """The reservation that the guarantees state."""
    passing = next(t for t in range(1, 100) if t not in CHECKS)
    with Simulation(blinking(10_000, passing)) as simulation:
        simulation.run(20.0)
    with Simulation(blinking(10_000, passing)) as simulation:
        raised_by(simulation, passing * DT)  # the last step of a call is checked


def test_growth_beyond_float32_is_noticed_at_the_next_look() -> None:
    network = Network(dt_ms=DT)
    network.population("cells", 2, growing(growth=10.0))
    with Simulation(network) as simulation:
        error = raised_by(simulation, 100.0)
    step = look_after(39)  # 10 ** 38 is the largest power of 10 in float32
    assert facts(error) == ("cells", 0, "v", np.inf, step, round(step * DT, 9))


@pytest.mark.parametrize(("weight", "value"), [(2.0, None), (-2.0, np.nan)])
def test_nan_is_detected(weight: float, value: float | None) -> None:
    network = Network(dt_ms=DT)
    source = network.population("source", 1, spike_source)
    cells = network.population("cells", 3, undefined)
    network.connect(source, cells, AllToAll(), weight=weight, delay_ms=DT)
    network.spikes(source, [1.0], [0])
    with Simulation(network) as simulation:
        if value is None:
            simulation.run(5.0)
        else:
            error = raised_by(simulation, 5.0)
            assert (error.population, error.neuron, error.state, error.step) == ("cells", 0, "b", look_after(11))
            assert np.isnan(error.value)


def test_the_check_can_be_turned_off() -> None:
    network = kicked({1: 10}, n=5)
    prints = []
    for workers in (1, 2):
        with Simulation(network, workers=workers, check_finite=False) as simulation:
            simulation.run(3.0)
            assert np.isinf(simulation.state("cells", "v")[1])
            prints.append(simulation.fingerprint())
    assert prints[0] == prints[1]
    with Simulation(network) as simulation:
        raised_by(simulation, 3.0)
    with pytest.raises(TypeError, match="check_finite=1"):
        Simulation(network, check_finite=1)  # type: ignore[arg-type]


def test_the_check_changes_no_bit() -> None:
    network = kicked({1: 100}, n=2000)
    network.poisson("others", rate_hz=5000.0, weight=80.0)
    prints = []
    for check in (True, False):
        with Simulation(network, check_finite=check) as simulation:
            simulation.run(5.0)
            prints.append(simulation.fingerprint())
    assert prints[0] == prints[1]


def seen_by_a_rank(backend: str) -> list[tuple[Any, ...]]:
    with (
        DistributedContext(backend=backend) as context,
        Simulation(kicked({2500: 12, 2100: 12}), executor=LockstepExecutor(context.world)) as simulation,
    ):
        at_the_end = facts(raised_by(simulation, 1.5))
    with (
        DistributedContext(backend=backend) as context,
        Simulation(kicked({2500: A, 2100: A, 70: A + 1}), executor=LockstepExecutor(context.world)) as simulation,
    ):
        return [at_the_end, facts(raised_by(simulation, 10.0))]


def test_every_rank_in_lockstep_raises_the_same() -> None:
    for found in neuraxis.launch.run(seen_by_a_rank, 2, "shm", timeout=100):
        assert found == [
            ("cells", 2100, "v", np.inf, 15, 1.5),
            ("cells", 2100, "v", np.inf, A, round(A * DT, 9)),
        ]


@pytest.mark.skipif(compiler() is None, reason="the twin of a GPU is compiled with g++")
@pytest.mark.parametrize("check", [True, False])
def test_the_kernels_for_a_gpu_note_the_same_as_the_cpu(check: bool) -> None:
    network = kicked({250: A, 210: A, 70: A + 1}, n=300, sign=-1.0).final_copy(check_finite=check)
    placement, found = place(network, 1), []
    for kind, options in ((Shard, {}), (CudaShard, {"device": TwinDevice()})):
        shard = kind(network, placement, 0, SpikeBuffers.private(network, placement), **options)
        for stop, check_step in ((20, 20), (A - 1, 0), (60, 0), (61, 0), (62, 62), (500, 0)):
            shard.begin_check(check_step)
            assert shard.advance(stop, 0, 0) == DONE
            found.append((stop, shard.unstable))
        found.append((0, [float(state_hash(shard))]))
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert not is_check_step.py_func(61)
    assert not is_check_step.py_func(62)
    seen: dict[int, list[float]] = {20: [], A - 1: [], 60: [A, 2, 210, 2, -np.inf], 61: [], 62: [62, 2, 70, 2, -np.inf]}
    seen[500] = [look_after(63), 2, 70, 2, -np.inf]
    assert dict(found[: half - 1]) == {stop: one if check else [] for stop, one in seen.items()}


@pytest.mark.gpu
def test_a_gpu_raises_the_same() -> None:
    with Simulation(kicked({2500: B, 2100: B, 70: B + 1}), device="cuda") as simulation:
        assert facts(raised_by(simulation, 30.0)) == ("cells", 2100, "v", np.inf, B, round(B * DT, 9))
    for period in (2, 16):
        with Simulation(blinking(period), device="cuda") as simulation:
            assert facts(raised_by(simulation, 100.0))[4] in CHECKS
    with Simulation(kicked({3: 12, 2: 12}, n=5), device="cuda") as simulation:
        assert facts(raised_by(simulation, 1.5)) == ("cells", 2, "v", np.inf, 15, 1.5)
    with Simulation(kicked({1: 10}, n=5), device="cuda", check_finite=False) as simulation:
        simulation.run(3.0)
        assert np.isinf(simulation.state("cells", "v")[1])


@pytest.mark.parametrize("value", [1e39, -1e300])
def test_numbers_beyond_float32_are_refused_where_they_are_given(value: float) -> None:
    with pytest.raises(InvalidArgument, match="float32"):
        lif_exp(tau_m_ms=value)
    with pytest.raises(InvalidArgument, match="float32"):
        neuron_model(states={"v": value})
    for current in (value, [1.0, value]):
        network = Network()
        network.population("cells", 2, lif_exp)
        with pytest.raises(InvalidArgument, match="float32"):
            network.current("cells", current)
