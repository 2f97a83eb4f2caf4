"""Run one of the benchmark's networks on NEST and print the times.

    python peer_nest.py '{"network": "microcircuit", "scale": 0.1, "threads": 2}'
    python peer_nest.py --network brunel --time_ms 1000 --threads 2

The last line printed is a JSON object. `build_seconds` is creating and connecting, `prepare_seconds` is nest.Prepare
(NEST sorts its synapses there), `run_seconds` is one nest.Run of `time_ms` after the `presim_ms` that do not count:
neither preparation nor clean-up is in it, so it is less than nest.Simulate would take.

In a timed run nothing is recorded: `spikes` comes from NEST's own counter. The rates of single populations need
recorders, so they are taken afterwards, over another `rates_ms` of model time that is not timed. With `spikes_to`,
recorders run during `time_ms` instead, and the file gets what they saw: `time_steps` (int64: the number of the step at
whose end the neuron spiked, counted from the start of the network, presimulation included), `ids` (int64, from 0 in the
order of the populations), `population_names`, `population_sizes`, `presim_steps`, `run_steps`, `step_ms`.

`cpu_seconds` is the processor time of the run: undisturbed threads use all of `run_seconds` on every core, because they
poll while they wait, so less than `threads` times `run_seconds` means that the machine was busy.

`neurons_scale` multiplies the numbers of neurons, `in_degree_scale` the numbers of synapses that each neuron
receives; both follow `scale` unless given:

- brunel: Brunel's network with delta synapses as in NEST's example, 12,500 neurons at scale 1.
- microcircuit: Potjans and Diesmann's, 77,169 neurons. A changed in-degree is made up for by larger weights and a
  constant current, as in the published model, so the rates stay near those of the whole network. With `drive` dc
  that holds for scales near 1 only: a small network loses the noise that makes it fire.
- hpc_benchmark: 11,250 neurons at scale 1, with plastic synapses. Its in-degree is 11,250 at every scale of at least 1,
  and below that `in_degree_scale` follows `scale` so that no neuron has more inputs than there are neurons. Nothing
  makes up for that, and the plasticity runs away: in its first 250 ms a neuron fires at about 10 Hz at scale 1, 24 Hz
  at 0.5 and 42 Hz at 0.25, and then ever faster. Scales below 1 show that the model runs, they are no benchmark.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

STEP_MS = 0.1

Populations = dict[str, Any]
"""Name to NEST's node collection, in the order of the ids."""


class Scales(NamedTuple):
    neurons: float
    in_degree: float


