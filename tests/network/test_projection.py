from __future__ import annotations

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import (
    STDP,
    AllToAll,
    Constant,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    HomeostaticScaling,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    RewardSTDP,
    TsodyksMarkram,
    Uniform,
    Values,
)
from tests.network.neurons import pair
from tests.network.test_rules import Coordinates

REWARD = RewardSTDP(w_max=2.0, a_plus=0.1, a_minus=0.2, w_min=0.5)


def test_a_projection_has_its_arguments():
    network = pair()
    made = network.connect("E", network["I"], FixedInDegree(3), 0.5, 1.5, plasticity=TsodyksMarkram(u=0.25))
    assert (made.name, made.pre, made.post, made.index) == ("E->I", network["E"], network["I"], 0)
    assert (made.weight, made.delay_ms, made.rule) == (Constant(0.5), Constant(1.5), FixedInDegree(3))
    assert (made.receptor, made.plasticity) == ("input", (TsodyksMarkram(u=0.25),))
    assert made.expected_synapses == 15
    assert not made.same_population
    assert network.projections == (made,)
    assert network.delay_bounds_steps(made) == (15, 15)


def test_autapses_are_left_out_of_the_expectation():
    assert pair().connect("E", "E", AllToAll(autapses=False), 1.0).expected_synapses == 56


def test_a_rule_knows_whether_it_connects_a_population_to_itself():
    network = pair()
    rule = FixedInDegree(8, multapses=False, autapses=False)
    with pytest.raises(InvalidArgument, match=r"'E->E'.*only 7 sources besides the neuron itself"):
        network.connect("E", "E", rule, 1.0)
    network.connect("E", "I", rule, 1.0)


def test_names():
    network = pair()
    rule = FixedInDegree(1)
    names = [network.connect("E", "I", rule, 1.0).name for _ in range(3)]
    network.connect("E", "E", rule, 1.0, name="E->E#2")
    names += [network.connect("E", "E", rule, 1.0).name for _ in range(2)]
    assert names == ["E->I", "E->I#2", "E->I#3", "E->E", "E->E#3"]


@pytest.mark.parametrize(
    ("weight", "receptor"),
    [
        (1.0, "excitatory"),
        (-1.0, "inhibitory"),
        (0.0, "excitatory"),
        (Uniform(0.0, 1.0), "excitatory"),
        (Uniform(-1.0, 0.0), "inhibitory"),
        (Normal(1.0, 0.5, low=0.0), "excitatory"),
        (Normal(-1.0, 0.5, high=0.0), "inhibitory"),
        (Normal(1.0, 0.1), "excitatory"),
        (np.full(64, -2), "inhibitory"),
    ],
)
def test_the_sign_of_the_weight_chooses_the_receptor(weight, receptor):
    network = pair()
    assert network.connect("E", "E", AllToAll(), weight).receptor == receptor
    assert network.connect("E", "E", AllToAll(), weight, synapse="inhibitory").receptor == "inhibitory"
    assert network.connect("E", "I", AllToAll(), np.resize(weight, 40) if isinstance(weight, np.ndarray) else weight)


@pytest.mark.parametrize("weight", [Normal(1.0, 0.5), Uniform(-1, 1), [1.0, -1.0] * 32])
def test_weights_of_either_sign_need_a_receptor(weight):
    network = pair()
    with pytest.raises(InvalidArgument, match=r"'E->E'.*either sign.*synapse="):
        network.connect("E", "E", AllToAll(), weight)
    assert network.connect("E", "E", AllToAll(), weight, synapse="excitatory").receptor == "excitatory"
    weight = weight[:40] if isinstance(weight, list) else weight
    assert network.connect("E", "I", AllToAll(), weight).receptor == "input"


@pytest.mark.parametrize(
    ("rule", "count"),
    [(OneToOne(), 8), (AllToAll(), 64), (AllToAll(autapses=False), 64), (Explicit([0, 1, 1], [1, 0, 0]), 3)],
)
def test_values_for_single_synapses(rule, count):
    network = pair()
    values = np.arange(1, count + 1)
    made = network.connect("E", "E", rule, values, values / 10)
    assert made.weight == Values(values)
    assert network.delay_bounds_steps(made) == (1, count)
    for wrong in ({"weight": values[1:]}, {"delay_ms": values[1:]}):
        with pytest.raises(InvalidArgument, match=f"{next(iter(wrong))}: {count - 1} values for {count} synapses"):
            network.connect("E", "E", rule, **{"weight": 1.0} | wrong)


@pytest.mark.parametrize("rule", [PairwiseBernoulli(0.5), FixedInDegree(1), FixedOutDegree(1), FixedTotalNumber(8)])
@pytest.mark.parametrize("argument", ["weight", "delay_ms"])
def test_drawn_synapses_take_no_values(rule, argument):
    with pytest.raises(InvalidArgument, match=f"{argument}: an array cannot be used with {type(rule).__name__}"):
        pair().connect("E", "E", rule, **{"weight": 1.0} | {argument: [1.0] * 8})


