from __future__ import annotations

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Constant, Network, Normal, Uniform, Values
from neuraxis.network.models import lif_exp_multi
from tests.network.neurons import no_receptor, one_receptor, two_receptors


def test_populations_follow_each_other():
    network = Network()
    first = network.population("A", np.int32(5), two_receptors)
    second = network.population("B", 7, one_receptor)
    assert [(one.index, one.first_id, one.n, len(one)) for one in (first, second)] == [(0, 0, 5, 5), (1, 5, 7, 7)]
    assert network.populations == (first, second)
    assert network.neuron_count == 12
    assert network["B"] is second
    assert "B" in network
    assert "C" not in network


def test_every_state_has_a_first_value():
    network = Network()
    assert network.population("A", 3, two_receptors).initial == {"v_mv": Constant(-65.0), "refractory": Constant(0.0)}
    given = network.population("B", 3, two_receptors, refractory=np.array([0, 1, 2]), v_mv=Uniform(-70, -60)).initial
    assert given == {"v_mv": Uniform(-70.0, -60.0), "refractory": Values([0.0, 1.0, 2.0])}
    assert list(given) == ["v_mv", "refractory"]  # in the order of the model


def test_a_population_can_be_a_key():
    network = Network()
    assert {network.population("A", 3, two_receptors): 1}[network["A"]] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name=''"),
        ({"name": " "}, "name=' '"),
        ({"name": "E"}, "name='E': a population of this name exists already"),
        ({"n": 0}, "n=0: must be 1 or more"),
        ({"n": -3}, "n=-3"),
        ({"n": 2**31 - 4}, "n=2147483644: a network can have 2147483647 neurons"),
        ({"v": 1.0}, "no state 'v'; .*there is 'v_mv', 'refractory'"),
        ({"refractry": 1}, "did you mean 'refractory'"),
        ({"v_mv": float("nan")}, "'A': v_mv=nan"),
        ({"v_mv": [1.0, 2.0]}, "'A': v_mv: 2 values for 5 neurons"),
        ({"v_mv": 1e39}, "v_mv.*float32"),
        ({"refractory": 0.5}, "refractory.*whole number"),
        ({"refractory": [0, 1, 2, 3, 0.5]}, "refractory.*whole number"),
        ({"refractory": Normal(0.0, 1.0)}, "refractory.*whole number"),
        ({"refractory": 2**31}, "refractory.*int32"),
    ],
)
def test_populations_that_cannot_be(arguments, message):
    network, same = (Network() for _ in range(2))
    for one in (network, same):
        one.population("E", 8, two_receptors)
    with pytest.raises(InvalidArgument, match=message):
        network.population(**{"name": "A", "n": 5, "model": two_receptors} | arguments)
    assert network == same


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": None},
        {"name": 1},
        {"n": 2.0},
        {"n": True},
        {"n": "5"},
        {"n": None},
        {"model": "lif"},
        {"model": None},
        {"v_mv": "0"},
        {"v_mv": None},
        {"v_mv": True},
    ],
)
def test_populations_of_the_wrong_type(arguments):
    network = Network()
    with pytest.raises(InvalidType, match=next(iter(arguments))):
        network.population(**{"name": "A", "n": 5, "model": two_receptors} | arguments)
    assert network == Network()


def test_a_function_that_returns_a_model_has_to_be_called():
    with pytest.raises(InvalidType, match=r"Call it, as lif_exp_multi\(\)"):
        Network().population("A", 5, lif_exp_multi)


def test_a_model_without_receptors_cannot_be_connected_to():
    network = Network()
    network.population("clock", 2, no_receptor)
    with pytest.raises(InvalidArgument, match="no_receptor has no receptors"):
        network.poisson("clock", 10.0, 1.0)
