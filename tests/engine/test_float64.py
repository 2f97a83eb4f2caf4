"""Networks with precision="float64": arithmetic, states and weights against exact results and plain Python."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit

from neuraxis.engine import arithmetic as narrow_kernels
from neuraxis.engine import arithmetic64 as kernels
from neuraxis.errors import CheckpointError, InvalidArgument, NumericalInstability
from neuraxis.network import STDP, AllToAll, Network, NeuronModel, Normal, Uniform, arithmetic, neuron_model
from neuraxis.network.models import adex, izhikevich, lif_alpha, lif_exp_two, rate_linear, spike_source
from neuraxis.network.models.catalogue import built_in_models
from neuraxis.simulation import Simulation
from tests.engine.running import adder, give_spikes, two_adders

Array = np.ndarray[Any, Any]

FUNCTIONS = ("exp", "log", "expm1", "exprel", "log1p", "tanh", "sin", "cos")


@njit
def functions_of(x: Array) -> Array:
    out = np.empty((8, len(x)))
    for i in range(len(x)):
        out[0, i], out[1, i] = kernels.exp(x[i]), kernels.log(x[i])
        out[2, i], out[3, i] = kernels.expm1(x[i]), kernels.exprel(x[i])
        out[4, i], out[5, i] = kernels.log1p(x[i]), kernels.tanh(x[i])
        out[6, i], out[7, i] = kernels.sin(x[i]), kernels.cos(x[i])
    return out


@njit
def power_of(x: Array, y: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.power(x[i], y[i])
    return out


def test_both_precisions_have_the_same_functions():
    assert {*narrow_kernels.__all__} - {*kernels.__all__} == {"power_of_positive"}  # for plastic weights only


def test_functions_are_close_to_exact_ones():
    rng = np.random.default_rng(1)
    small = 10.0 ** rng.uniform(-20, 0, 300)
    x = np.concatenate([rng.uniform(-700, 700, 300), rng.uniform(-5, 5, 600), 1.0 + 0.4 * (small - 0.5), small, -small])
    for name, found in zip(FUNCTIONS, functions_of(x), strict=True):
        possible = x > {"log": 0.0, "log1p": -1.0}.get(name, -np.inf)
        exact = np.array([getattr(arithmetic, name)(one) for one in x[possible].tolist()])
        ulps = np.abs(found[possible] - exact) / np.spacing(np.abs(exact))
        assert ulps.max() < (3 if name in ("expm1", "exprel", "tanh") else 2), name  # exact ones are rounded, too
    base, exponent = 10.0 ** rng.uniform(-5, 5, 500), rng.uniform(-20, 20, 500)
    exact = np.array([arithmetic.power(*one) for one in zip(base.tolist(), exponent.tolist(), strict=True)])
    bound = 2.0**-52 * (2 + np.abs(exponent * np.log(base)))
    assert (np.abs(power_of(base, exponent) / exact - 1) < bound).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_at_special_values_are_those_of_numpy():
    x = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, -1.0, 800.0, -800.0, 1e-310, -745.0, 709.7])
    for name, found in zip(FUNCTIONS, functions_of(x), strict=True):
        if name == "exprel":
            expected = np.where(x == 0, 1.0, np.where(np.isposinf(x), np.inf, np.expm1(x) / x))
        else:
            expected = getattr(np, name)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-14, err_msg=name)
        assert np.array_equal(np.signbit(found[~np.isnan(found)]), np.signbit(expected[~np.isnan(found)])), name
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -2.0, 0.5, -8.0]
    base, exponent = (one.ravel() for one in np.meshgrid(values, [*values, 3.0, -3.0, 1 / 3]))
    np.testing.assert_allclose(power_of(base, exponent), np.power(base, exponent), rtol=1e-15)


def python_function(model: NeuronModel) -> Any:
    """The function of a model as Python runs it, in float64."""
    names = {"exp": math.exp, **model.globals_used}
    tree = ast.Module([ast.parse(model.source).body[0]], [])
    exec(compile(tree, model.name, "exec"), names)
    return names[model.name]


@pytest.mark.parametrize(
    ("model", "current", "tolerance"),
    [
        (lif_exp_two(tau_m_ms=Uniform(8.0, 12.0), refractory_ms=[2.0, 1.0, 3.0, 2.0]), 600.0, 0.0),
        (lif_alpha(), 600.0, 0.0),
        (izhikevich(d_mv=[2.0, 4.0, 6.0, 8.0]), 10.0, 0.0),
        (adex(a_ns=Normal(4.0, 1.0)), 800.0, 1e-9),  # another exp
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_python_computes_the_same(model: NeuronModel, current: float, tolerance: float):
    network = Network(dt_ms=0.1, seed=2, precision="float64")
    cells = network.population("cells", 4, model)
    used = cells.model
    network.current(cells, np.linspace(0.9, 1.1, 4) * current)
    network.record(cells)
    network.record(cells, "v_mv")
    function, voltages, spikes = python_function(used), np.zeros((600, 4)), []
    for neuron in range(4):
        own = {name: row.array[neuron].item() for name, row in used.rows.items()}
        given = {**dict.fromkeys(used.receptors, 0.0), **used.constants, **own}
        given |= {"current_pa": float(np.linspace(0.9, 1.1, 4)[neuron] * current), **used.states}
        for step in range(600):
            spike, *states = function(*[given[name] for name in used.arguments])
            given |= dict(zip(used.states, states, strict=True))
            voltages[step, neuron] = given["v_mv"]
            if spike:
                spikes.append((step + 1, neuron))
    with Simulation(network) as simulation:
        simulation.step(600)
        found = simulation.samples(cells, "v_mv")[1]
        times_ms, ids = simulation.spikes(cells)
    assert found.dtype == np.float64
    assert np.abs(found - voltages).max() <= tolerance
    assert list(zip(np.rint(times_ms / 0.1).astype(int).tolist(), ids.tolist(), strict=True)) == sorted(spikes)
    assert len(spikes) > 4


def test_built_in_models_have_no_constants_that_are_exact_in_float32_only():
    """A rounded literal, as 0.16666667, would be the largest error in float64."""
    found = set()
    for name, model in built_in_models().items():
        numbers = {one.value for one in ast.walk(ast.parse(model.source)) if isinstance(one, ast.Constant)}
        numbers |= set(model.globals_used.values())
        digits = {one: len(repr(one).split("e")[0].replace(".", "").strip("-0")) for one in numbers}
        found |= {(name, one) for one in numbers if 7 <= digits[one] <= 14}
    assert not found


def test_the_membrane_settles_at_rest():
    """Constants are not rounded to float32: `rest` is computed with the decay that the kernel uses."""
    network = Network(dt_ms=0.1, precision="float64")
    network.population("cells", 1, lif_exp_two, v_mv=-60.0)
    with Simulation(network) as simulation:
        simulation.run(500.0)
        assert abs(simulation.state("cells", "v_mv")[0] + 70.0) < 1e-11


def test_weights_have_the_bits_of_float64():
    network = Network(dt_ms=0.1, seed=5, precision="float64")
    senders = network.population("senders", 3, spike_source)
    sums = network.population("sums", 2, two_adders)
    learned = network.population("learned", 1, adder)
    weights = [[0.1, 1 / 3], [1e-4 * math.pi, 2.5], [0.7, 1e3 / 7]]
    network.connect(senders, sums, AllToAll(), weight=np.ravel(np.transpose(weights)), delay_ms=0.5)
    network.connect(senders, sums, AllToAll(), weight=-math.e, delay_ms=Uniform(0.1, 3.0), name="negative")
    rule = STDP.additive(w_max=1.0)
    network.connect(senders, learned, AllToAll(), weight=0.3, delay_ms=1.0, plasticity=rule)
    give_spikes(network, senders, [[1, 5], [1, 9], [3]])
    with Simulation(network) as simulation:
        simulation.step(60)
        plus, minus = simulation.state(sums, "plus"), simulation.state(sums, "minus")
        learned_sum = simulation.state(learned, "total")
    expected = 2 * np.array(weights[0]) + 2 * np.array(weights[1]) + np.array(weights[2])
    np.testing.assert_allclose(plus, expected, rtol=1e-13)
    np.testing.assert_allclose(minus, -5 * math.e, rtol=1e-13)
    np.testing.assert_allclose(learned_sum, 5 * float(np.float32(0.3)), rtol=1e-12)  # plastic weights are float32


@neuron_model(states={"seen": 0.0, "now": 0.0}, receptors=("input",), signals={"wave": 0.0})
def watching(seen, now, input, normal, random, wave, t_ms):
    return False, input + normal, random + wave + t_ms


def test_random_numbers_inputs_and_signals_are_those_of_float32():
    found = []
    for precision in ("float32", "float64"):
        network = Network(dt_ms=0.125, seed=3, precision=precision)
        network.rhythm("theta", 8.0)
        cells = network.population("cells", 1100, watching(wave="theta"))  # two blocks
        network.poisson(cells, rate_hz=4000.0, weight=0.5)
        network.poisson(cells, rate_hz=np.linspace(0.0, 9000.0, 1100), weight=0.25)
        with Simulation(network) as simulation:
            simulation.step(9)
            found.append([simulation.state(cells, name) for name in ("seen", "now")])
            simulation.silence(cells)
            simulation.step(3)
    for narrow, wide in zip(*found, strict=True):
        assert wide.dtype == np.float64
        np.testing.assert_allclose(narrow, wide, rtol=3e-7, atol=3e-7)
    assert np.ptp(found[0][0]) > 5


@neuron_model(states={"v": 1e30})
def growing(v):
    return False, v * 1e10 * v / v


def test_numbers_beyond_float32_are_possible_and_infinity_is_reported(tmp_path: Path):
    network = Network(precision="float64")
    network.population("cells", 3, growing)
    with Simulation(network) as simulation:
        simulation.step(3)
        assert simulation.state("cells", "v")[2] == pytest.approx(1e60)
        simulation.save(tmp_path / "state")
        with pytest.raises(NumericalInstability, match=r"inf|nan"):
            simulation.step(60)
    narrow = Network()
    narrow.population("cells", 3, growing)
    with Simulation(narrow) as simulation, pytest.raises(CheckpointError, match="precision"):
        simulation.restore(tmp_path / "state")


TABLE = tuple(1 / (k + 3) for k in range(70))
SMALL = (1 / 3, 1 / 7, 1 / 9)


@neuron_model(states={"v": 0.0, "w": 0.0, "n": 0})
def with_tables(v, w, n):
    return False, v + TABLE[n], w + SMALL[n % 3], n + 1


def test_tables_have_the_bits_of_float64():
    network = Network(precision="float64")
    network.population("cells", 2, with_tables)
    with Simulation(network) as simulation:
        simulation.step(5)
        assert simulation.state("cells", "v")[1] == ((((1 / 3) + 1 / 4) + 1 / 5) + 1 / 6) + 1 / 7
        assert simulation.state("cells", "w")[1] == ((((1 / 3) + 1 / 7) + 1 / 9) + 1 / 3) + 1 / 7


def test_continuous_connections_are_refused():
    network = Network(precision="float64")
    network.population("cells", 2, rate_linear)
    with pytest.raises(InvalidArgument, match=r"sum, exchange and save are float32.*precision=\"float32\""):
        network.connect_rates("cells", "cells", AllToAll(), weight=1.0)


def test_precision_is_checked_and_shown():
    with pytest.raises(InvalidArgument, match=r"precision='double'.*float32"):
        Network(precision="double")
    network = Network(precision="float64")
    cells = network.population("cells", 2, lif_exp_two)
    assert "float64" in str(network)
    assert network != Network()
    with pytest.raises(InvalidArgument, match="network in float64, not float32"):
        Network().population("cells", 2, cells.model)
