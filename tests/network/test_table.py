from __future__ import annotations

import html
import re

from neuraxis.network import STDP, AllToAll, Constant, Explicit, FixedInDegree, Network, Normal, OneToOne, Values
from neuraxis.network.summary import brief
from tests.network.neurons import one_of_everything, two_receptors


def cells(text):
    """The cells of a printed table, line by line."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_a_network_prints_everything_it_has():
    head, populations, projections, inputs, probes, neuromodulators = str(one_of_everything()).split("\n\n")
    assert head == ("Network: 13 neurons in 2 populations, about 75 synapses in 4 projections; dt 0.25 ms, seed 11")
    assert cells(populations) == [
        ["populations"],
        ["name", "neurons", "model"],
        ["E", "8", "two_receptors(tau_m_ms=20)"],
        ["I", "5", "one_receptor()"],
    ]
    stdp = "STDP(w_max=2, learning_rate=0.1, mu_plus=0.4, mu_minus=1, form='power_law')"
    plasticity = f"{stdp} + HomeostaticScaling(target_rate_hz=5, w_max=2)"
    uniform, normal = "Uniform(low=0.5, high=1)", "Normal(mean=2, sd=1, low=0.25)"
    assert cells(projections) == [
        ["projections"],
        ["name", "rule", "weight", "delay_ms", "receptor", "synapses", "plasticity"],
        ["E->E", "OneToOne()", "Values(8 from 0 to 0.7)", "1.5", "excitatory", "8", "-"],
        ["E->E#2", "FixedInDegree(k=3, autapses=False)", uniform, normal, "excitatory", "24", plasticity],
        ["inhibition", "AllToAll()", "-0.5", "1", "inhibitory", "40", "TsodyksMarkram()"],
        ["E->I", "Explicit(3 synapses)", "Values(3 from -2 to 3)", "Values(3 from 0.25 to 1)", "input", "3", "-"],
    ]
    assert cells(inputs) == [
        ["inputs"],
        ["kind", "population", "what", "receptor", "when"],
        ["poisson", "E", "1000 Hz, weight 0.25", "excitatory", "from 0 ms"],
        ["poisson", "I", "0 to 4 Hz, weight -1", "input", "from 10 ms to 20 ms"],
        ["spikes", "I", "2 spikes", "-", "-"],
        ["current", "E", "0 to 7 pA", "-", "from 0 ms to 100 ms"],
    ]
    assert cells(probes) == [
        ["probes"],
        ["population", "what", "neurons", "every"],
        ["E", "spikes", "8", "spike"],
        ["E", "v_mv", "2", "0.5 ms"],
    ]
    assert cells(neuromodulators) == [
        ["neuromodulators"],
        ["name", "baseline", "tau_ms", "changed by"],
        ["dopamine", "0.5", "150", "I (-0.125 after 3 ms)"],
    ]


def test_columns_are_aligned():
    lines = str(one_of_everything()).split("\n\n")[2].splitlines()[1:]
    column = lines[0].index("receptor")
    assert [line[column:].split()[0] for line in lines[1:]] == ["excitatory", "excitatory", "inhibitory", "input"]
    assert all(line[column - 1] == " " for line in lines)


def test_an_empty_network_prints_one_line():
    assert str(Network()) == "Network: 0 neurons in 0 populations, about 0 synapses in 0 projections; dt 0.1 ms, seed 0"


def test_a_prompt_and_a_notebook_show_the_same_tables():
    network = one_of_everything()
    assert repr(network) == str(network)
    shown = network._repr_html_()
    for part in str(network).split("\n\n")[1:]:
        title, columns, *rows = cells(part)
        assert f"<p>{title[0]}</p>" in shown
        for cell in {cell for line in (columns, *rows) for cell in line}:
            assert html.escape(cell) in shown
    assert "<td>E-&gt;E</td>" in shown


def test_large_numbers_are_readable():
    network = Network()
    network.population("E", 80_000, two_receptors)
    network.connect("E", "E", FixedInDegree(1000), 0.1)
    assert "80,000 neurons in 1 population, about 80,000,000 synapses" in str(network)


def test_defaults_are_left_out():
    assert brief(Constant(0.5)) == "0.5"
    assert brief(OneToOne()) == "OneToOne()"
    assert brief(AllToAll(autapses=False)) == "AllToAll(autapses=False)"
    assert brief(Normal(1.0, 0.5, outside="redraw")) == "Normal(mean=1, sd=0.5, outside='redraw')"
    assert brief(STDP.multiplicative(w_max=2.0)) == "STDP(w_max=2, mu_plus=1, mu_minus=1)"
    assert brief(Values([1.0, 2.0])) == "Values(2 from 1 to 2)"
    assert brief(Explicit([0], [0])) == "Explicit(1 synapses)"
