"""Run one case of `neuraxis bench models` on NEST and print the processor time of the run.

    python peer_nest.py '{"model": "aeif_cond_exp", "parameters": {}, "current_pa": [500, 900], "neurons": 4000}'

The neurons run on one thread for `presim_ms` that do not count and then for `time_ms`; neither preparation nor
clean-up is in the time. Nothing is recorded: the spikes are NEST's own count. The last line printed is a JSON object.
"""

from __future__ import annotations

import importlib
import json
import sys
from time import process_time
from typing import Any

import numpy as np

STEP_MS = 0.1


def main(text: str) -> None:
    options: dict[str, Any] = {"presim_ms": 100.0, "time_ms": 1000.0, "seed": 1}
    options |= json.loads(text)
    nest: Any = importlib.import_module("nest")
    nest.verbosity = nest.VerbosityLevel.ERROR
    nest.ResetKernel()
    nest.resolution = STEP_MS
    nest.local_num_threads = 1
    nest.rng_seed = options["seed"]
    neurons = nest.Create(options["model"], options["neurons"], params=options["parameters"])
    if options["current_pa"]:
        low, high = options["current_pa"]
        neurons.I_e = np.linspace(low, high, options["neurons"])
    with nest.RunManager():
        nest.Run(options["presim_ms"])
        begun = process_time()
        nest.Run(options["time_ms"])
        cpu_seconds = process_time() - begun
    answer = {
        "version": nest.__version__,
        "neurons": options["neurons"],
        "steps": round(options["time_ms"] / STEP_MS),
        "time_ms": options["time_ms"],
        "cpu_seconds": cpu_seconds,
        "spikes": nest.local_spike_counter,  # of the last run
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
