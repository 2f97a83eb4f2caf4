"""Parameters that differ between neurons: what is drawn, derived and refused, and equality to single neurons."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

from neuraxis.engine import random
from neuraxis.errors import InvalidArgument, InvalidType, RoundingWarning
from neuraxis.network import LogNormal, Network, Normal, Uniform, Values, arithmetic, drawing, varying
from neuraxis.network.models import adex, izhikevich, lif_alpha, lif_cond_exp, lif_delta, lif_exp_two, poisson_source
from neuraxis.network.neuron_model import neuron_model, neuron_model_from_source
from neuraxis.simulation import Simulation
from tests.simulation.networks import pausing

N = 40


def test_functions_of_arrays_have_the_bits_of_those_of_numbers():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-20, 20, 3000), -(10.0 ** rng.uniform(-18, 2.8, 2000)), [0.0, -0.0, 709.5, -745.2]])
    assert np.array_equal(arithmetic.exp(x), [arithmetic.exp(float(one)) for one in x])
    # Whatever the pairs of float64 do not round safely is left to decimal.
    spread = np.concatenate([rng.uniform(-1, 1, 50_000), rng.uniform(-600, 600, 50_000)])
    _, safe = arithmetic._exp_in_pairs(spread)
    assert 0 < np.count_nonzero(~safe) < 50
    few = np.array([[0.5, 2.0], [0.5, 0.25]])
    for function in (arithmetic.log, arithmetic.expm1, arithmetic.tanh, arithmetic.sqrt):
        assert function(few).tolist() == [[function(one) for one in row] for row in few.tolist()]
    assert arithmetic.power(few, 3.0).tolist() == (few**3).tolist()
    assert arithmetic.float32(few + 1e-9).tolist() == [[arithmetic.float32(x) for x in row] for row in few + 1e-9]


def test_draws_are_the_numbers_of_the_engine():
    keys = drawing._keys(7, 16, 3 * 2**16 + 5, 50)
    expected = [int(random.key_of(np.uint64(7), np.uint64(16), 3 * 2**16 + 5, i)) for i in range(50)]
    assert keys.tolist() == expected
    bits = [int(random.number(np.uint64(key), 0)) >> 32 for key in keys]
    assert drawing._numbers(keys).tolist() == bits
    bits = np.array([*bits, 0, 1, 2**31, 2**31 + 1, 2**32 - 1, 2**30], np.uint32)
    table = random.normal_table()
    assert drawing._normal(bits).tolist() == [random.normal(one, table) for one in bits]


def test_draws_have_the_distribution_and_belong_to_neuron_population_parameter_and_seed():
    def drawn(given, n=20_000, seed=1, population=0, parameter=0):
        return drawing.draw(given, n, seed, population, parameter)

    normal = drawn(Normal(10.0, 2.0))
    assert abs(normal.mean() - 10.0) < 0.06
    assert abs(normal.std() - 2.0) < 0.05
    assert abs(np.log(drawn(LogNormal(1.0, 0.3))).std() - 0.3) < 0.01
    cut = drawn(Normal(0.0, 1.0, low=0.0, high=1.0, outside="redraw"))
    assert 0.0 < cut.min() < cut.max() < 1.0
    assert np.count_nonzero(drawn(Normal(0.0, 1.0, low=0.0)) == 0.0) > 9_000
    assert np.array_equal(drawn(Normal(10.0, 2.0), n=10), normal[:10])
    others = [{"seed": 2}, {"population": 1}, {"parameter": 1}]
    assert all(not np.isin(drawn(Normal(10.0, 2.0), n=100, **other), normal[:100]).any() for other in others)


MODELS = {
    "exp_two": lif_exp_two(
        tau_m_ms=LogNormal(2.3, 0.3), tau_syn_in_ms=[2.0, 10.0] * 20, refractory_ms=Uniform(1.0, 3.0),
        v_threshold_mv=Normal(-55.0, 1.0),
    ),
    "delta": lif_delta(e_rest_mv=Uniform(-71.0, -69.0)),
    "alpha, with both time constants equal in some": lif_alpha(tau_syn_ex_ms=[2.0, 10.0, 10.0 + 1e-12, 3.0] * 10),
    "cond": lif_cond_exp(c_m_pf=Normal(250.0, 10.0), tau_syn_ex_ms=Uniform(0.2, 0.4), v_reset_mv=[-60.0, -61.0] * 20),
    "adex": adex(a_ns=Normal(4.0, 1.0), v_t_mv=np.linspace(-52.0, -48.0, N), delta_t_mv=Uniform(1.0, 2.0)),
    "izhikevich": izhikevich(a=Uniform(0.02, 0.1), d_mv=Uniform(2.0, 8.0)),
    "poisson": poisson_source(rate_hz=Uniform(0.0, 100.0)),
    "a function of numbers": pausing(tau_ms=Uniform(5.0, 50.0), pause=np.arange(N) % 5),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_constants_are_those_of_single_neurons(name, monkeypatch):
    if name != "a function of numbers":  # all built-in models compute with arrays
        monkeypatch.setattr(varying, "_by_combination", None)
    used = Network(seed=4).population("E", N, MODELS[name]).model
    assert used.rows
    assert all(one.array.shape == (N,) and not one.array.flags.writeable for one in used.rows.values())
    for neuron in range(N):
        one = {k: v.array[neuron] if isinstance(v, Values) else v for k, v in used.parameters.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RoundingWarning)  # drawn times are rounded silently, given ones are not
            whole = {k: int(v) if k in used.whole_parameters else v for k, v in one.items()}
            alone = Network().population("E", 1, MODELS[name](**whole)).model
        found = {**used.constants, **{k: v.array[neuron] for k, v in used.rows.items()}}
        assert found.keys() == alone.constants.keys()
        for key, expected in alone.constants.items():
            kind = np.int32 if isinstance(expected, int) else np.float32
            assert kind(found[key]) == kind(expected), key
            assert (key not in used.rows) or used.rows[key].is_integer == isinstance(expected, int)


def test_constants_as_text_compute_with_arrays_where_they_can():
    given = {"a": Uniform(1.0, 2.0), "n": np.arange(N) % 3}
    for text, arrays in (("exp(-dt_ms / a) * (n + 2) ** 2", False), ("exp(-dt_ms / a) * n / 2.0 - a", True)):
        model = neuron_model_from_source(
            "def one(v, c): return False, v + c",
            states={"v": 0.0},
            parameters={"a": 1.0, "n": 2},
            constants={"c": text},
        )
        with pytest.MonkeyPatch.context() as patch:
            if arrays:
                patch.setattr(varying, "_by_combination", None)
            used = Network().population("E", N, model(**given)).model
        expected = [
            model(a=a, n=int(n)).values(0.1)["c"]
            for a, n in zip(used.parameters["a"].array.tolist(), given["n"], strict=True)
        ]
        assert used.rows["c"].array.tolist() == np.float32(expected).tolist()


def test_what_is_equal_for_all_neurons_is_a_constant():
    plain = Network().population("E", 3, lif_exp_two(tau_m_ms=12.0))
    filled = Network().population("E", 3, lif_exp_two(tau_m_ms=[12.0] * 3, tau_syn_ex_ms=Normal(2.0, 0.0)))
    assert filled.model == plain.model
    assert not filled.model.rows
    assert filled.model.parameters["tau_m_ms"] == 12.0
    used = Network().population("E", 2, lif_exp_two(tau_syn_ex_ms=[2.0, 3.0])).model
    assert list(used.rows) == ["decay_ex", "per_pa_ex"]  # the others do not depend on it


def test_a_population_is_as_many_populations_of_one_neuron():
    given = {"tau_m_ms": [10.0, 12.0, 14.5, 10.0], "refractory_ms": [2.0, 2.0, 3.0, 4.1], "v_threshold_mv": -54.0}
    together, alone = Network(seed=3), Network(seed=3)
    together.population("E", 4, lif_exp_two(**given))
    for i in range(4):
        one = {key: value[i] if isinstance(value, list) else value for key, value in given.items()}
        alone.population(f"E{i}", 1, lif_exp_two(**one))
    states = []
    fingerprints = []
    for network in (together, alone):
        for population in network.populations:
            network.current(population, 600.0)
        with Simulation(network) as simulation:
            simulation.run(100.0)
            states.append(np.concatenate([simulation.state(one, "v_mv") for one in network.populations]).tolist())
            fingerprints.append(simulation.fingerprint())
    assert states[0] == states[1]
    assert len(set(states[0])) == 4
    assert fingerprints[0] == fingerprints[1]


def test_numpy_computes_the_same():
    network = Network(dt_ms=0.1, seed=2)
    cells = network.population("E", N, lif_delta(tau_m_ms=Uniform(5.0, 20.0), refractory_ms=[1.0, 0.5] * 20))
    current = np.linspace(200.0, 900.0, N)
    network.current(cells, current)
    network.record(cells)
    tau_m = cells.model.parameters["tau_m_ms"].array
    decay = np.array([arithmetic.exp(-0.1 / one) for one in tau_m])
    rest = (-70.0 * (1.0 - decay.astype(np.float32).astype(float))).astype(np.float32)
    per_pa = (tau_m / 250.0 * (1.0 - decay)).astype(np.float32)
    decay, wait = decay.astype(np.float32), np.array([10, 5] * 20)
    v, left, spikes = np.full(N, -70.0, np.float32), np.zeros(N, int), np.zeros(N, int)
    for _ in range(1000):
        free = v * decay + np.float32(0.0) + (rest + current.astype(np.float32) * per_pa)
        v = np.where(left > 0, v, free)
        spike = v >= np.float32(-55.0)
        v = np.where(spike, np.float32(-70.0), v)
        left = np.where(spike, wait, np.maximum(left - 1, 0))
        spikes += spike
    with Simulation(network) as simulation:
        simulation.step(1000)
        assert np.array_equal(simulation.state(cells, "v_mv"), v)
        assert len(simulation.spikes(cells)[0]) == spikes.sum() > 100


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: lif_exp_two(tau_m_ms=[1.0, 2.0]), "population 'E': tau_m_ms: 2 values for 40 neurons"),
        (lambda: lif_exp_two(tau_m_ms=[10.0] * 39 + [-1.0]), "'E': neuron 39: tau_m_ms=-1.0: a number above 0"),
        (lambda: lif_exp_two(tau_m_ms=Normal(1.0, 1.0)), r"'E': neuron \d+: tau_m_ms=-.*: a number above 0"),
        (lambda: lif_exp_two(v_reset_mv=[-70.0, -54.0] * 20), "neuron 1: v_reset_mv=-54.0: must be below v_thr"),
        (lambda: lif_exp_two(refractory_ms=[1.0, -1.0] * 20), "neuron 1: refractory_ms=-1.0: a time cannot"),
        (lambda: poisson_source(rate_hz=Uniform(-1.0, 5.0)), "neuron \\d+: rate_hz=-.*negative"),
        (lambda: pausing(pause=[0.5] * N), "pausing: pause=.*an int"),
        (lambda: pausing(pause=Uniform(0.0, 3.0)), "pausing: pause=.*an int"),
        (lambda: pausing(tau_ms=[1e39] * N), "beyond float32"),
        (lambda: lif_exp_two(tau_m_ms=[[10.0]]), "one-dimensional"),
        (lambda: lif_exp_two(tau_m_ms=[float("nan")] * N), r"tau_m_ms\[0\]=nan"),
        (lambda: overflowing(a=[1.0, 1e-30] * 20), "neuron 1: c=.*finite"),
    ],
)
def test_parameters_that_cannot_be(model, message):
    network = Network(seed=1)
    with pytest.raises(InvalidArgument, match=message):
        network.population("E", N, model())
    assert not network.populations
    with pytest.raises(InvalidType, match="tau_m_ms='x'"):
        lif_exp_two(tau_m_ms="x")


@neuron_model(states={"v": 0.0}, parameters={"a": 1.0}, constants={"c": "1.0 / (a * a)"})
def overflowing(v, c):
    return False, v + c


def test_times_off_the_grid():
    with pytest.warns(RoundingWarning, match=r"refractory_ms: 1 of 40 times .* refractory_ms\[1\]=2.04"):
        used = Network().population("E", N, lif_exp_two(refractory_ms=[2.0, 2.04] + [1.0] * 38)).model
    assert used.rows["refractory_steps"].array.tolist() == [20, 20] + [10] * 38


def test_descriptions_with_them_are_compared_pickled_copied_and_shown():
    def made(last: float) -> Network:
        network = Network(seed=2)
        network.population("E", 3, lif_exp_two(tau_m_ms=[10.0, 12.0, last], e_rest_mv=Normal(-70.0, 1.0)))
        return network

    network = made(14.0)
    assert network == made(14.0) == pickle.loads(pickle.dumps(network)) == network.copy()
    assert network != made(14.5)
    assert "tau_m_ms=10 to 14, c_m_pf=250" in str(network)
    assert "tau_m_ms=LogNormal(mu=2.3, sigma=0.2)" in str(lif_exp_two(tau_m_ms=LogNormal(2.3, 0.2)))
    assert "10 to 14" in str(network["E"].model.parameters)
    # The model of a population can be that of another of the same size.
    again = Network(seed=9).population("E", 3, network["E"].model)
    assert again.model == network["E"].model
    with pytest.raises(InvalidArgument, match="3 values, of another population, for 4 neurons"):
        Network().population("F", 4, network["E"].model)
