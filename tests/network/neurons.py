"""Small neuron models and a network with one of everything, for the tests of the description."""

from __future__ import annotations

from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    FixedInDegree,
    HomeostaticScaling,
    Network,
    Normal,
    OneToOne,
    TsodyksMarkram,
    Uniform,
    neuron_model,
)


@neuron_model(
    states={"v_mv": -65.0, "refractory": 0}, receptors=("excitatory", "inhibitory"), parameters={"tau_m_ms": 20.0}
)
def two_receptors(v_mv, refractory, excitatory, inhibitory, current_pa):
    return v_mv > 1.0, v_mv + excitatory - inhibitory + current_pa, refractory


@neuron_model(states={"v_mv": 0.0}, receptors=("input",))
def one_receptor(v_mv, input):
    return v_mv > 1.0, v_mv + input


@neuron_model(states={"phase": 0.0})
def no_receptor(phase):
    return phase > 1.0, phase


def pair(dt_ms: float = 0.1) -> Network:
    """Two populations of different sizes, with nothing between them."""
    network = Network(dt_ms=dt_ms, seed=3)
    network.population("E", 8, two_receptors)
    network.population("I", 5, one_receptor)
    return network


def one_of_everything() -> Network:
    network = Network(dt_ms=0.25, seed=11)
    network.population("E", 8, two_receptors, v_mv=Normal(-60.0, 2.0), refractory=[0, 1, 2, 3, 4, 5, 6, 7])
    network.population("I", 5, one_receptor, v_mv=Uniform(0.0, 0.5))
    network.neuromodulator("dopamine", baseline=0.5, tau_ms=150.0)
    network.connect("E", "E", OneToOne(), weight=[0.1 * i for i in range(8)], delay_ms=1.5)
    network.connect(
        "E",
        "E",
        FixedInDegree(k=3, autapses=False),
        weight=Uniform(0.5, 1.0),
        delay_ms=Normal(2.0, 1.0),
        plasticity=[STDP.power_law(w_max=2.0), HomeostaticScaling(5.0, w_max=2.0)],
    )
    network.connect("I", "E", AllToAll(), weight=-0.5, plasticity=TsodyksMarkram(), name="inhibition")
    network.connect("E", "I", Explicit([0, 7, 7], [0, 4, 4]), weight=[1.0, -2.0, 3.0], delay_ms=[0.25, 0.5, 1.0])
    network.poisson("E", rate_hz=1000.0, weight=0.25)
    network.poisson("I", rate_hz=[0.0, 1.0, 2.0, 3.0, 4.0], weight=-1.0, start_ms=10.0, stop_ms=20.0)
    network.spikes("I", times_ms=[1.0, 2.0], ids=[4, 0])
    network.current("E", amplitude_pa=[float(i) for i in range(8)], stop_ms=100.0)
    network.record("E")
    network.record("E", "v_mv", every_ms=0.5, subset=[7, 2])
    network.modulate("I", "dopamine", amount=-0.125, delay_ms=3.0)
    return network
