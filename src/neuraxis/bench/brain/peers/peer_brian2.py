"""Run Brunel's network on Brian2 in its fastest mode, a compiled C++ program, and print the times.

    python peer_brian2.py '{"network": "brunel", "time_ms": 1000, "threads": 1}'
    python peer_brian2.py --network brunel --time_ms 1000 --threads 2

Needs g++ and make. The last line printed is a JSON object:

- `build_seconds`: drawing the connections, generating the program and compiling it; `compile_seconds` is the share of
  generating and compiling.
- `start_seconds`: what the program does around the timed run. It reads the connections, builds its queues, runs the
  `presim_ms` that do not count, and writes its results.
- `run_seconds`: the program's own figure for the run of `time_ms`. With one thread it is built without OpenMP, and
  Brian2 then counts processor time, which a busy machine does not lengthen; with OpenMP it is wall time.
- `cpu_seconds`: the same with one thread; with more it is unknown.

Only the number of spikes of each neuron is counted. With `spikes_to` they are recorded as well, and the file gets
`time_steps` (int64: the number of the step at whose end the neuron spiked, counted from the start of the network,
presimulation included), `ids` (int64, from 0 in the order of the populations), `population_names`,
`population_sizes`, `presim_steps`, `run_steps`, `step_ms`.

The network is NEST's form of Brunel's: 12,500 neurons at `scale` 1 that ignore what arrives while they are
refractory. Brian2 adds what arrives in a step after it has looked for spikes, NEST before: the same
input acts a step later here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STEP_MS = 0.1
COMPILER_FLAGS = ["-w", "-O3", "-march=native", "-ffast-math", "-std=c++11"]


def main(argv: Sequence[str]) -> None:
    options = read_options(argv)
    # The threads meet several times a step: they must wait on their cores without sleeping.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    os.environ.setdefault("OMP_PROC_BIND", "true")
    started = time.perf_counter()
    brian2: Any = importlib.import_module("brian2")
    imported = time.perf_counter()
    logging.getLogger("brian2").setLevel(logging.ERROR)
    prefs, ms, device = brian2.prefs, brian2.ms, brian2.device
    prefs.codegen.cpp.extra_compile_args_gcc = COMPILER_FLAGS
    prefs.devices.cpp_standalone.extra_make_args_unix = [f"-j{os.cpu_count()}"]
    prefs.devices.cpp_standalone.openmp_threads = 0 if options.threads == 1 else options.threads
    prefs.core.default_float_dtype = np.float32 if options.precision == "single" else np.float64
    brian2.set_device("cpp_standalone", build_on_run=False)
    brian2.seed(options.seed)
    brian2.defaultclock.dt = STEP_MS * ms

    sizes = {"E": round(10_000 * options.scale), "I": round(2_500 * options.scale)}
    neurons, objects = brunel(brian2, sizes, options)
    counter = brian2.SpikeMonitor(neurons, record=bool(options.spikes_to))
    network = brian2.Network(neurons, counter, *objects)
    if options.presim_ms > 0:
        counter.active = False
        network.run(options.presim_ms * ms)
        counter.active = True
    network.run(options.time_ms * ms)

    with tempfile.TemporaryDirectory(prefix="peer_brian2_") as folder:
        compile_started = time.perf_counter()
        device.build(directory=folder, compile=True, run=False, with_output=False)
        built = time.perf_counter()
        device.run(folder, with_output=False)
        finished = time.perf_counter()
        run_seconds = device._last_run_time
        counts = np.asarray(counter.count[:], dtype=np.int64)
        if options.spikes_to:
            save_spikes(options.spikes_to, np.asarray(counter.t / ms), np.asarray(counter.i), sizes, options)

    seconds = options.time_ms / 1000.0
    parts = np.split(counts, np.cumsum(list(sizes.values()))[:-1])
    answer = {
        "simulator": "brian2",
        "version": brian2.__version__,
        "network": options.network,
        "neurons": sum(sizes.values()),
        "synapses": sum(sizes.values()) * sum(in_degrees(options).values()),
        "threads": options.threads,
        "seed": options.seed,
        "precision": options.precision,
        "time_ms": options.time_ms,
        "presim_ms": options.presim_ms,
        "build_seconds": built - imported,
        "compile_seconds": built - compile_started,
        "import_seconds": imported - started,
        "start_seconds": finished - built - run_seconds,
        "run_seconds": run_seconds,
        "cpu_seconds": run_seconds if options.threads == 1 else None,
        "real_time_factor": run_seconds / seconds,
        "spikes": int(counts.sum()),
        "rate_hz": float(counts.mean()) / seconds,
        "rates_hz": {name: float(part.mean()) / seconds for name, part in zip(sizes, parts, strict=True)},
        "rates_over_ms": options.time_ms,
    }
    print(json.dumps(answer), flush=True)


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of one JSON object or of flags; an invalid one ends the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Run a network in Brian2.", allow_abbrev=False)
    parser.add_argument("--network", choices=("brunel",), required=True)
    parser.add_argument("--scale", type=positive, default=1.0)
    parser.add_argument("--time_ms", type=positive, default=1000.0)
    parser.add_argument("--presim_ms", type=float, default=100.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", choices=("single", "double"), default="single")
    parser.add_argument("--spikes_to", type=Path)
    if argv and argv[0].lstrip().startswith("{"):
        given: dict[str, Any] = json.loads(argv[0])
        argv = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return parser.parse_args(argv)


def positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above zero, not {text}")
    return value


def in_degrees(options: argparse.Namespace) -> dict[str, int]:
    return {"E": round(1_000 * options.scale), "I": round(250 * options.scale)}


def brunel(brian2: Any, sizes: dict[str, int], options: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the neurons, excitatory first, and the other objects of the network."""
    ms = brian2.ms
    n = sum(sizes.values())
    names = {"membrane_time": 20.0 * ms, "draw": brian2.BinomialFunction(1_000, 20.0 * STEP_MS / 1000.0)}
    neurons = brian2.NeuronGroup(
        n,
        "dv/dt = -v / membrane_time : 1",
        threshold="v >= 20",
        reset="v = 0",
        refractory=2.0 * ms,
        method="exact",
        namespace=names,
    )
    # 20,000 external inputs a second as PoissonInput would draw them, and in the same pass what arrived at refractory
    # neurons is dropped. Their potential is 0 and decays to 0, so the equation needs no clamp of its own.
    drive = neurons.run_regularly("v = int(not_refractory) * (v + 0.1 * draw())", when="after_synapses")

    random = np.random.default_rng(options.seed)
    objects = [drive]
    first = 0
    for name, increment in (("E", "0.1"), ("I", "-0.5")):
        degree = in_degrees(options)[name]
        sources = random.integers(0, sizes[name], n * degree, dtype=np.int32)
        # Synapses lie in the order of their sources, so that a spike walks along memory.
        order = np.argsort(sources, kind="stable")
        targets = np.repeat(np.arange(n, dtype=np.int32), degree)[order]
        group = neurons[first : first + sizes[name]]
        first += sizes[name]
        synapses = brian2.Synapses(group, neurons, on_pre=f"v_post += {increment}", delay=1.5 * ms)
        synapses.connect(i=sources[order], j=targets)
        objects.append(synapses)
    return neurons, objects


def save_spikes(
    path: Path, times_ms: np.ndarray, ids: np.ndarray, sizes: dict[str, int], options: argparse.Namespace
) -> None:
    # Brian2 gives a spike the time at which its step began.
    steps = np.rint(times_ms / STEP_MS).astype(np.int64) + 1
    order = np.lexsort((ids, steps))
    np.savez_compressed(
        path,
        time_steps=steps[order],
        ids=ids[order].astype(np.int64),
        population_names=np.array(list(sizes)),
        population_sizes=np.array(list(sizes.values()), dtype=np.int64),
        presim_steps=np.int64(round(options.presim_ms / STEP_MS)),
        run_steps=np.int64(round(options.time_ms / STEP_MS)),
        step_ms=np.float64(STEP_MS),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
