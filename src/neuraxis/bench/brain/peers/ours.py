"""Run one of the benchmark's networks on neuraxis and print the times.

    python ours.py '{"network": "brunel", "time_ms": 1000, "workers": 2}'

The last line printed is a JSON object, as in the peers' programs in this folder. `import_seconds` is the time of
`import neuraxis`, `build_seconds` that of starting the workers and building the network, `ready_seconds` that from
Simulation(...) to the end of its first step, `run_seconds` that of the run of `time_ms` after `presim_ms` that do not
count, `cpu_seconds` the processor time of that run with one worker, which is this process (null with more). Nothing is
recorded. Code that no cache has is compiled while building.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def main(text: str) -> None:
    # Imports are inside the function so that the first of them can be timed.
    started = time.perf_counter()
    import neuraxis

    import_seconds = time.perf_counter() - started
    import json

    from neuraxis.network.library import brunel, hpc_benchmark, microcircuit
    from neuraxis.simulation import Simulation

    options: dict[str, Any] = {"order": 2500, "scale": 1.0, "time_ms": 1000.0, "presim_ms": 100.0}
    options |= {"workers": 1, "seed": 1}
    options |= json.loads(text)
    seed, scale = options["seed"], options["scale"]
    networks = {
        "brunel": lambda: brunel(options["order"], seed=seed),
        "microcircuit": lambda: microcircuit(scale, seed=seed),
        "hpc_benchmark": lambda: hpc_benchmark(scale, seed=seed),
    }
    network = networks[options["network"]]()

    begun = time.perf_counter()
    with Simulation(network, options["workers"], progress=False) as simulation:
        simulation.step(1)
        ready_seconds = time.perf_counter() - begun
        simulation.step(max(1, round(options["presim_ms"] / network.dt_ms)) - 1)
        used = time.process_time()
        summary = simulation.run(options["time_ms"])
        cpu_seconds = time.process_time() - used if options["workers"] == 1 else None
    answer = {
        **summary.as_json(),
        "simulator": "neuraxis",
        "version": neuraxis.__version__,
        "network": options["network"],
        "neurons": network.neuron_count,
        "seed": seed,
        "presim_ms": options["presim_ms"],
        "import_seconds": import_seconds,
        "ready_seconds": ready_seconds,
        "cpu_seconds": cpu_seconds,
        "rate_hz": summary.spikes / network.neuron_count / (summary.time_ms * 1e-3),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
