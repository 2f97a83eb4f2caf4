from __future__ import annotations

import pickle

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from tests.network.neurons import pair


def test_poisson_goes_to_the_receptor_of_the_sign():
    network = pair()
    assert network.poisson("E", 100, 0.5).receptor == "excitatory"
    assert network.poisson("E", 100, -0.5).receptor == "inhibitory"
    assert network.poisson("E", 100, -0.5, synapse="excitatory").receptor == "excitatory"
    assert network.poisson("I", 100, -0.5).receptor == "input"


def test_one_rate_for_each_neuron():
    network = pair()
    rates = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    made = network.poisson("I", rates, 1.0, start_ms=5, stop_ms=9)
    rates[:] = 0.0
    assert made.rate_hz.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert made.largest_rate_hz == 5.0
    assert (made.start_ms, made.stop_ms) == (5.0, 9.0)
    copy = pickle.loads(pickle.dumps(made))
    assert copy == made
    assert not copy.rate_hz.flags.writeable


def test_inputs_differ_by_their_arrays():
    first, second = pair(), pair()
    assert first.spikes("I", [1.0], [0]) == second.spikes("I", [1.0], [0])
    assert first.current("E", 2.0) != second.current("E", np.full(8, 2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate_hz": -1.0}, r"rate_hz=-1\.0"),
        ({"rate_hz": [1.0, -2.0, 0.0, 0.0, 0.0]}, r"rate_hz=-2\.0"),
        ({"rate_hz": float("nan")}, "rate_hz=nan"),
        ({"rate_hz": [1.0, 2.0]}, "rate_hz has 2 values.*'I' has 5"),
        ({"rate_hz": []}, "rate_hz has 0 values"),
        ({"rate_hz": np.ones((1, 5))}, "rate_hz has shape"),
        ({"weight": float("inf")}, "weight=inf"),
        ({"synapse": "inputs"}, "synapse='inputs': did you mean 'input'"),
        ({"start_ms": -1.0}, r"start_ms=-1\.0"),
        ({"start_ms": 5.0, "stop_ms": 5.0}, r"stop_ms=5\.0.*start_ms=5\.0"),
        ({"start_ms": 5.0, "stop_ms": 5.01}, r"stop_ms=5\.01: there is no step"),
        ({"stop_ms": 1e300}, "stop_ms"),
        ({"rate_hz": 1e30}, "poisson into 'I'"),
        ({"population": "J"}, "population='J': no population"),
    ],
)
def test_poisson_that_cannot_be(arguments, message):
    network = pair()
    with pytest.raises(InvalidArgument, match=message):
        network.poisson(**{"population": "I", "rate_hz": 10.0, "weight": 1.0} | arguments)
    assert network == pair()


@pytest.mark.parametrize(
    "arguments",
    [
        {"rate_hz": None},
        {"rate_hz": True},
        {"rate_hz": "10"},
        {"rate_hz": [[1.0], [1.0, 2.0]]},
        {"weight": None},
        {"weight": [1.0] * 5},
        {"synapse": 0},
        {"start_ms": "0"},
        {"population": 0},
    ],
)
def test_poisson_of_the_wrong_type(arguments):
    network = pair()
    with pytest.raises(InvalidType, match=next(iter(arguments))):
        network.poisson(**{"population": "I", "rate_hz": 10.0, "weight": 1.0} | arguments)
    assert network == pair()


def test_given_spikes():
    network = pair()
    made = network.spikes("E", times_ms=[0.1, 5, 5], ids=[7, 0, 7])
    assert made.times_ms.tolist() == [0.1, 5.0, 5.0]
    assert made.ids.tolist() == [7, 0, 7]
    assert made.ids.dtype == np.int64
    assert network.spikes("E", [], []).ids.size == 0
    assert [one.index for one in network.spike_inputs] == [0, 1]


@pytest.mark.parametrize(
    ("times", "ids", "message"),
    [
        ([0.0], [0], r"times_ms=0.*dt_ms=0\.1"),
        ([-1.0], [0], "times_ms=-1"),
        ([1.0, float("nan")], [0, 0], r"times_ms\[1\]=nan"),
        ([1.0], [0, 1], "1 times_ms and 2 ids"),
        ([1.0], [8], r"ids\[0\]=8.*from 0 to 7"),
        ([1.0], [-1], r"ids\[0\]=-1"),
        ([1e300], [0], "times_ms"),
    ],
)
def test_spikes_that_cannot_be(times, ids, message):
    network = pair()
    with pytest.raises(InvalidArgument, match=message):
        network.spikes("E", times, ids)
    assert network == pair()


@pytest.mark.parametrize(("times", "ids"), [([1.0], [0.0]), ([1.0], [True]), (["1"], [0]), (None, [0]), ([1.0], None)])
def test_spikes_of_the_wrong_type(times, ids):
    with pytest.raises(InvalidType, match=r"SpikeInput\."):
        pair().spikes("E", times, ids)


def test_currents():
    network = pair()
    assert network.current("E", -3).amplitude_pa == -3.0
    assert network.current("E", range(8), 1.0, 2.0).amplitude_pa.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": "I"}, "'I': one_receptor takes no current"),
        ({"amplitude_pa": float("nan")}, "amplitude_pa=nan"),
        ({"amplitude_pa": [1.0]}, "amplitude_pa has 1 values"),
        ({"start_ms": 2.0, "stop_ms": 1.0}, r"stop_ms=1\.0"),
    ],
)
def test_currents_that_cannot_be(arguments, message):
    network = pair()
    with pytest.raises(InvalidArgument, match=message):
        network.current(**{"population": "E", "amplitude_pa": 1.0} | arguments)
    assert network == pair()