def main(argv: Sequence[str]) -> None:
    options = read_options(argv)
    # NEST's threads meet in every shortest delay, 0.1 ms in the microcircuit: waiting awake saved a third of its time.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    os.environ.setdefault("OMP_PROC_BIND", "true")
    nest: Any = importlib.import_module("nest")
    nest.verbosity = nest.VerbosityLevel.ERROR
    nest.ResetKernel()
    nest.resolution = STEP_MS
    nest.local_num_threads = options.threads
    nest.rng_seed = options.seed
    nest.CopyModel("static_synapse", DEVICE_SYNAPSE, {"delay": DEVICE_DELAY_MS})

    started = time.perf_counter()
    populations = NETWORKS[options.network](nest, scales_of(options), options)
    recorders = add_recorders(nest, populations, options.presim_ms) if options.spikes_to else []
    built = time.perf_counter()
    nest.Prepare()
    prepared = time.perf_counter()
    if options.presim_ms > 0:
        nest.Run(options.presim_ms)
    cpu_started, run_started = time.process_time(), time.perf_counter()
    nest.Run(options.time_ms)
    run_seconds, cpu_seconds = time.perf_counter() - run_started, time.process_time() - cpu_started
    spikes = nest.local_spike_counter  # NEST counts from zero in every Run
    nest.Cleanup()
    peak_memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    rates_ms = options.time_ms
    if options.spikes_to:
        save_spikes(options.spikes_to, populations, recorders, options)
        recorded = sum(recorder.n_events for recorder in recorders)
        if recorded != spikes:
            raise RuntimeError(f"NEST recorded {recorded} spikes but counted {spikes}")
    else:
        rates_ms = options.rates_ms
        if rates_ms > 0:
            recorders = add_recorders(nest, populations, options.presim_ms + options.time_ms)
            nest.Simulate(rates_ms)

    answer = {
        "simulator": "nest",
        "version": nest.__version__,
        "network": options.network,
        "neurons": sum(len(nodes) for nodes in populations.values()),
        "synapses": nest.num_connections - nest.GetDefaults(DEVICE_SYNAPSE, "num_connections"),
        "threads": options.threads,
        "seed": options.seed,
        "time_ms": options.time_ms,
        "presim_ms": options.presim_ms,
        "build_seconds": built - started,
        "prepare_seconds": prepared - built,
        "run_seconds": run_seconds,
        "cpu_seconds": cpu_seconds,
        "real_time_factor": run_seconds / (options.time_ms / 1000.0),
        "spikes": spikes,
        "rate_hz": spikes / sum(len(nodes) for nodes in populations.values()) / (options.time_ms / 1000.0),
        "rates_hz": {
            name: recorder.n_events / len(nodes) / (rates_ms / 1000.0)
            for (name, nodes), recorder in zip(populations.items(), recorders, strict=False)
        },
        "rates_over_ms": rates_ms,
        "peak_memory_bytes": peak_memory_bytes,
    }
    print(json.dumps(answer), flush=True)


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of one JSON object or of flags; an invalid one ends the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Run a network in NEST.", allow_abbrev=False)
    parser.add_argument("--network", choices=sorted(NETWORKS), required=True)
    parser.add_argument("--scale", type=positive, default=1.0)
    parser.add_argument("--neurons_scale", type=positive)
    parser.add_argument("--in_degree_scale", type=positive)
    parser.add_argument("--drive", choices=("poisson", "dc"), default="poisson", help="of the microcircuit")
    parser.add_argument("--mean_rates", choices=sorted(MEAN_RATES_HZ), default="reference", help=MEAN_RATES_HELP)
    parser.add_argument("--time_ms", type=positive, default=1000.0)
    parser.add_argument("--presim_ms", type=float, default=100.0)
    parser.add_argument("--rates_ms", type=float, default=500.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1, help="from 1 to 2**32 - 1")
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


def scales_of(options: argparse.Namespace) -> Scales:
    neurons = options.neurons_scale or options.scale
    follows = min(neurons, 1.0) if options.network == "hpc_benchmark" else neurons
    return Scales(neurons, options.in_degree_scale or follows)


def add_recorders(nest: Any, populations: Populations, start_ms: float) -> list[Any]:
    """Return a recorder for each population, for the spikes after `start_ms`."""
    recorders = []
    for nodes in populations.values():
        recorder = nest.Create("spike_recorder", params={"start": start_ms})
        nest.Connect(nodes, recorder, syn_spec={"synapse_model": DEVICE_SYNAPSE})
        recorders.append(recorder)
    return recorders


def save_spikes(path: Path, populations: Populations, recorders: list[Any], options: argparse.Namespace) -> None:
    events = [recorder.events for recorder in recorders]
    steps = np.rint(np.concatenate([event["times"] for event in events]) / STEP_MS).astype(np.int64)
    # NEST counts its nodes from 1, and the populations are the first that were made.
    ids = np.concatenate([event["senders"] for event in events]).astype(np.int64) - 1
    order = np.lexsort((ids, steps))
    np.savez_compressed(
        path,
        time_steps=steps[order],
        ids=ids[order],
        population_names=np.array(list(populations)),
        population_sizes=np.array([len(nodes) for nodes in populations.values()], dtype=np.int64),
        presim_steps=np.int64(round(options.presim_ms / STEP_MS)),
        run_steps=np.int64(round(options.time_ms / STEP_MS)),
        step_ms=np.float64(STEP_MS),
    )


