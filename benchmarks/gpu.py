"""The engine on a GPU: the cortical microcircuit by the published recipe, Brunel, hpc_benchmark, a million neurons, and
every model without synapses.

python benchmarks/gpu.py                       all of it (some minutes on an H200)
python benchmarks/gpu.py --what micro,energy   parts: micro, recording, energy, seeds, same, brunel, hpc, million,
                                               models
python benchmarks/gpu.py --json gpu.json       keep the figures, in the form of `neuraxis bench ... --json`

The recipe (Senk et al. 2026): full scale, 10 s of model time after 0.5 s that do not count, no recording for speed.
Times are the wall clock's around `simulation.advance`; the first build of a network compiles, so the second one counts.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter

from neuraxis.bench.harness import Report, Results, Table, machine_lines, record
from neuraxis.bench.machine import machine_state
from neuraxis.bench.models.catalogue import CASES, Case
from neuraxis.bench.models.peers.ours import alone
from neuraxis.network import Network
from neuraxis.network.library import brunel, hpc_benchmark, microcircuit
from neuraxis.simulation import Simulation
from validate_microcircuit import measures

DISCARD_MS, TIME_MS, REPEATS, SEEDS = 500.0, 10_000.0, 3, 10

app = App(help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def main(
    *,
    what: str = "micro,recording,energy,seeds,same,brunel,hpc,million,models",
    json_to: Annotated[Path | None, Parameter("--json")] = None,
    note: str = "",
) -> None:
    """Measure the parts that `what` names; `note` is a remark about the circumstances for the JSON file."""
    found: dict[str, Any] = {}
    state = machine_state(1, "cupy-cuda12x", "cupy-cuda13x")
    state["machine"]["cuda"] = device_name()
    command = ["python", "benchmarks/gpu.py", "--what", what]
    heading = [*machine_lines(Results(**state)), f"Medians of {REPEATS} runs, all in one simulation each."]
    for name in what.split(","):
        found[name] = PARTS[name]()
        report = Report({**state, "found": found}, heading, tables(found))
        if json_to is not None:
            json_to.write_text(json.dumps(record(report, command, note), indent=1))
        print(report.tables[-1].as_text(), flush=True)


def tables(found: dict[str, Any]) -> list[Table]:
    """Return a table for each part, a row for each thing that it measured; lists and nested parts are left out."""
    made = []
    for part, measured in found.items():
        rows = measured if all(isinstance(one, dict) for one in measured.values()) else {part: measured}
        names = [name for name, value in next(iter(rows.values())).items() if not isinstance(value, dict | list)]
        cells = [[title, *(f"{row[name]:,}" if type(row[name]) is int else str(row[name]) for name in names)]
                 for title, row in rows.items()]  # fmt: skip
        made.append(Table(part, ["", *names], cells))
    return made


def micro() -> dict[str, Any]:
    """The microcircuit, with both kinds of drive, without and with all spikes recorded."""
    found: dict[str, Any] = {}
    for drive in ("poisson", "dc"):
        for recorded in (False, True):
            network = microcircuit(1.0, drive, seed=1)
            for population in network.populations if recorded else ():
                network.record(population, "spikes")
            with Simulation(network, device="cuda", progress=False):
                pass  # compiles
            with Simulation(network, device="cuda", progress=False) as simulation:
                simulation.run(DISCARD_MS)
                runs = [simulation.run(TIME_MS) for _ in range(REPEATS)]
                factors = [run.run_seconds / (TIME_MS * 1e-3) for run in runs]
                found[f"{drive}, {'all spikes recorded' if recorded else 'nothing recorded'}"] = {
                    "real-time factor": round(statistics.median(factors), 5),
                    "all": [round(one, 5) for one in factors],
                    "construction s": round(simulation.build_seconds, 3),
                    "synaptic events a second": f"{runs[0].synaptic_events / runs[0].run_seconds:.3g}",
                    "rates Hz": {name: round(rate, 3) for name, rate in runs[0].rates_hz.items()},
                    "fingerprint": runs[0].fingerprint,
                }
    return found


def recording() -> dict[str, Any]:
    """Measure the cost of recording all spikes in a network that fires at about 10 Hz; the two in turns."""
    plain, recorded = brunel(eta=1.1, seed=1), brunel(eta=1.1, seed=1)
    for population in recorded.populations:
        recorded.record(population, "spikes")
    with (
        Simulation(plain, device="cuda", progress=False) as without,
        Simulation(recorded, device="cuda", progress=False) as with_spikes,
    ):
        pair, time_ms = (without, with_spikes), 4000.0
        for simulation in pair:
            simulation.run(200.0)
        runs = [[simulation.run(time_ms) for simulation in pair] for _ in range(2 * REPEATS + 1)]
    seconds = time_ms * 1e-3
    factors = [statistics.median(run.run_seconds for run in both) / seconds for both in zip(*runs, strict=True)]
    return {
        "network": "Brunel 12,500, eta 1.1",
        "mean rate Hz": round(runs[-1][0].spikes / plain.neuron_count / seconds, 2),
        "real-time factor, nothing recorded": round(factors[0], 5),
        "real-time factor, all spikes recorded": round(factors[1], 5),
        "cost of recording": f"{factors[1] / factors[0] - 1:.1%}",
    }


def energy() -> dict[str, Any]:
    """Energy for each synaptic event: the card's own reading of its power, times the time."""
    found = {}
    for drive in ("poisson", "dc"):
        with Simulation(microcircuit(1.0, drive, seed=1), device="cuda", progress=False) as simulation:
            simulation.run(5 * TIME_MS)  # warm
            with power_readings() as watts:
                run = simulation.run(30 * TIME_MS)
            mean = statistics.mean(watts[len(watts) // 4 :])
            found[drive] = {
                "W": round(mean, 1),
                "readings": len(watts),
                "nJ for a synaptic event": round(mean * run.run_seconds / run.synaptic_events * 1e9, 2),
                "real-time factor": round(run.run_seconds / (0.03 * TIME_MS), 5),
            }
    return found


def seeds() -> dict[str, Any]:
    """Ten seeds, both drives: rates, irregularity and correlations, mean and spread over the seeds."""
    found: dict[str, Any] = {}
    for drive in ("poisson", "dc"):
        runs: dict[str, dict[str, list[float]]] = {}
        for seed in range(1, SEEDS + 1):
            network = microcircuit(1.0, drive, seed=seed)
            for population in network.populations:
                network.record(population, "spikes")
            with Simulation(network, device="cuda", progress=False) as simulation:
                simulation.run(DISCARD_MS + TIME_MS)
                spikes = {one.name: (*simulation.spikes(one), one.n) for one in network.populations}
            for (name, measure), values in measures(spikes, TIME_MS).items():
                runs.setdefault(name, {}).setdefault(measure, []).append(float(np.nanmean(values)))
        found[drive] = {
            name: {measure: [round(statistics.mean(v), 5), round(statistics.stdev(v), 5)] for measure, v in one.items()}
            for name, one in runs.items()
        }
    return found


def same() -> dict[str, Any]:
    """The fingerprints of CPU and GPU after a second of each model; they are the same."""
    found = {}
    for name, network, time_ms in (
        ("microcircuit, Poisson", microcircuit(1.0, "poisson", seed=1), 1000.0),
        ("microcircuit, DC", microcircuit(1.0, "dc", seed=1), 1000.0),
        ("Brunel 12,500", brunel(seed=1), 1000.0),
        ("hpc_benchmark, scale 0.2, plastic", hpc_benchmark(0.2, seed=1), 200.0),
    ):
        prints = []
        for options in ({"device": "cuda"}, {"workers": 8}):
            with Simulation(network, progress=False, **options) as simulation:  # type: ignore[arg-type]
                prints.append(simulation.run(time_ms).fingerprint)
        found[name] = {"GPU": prints[0], "CPU, 8 workers": prints[1], "same": prints[0] == prints[1]}
    return found


def timed(network: Network, discard_ms: float, time_ms: float) -> dict[str, Any]:
    with Simulation(network, device="cuda", progress=False) as simulation:
        simulation.run(discard_ms)
        runs = [simulation.run(time_ms) for _ in range(REPEATS)]
        run = sorted(runs, key=lambda one: one.run_seconds)[REPEATS // 2]
        steps = time_ms / network.dt_ms
        return {
            "neurons": network.neuron_count,
            "synapses": simulation.build.synapses,
            "bytes a synapse": round(simulation.build.bytes_per_synapse, 2),
            "construction s": round(simulation.build_seconds, 2),
            "mean rate Hz": round(run.spikes / network.neuron_count / (time_ms * 1e-3), 2),
            "real-time factor": round(run.run_seconds / (time_ms * 1e-3), 5),
            "µs per step": round(run.run_seconds / steps * 1e6, 2),
            "events a second": f"{run.synaptic_events / run.run_seconds:.3g}",
            # 4 or 8 bytes of each synapse that is felt must come from memory, at the bandwidth that is measured here.
            "floor of bytes, µs per step": round(
                run.synaptic_events * (4 if network.neuron_count < 100_000 else 8) / bandwidth() / steps * 1e6, 2
            ),
        }


def one_brunel() -> dict[str, Any]:
    """Measure Brunel's network, also without its drive: a step without spikes is the least latency of small ones."""
    silent = timed(brunel(eta=0.0, seed=1), 200.0, 2000.0)
    return timed(brunel(seed=1), 200.0, 2000.0) | {"floor of latency, µs per step": silent["µs per step"]}


def one_hpc() -> dict[str, Any]:
    return timed(hpc_benchmark(1.0, seed=1), 50.0, 250.0)


def million() -> dict[str, Any]:
    """A million neurons as in Brunel's network, with 1,000 and with 10,000 inputs each."""
    return {
        f"{inputs:,} inputs": timed(brunel(order=200_000, epsilon=inputs / 1e6, eta=eta, seed=1), 20.0, 20.0)
        for inputs, eta in ((1000, 2.0), (10_000, 2.0))
    }


def models() -> dict[str, Any]:
    """Measure 100,000 neurons of each built-in model, each with a current of its own, and how long compiling takes.

    The time to compile is that by which the first of two simulations takes longer; it is small where the kernels are in
    a file of an earlier run.
    """
    found = {}
    for case in CASES:
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            with Simulation(driven(case, 1000), device="cuda", progress=False) as simulation:
                simulation.run(1.0)
            seconds.append(time.perf_counter() - begin)
        network = driven(case, 100_000)
        with Simulation(network, device="cuda", progress=False) as simulation:
            simulation.run(10.0)
            runs = [simulation.run(100.0) for _ in range(REPEATS)]
        step_s = statistics.median(run.run_seconds for run in runs) / (100.0 / network.dt_ms)
        found[case.name] = {
            "µs per step of 100,000 neurons": round(step_s * 1e6, 2),
            "ps for a neuron and step": round(step_s * 1e12 / network.neuron_count, 1),
            "mean rate Hz": round(runs[0].spikes / network.neuron_count / 0.1, 2),
            "compile s": round(seconds[0] - seconds[1], 2),
        }
    return found


def driven(case: Case, neurons: int) -> Network:
    current_pa = case.current_pa
    return alone(
        {"model": case.name, "parameters": case.parameters, "current_pa": current_pa, "neurons": neurons, "seed": 1}
    )


def bandwidth() -> float:
    """Bytes a second that the card's memory is read and written with, by a copy."""
    import cupy

    source = cupy.ones(1 << 28, cupy.uint8)
    target = cupy.empty_like(source)
    times = []
    for _ in range(10):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        target[:] = source
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3)
    return 2 * source.nbytes / statistics.median(times)


def device_name() -> str:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return f"{properties['name'].decode()}, {properties['multiProcessorCount']} multiprocessors, CUDA " + str(
        cupy.cuda.runtime.runtimeGetVersion()
    )


@contextmanager
def power_readings() -> Iterator[list[float]]:
    """The card's power in watts, ten times a second."""
    command = [
        "nvidia-smi",
        "--query-gpu=power.draw.instant",
        "--format=csv,noheader,nounits",
        "-lms",
        "100",
        "-i",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watts: list[float] = []

    def read(lines: Any = process.stdout) -> None:
        for line in lines:
            try:
                watts.append(float(line))
            except ValueError:
                print(f"no reading of power: {line.strip()}", file=sys.stderr)

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.3)  # its first reading is of before
    watts.clear()
    try:
        yield watts
    finally:
        process.terminate()
        process.wait(5)
        reader.join(5)


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "micro": micro,
    "recording": recording,
    "energy": energy,
    "seeds": seeds,
    "same": same,
    "brunel": one_brunel,
    "hpc": one_hpc,
    "million": million,
    "models": models,
}

if __name__ == "__main__":
    app()
