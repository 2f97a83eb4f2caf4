from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import neuraxis.network
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import AllToAll, FixedInDegree, Network, Neuromodulator, NeuronModel, OneToOne
from tests.network.neurons import one_of_everything, one_receptor, pair, two_receptors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt_ms": 0.0}, r"dt_ms=0\.0"),
        ({"dt_ms": -0.1}, r"dt_ms=-0\.1"),
        ({"dt_ms": float("nan")}, "dt_ms=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
    ],
)
def test_networks_that_cannot_be(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        Network(**arguments)


@pytest.mark.parametrize(
    "arguments", [{"dt_ms": "0.1"}, {"dt_ms": True}, {"seed": 1.0}, {"seed": True}, {"seed": None}]
)
def test_networks_of_the_wrong_type(arguments):
    with pytest.raises(InvalidType, match=next(iter(arguments))):
        Network(**arguments)


def test_names_that_are_not_there():
    network = Network()
    with pytest.raises(InvalidArgument, match="name='E': no population of this name; there is none yet"):
        network["E"]
    network.population("excitatory", 1, two_receptors)
    with pytest.raises(InvalidArgument, match="did you mean 'excitatory'"):
        network["exitatory"]
    with pytest.raises(InvalidType, match="name=0"):
        network[0]


def test_populations_of_another_network_are_refused():
    network, other = pair(), pair()
    for call in (
        lambda: network.connect(other["E"], "I", AllToAll(), 1.0),
        lambda: network.connect("E", other["I"], AllToAll(), 1.0),
        lambda: network.poisson(other["E"], 1.0, 1.0),
        lambda: network.spikes(other["E"], [1.0], [0]),
        lambda: network.current(other["E"], 1.0),
        lambda: network.record(other["E"]),
        lambda: network.modulate(other["E"], "dopamine", 1.0),
        lambda: network.exponent(other["E"], "excitatory"),
    ):
        with pytest.raises(InvalidArgument, match="belongs to another network; pass its name"):
            call()
    assert network == other


def test_neuromodulators():
    network = pair()
    level = network.neuromodulator("dopamine", baseline=1, tau_ms=50)
    assert level == Neuromodulator("dopamine", 1.0, 50.0, index=0)
    by_object = network.modulate("E", level, 0.5)
    by_name = network.modulate("E", "dopamine", -0.5, delay_ms=2.0)
    assert (by_object.delay_ms, by_name.delay_ms) == (0.1, 2.0)
    assert (by_object.modulator, by_name.modulator) == (level, level)
    assert network.neuromodulators == (level,)
    assert network.modulations == (by_object, by_name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: n.neuromodulator(""), "name=''"),
        (lambda n: n.neuromodulator("dopamine"), "name='dopamine': a neuromodulator of this name"),
        (lambda n: n.neuromodulator("x", tau_ms=0.0), r"tau_ms=0\.0"),
        (lambda n: n.neuromodulator("x", baseline=float("inf")), "baseline=inf"),
        (lambda n: n.modulate("E", "dopamin", 1.0), "did you mean 'dopamine'"),
        (lambda n: n.modulate("E", Neuromodulator("dopamine"), 1.0), "another network"),
        (lambda n: n.modulate("X", "dopamine", 1.0), "population='X'"),
        (lambda n: n.modulate("E", "dopamine", float("nan")), "amount=nan"),
        (lambda n: n.modulate("E", "dopamine", 1.0, delay_ms=0.0), "delay_ms=0"),
        (lambda n: n.modulate("E", "dopamine", 1.0, delay_ms=7000.0), "delay_ms"),
    ],
)
def test_modulations_that_cannot_be(call, message):
    network, same = pair(), pair()
    for one in (network, same):
        one.neuromodulator("dopamine")
    with pytest.raises(InvalidArgument, match=message):
        call(network)
    assert network == same


@pytest.mark.parametrize(
    "call",
    [
        lambda n: n.neuromodulator(None),
        lambda n: n.modulate("E", None, 1.0),
        lambda n: n.modulate("E", "dopamine", "1"),
        lambda n: n.modulate("E", "dopamine", 1.0, delay_ms="1"),
    ],
)
def test_modulations_of_the_wrong_type(call):
    network = pair()
    network.neuromodulator("dopamine")
    with pytest.raises(InvalidType, match="="):
        call(network)
    assert network.modulations == ()


