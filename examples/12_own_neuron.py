"""A neuron model of your own: one function, compiled for you, on any number of workers, on CPUs and GPUs.

python examples/12_own_neuron.py
python examples/12_own_neuron.py --plot resonate.png
python examples/12_own_neuron.py --device cuda        (the same function, compiled for a GPU; the same spikes)

A resonate-and-fire neuron (Izhikevich 2001): two states oscillate at the neuron's own frequency, so two input spikes
make it fire if they arrive one period apart, and not if they arrive half a period apart.
"""

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
from cyclopts import App, Parameter

from neuraxis.network import AllToAll, Network, neuron_model
from neuraxis.network.models import spike_source
from neuraxis.simulation import Simulation

app = App(help=__doc__, help_format="plaintext", version_flags=[])


@neuron_model(
    states={"x": 0.0, "y": 0.0},
    receptors=("input",),
    parameters={"per_ms": 0.314159, "damping_per_ms": 0.02, "threshold": 1.0},  # 2 pi / 20 ms
)
def resonate(x, y, input, dt_ms, per_ms, damping_per_ms, threshold):
    x = x - dt_ms * (damping_per_ms * x + per_ms * y) + input
    y = y + dt_ms * (per_ms * x - damping_per_ms * y)
    spike = y >= threshold
    return spike, 0.0 if spike else x, 0.0 if spike else y


def spikes_for(interval_ms: float, workers: int, device: str) -> int:
    """Run a neuron that receives two spikes, draw its state, and return the number of spikes that it fired."""
    network = Network(dt_ms=0.1)
    source = network.population("source", 1, spike_source)
    neuron = network.population("neuron", 1, resonate(threshold=1.0))
    network.spikes(source, [5.0, 5.0 + interval_ms], [0, 0])
    network.connect(source, neuron, AllToAll(), weight=0.9, delay_ms=1.0)
    network.record(neuron, "spikes")
    network.record(neuron, "y")
    with Simulation(network, workers, device=device) as simulation:
        simulation.run(60.0)
    plt.plot(*simulation.samples("neuron", "y"), label=f"input spikes {interval_ms:g} ms apart")
    return len(simulation.spikes("neuron")[0])


@app.default
def main(
    *,
    workers: Annotated[int, Parameter(help="Processes; the spikes are the same.")] = 1,
    device: Annotated[str, Parameter(help="cpu, cuda, cuda:1; the spikes are the same.")] = "cpu",
    plot: Annotated[Path | None, Parameter(help="Draw the state of both neurons to this file (png, pdf, svg).")] = None,
) -> None:
    plt.figure(figsize=(7, 3.5), layout="constrained")
    print("one period (20 ms) apart:", spikes_for(20.0, workers, device), "spike")
    print("half a period (10 ms) apart:", spikes_for(10.0, workers, device), "spikes")
    if plot is not None:
        plt.axhline(1.0, color="gray", linestyle="dotted", label="threshold")
        plt.xlabel("time (ms)")
        plt.ylabel("state y")
        plt.legend(loc="upper right")
        plt.savefig(plot)


if __name__ == "__main__":
    app()