# What joins devices to neurons has a model of its own, so that its connections are not counted as synapses. Its delay
# is one that all three networks have: another one would change how often NEST exchanges spikes.
DEVICE_SYNAPSE = "device_synapse"
DEVICE_DELAY_MS = 1.5


def add_poisson(nest: Any, nodes: Any, rate_hz: float, weight: float) -> None:
    """Connect an independent Poisson train to each of `nodes`."""
    generator = nest.Create("poisson_generator", params={"rate": rate_hz})
    nest.Connect(generator, nodes, syn_spec={"synapse_model": DEVICE_SYNAPSE, "weight": weight})


# Brunel 2000, with the numbers of NEST's own example.


def brunel(nest: Any, scales: Scales, options: argparse.Namespace) -> Populations:
    del options
    excitatory_n, inhibitory_n = round(10_000 * scales.neurons), round(2_500 * scales.neurons)
    neuron = {"C_m": 1.0, "tau_m": 20.0, "E_L": 0.0, "V_m": 0.0, "V_th": 20.0, "V_reset": 0.0, "t_ref": 2.0}
    excitatory = nest.Create("iaf_psc_delta", excitatory_n, params=neuron)
    inhibitory = nest.Create("iaf_psc_delta", inhibitory_n, params=neuron)
    everyone = excitatory + inhibitory
    weight_mv = 0.1
    add_poisson(nest, everyone, 20_000.0, weight_mv)
    for source, in_degree, weight in ((excitatory, 1_000, weight_mv), (inhibitory, 250, -5.0 * weight_mv)):
        # A weight that all synapses of a model share is kept once, which makes a synapse smaller.
        model = "excitatory_synapse" if weight > 0 else "inhibitory_synapse"
        nest.CopyModel("static_synapse_hom_w", model, {"weight": weight})
        rule = {"rule": "fixed_indegree", "indegree": round(in_degree * scales.in_degree)}
        nest.Connect(source, everyone, rule, {"synapse_model": model, "delay": 1.5})
    return {"E": excitatory, "I": inhibitory}


# Potjans and Diesmann 2014. Rows are targets, columns sources, in the order of POPULATIONS.

POPULATIONS = ("L23E", "L23I", "L4E", "L4I", "L5E", "L5I", "L6E", "L6I")
NEURONS = np.array([20683, 5834, 21915, 5479, 4850, 1065, 14395, 2948])
EXTERNAL_IN_DEGREE = np.array([1600, 1500, 2100, 1900, 2000, 1900, 2900, 2100])
EXTERNAL_RATE_HZ = 8.0
INITIAL_MEAN_MV = (-68.28, -63.16, -63.33, -63.45, -63.11, -61.66, -66.72, -61.43)
INITIAL_SD_MV = (5.36, 4.57, 4.74, 4.94, 4.94, 4.55, 5.46, 4.48)
PROBABILITY = np.array(
    [
        [0.1009, 0.1689, 0.0437, 0.0818, 0.0323, 0.0000, 0.0076, 0.0000],
        [0.1346, 0.1371, 0.0316, 0.0515, 0.0755, 0.0000, 0.0042, 0.0000],
        [0.0077, 0.0059, 0.0497, 0.1350, 0.0067, 0.0003, 0.0453, 0.0000],
        [0.0691, 0.0029, 0.0794, 0.1597, 0.0033, 0.0000, 0.1057, 0.0000],
        [0.1004, 0.0622, 0.0505, 0.0057, 0.0831, 0.3726, 0.0204, 0.0000],
        [0.0548, 0.0269, 0.0257, 0.0022, 0.0600, 0.3158, 0.0086, 0.0000],
        [0.0156, 0.0066, 0.0211, 0.0166, 0.0572, 0.0197, 0.0396, 0.2252],
        [0.0364, 0.0010, 0.0034, 0.0005, 0.0277, 0.0080, 0.0658, 0.1443],
    ]
)
MEAN_RATES_HELP = "which published rates of the whole microcircuit the constant current of a scaled one is made from"
MEAN_RATES_HZ = {
    "reference": np.array([0.903, 2.965, 4.414, 5.876, 7.569, 8.633, 1.105, 7.829]),
    "older": np.array([0.971, 2.868, 4.746, 5.396, 8.142, 9.078, 0.991, 7.523]),
}
MEMBRANE = {"C_m": 250.0, "tau_m": 10.0, "E_L": -65.0, "V_th": -50.0, "V_reset": -65.0, "t_ref": 2.0}
SYNAPSE_MS = 0.5