def test_each_receptor_has_a_scale_for_all_that_arrives_there():
    network = pair()
    assert network.exponent("E", "excitatory") == 0
    network.connect("E", "E", AllToAll(), 1.0)
    network.connect("I", "E", AllToAll(), -0.25)
    assert (network.exponent("E", "excitatory"), network.exponent(network["E"], "inhibitory")) == (-20, -22)
    network.poisson("E", 1000.0, 0.5)  # the smaller weight sets the precision
    assert network.exponent("E", "excitatory") == -21
    network.connect("I", "E", AllToAll(), 0.0, synapse="excitatory")  # weighs nothing
    assert network.exponent("E", "excitatory") == -21
    with pytest.raises(InvalidArgument, match=r"receptor='input'.*'excitatory', 'inhibitory'"):
        network.exponent("E", "input")


def test_weights_that_no_scale_holds_are_refused_at_the_call():
    network = Network()
    network.population("many", 600_000, one_receptor)
    network.population("few", 10, one_receptor)
    network.connect("many", "many", FixedInDegree(1000), 1.0)
    network.connect("many", "few", AllToAll(), 1.0)
    network.poisson("many", 10.0, 1e-6)
    network.poisson("many", 10.0, 1e6)
    first, *others = network.accumulators("many")
    assert first.exponent > max(one.exponent for one in others)
    same = copy.deepcopy(network)
    with pytest.raises(InvalidArgument, match=r"'input' of population 'few': projection 'many->few#2'.*float32"):
        network.connect("many", "few", FixedInDegree(10), 1e-35)
    assert network == same


def test_a_copy_has_accumulators_of_its_own():
    network = Network()
    cells = network.population("cells", 10, one_receptor)
    network.connect(cells, cells, FixedInDegree(1000), 1.0)
    copied, before = network.copy(), network.accumulators("cells")
    copied.connect("cells", "cells", FixedInDegree(1000), 1e-6)
    assert len(copied.accumulators("cells")) == 2
    assert network.accumulators("cells") == before
    network.connect(cells, cells, FixedInDegree(1000), 1e-6)
    assert network == copied
    assert network.accumulators("cells") == copied.accumulators("cells") == copy.deepcopy(network).accumulators("cells")


def test_a_neuron_has_no_more_accumulators_than_tables_have_room_for():
    receptors = tuple(f"r{i}" for i in range(32))
    source = f"def many({', '.join(('v', *receptors))}):\n    return False, v + {' + '.join(receptors)}\n"
    model = NeuronModel("many", {"v": 0.0}, receptors, {}, source, ("v", *receptors), {})
    network = Network()
    network.population("c", 2, model)

    def connect(receptor, weight):
        network.connect("c", "c", FixedInDegree(100_000), weight, synapse=receptor)

    for receptor in receptors[:-1]:
        connect(receptor, 1.0)
        connect(receptor, 1e-7)
    connect(receptors[-1], 1.0)
    assert len(network.accumulators("c")) == 63
    with pytest.raises(InvalidArgument, match="63 are the most"):
        connect(receptors[-1], 1e-7)
    assert len(network.accumulators("c")) == 63


def test_attributes_cannot_be_replaced():
    network = one_of_everything()
    for name in ("populations", "projections", "poisson_inputs", "spike_inputs", "current_inputs", "probes"):
        assert isinstance(getattr(network, name), tuple)
        with pytest.raises(AttributeError):
            setattr(network, name, ())
    for name in ("neuromodulators", "modulations", "dt_ms", "seed"):
        with pytest.raises(AttributeError):
            setattr(network, name, ())


def test_pickling_and_copying_keep_a_network():
    network = one_of_everything()
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert other == network
        assert str(other) == str(network)
        assert other.projections[0].pre is other["E"]  # what is one thing stays one thing
        other.record(other.populations[0], "v_mv")  # and it can be extended
        assert other != network
        assert not other.projections[0].weight.array.flags.writeable


def test_networks_that_differ_are_not_equal():
    assert one_of_everything() == one_of_everything()
    assert Network(seed=1) != Network(seed=2)
    assert Network(dt_ms=0.1) != Network(dt_ms=0.2)
    assert Network() != "network"
    first, second = pair(), pair()
    first.connect("E", "E", OneToOne(), np.arange(8))
    second.connect("E", "E", OneToOne(), np.arange(8)[::-1])
    assert first != second


def test_indices_are_places():
    network = one_of_everything()
    for name in ("populations", "projections", "poisson_inputs", "spike_inputs", "current_inputs", "probes"):
        assert [one.index for one in getattr(network, name)] == list(range(len(getattr(network, name))))


def test_every_public_name_is_there():
    assert len(set(neuraxis.network.__all__)) == len(neuraxis.network.__all__)
    assert all(hasattr(neuraxis.network, name) for name in neuraxis.network.__all__)


def test_describing_loads_no_compiler_and_no_engine():
    code = (
        "import sys, neuraxis.network\n"
        "heavy = ('numba', 'scipy', 'torch', 'neuraxis.comm', 'neuraxis.engine', 'neuraxis.simulation')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
