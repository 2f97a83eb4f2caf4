"""A neuron model of your own: one function, compiled for you, on any number of workers.

python examples/12_own_neuron.py

A resonate-and-fire neuron (Izhikevich 2001): two states that oscillate at a frequency of their own, so that two input
spikes make it fire if they come one period apart, and not if they come half a period apart.
"""

import math

from neuraxis.execution import Simulation
from neuraxis.network import AllToAll, Network, neuron_model
from neuraxis.network.models import spike_source


@neuron_model(
    states={"x": 0.0, "y": 0.0},
    receptors=("input",),
    parameters={"frequency_hz": 50.0, "damping_per_ms": 0.02, "threshold": 1.0},
    constants=lambda p, dt_ms: {
        "cosine": math.exp(-p["damping_per_ms"] * dt_ms) * math.cos(2e-3 * math.pi * p["frequency_hz"] * dt_ms),
        "sine": math.exp(-p["damping_per_ms"] * dt_ms) * math.sin(2e-3 * math.pi * p["frequency_hz"] * dt_ms),
    },
)
def resonate(x, y, input, cosine, sine, threshold):
    x, y = x * cosine - y * sine + input, x * sine + y * cosine
    spike = y >= threshold
    return spike, 0.0 if spike else x, 0.0 if spike else y


def spikes_for(interval_ms: float, workers: int = 1) -> int:
    network = Network(dt_ms=0.1)
    source = network.population("source", 1, spike_source)
    neuron = network.population("neuron", 1, resonate(frequency_hz=50.0))
    network.spikes(source, [5.0, 5.0 + interval_ms], [0, 0])
    network.connect(source, neuron, AllToAll(), weight=0.9, delay_ms=1.0)
    with Simulation(network, workers) as simulation:
        return round(simulation.run(60.0).rates_hz["neuron"] * 0.060)


if __name__ == "__main__":
    print("one period (20 ms) apart:", spikes_for(20.0), "spike")
    print("half a period (10 ms) apart:", spikes_for(10.0), "spikes")
