"""Rate neurons with delays: a ring that remembers a direction, with the same rates on any number of workers.

python examples/31_rate_neurons.py
python examples/31_rate_neurons.py --workers 2             (the same fingerprint)
python examples/31_rate_neurons.py --plot ring.png

Each neuron of a ring excites its neighbours and inhibits the others, and its rate reaches them 2 ms later. A cue makes
a bump of activity. When the cue is silenced, the bump stays where it is: a short-term memory (Ben-Yishai, Bar-Or and
Sompolinsky 1995). Noise lets it drift.
"""

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
from cyclopts import App, Parameter

from neuraxis.network import AllToAll, Network, OneToOne
from neuraxis.network.models import rate_linear, rate_threshold_linear
from neuraxis.simulation import Simulation

N = 256
CUE_MS, MEMORY_MS = 100.0, 900.0
ANGLES = np.arange(N) * 360.0 / N

app = App(help=__doc__, help_format="plaintext", version_flags=[])


def ring(cue_deg: float) -> Network:
    network = Network(dt_ms=0.1, seed=1)
    # theta=-1: every neuron is driven by a constant input of 1.
    cells = network.population("ring", N, rate_threshold_linear(tau_ms=10.0, theta=-1.0, sigma=0.1))
    profile = np.exp(2.0 * np.cos(np.radians(ANGLES - cue_deg)) - 2.0)
    cue = network.population("cue", N, rate_linear(mean=profile), rate=profile)
    apart = np.radians(ANGLES[:, None] - ANGLES[None, :])  # [target, source]
    network.connect_rates(cells, cells, AllToAll(), weight=(4.0 * np.cos(apart) - 2.0).ravel() / N, delay_ms=2.0)
    network.connect_rates(cue, cells, OneToOne(), weight=2.0, delay_ms=5.0)
    network.record(cells, "rate", every_ms=2.0)
    return network


def direction_deg(rates: np.ndarray) -> float:
    """Return the direction of the bump, by the population vector."""
    return float(np.degrees(np.angle(np.exp(1j * np.radians(ANGLES)) @ rates)) % 360.0)


@app.default
def main(
    *,
    cue: Annotated[float, Parameter(help="Direction to remember, in degrees.")] = 140.0,
    workers: Annotated[int, Parameter(help="Processes; the rates are the same.")] = 1,
    plot: Annotated[Path | None, Parameter(help="Draw the rates to this file (png, pdf, svg).")] = None,
) -> None:
    with Simulation(ring(cue), workers) as simulation:
        simulation.run(CUE_MS)
        shown = direction_deg(simulation.state("ring", "rate"))
        simulation.silence("cue")
        summary = simulation.run(MEMORY_MS)
        remembered = direction_deg(simulation.state("ring", "rate"))
        times_ms, rates = simulation.samples("ring", "rate")
    print(f"cue at {cue:.0f} degrees: the bump is at {shown:.0f} degrees")
    print(f"{MEMORY_MS:.0f} ms after the cue it is at {remembered:.0f} degrees")
    print("remembered within 20 degrees:", abs((remembered - cue + 180.0) % 360.0 - 180.0) < 20.0)
    print("fingerprint:", summary.fingerprint)
    if plot is not None:
        figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
        image = axes.pcolormesh(times_ms, ANGLES, rates.T, shading="nearest", rasterized=True)
        axes.axvline(CUE_MS, color="white", linestyle="dotted")
        axes.set(xlabel="time (ms)", ylabel="direction (degrees)", yticks=range(0, 361, 90))
        figure.colorbar(image, label="rate")
        figure.savefig(plot)


if __name__ == "__main__":
    app()
