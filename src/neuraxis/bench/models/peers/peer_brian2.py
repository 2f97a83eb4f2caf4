"""Run one case of `neuraxis bench models` on Brian2 as a compiled C++ program, and print its processor time.

    python peer_brian2.py '{"equations": "dv/dt = (I - v) / tau : 1", "threshold": "v > 1", ...}'

Needs g++ and make. The program has one thread and no OpenMP, so the time that Brian2 reports is processor time.
`folder` keeps the compiled program: where it holds one, that is run again. All variables are numbers without a unit,
in mV, pA, pF, nS; `names_ms` are times. The last line printed is a JSON object.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

STEP_MS = 0.1
COMPILER_FLAGS = ["-w", "-O3", "-march=native", "-ffast-math", "-std=c++11"]
ANSWER = "answer.json"


def main(text: str) -> None:
    options: dict[str, Any] = {"presim_ms": 100.0, "time_ms": 1000.0, "seed": 1}
    options |= {
        "initial": {},
        "names": {},
        "names_ms": {},
        "synapses": None,
        "current_pa": None,
        "precision": "float32",
    }
    options |= json.loads(text)
    folder = Path(options["folder"])
    if not (folder / ANSWER).exists():
        build(options, folder)
    else:
        subprocess.run([folder / "main"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    answer = json.loads((folder / ANSWER).read_text())
    # Brian2's program writes the duration of its last run and its share that is done.
    answer["cpu_seconds"] = float((folder / "results" / "last_run_info.txt").read_text().split()[0])
    print(json.dumps(answer), flush=True)


def build(options: dict[str, Any], folder: Path) -> None:
    """Compile the program into the folder, run it once, and write what does not change between runs."""
    brian2: Any = importlib.import_module("brian2")
    logging.getLogger("brian2").setLevel(logging.ERROR)
    prefs, ms = brian2.prefs, brian2.ms
    prefs.codegen.cpp.extra_compile_args_gcc = COMPILER_FLAGS
    prefs.devices.cpp_standalone.extra_make_args_unix = [f"-j{os.cpu_count()}"]
    prefs.devices.cpp_standalone.openmp_threads = 0
    prefs.core.default_float_dtype = np.dtype(options["precision"]).type
    brian2.set_device("cpp_standalone", build_on_run=False)
    brian2.seed(options["seed"])
    brian2.defaultclock.dt = STEP_MS * ms

    names = {**options["names"], **{name: value * ms for name, value in options["names_ms"].items()}, "ms": ms}
    neurons = brian2.NeuronGroup(
        options["neurons"],
        options["equations"],
        threshold=options["threshold"],
        reset=options["reset"],
        refractory=options["refractory_ms"] * ms,
        method=options["method"],
        namespace=names,
    )
    for name, value in options["initial"].items():
        setattr(neurons, name, value)
    if options["current_pa"]:
        low, high = options["current_pa"]
        neurons.I = np.linspace(low, high, options["neurons"])
    counter = brian2.SpikeMonitor(neurons, record=False)
    objects = [neurons, counter]
    if options["synapses"]:
        excitatory = round(0.8 * options["neurons"])
        for group, effect in zip((neurons[:excitatory], neurons[excitatory:]), options["synapses"], strict=True):
            synapses = brian2.Synapses(group, neurons, on_pre=effect, namespace=names)
            synapses.connect(p=0.02)
            objects.append(synapses)
    network = brian2.Network(*objects)
    counter.active = False
    network.run(options["presim_ms"] * ms)
    counter.active = True
    network.run(options["time_ms"] * ms)
    brian2.device.build(directory=str(folder), compile=True, run=True, with_output=False)
    answer = {
        "version": brian2.__version__,
        "neurons": options["neurons"],
        "steps": round(options["time_ms"] / STEP_MS),
        "time_ms": options["time_ms"],
        "spikes": int(np.sum(counter.count[:])),
    }
    (folder / ANSWER).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
