"""The command line of a script that runs a network: the examples, and whatever a user builds like them.

app = network_app("What this network is.")

@app.default
def main(*, size: int = 1000, run: RunOptions = RunOptions()) -> None:
    run_and_report(my_network(size, seed=run.seed), run)
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter

from neuraxis.execution import Simulation, Summary, read_spikes
from neuraxis.network import Network

__all__ = ["RunOptions", "network_app", "run_and_report"]


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """How to run a network."""

    workers: Annotated[int, Parameter(help="Processes to spread the network over; the spikes are the same.")] = 1
    time_ms: Annotated[float, Parameter(help="Model time to run and report, in ms.")] = 1000.0
    discard_ms: Annotated[float, Parameter(help="Model time to run before, which is not reported, in ms.")] = 0.0
    seed: Annotated[int, Parameter(help="Everything random is drawn from it.")] = 1
    json: Annotated[bool, Parameter(help="Print one JSON object instead of text.", negative="")] = False
    plot: Annotated[Path | None, Parameter(help="Draw a raster of the spikes to this file (png, pdf, svg).")] = None
    record: Annotated[Path | None, Parameter(help="Write the spikes to this SONATA file (HDF5).")] = None


def network_app(text: str) -> App:
    """A command line that shows `text` with --help."""
    return App(help=text, version_flags=[], result_action="return_value")


def run_and_report(network: Network, options: RunOptions) -> Summary:
    """Run the network as the options say, and print, draw and write what they ask for."""
    if options.plot is not None or options.record is not None:
        for population in network.populations:
            network.record(population, "spikes")
    with Simulation(network, workers=options.workers, record_to=options.record) as simulation:
        if options.discard_ms:
            simulation.run(options.discard_ms)
        summary = simulation.run(options.time_ms)
    if options.json:
        print(json.dumps(summary.as_json()))
    else:
        print(summary)
    if options.plot is not None:
        _draw(network, simulation, summary, options)
        print(f"raster: {options.plot}", file=sys.stderr)
    return summary


def _draw(network: Network, simulation: Simulation, summary: Summary, options: RunOptions) -> None:
    from neuraxis.observe.raster import figure, save

    path = options.plot
    assert path is not None
    if options.record is not None:
        found = read_spikes(options.record)
        spikes = {p.name: (found[p.name][0], found[p.name][1].astype(np.int64), p.n) for p in network.populations}
    else:
        spikes = {p.name: (*simulation.spikes(p), p.n) for p in network.populations}
    end = simulation.time_ms
    window = (max(0.0, end - min(options.time_ms, 500.0)), end)
    save(figure(spikes, summary.rates_hz, window_ms=window), path)
