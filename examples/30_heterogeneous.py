"""Brunel's network with neurons of one kind, and with neurons whose time constants and thresholds differ.

    python examples/30_heterogeneous.py --plot heterogeneous.png

Equal neurons with equal numbers of inputs fire at nearly equal rates. In cortex, rates differ by orders of magnitude.
"""

from __future__ import annotations

import argparse

import numpy as np

from neuraxis import Network, Simulation
from neuraxis.network import FixedInDegree, LogNormal, NeuronModel, Normal
from neuraxis.network.models import lif_exp_two

parser = argparse.ArgumentParser()
parser.add_argument("--time-ms", type=float, default=500.0)
parser.add_argument("--plot", metavar="FILE")
options = parser.parse_args()


def rates_of(model: NeuronModel) -> np.ndarray:
    network = Network(dt_ms=0.1, seed=1)
    e, i = network.population("E", 2000, model), network.population("I", 500, model)
    for post in (e, i):
        network.connect(e, post, FixedInDegree(200), weight=30.0, delay_ms=1.5)
        network.connect(i, post, FixedInDegree(50), weight=-150.0, delay_ms=1.5)
        network.poisson(post, 8_000.0, 30.0)
    with Simulation(network) as simulation:
        simulation.run(options.time_ms)
        return simulation.spike_counts("E") / options.time_ms * 1000


kinds = {
    "equal neurons": lif_exp_two,
    "lognormal time constants": lif_exp_two(tau_m_ms=LogNormal(2.3, 0.4)),
    "and normal thresholds": lif_exp_two(tau_m_ms=LogNormal(2.3, 0.4), v_threshold_mv=Normal(-55.0, 2.0, low=-65.0)),
}
found = {name: rates_of(model) for name, model in kinds.items()}
for name, rates in found.items():
    low, middle, high = np.percentile(rates, [5, 50, 95])
    print(f"{name:25} median {middle:5.1f} Hz, nine tenths of the neurons between {low:5.1f} and {high:5.1f} Hz")

if options.plot:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    most = max(rates.max() for rates in found.values())
    for name, rates in found.items():
        axes.hist(rates, bins=np.arange(0.0, most + 4.0, 4.0), histtype="step", linewidth=1.5, label=name)
    axes.set(xlabel="rate (Hz)", ylabel="neurons")
    axes.legend()
    figure.savefig(options.plot, dpi=100)
    print(f"drew {options.plot}")