def microcircuit(nest: Any, scales: Scales, options: argparse.Namespace) -> Populations:
    pairs = np.outer(NEURONS, NEURONS).astype(np.float64)
    # The probability is that of at least one synapse between two neurons; synapses are drawn with replacement.
    synapses = np.log(1.0 - PROBABILITY) / np.log((pairs - 1.0) / pairs)
    external_weight = 0.15 / exponential_peak_mv(MEMBRANE["tau_m"], SYNAPSE_MS, MEMBRANE["C_m"])
    weights = external_weight * np.tile([1.0, -4.0], (len(NEURONS), len(NEURONS) // 2))
    weights[0, 2] *= 2.0  # L4E to L23E

    # A smaller in-degree with weights larger by the root keeps the input's variance; the current keeps its mean.
    shrink = math.sqrt(scales.in_degree)
    recurrent_pa = 1e-3 * SYNAPSE_MS * (weights * synapses / NEURONS[:, np.newaxis]) @ MEAN_RATES_HZ[options.mean_rates]
    external_pa = 1e-3 * SYNAPSE_MS * external_weight * EXTERNAL_IN_DEGREE * EXTERNAL_RATE_HZ
    current_pa = (1.0 - shrink) * recurrent_pa + external_pa * (1.0 if options.drive == "dc" else 1.0 - shrink)

    populations = {}
    sizes = np.round(NEURONS * scales.neurons).astype(int)
    for index, name in enumerate(POPULATIONS):
        neuron = {**MEMBRANE, "tau_syn_ex": SYNAPSE_MS, "tau_syn_in": SYNAPSE_MS, "I_e": current_pa[index]}
        populations[name] = nest.Create("iaf_psc_exp", int(sizes[index]), params=neuron)
        populations[name].V_m = nest.random.normal(INITIAL_MEAN_MV[index], INITIAL_SD_MV[index])
    if options.drive == "poisson":
        in_degrees = np.round(EXTERNAL_IN_DEGREE * scales.in_degree)
        for nodes, in_degree in zip(populations.values(), in_degrees, strict=True):
            add_poisson(nest, nodes, EXTERNAL_RATE_HZ * in_degree, external_weight / shrink)

    numbers = np.round(synapses * scales.neurons * scales.in_degree).astype(int)
    for row, target in enumerate(populations.values()):
        for column, source in enumerate(populations.values()):
            if numbers[row, column] == 0:
                continue
            weight = weights[row, column] / shrink
            limits = {"min": 0.0, "max": math.inf} if weight > 0 else {"min": -math.inf, "max": 0.0}
            delay_ms = 1.5 if weight > 0 else 0.75
            synapse = {
                "synapse_model": "static_synapse",
                "weight": nest.math.redraw(nest.random.normal(weight, 0.1 * abs(weight)), **limits),
                # Half a step is rounded up to the shortest delay there is.
                "delay": nest.math.redraw(nest.random.normal(delay_ms, 0.5 * delay_ms), min=STEP_MS / 2, max=math.inf),
            }
            rule = {"rule": "fixed_total_number", "N": int(numbers[row, column])}
            nest.Connect(source, target, rule, synapse)
    return populations


def exponential_peak_mv(membrane_ms: float, synapse_ms: float, capacitance_pf: float) -> float:
    """Return the peak of the potential after an exponential current that starts at 1 pA."""
    span_ms = membrane_ms * synapse_ms / (membrane_ms - synapse_ms)
    peak_ms = span_ms * math.log(membrane_ms / synapse_ms)
    return span_ms / capacitance_pf * (math.exp(-peak_ms / membrane_ms) - math.exp(-peak_ms / synapse_ms))


# NEST's benchmark for large machines, with plastic synapses between the excitatory neurons.


def hpc_benchmark(nest: Any, scales: Scales, options: argparse.Namespace) -> Populations:
    del options
    membrane_ms, synapse_ms, capacitance_pf, threshold_mv = 10.0, 0.32582722403722841, 250.0, 20.0
    neuron = {
        "C_m": capacitance_pf,
        "tau_m": membrane_ms,
        "tau_syn_ex": synapse_ms,
        "tau_syn_in": synapse_ms,
        "tau_minus": 30.0,
        "E_L": 0.0,
        "V_th": threshold_mv,
        "V_reset": 0.0,
        "t_ref": 0.5,
    }
    excitatory = nest.Create("iaf_psc_alpha", round(9_000 * scales.neurons), params=neuron)
    inhibitory = nest.Create("iaf_psc_alpha", round(2_250 * scales.neurons), params=neuron)
    everyone = excitatory + inhibitory
    everyone.V_m = nest.random.normal(5.7, 7.2)

    weight_pa = 0.14 / alpha_peak_mv(membrane_ms, synapse_ms, capacitance_pf)
    # The input that would just hold the mean potential at the threshold; e tau is the area under a current of peak 1.
    threshold_rate_hz = 1000.0 * threshold_mv * capacitance_pf / (membrane_ms * weight_pa * math.e * synapse_ms)
    add_poisson(nest, everyone, 1.685 * threshold_rate_hz, weight_pa)

    # The forms with short addresses: they need the least memory, as the benchmark is meant to be run.
    plastic = {"lambda": 0.1, "alpha": 0.0513, "mu": 0.4, "tau_plus": 15.0, "weight": weight_pa}
    nest.CopyModel("stdp_pl_synapse_hom_hpc", "plastic_synapse", plastic)
    nest.CopyModel("static_synapse_hpc", "excitatory_synapse", {"weight": weight_pa})
    nest.CopyModel("static_synapse_hpc", "inhibitory_synapse", {"weight": -5.0 * weight_pa})
    for source, target, in_degree, model in (
        (excitatory, excitatory, 9_000, "plastic_synapse"),
        (inhibitory, excitatory, 2_250, "inhibitory_synapse"),
        (excitatory, inhibitory, 9_000, "excitatory_synapse"),
        (inhibitory, inhibitory, 2_250, "inhibitory_synapse"),
    ):
        rule = {
            "rule": "fixed_indegree",
            "indegree": round(in_degree * scales.in_degree),
            "allow_autapses": False,
            "allow_multapses": True,
        }
        nest.Connect(source, target, rule, {"synapse_model": model, "delay": 1.5})
    return {"E": excitatory, "I": inhibitory}


def alpha_peak_mv(membrane_ms: float, synapse_ms: float, capacitance_pf: float) -> float:
    """Return the peak of the potential after an alpha-shaped current whose own peak is 1 pA."""
    rate = 1.0 / synapse_ms - 1.0 / membrane_ms

    def potential_mv(time_ms: float) -> float:
        fall = math.exp(-time_ms / synapse_ms)
        return (
            math.e
            / (synapse_ms * capacitance_pf * rate)
            * ((math.exp(-time_ms / membrane_ms) - fall) / rate - time_ms * fall)
        )

    low, high = 0.0, 10.0 * synapse_ms  # it rises to its only peak in between and falls after it
    while high - low > 1e-9:
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (left, high) if potential_mv(left) < potential_mv(right) else (low, right)
    return potential_mv((low + high) / 2.0)


NETWORKS: dict[str, Callable[[Any, Scales, argparse.Namespace], Populations]] = {
    "brunel": brunel,
    "microcircuit": microcircuit,
    "hpc_benchmark": hpc_benchmark,
}

if __name__ == "__main__":
    main(sys.argv[1:])