def test_a_sparse_matrix_is_rule_and_weight():
    network = pair()
    dense = np.zeros((8, 5))
    dense[7, 0], dense[2, 4] = 1.5, -2.5
    made = network.connect("E", "I", Coordinates(dense))
    assert made.rule == Explicit([2, 7], [4, 0])
    assert made.weight == Values([-2.5, 1.5])
    assert network.connect("E", "I", Coordinates(dense), weight=3.0).weight == Constant(3.0)
    with pytest.raises(InvalidArgument, match=r"shape \(8, 5\); 5 rows"):
        network.connect("I", "E", Coordinates(dense))
    assert len(network.projections) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pre": "X"}, "pre='X': no population of this name; .*'E', 'I'"),
        ({"post": "X"}, "post='X'"),
        ({"rule": OneToOne()}, "'E->I': OneToOne: 8 neurons"),
        ({"rule": Explicit([8], [0])}, r"'E->I': Explicit\.pre_ids\[0\]=8"),
        ({"weight": None}, "'E->I': weight=None"),
        ({"weight": float("nan")}, "'E->I': weight=nan"),
        ({"weight": np.ones((8, 5))}, "weight has shape"),
        ({"weight": 1e200}, "weights"),
        ({"delay_ms": 0.0}, "'E->I': delay_ms=0: must be one step"),
        ({"delay_ms": Uniform(0.0, 1.0)}, "delay_ms=Uniform"),
        ({"delay_ms": 7000.0}, "65535 steps"),
        ({"synapse": "excitatory"}, "'E->I': synapse='excitatory'.*'input'"),
        ({"name": ""}, "name=''"),
        ({"name": "taken"}, "name='taken': a projection of this name exists"),
        ({"plasticity": [STDP.additive(w_max=2.0)] * 2}, "at most one of STDP"),
        ({"plasticity": STDP.additive(w_max=0.5)}, "with STDP weights must be from 0 to w_max=0.5"),
        ({"plasticity": STDP.additive(w_max=2.0), "weight": -1.0}, "weights must be from 0"),
        ({"plasticity": STDP.additive(w_max=2.0), "weight": Normal(1.0, 0.5, high=2.0)}, r"Limit the weight with low="),
        ({"plasticity": REWARD, "weight": 0.25}, "with RewardSTDP weights must be from 0.5"),
        ({"plasticity": HomeostaticScaling(5.0, w_max=0.5)}, "with HomeostaticScaling"),
        ({"plasticity": REWARD}, r"modulator='dopamine': add it first.*neuromodulator\('dopamine'\)"),
        ({"plasticity": HomeostaticScaling(5.0, w_max=2.0, every_ms=0.01)}, r"HomeostaticScaling\.every_ms=0\.01"),
    ],
)
def test_projections_that_cannot_be(arguments, message):
    network, same = pair(), pair()
    for one in (network, same):
        one.connect("E", "E", OneToOne(), 1.0, name="taken")
    with pytest.raises(InvalidArgument, match=message):
        network.connect(**{"pre": "E", "post": "I", "rule": AllToAll(), "weight": 1.0} | arguments)
    assert network == same


@pytest.mark.parametrize(
    "arguments",
    [
        {"pre": 0},
        {"post": None},
        {"rule": AllToAll},
        {"rule": "all"},
        {"rule": None},
        {"weight": "1"},
        {"weight": True},
        {"delay_ms": None},
        {"synapse": 1},
        {"name": 1},
        {"plasticity": "STDP"},
    ],
)
def test_projections_of_the_wrong_type(arguments):
    network = pair()
    with pytest.raises(InvalidType, match=next(iter(arguments))):
        network.connect(**{"pre": "E", "post": "I", "rule": AllToAll(), "weight": 1.0} | arguments)
    assert network == pair()


def test_rules_of_plasticity_are_found_by_kind():
    network = pair()
    network.neuromodulator("dopamine")
    scaling = HomeostaticScaling(5.0, w_max=3.0)
    learning = network.connect("E", "E", AllToAll(), 1.0, plasticity=[scaling, REWARD])
    assert (learning.pairing, learning.scaling, learning.short_term) == (REWARD, scaling, None)
    assert learning.has_changing_weights
    assert learning.largest_weight == 3.0
    tiring = network.connect("E", "E", AllToAll(), -2.0, plasticity=TsodyksMarkram())
    assert (tiring.pairing, tiring.scaling, tiring.short_term) == (None, None, TsodyksMarkram())
    assert not tiring.has_changing_weights
    assert tiring.largest_weight == 2.0


def test_plastic_weights_count_with_their_bounds():
    network = pair()
    network.connect("E", "I", AllToAll(), 0.0, plasticity=STDP.additive(w_max=4.0))
    contribution = network.projections[0].contribution()
    assert (contribution.typical, contribution.largest, contribution.count) == (4.0, 4.0, 8)
    other = pair()
    learning = other.connect("E", "I", AllToAll(), Uniform(0.5, 1.5), plasticity=STDP.additive(w_max=4.0))
    assert (learning.contribution().typical, learning.contribution().largest) == (1.0, 4.0)
