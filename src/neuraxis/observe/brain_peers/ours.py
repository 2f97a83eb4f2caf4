"""neuraxis runs one of the benchmark's networks and says how long it took.

    python ours.py '{"network": "brunel", "time_ms": 1000, "workers": 2}'

The last line printed is a JSON object, as of the peers' programs beside this one. `import_seconds` is that of
`import neuraxis`, `build_seconds` is starting the workers and building the network, `ready_seconds` is from asking for
the simulation to the end of its first step, `run_seconds` is the run of `time_ms` after the `presim_ms` that do not
count. Nothing is recorded. What is in no cache yet is compiled while building.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def main(text: str) -> None:
    # Imports stand here so that the first of them can be timed.
    started = time.perf_counter()
    import neuraxis

    import_seconds = time.perf_counter() - started
    import json

    from neuraxis.execution import Simulation
    from neuraxis.network.library import brunel, hpc_benchmark, microcircuit

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
        summary = simulation.run(options["time_ms"])
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
        "rate_hz": summary.spikes / network.neuron_count / (summary.time_ms * 1e-3),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
