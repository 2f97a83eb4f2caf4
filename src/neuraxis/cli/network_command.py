"""The command line of a script that runs a network, as in the examples.

app = network_app("What this network is.")

@app.default
def main(*, size: int = 1000, run: RunOptions = RunOptions()) -> None:
    run_and_report(my_network(size, seed=run.seed), run)

app()

An error is one line on stderr, also if it occurs while the network is described; the exit code is 2 for wrong usage and
1 for a failure. Ctrl-C ends a run between two steps; stderr then shows the model time reached and the file of recorded
spikes, and the exit code is 130.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter

from neuraxis.cli.errors import exit_code
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.network import Network
from neuraxis.simulation import Simulation, Summary, read_spikes

__all__ = ["RunOptions", "network_app", "run_and_report"]


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """Options to run a network."""

    workers: Annotated[int, Parameter(help="Worker processes; the spikes are the same on any number.")] = 1
    device: Annotated[
        str, Parameter(help="cpu, cuda, cuda:1; for several workers one for each: cuda,cpu. The spikes are the same.")
    ] = "cpu"
    time_ms: Annotated[float, Parameter(help="Model time to run and report, in ms.")] = 1000.0
    discard_ms: Annotated[float, Parameter(help="Model time to run before, which does not count, in ms.")] = 0.0
    seed: Annotated[int, Parameter(help="Seed of everything random.")] = 1
    json: Annotated[bool, Parameter(help="Print one JSON object instead of text.", negative="")] = False
    plot: Annotated[Path | None, Parameter(help="Draw a raster of the spikes to this file (png, pdf, svg).")] = None
    record: Annotated[Path | None, Parameter(help="Write the spikes to this SONATA file (HDF5).")] = None


class _NetworkApp(App):
    """An App that prints errors of neuraxis as one line."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        except NeuraxisError as error:
            # A worker's error has the worker's traceback after its first line.
            text = str(error).partition("\n")[0] or type(error).__name__
            print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr)
            sys.exit(exit_code(error))


def network_app(text: str) -> App:
    """Return a command line that shows `text` with --help and prints errors of neuraxis as one line."""
    return _NetworkApp(help=text, version_flags=[], result_action="return_value")


def run_and_report(network: Network, options: RunOptions) -> Summary:
    """Run the network with the options, and print, draw and write the results.

    Raises:
        InvalidArgument: before anything runs, if a file cannot be written where an option wants it.
    """
    _check_files(options)
    if options.plot is not None or options.record is not None:
        for population in network.populations:
            network.record(population, "spikes")
    simulation = None
    try:
        with Simulation(
            network, workers=options.workers, device=options.device, record_to=options.record
        ) as simulation:
            if options.discard_ms:
                simulation.run(options.discard_ms)
            summary = simulation.run(options.time_ms)
    except KeyboardInterrupt:
        print(_interrupted(simulation, options), file=sys.stderr)
        raise
    if options.json:
        print(json.dumps(summary.as_json()))
    else:
        print(summary)
    if options.plot is not None:
        _draw(network, simulation, summary, options)
        print(f"raster: {options.plot}", file=sys.stderr)
    return summary


def _check_files(options: RunOptions) -> None:
    """Raise `InvalidArgument` before a long run if its files cannot be written."""
    for option, path in (("--plot", options.plot), ("--record", options.record)):
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InvalidArgument(f"{option} {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise InvalidArgument(f"{option} {path}: this is a folder; give the name of a file in it")
        if path.exists() and not os.access(path, os.W_OK):
            raise InvalidArgument(f"{option} {path}: this file cannot be written")
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            reason = error.strerror or error
            raise InvalidArgument(f"{option} {path}: no file can be made in {path.parent}: {reason}") from None
    if options.plot is None:
        return
    if options.record is not None and options.plot.resolve() == options.record.resolve():
        raise InvalidArgument(f"--plot {options.plot}: --record writes to the same file")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kinds = sorted(FigureCanvasAgg.get_supported_filetypes())
    if options.plot.suffix[1:].lower() not in kinds:
        raise InvalidArgument(f"--plot {options.plot}: its ending must be one of {', '.join(kinds)}")


def _interrupted(simulation: Simulation | None, options: RunOptions) -> str:
    if simulation is None:
        return "interrupted before the run started: nothing was recorded"
    text = f"interrupted at {simulation.time_ms:,.1f} of {options.discard_ms + options.time_ms:,.1f} ms of model time"
    if options.record is None:
        return text
    has_reports = any(probe.what != "spikes" for probe in simulation.network.probes)
    return f"{text}; recorded so far: {options.record}{', and reports in the same folder' if has_reports else ''}"


def _draw(network: Network, simulation: Simulation, summary: Summary, options: RunOptions) -> None:
    from neuraxis.report.plots import figure, save

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
