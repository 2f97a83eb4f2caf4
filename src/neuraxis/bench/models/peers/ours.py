"""Run one case of `neuraxis bench models` on neuraxis and print the processor time of the run.

    python ours.py '{"model": "adex", "parameters": {}, "current_pa": [500, 900], "neurons": 4000, "time_ms": 1000}'
    python ours.py '{"network": "cuba", "time_ms": 1000}'

The network runs for `presim_ms` that do not count and then for `time_ms`, in this process. The last line printed is a
JSON object.
"""

from __future__ import annotations

import json
import sys
from time import process_time
from typing import Any

import numpy as np

import neuraxis
from neuraxis.network import Network, library
from neuraxis.network.models.catalogue import built_in_models
from neuraxis.simulation import Simulation


def main(text: str) -> None:
    options: dict[str, Any] = {"presim_ms": 100.0, "time_ms": 1000.0, "seed": 1, "network": ""}
    options |= json.loads(text)
    network = getattr(library, options["network"])(seed=options["seed"]) if options["network"] else alone(options)
    with Simulation(network, workers=1, progress=False) as simulation:
        simulation.run(options["presim_ms"])
        begun = process_time()
        summary = simulation.run(options["time_ms"])
        cpu_seconds = process_time() - begun
    answer = {
        "version": neuraxis.__version__,
        "neurons": network.neuron_count,
        "steps": round(options["time_ms"] / network.dt_ms),
        "time_ms": options["time_ms"],
        "cpu_seconds": cpu_seconds,
        "spikes": summary.spikes,
        "fingerprint": summary.as_json()["fingerprint"],
    }
    print(json.dumps(answer), flush=True)


def alone(options: dict[str, Any]) -> Network:
    """Return neurons without synapses, each with a current of its own."""
    network = Network(dt_ms=0.1, seed=options["seed"])
    model = built_in_models()[options["model"]](**options["parameters"])
    neurons = network.population("neurons", options["neurons"], model, **options.get("initial", {}))
    if options["current_pa"]:
        low, high = options["current_pa"]
        network.current(neurons, np.linspace(low, high, neurons.n))
    return network


if __name__ == "__main__":
    main(sys.argv[1])
