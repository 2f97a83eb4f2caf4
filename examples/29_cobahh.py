"""COBAHH: 4,000 neurons of Hodgkin and Huxley that fire without any input (Brette et al. 2007).

python examples/29_cobahh.py --plot cobahh.png
"""

from __future__ import annotations

import argparse

from neuraxis import Simulation
from neuraxis.network.library import cobahh

parser = argparse.ArgumentParser()
parser.add_argument("--time-ms", type=float, default=300.0)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--plot", metavar="FILE")
options = parser.parse_args()

network = cobahh(seed=1)
network.record("E", "spikes")
network.record("I", "spikes")
network.record("E", "v_mv", subset=range(10))
with Simulation(network, workers=options.workers) as simulation:
    print(simulation.run(options.time_ms))
    rates = {name: simulation.spike_counts(name).mean() / options.time_ms * 1000 for name in ("E", "I")}
    print(f"E fires at {rates['E']:.1f} Hz, I at {rates['I']:.1f} Hz")
    times_ms, v_mv = simulation.samples("E", "v_mv")
    spikes = {name: simulation.spikes(name) for name in ("E", "I")}

if options.plot:
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained", height_ratios=[2, 1])
    above.plot(*spikes["E"], ",", color="tab:blue")
    above.plot(spikes["I"][0], spikes["I"][1] + network["E"].n, ",", color="tab:red")
    above.set_ylabel("neuron (E below, I above)")
    below.plot(times_ms, v_mv[:, v_mv.max(axis=0).argmax()], linewidth=0.8)
    below.set(xlabel="time (ms)", ylabel="V of a neuron (mV)")
    figure.savefig(options.plot, dpi=100)
    print(f"drew {options.plot}")
