"""Rate of each built-in model at each current: an f-I curve of all of them, from one population for each model.

    python examples/28_fi_curves.py --plot fi_curves.png

A population has a neuron for each current: a whole curve is one run. Models that take no current or
emit no spikes are left out.
"""

from __future__ import annotations

import argparse

import numpy as np

from neuraxis import Network, Simulation
from neuraxis.network import models

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=100, help="currents of a curve")
parser.add_argument("--time-ms", type=float, default=500.0)
parser.add_argument("--plot", metavar="FILE")
options = parser.parse_args()

network = Network(dt_ms=0.1)
curves = {}
for name in models.__all__:
    model = getattr(models, name)
    if not getattr(model, "takes_current", False) or name.startswith("rate_"):
        continue
    largest = 20.0 if name == "izhikevich" else 1000.0  # the current of Izhikevich's model has no unit
    currents = np.linspace(0.0, largest, options.points)
    network.current(network.population(name, options.points, model), currents)
    curves[name] = currents

with Simulation(network) as simulation:
    simulation.run(options.time_ms)
    rates = {name: simulation.spike_counts(name) / options.time_ms * 1000 for name in curves}

for name, currents in curves.items():
    firing = np.flatnonzero(rates[name] > 1000 / options.time_ms)  # more than once: not only at the start
    first = f"fires from {currents[firing[0]]:6.1f}" if firing.size else "is silent up to "
    print(f"{name:16}  {first}, and at {currents[-1]:6.1f} with {rates[name][-1]:5.0f} spikes a second")

if options.plot:
    import matplotlib.pyplot as plt

    columns = 5
    rows = -(-len(curves) // columns)
    figure, all_axes = plt.subplots(rows, columns, figsize=(2.4 * columns, 1.8 * rows), layout="constrained")
    for axes in all_axes.flat[len(curves) :]:
        axes.set_axis_off()
    for axes, (name, currents) in zip(all_axes.flat, curves.items(), strict=False):
        axes.plot(currents, rates[name])
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    figure.supxlabel("current (pA; of izhikevich without a unit)")
    figure.supylabel("spikes a second")
    figure.savefig(options.plot, dpi=100)
    print(f"drew {options.plot}")
