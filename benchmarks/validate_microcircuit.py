"""Hold the microcircuit of neuraxis against NEST's: distributions of rate, irregularity and correlation, by population.

    benchmarks/peers.sh
    .venv/bin/python benchmarks/validate_microcircuit.py --scale 0.1 --time-ms 5000 --seeds 5

Both run the network of several seeds. The distance between two runs is that of Kolmogorov and Smirnov between their
distributions over neurons (or pairs of neurons). The yardstick is NEST against itself with other seeds: a run of
neuraxis should be no further from NEST's runs than these are from each other. The table goes to docs/validation.md.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from cyclopts import App

from neuraxis.network.library import microcircuit
from neuraxis.report.spike_statistics import count_correlations, isi_cv, ks_distance, rates_hz
from neuraxis.simulation import Simulation

ROOT = Path(__file__).resolve().parents[1]
NEST = ROOT / "src/neuraxis/bench/brain/peers/peer_nest.py"
MEASURES = ("rate", "ISI CV", "correlation")
DISCARD_MS = 500.0
DT_MS = 0.1

# A run: for each population and measure, the values of its neurons (or pairs).
Run = dict[tuple[str, str], np.ndarray]

app = App(help=__doc__)


@app.default
def main(
    *,
    scale: float = 0.1,
    time_ms: float = 5000.0,
    seeds: int = 5,
    workers: int = 2,
    peers_python: Path = ROOT / ".venv-peers/bin/python",
    keep: Path | None = None,
) -> None:
    """Print the table.

    Parameters
    ----------
    keep
        A folder for NEST's spikes; those found there are not simulated again.
    """
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(1, seeds + 1):
            theirs.append(nest_run(folder, peers_python, scale, time_ms, seed, workers))
            ours.append(our_run(scale, time_ms, seed, workers))
            print(f"seed {seed} done", file=sys.stderr)
    print_table(ours, theirs)


def our_run(scale: float, time_ms: float, seed: int, workers: int) -> Run:
    network = microcircuit(scale, seed=seed)
    for population in network.populations:
        network.record(population, "spikes")
    with Simulation(network, workers=workers) as simulation:
        simulation.run(DISCARD_MS + time_ms)
    found = {p.name: (*simulation.spikes(p), p.n) for p in network.populations}
    return measures(found, time_ms)


def nest_run(folder: Path, python: Path, scale: float, time_ms: float, seed: int, threads: int) -> Run:
    path = folder / f"nest-{scale:g}-{time_ms:g}-{seed}.npz"
    if not path.exists():
        options = {
            "network": "microcircuit", "scale": scale, "time_ms": time_ms, "presim_ms": DISCARD_MS, "seed": seed,
            "threads": threads, "spikes_to": str(path),
        }  # fmt: skip
        subprocess.run([python, NEST, json.dumps(options)], check=True, stdout=subprocess.DEVNULL, timeout=3600)
    data = np.load(path)
    found, first = {}, 0
    for name, n in zip(data["population_names"], data["population_sizes"], strict=True):
        here = (data["ids"] >= first) & (data["ids"] < first + n)
        found[str(name)] = (data["time_steps"][here] * DT_MS, data["ids"][here] - first, int(n))
        first += int(n)
    return measures(found, time_ms)


def measures(spikes: dict[str, tuple[np.ndarray, np.ndarray, int]], time_ms: float) -> Run:
    run: Run = {}
    for name, (times_ms, ids, n) in spikes.items():
        # A spike at the end of step k lies in (k - 1, k]; half a step back, none is on the edge of a bin.
        times = times_ms - DT_MS / 2
        kept = (times >= DISCARD_MS) & (times < DISCARD_MS + time_ms)
        given = (times[kept], ids[kept], n, time_ms)
        run[name, "rate"] = rates_hz(*given, start_ms=DISCARD_MS)
        run[name, "ISI CV"] = isi_cv(*given, start_ms=DISCARD_MS)
        run[name, "correlation"] = count_correlations(*given, bin_ms=2.0, n_sample=200, start_ms=DISCARD_MS)
    return run


def print_table(ours: list[Run], theirs: list[Run]) -> None:
    print("| population | measure | NEST mean | neuraxis mean | NEST to NEST: KS median (max) | neuraxis to NEST | |")
    print("|---|---|---|---|---|---|---|")
    for name, measure in ours[0]:
        key = (name, measure)
        within = [ks_distance(a[key], b[key]) for a, b in itertools.combinations(theirs, 2)]
        across = [ks_distance(a[key], b[key]) for a in ours for b in theirs]
        result = "no further" if np.median(across) <= max(within) else "FURTHER"
        print(
            f"| {name} | {measure} | {np.nanmean([np.nanmean(r[key]) for r in theirs]):.4g} "
            f"| {np.nanmean([np.nanmean(r[key]) for r in ours]):.4g} "
            f"| {np.median(within):.4f} ({max(within):.4f}) | {np.median(across):.4f} ({max(across):.4f}) | {result} |"
        )


if __name__ == "__main__":
    app()
