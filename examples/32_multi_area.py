"""Many areas: the multi-area model of macaque visual cortex, or a generated network of the same form.

python examples/32_multi_area.py                              (generated areas, a hundredth of the neurons)
python examples/32_multi_area.py --parameters FILE --chi 1.9  (areas of your file: see the how-to guide)
python examples/32_multi_area.py --scale 0.02 --workers 2 --plot areas.png

254 populations in 32 areas. The table has the mean rates of excitatory and inhibitory neurons of each area, and how
irregular they fire: the mean coefficient of variation of the intervals between their spikes.
"""

import json
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
from cyclopts import Parameter

from neuraxis.cli.network_command import network_app
from neuraxis.network.library import MultiAreaParameters, multi_area
from neuraxis.report.spike_statistics import isi_cv
from neuraxis.simulation import Simulation, Summary

app = network_app(__doc__)
LAYERS = ("23E", "23I", "4E", "4I", "5E", "5I", "6E", "6I")


@app.default
def main(
    *,
    parameters: Annotated[Path | None, Parameter(help="The .npz file of N, K, W, names and distances.")] = None,
    scale: Annotated[float, Parameter(help="Share of the neurons and of their inputs, above 0 and up to 1.")] = 0.01,
    chi: Annotated[float, Parameter(help="Factor of the weights between areas: 1.0, or 1.9 (metastable).")] = 1.0,
    workers: Annotated[int, Parameter(help="Worker processes; the spikes are the same.")] = 1,
    device: Annotated[str, Parameter(help="cpu or cuda; the spikes are the same.")] = "cpu",
    time_ms: Annotated[float, Parameter(help="Model time to report, in ms.")] = 500.0,
    discard_ms: Annotated[float, Parameter(help="Model time to run before, in ms.")] = 300.0,
    seed: Annotated[int, Parameter(help="Seed of the network.")] = 1,
    json_: Annotated[bool, Parameter("--json", help="Print one JSON object.", negative="")] = False,
    plot: Annotated[Path | None, Parameter(help="Draw the rates to this file (png, pdf, svg).")] = None,
) -> None:
    described = MultiAreaParameters.generated() if parameters is None else MultiAreaParameters.load(parameters)
    network = multi_area(described, scale, chi, seed)
    for population in network.populations:
        network.record(population, "spikes")
    with Simulation(network, workers, device=device) as simulation:
        simulation.run(discard_ms)
        summary = simulation.run(time_ms)
        irregularity = {
            one.name: isi_cv(*simulation.spikes(one), one.n, time_ms, start_ms=discard_ms)
            for one in network.populations
        }
    table = {area: row(area, summary, irregularity) for area in described.areas}
    if json_:
        print(json.dumps(summary.as_json() | {"areas": table}))
    else:
        print(f"{'area':8s} {'E (Hz)':>8s} {'I (Hz)':>8s} {'CV':>6s}")
        for area, (excitatory, inhibitory, cv) in table.items():
            print(f"{area:8s} {excitatory:8.2f} {inhibitory:8.2f} {cv:6.2f}")
        print(
            f"{network.neuron_count:,} neurons, {summary.synapses:,} synapses, real-time factor "
            f"{summary.run_seconds / time_ms * 1e3:.2f}"
        )
        print("fingerprint:", summary.fingerprint)
    if plot is not None:
        draw(described.areas, summary, plot)


def row(area: str, summary: Summary, irregularity: dict[str, np.ndarray]) -> tuple[float, float, float]:
    """Return the mean rates of excitatory and inhibitory neurons of an area, and their mean irregularity."""
    cells = {name: len(cv) for name, cv in irregularity.items() if name.startswith(f"{area}_")}
    rates = []
    for kind in "EI":
        names = [name for name in cells if name.endswith(kind)]
        spikes = sum(summary.rates_hz[name] * cells[name] for name in names)
        rates.append(round(spikes / sum(cells[name] for name in names), 3))
    every = np.concatenate([irregularity[name] for name in cells])
    return rates[0], rates[1], round(float(np.nanmean(every)), 3) if np.isfinite(every).any() else float("nan")


def draw(areas: tuple[str, ...], summary: Summary, path: Path) -> None:
    rates = np.array([[summary.rates_hz.get(f"{area}_{layer}", np.nan) for area in areas] for layer in LAYERS])
    figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
    image = axes.imshow(rates, aspect="auto", cmap="magma", vmin=0.0)
    axes.set_xticks(range(len(areas)), areas, rotation=90)
    axes.set_yticks(range(len(LAYERS)), LAYERS)
    axes.set_title("mean rate of each population; an area without layer 4 has a gap")
    figure.colorbar(image, label="Hz")
    figure.savefig(path)


if __name__ == "__main__":
    app()
