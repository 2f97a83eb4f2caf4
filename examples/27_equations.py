"""A neuron model written as equations with units: an adaptive exponential neuron that bursts.

python examples/27_equations.py
python examples/27_equations.py --plot burst.png

The text is checked and compiled like any other model, so it runs on any number of workers and on GPUs.
"""

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
from cyclopts import App, Parameter

from neuraxis.network import Network, equations
from neuraxis.simulation import Simulation

app = App(help=__doc__, help_format="plaintext", version_flags=[])

bursting = equations(
    """
    dv/dt = (g_l*(e_l - v) + g_l*d_t*exp((v - v_t)/d_t) - w + i)/c_m : mV
    dw/dt = (a*(v - e_l) - w)/tau_w : pA
    c_m = 200*pF : pF    # capacitance
    g_l = 10*nS : nS     # leak
    e_l = -58*mV : mV    # rest
    v_t = -50*mV : mV    # where the upswing begins
    d_t = 2*mV : mV      # its sharpness
    a = 2*nS : nS        # adaptation to v
    tau_w = 120*ms : ms  # its time constant
    """,
    threshold="v > v_t + 5*d_t",
    reset="v = -46*mV; w += 100*pA",
    initial={"v": "e_l"},
    name="bursting",
)


@app.default
def main(
    *,
    plot: Annotated[Path | None, Parameter(help="Draw the membrane potential to this file (png, pdf, svg).")] = None,
) -> None:
    network = Network(dt_ms=0.05)
    cell = network.population("cell", 1, bursting)
    network.current(cell, 210.0, start_ms=50.0)
    network.record(cell, "spikes")
    network.record(cell, "v_mv", every_ms=0.1)
    with Simulation(network) as simulation:
        simulation.run(600.0)
        times_ms, _ = simulation.spikes(cell)
        samples = simulation.samples(cell, "v_mv")
    gaps = times_ms[1:] - times_ms[:-1]
    print(bursting.description.splitlines()[-1])
    print(f"{len(times_ms)} spikes in {1 + int((gaps > 20.0).sum())} bursts")
    if plot is not None:
        plt.figure(figsize=(7, 3), layout="constrained")
        plt.plot(*samples)
        plt.xlabel("time (ms)")
        plt.ylabel("v (mV)")
        plt.savefig(plot)


if __name__ == "__main__":
    app()
