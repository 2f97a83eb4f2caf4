"""Models of equations when they run: exact solutions, orders of convergence, the order of a step, and equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from neuraxis.network import Explicit, Network, NeuronModel, equations
from neuraxis.network.models import lif_exp_two, spike_source
from neuraxis.network.symbolic.propagators import LinearStep, exponential_less_one
from neuraxis.simulation import Simulation
from tests.engine.running import give_spikes, trains_of, values_of


def run(
    model: NeuronModel,
    steps: int,
    states: tuple[str, ...],
    dt_ms: float = 0.1,
    precision: str = "float32",
    **initial: Any,
) -> Any:
    """Run one neuron; return its states by (state, step), float64."""
    network = Network(dt_ms=dt_ms, precision=precision)
    cells = network.population("cells", 1, model, **initial)
    for state in states:
        network.record(cells, state, every_ms=dt_ms)
    with Simulation(network) as simulation:
        simulation.step(steps)
        return np.array([values_of(simulation, cells, state)[:, 0] for state in states])


class TestExponentials:
    @given(st.integers(1, 5), st.integers(0, 2**31), st.floats(-3.0, 1.5))
    @settings(max_examples=60, deadline=None)
    def test_as_scipy(self, n: int, seed: int, size: float) -> None:
        matrix = np.random.default_rng(seed).normal(size=(n, n)) * 10.0**size
        wanted = expm(matrix) - np.eye(n)
        got = np.array(exponential_less_one(matrix.tolist(), 1.0))
        assert np.allclose(got, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max() + 1e-13)

    @given(st.integers(1, 4), st.integers(1, 2), st.integers(0, 2**31), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_inputs_as_scipy(self, n: int, inputs: int, seed: int, singular: bool) -> None:
        rng = np.random.default_rng(seed)
        a, b = rng.normal(size=(n, n)), rng.normal(size=(n, inputs))
        if singular:
            a[0] = 0.0
        wide = np.vstack([np.hstack([a, b]), np.zeros((inputs, n + inputs))])
        wanted = (expm(0.3 * wide) - np.eye(n + inputs))[:n]
        entries = {(i, j): f"e{i}{j}" for i in range(n) for j in range(n + inputs)}
        results = {(i, j): f"r{i}{j}" for i in range(n) for j in range(n + inputs)}
        values = {name: float(wide[place]) for place, name in entries.items()}
        got = LinearStep(entries, n, results)(values, 0.3)
        for place, name in results.items():
            assert got[name] == pytest.approx(wanted[place], rel=1e-12, abs=1e-14)
        # Arrays, of which one element is another, give the same bits for each element.
        changed = {**values, "e00": np.array([values["e00"], 0.5, values["e00"]])}
        arrays = LinearStep(entries, n, results)(changed, 0.3)
        assert all(arrays[name][2] == got[name] for name in results.values())

    def test_equal_and_extreme_time_constants(self) -> None:
        equal = exponential_less_one([[-0.5, 1.0], [0.0, -0.5]], 0.1)
        assert equal[0][1] == pytest.approx(0.1 * np.exp(-0.05), rel=1e-15)
        near = exponential_less_one([[-0.5, 1.0], [0.0, -0.5 - 1e-13]], 0.1)
        assert near[0][1] == pytest.approx(equal[0][1], rel=1e-12)
        assert exponential_less_one([[-1e9]], 0.1) == [[-1.0]]
        assert exponential_less_one([[-1e-18]], 0.1) == [[pytest.approx(-1e-19, rel=1e-15)]]


CELL = equations(
    """
    dv/dt = (e_rest - v)/tau_m + (i_ex + i_in + i)/c_m : mV (unless refractory)
    di_ex/dt = -i_ex/tau_ex : pA
    di_in/dt = -i_in/tau_in : pA
    """,
    threshold="v >= v_t", reset="v = v_r", refractory="2*ms", initial={"v": "e_rest"}, method="exact",
    parameters={"e_rest": "-70*mV", "tau_m": "10*ms", "c_m": "250*pF", "tau_ex": "2*ms", "tau_in": "10*ms",
                "v_t": "-55*mV", "v_r": "-70*mV"},
    receptors={"excitatory": "i_ex", "inhibitory": "i_in"},
)  # fmt: skip


def driven(model: NeuronModel, state: str = "v_mv", workers: int = 1) -> Any:
    """Run 40 neurons with given spikes and recurrent synapses; return spikes, a state, and the fingerprint."""
    rng = np.random.default_rng(5)
    network = Network(dt_ms=0.1, seed=2)
    source = network.population("source", 20, spike_source)
    cells = network.population("cells", 40, model)
    give_spikes(network, source, [sorted(rng.choice(1500, 60, replace=False) + 1) for _ in range(20)])
    pre, post = rng.integers(0, 20, 400), np.repeat(np.arange(40), 10)
    weights = np.where(pre < 14, 160.0, -120.0)
    for sign in (1, -1):
        here = weights * sign > 0
        network.connect(source, cells, Explicit(pre[here], post[here]), weight=weights[here], delay_ms=0.3)
    network.connect(cells, cells, Explicit(np.arange(40), (np.arange(40) * 7 + 1) % 40), weight=40.0, delay_ms=1.5)
    network.current(cells, np.linspace(0.0, 400.0, 40), start_ms=20.0)
    network.record(cells, "spikes")
    network.record(cells, state, every_ms=0.1)
    with Simulation(network, workers=workers) as simulation:
        simulation.step(1500)
        return trains_of(simulation, cells), values_of(simulation, cells, state), simulation.fingerprint()


def test_exact_as_the_built_in_model_and_the_same_bits_on_two_workers() -> None:
    spikes, v, fingerprint = driven(CELL)
    wanted, v_wanted, _ = driven(lif_exp_two(tau_syn_ex_ms=2.0, tau_syn_in_ms=10.0))
    assert sum(map(len, wanted)) > 100
    assert spikes == wanted
    assert np.abs(v - v_wanted).max() < 1e-3
    assert driven(CELL, workers=2)[2] == fingerprint


def test_exact_against_matrix_exponentials_and_the_fixed_point() -> None:
    """An alpha current into a membrane with the same time constant, and slow adaptation, which acts on each other."""
    model = equations(
        """
        dv/dt = (e_rest - v)/tau + (x - w)/c : mV
        dx/dt = (y - x)/tau : pA
        dy/dt = -y/tau : pA
        dw/dt = (a*(v - e_rest) - w)/tau_w : pA
        dz/dt = i/tau : pA
        e_rest = -65*mV : mV
        tau = 10*ms : ms
        tau_w = 20*second : second
        a = 2*nS : nS
        c = 250*pF : pF
        """,
        initial={"v": -60, "y": 300}, method="exact",
    )  # fmt: skip
    names = ("v_mv", "x_pa", "y_pa", "w_pa", "z_pa")
    got, precise = run(model, 2000, names), run(model, 2000, names, precision="float64")
    a = np.array([[-0.1, 1 / 250, 0, -1 / 250], [0, -0.1, 0.1, 0], [0, 0, -0.1, 0], [2 / 2e4, 0, 0, -1 / 2e4]])
    x, step = np.array([5.0, 0.0, 300.0, 0.0]), expm(0.1 * a)
    for k in range(2000):
        x = step @ x
        if k % 100 == 99:
            wanted = x + np.array([-65.0, 0, 0, 0])
            assert np.abs(got[:4, k] - wanted).max() < 5e-4, k  # float32 near -65 mV
            assert np.abs(precise[:4, k] - wanted).max() < 1e-11, k
    assert (got[4] == 0.0).all()
    rest = run(model, 100, ("v_mv",), v_mv=-65.0, y_pa=0.0)
    assert np.abs(rest + 65.0).max() < 2e-5  # stays where it is in equilibrium


def test_what_depends_on_a_held_variable_sees_it_at_rest() -> None:
    """While v is held, w goes towards what the held v asks for: exact, and in every method as in small steps."""
    text = "dv/dt = (5 - v)/(10*ms) : 1 (unless refractory)\ndw/dt = (v - w)/(3*ms) : 1"
    found = {}
    for method in ("exact", "exponential_euler", "rk2", "rk4", "euler"):
        model = equations(text, threshold="v > 1", reset="v = 0", refractory=4.0, method=method, initial={"w": 0.5})
        found[method] = run(model, 400, ("v", "w"), dt_ms=0.1)
    v, w = found["exact"]
    held = np.flatnonzero((v[1:] == 0.0) & (v[:-1] == 0.0))
    assert len(held) > 100
    assert np.allclose(w[1:][held], w[:-1][held] * np.exp(-0.1 / 3.0), rtol=1e-5)
    for method, tolerance in (("rk4", 1e-5), ("rk2", 1e-3), ("exponential_euler", 2e-2), ("euler", 2e-2)):
        assert np.abs(found[method][1] - w).max() < tolerance, method


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("exponential_euler", 1), ("rk2", 2), ("rk4", 4)])
def test_orders_of_convergence(method: str, order: int) -> None:
    """A predator and its prey, driven by a function of time (not for `exponential_euler`, whose order is 1 anyway)."""
    model = equations(
        "dx/dt = x*(1 - y)/(2*ms) : 1\ndy/dt = (y*(x - 1) + 0.2*cos(t/ms))/(2*ms) : 1", method=method,
        initial={"x": 1.5, "y": 0.5},
    )  # fmt: skip

    def slope(t: float, z: Any) -> Any:
        return np.array([z[0] * (1 - z[1]), z[1] * (z[0] - 1) + 0.2 * np.cos(t)]) / 2

    z, h = np.array([1.5, 0.5]), 1 / 256
    for k in range(4 * 256):
        t = k * h
        a = slope(t, z)
        b = slope(t + h / 2, z + h / 2 * a)
        c = slope(t + h / 2, z + h / 2 * b)
        z = z + h / 6 * (a + 2 * b + 2 * c + slope(t + h, z + h * c))
    coarse, fine = (0.5, 0.25) if order == 4 else (0.125, 0.0625)
    errors = [np.abs(run(model, round(4 / dt), ("x", "y"), dt_ms=dt)[:, -1] - z).max() for dt in (coarse, fine)]
    assert order - 0.35 < np.log2(errors[0] / errors[1]) < order + 0.8
    assert errors[1] < 0.05


def test_the_order_of_a_step_is_integrate_input_threshold_reset() -> None:
    model = equations(
        "dv/dt = -v/(10*ms) : 1 (unless refractory)\ndg/dt = -g/(10*ms) : 1", threshold="v > 1.5", refractory=0.3,
        reset="v = -1; g += v", receptors={"onto_v": "v", "onto_g": "g += 2*weight"}, method="exact",
    )  # fmt: skip
    network = Network(dt_ms=0.1)
    source = network.population("source", 2, spike_source)
    cells = network.population("cells", 1, model, v=1.0)
    give_spikes(network, source, [[2, 4], [2, 4]])
    for receptor, one in (("onto_v", 0), ("onto_g", 1)):
        network.connect(source, cells, Explicit([one], [0]), weight=1.0, delay_ms=0.1, synapse=receptor)
    network.record(cells, "spikes")
    for state in ("v", "g"):
        network.record(cells, state, every_ms=0.1)
    with Simulation(network) as simulation:
        simulation.step(8)
        v, g = (values_of(simulation, cells, state)[:, 0] for state in ("v", "g"))
        spikes = trains_of(simulation, cells)[0]
    f = np.exp(-0.01)
    assert spikes == [3]  # the input of step 3 is seen by the threshold of step 3
    assert np.allclose(v, [f, f**2, -1, -1, -1, -1, -f, -(f**2)], rtol=1e-5)  # held in steps 4 to 6, also for its input
    g3 = 2.0 - 1.0  # the weight, then the reset, which sees the new v
    assert np.allclose(g[2:5], [g3, g3 * f, g3 * f**2 + 2.0], rtol=1e-5)  # g takes its input while v is held


def test_units_that_are_not_those_of_the_package_are_converted() -> None:
    model = equations(
        """
        dv/dt = (r*I - v)/tau : mV
        dr_e/dt = (rate - r_e)/(100*ms) : Hz
        dI/dt = -I/(1*second) : nA
        r : Mohm
        tau : second
        rate : Hz
        """,
        parameters={"r": "0.05*Gohm", "tau_ms": 20.0, "rate": 40.0}, initial={"I": 0.2}, method="rk4",
    )  # fmt: skip
    v, r_e, current = run(model, 1000, ("v_mv", "r_e_hz", "I_na"))
    assert current[-1] == pytest.approx(0.2 * np.exp(-0.1), rel=1e-5)
    assert r_e[-1] == pytest.approx(40 * (1 - np.exp(-1)), rel=1e-4)
    a, b = 1 / 20, 1 / 1000
    assert v[-1] == pytest.approx(50 * 0.2 / (1 - b / a) * (np.exp(-100 * b) - np.exp(-100 * a)), rel=1e-4)


def test_functions_conditions_and_signals() -> None:
    text = ["dx/dt = 1/ms : 1", "u = x - 2.05 : 1"]
    functions = {
        "clip(u, -1, 1)": lambda u: np.clip(u, -1, 1),
        "sign(u)": np.sign,
        "int(u > 0)": lambda u: (u > 0) * 1.0,
        "int(2*u)": lambda u: np.trunc(2 * u),
        "int(not_refractory)*1": lambda u: u * 0 + 1,
        "sinh(u)": np.sinh,
        "cosh(u)": np.cosh,
        "tan(u/2)": lambda u: np.tan(u / 2),
        "log10(u + 3)": lambda u: np.log10(u + 3),
        "u % 0.7": lambda u: u % 0.7,
        "(u**3 if u > 0 or u < -1 else 2) * gain": lambda u: np.where((u > 0) | (u < -1), u**3, 2) * 3,
        "(u*u)**0.5 + abs(u)": lambda u: 2 * abs(u),
        "max(u, 0.5, min(u, 1))": lambda u: np.maximum(u, 0.5),
        "exprel(u) + expm1(u)": lambda u: np.expm1(u) / u + np.expm1(u),
        "2**u": lambda u: 2**u,
        "u**-2": lambda u: u**-2.0,
        "pi*e*u": lambda u: np.pi * np.e * u,
    }
    lines = [f"dy{k}/dt = (f{k} - y{k})/(0.1*ms) : 1\nf{k} = {one} : 1" for k, one in enumerate(functions)]
    model = equations("\n".join([*text, *lines]), method="euler", signals={"gain": 3.0})
    got = run(model, 40, ("x", *(f"y{k}" for k in range(len(functions)))))
    u = got[0][:-1] - 2.05  # a step of Euler's method of this length sets y to f of the step before
    for k, (one, function) in enumerate(functions.items()):
        assert np.allclose(got[k + 1][1:], function(u), rtol=2e-5, atol=2e-5), one


def test_noise_has_the_variance_of_its_equation() -> None:
    """Stationary deviation of dx/dt = -x/tau + sigma sqrt(2/tau) xi, where a step is 1/20 of tau."""
    model = equations("dx/dt = -x/tau + sigma*(2/tau)**0.5*xi : 1\ntau = 2*ms : ms\nsigma = 3 : 1")
    network = Network(dt_ms=0.1, seed=4)
    cells = network.population("cells", 4000, model)
    network.record(cells, "x", every_ms=20.0)
    with Simulation(network) as simulation:
        simulation.step(1000)
        x = simulation.samples(cells, "x")[1]
    wanted = 3.0 / np.sqrt(1 - 0.05 / 2)  # Euler's method, for which the variance is that of an AR(1) process
    assert x[1:].std() == pytest.approx(wanted, rel=0.02)
    assert abs(x[1:].mean()) < 0.1


def test_parameters_of_each_neuron() -> None:
    """Arrays of any parameter: the same as a population of its own for each value."""
    taus, rests = np.array([5.0, 10.0, 10.0, 40.0]), np.array([-70.0, -70.0, -60.0, -65.0])
    together = Network(dt_ms=0.1)
    cells = together.population("cells", 4, CELL(tau_m_ms=taus, e_rest_mv=rests), v_mv=-68.0)
    together.current(cells, 300.0)
    together.record(cells, "v_mv", every_ms=0.1)
    with Simulation(together) as simulation:
        simulation.step(200)
        got = values_of(simulation, cells, "v_mv")
    for k in range(4):
        network = Network(dt_ms=0.1)
        one = network.population("cells", 1, CELL(tau_m_ms=taus[k], e_rest_mv=rests[k]), v_mv=-68.0)
        network.current(one, 300.0)
        network.record(one, "v_mv", every_ms=0.1)
        with Simulation(network) as simulation:
            simulation.step(200)
            assert np.array_equal(values_of(simulation, one, "v_mv")[:, 0], got[:, k])
