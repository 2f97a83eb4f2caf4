"""NEST's half of the comparison: reads a description as JSON and writes the results. Needs a Python with NEST.

    python nest_side.py jobs.json results.json

A job is {"kind": "network" | "traces" | ..., ...}, as in KINDS; times are whole steps of 0.1 ms.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nest  # type: ignore[import-not-found, unused-ignore]

STEP_MS = 0.1


def main(jobs_file: str, results_file: str) -> None:
    nest.set_verbosity("M_ERROR")
    jobs = json.loads(Path(jobs_file).read_text())
    results = {name: KINDS[job["kind"]](job) for name, job in jobs.items()}
    Path(results_file).write_text(json.dumps(results))


def start() -> None:
    nest.ResetKernel()
    nest.resolution = STEP_MS


def generators(trains: list[list[int]]) -> Any:
    """A generator for each train; a train of no spikes is allowed."""
    made = nest.Create("spike_generator", len(trains))
    for one, train in zip(made, trains):  # noqa: B905 (NEST's collections and lists)
        one.spike_times = [round(step * STEP_MS, 1) for step in train]
    return made


def connect(pre: Any, post: Any, synapses: list[tuple[int, int, float, int]], ports: list[int] | None = None) -> None:
    """(pre, post, weight, delay in steps) each, and the port of each for models with several."""
    if not synapses:
        return
    pre_ids, post_ids = pre.tolist(), post.tolist()
    more = {"receptor_type": ports} if ports and any(ports) else {}
    nest.Connect(
        [pre_ids[i] for i, _, _, _ in synapses],
        [post_ids[j] for _, j, _, _ in synapses],
        "one_to_one",
        {
            "synapse_model": "static_synapse",
            "weight": [w for _, _, w, _ in synapses],
            "delay": [round(d * STEP_MS, 1) for _, _, _, d in synapses],
            **more,
        },
    )


def give_current(neurons: Any, job: dict[str, Any]) -> None:
    """Give each neuron a constant current; that of a generator begins two steps later."""
    if job["currents"] is None:
        return
    if job["has_current"]:
        neurons.I_e = job["currents"]
        return
    generator = nest.Create("dc_generator", job["n"])
    generator.amplitude = job["currents"]
    nest.Connect(generator, neurons, "one_to_one", {"delay": STEP_MS})


def run_network(job: dict[str, Any]) -> Any:
    """Neurons with recurrent synapses and given input: [step, neuron] of every spike."""
    start()
    neurons = nest.Create(job["model"], job["n"], job["parameters"])
    give_current(neurons, job)
    inputs = generators(job["inputs"])
    for pre, synapses in ((inputs, job["input_synapses"]), (neurons, job["synapses"])):
        connect(pre, neurons, [synapse[:4] for synapse in synapses], [port for *_, port in synapses])
    recorder = nest.Create("spike_recorder", {"time_in_steps": True})  # iaf_bw_2001 sends S as a spike's offset in time
    nest.Connect(neurons, recorder)
    nest.Simulate(job["steps"] * STEP_MS)
    first = neurons.tolist()[0]
    times, senders = recorder.events["times"], recorder.events["senders"]
    return sorted([int(step), int(s) - first] for step, s in zip(times, senders))  # noqa: B905


def run_traces(job: dict[str, Any]) -> Any:
    """Unconnected neurons with given input: their membranes after every step, by neuron, and their spikes."""
    start()
    neurons = nest.Create(job["model"], job["n"], job["parameters"])
    give_current(neurons, job)
    inputs = generators(job["inputs"])
    connect(inputs, neurons, job["input_synapses"], job["ports"])
    meters = nest.Create("multimeter", job["n"], {"record_from": ["V_m"], "interval": STEP_MS})
    nest.Connect(meters, neurons, "one_to_one")
    recorders = nest.Create("spike_recorder", job["n"], {"time_in_steps": True})
    nest.Connect(neurons, recorders, "one_to_one")
    # A recorder gets a step's values at the end of a slice: some more steps bring in the last ones.
    nest.Simulate((job["steps"] + 50) * STEP_MS)
    return {
        "v_mv": [meter.events["V_m"].tolist()[: job["steps"]] for meter in meters],
        "first_step": round(meters[0].events["times"][0] / STEP_MS),
        "spikes": [[int(step) for step in one.events["times"] if step <= job["steps"]] for one in recorders],
    }


def run_saturating(job: dict[str, Any]) -> Any:
    """Neurons that given spikes make spike, each with an NMDA synapse to a target: the targets' membranes."""
    start()
    n = job["n"]
    sources, targets = nest.Create("iaf_bw_2001", n), nest.Create("iaf_bw_2001", n)
    connect(generators(job["inputs"]), sources, [(i, i, job["strength"], 1) for i in range(n)], [1] * n)
    connect(sources, targets, [(i, i, weight, 10) for i, weight in enumerate(job["weights"])], [3] * n)
    meters = nest.Create("multimeter", n, {"record_from": ["V_m"], "interval": STEP_MS})
    nest.Connect(meters, targets, "one_to_one")
    nest.Simulate((job["steps"] + 50) * STEP_MS)
    return [meter.events["V_m"].tolist()[: job["steps"]] for meter in meters]


def run_trains(job: dict[str, Any]) -> Any:
    """Independent random neurons or generators: the steps in which each spiked, once or several times."""
    start()
    nest.rng_seed = job["seed"]
    made = nest.Create(job["model"], 1 if job["generator"] else job["n"], job["parameters"])
    # Each target of a generator gets a train of its own.
    neurons = nest.Create("parrot_neuron", job["n"]) if job["generator"] else made
    if job["generator"]:
        nest.Connect(made, neurons)
    recorder = nest.Create("spike_recorder", {"time_in_steps": True})
    nest.Connect(neurons, recorder)
    nest.Simulate(job["steps"] * STEP_MS)
    first = neurons.tolist()[0]
    trains: list[list[int]] = [[] for _ in range(job["n"])]
    for step, sender in zip(recorder.events["times"], recorder.events["senders"]):  # noqa: B905
        trains[int(sender) - first].append(int(step))
    return [sorted(set(train)) for train in trains]


def run_noise(job: dict[str, Any]) -> Any:
    """Neurons with noise and without synapses: what was recorded of them, by name, time and neuron."""
    start()
    nest.rng_seed = job["seed"]
    neurons = nest.Create(job["model"], job["n"], job["parameters"])
    if job["generator"]:
        nest.Connect(nest.Create("noise_generator", params=job["generator"]), neurons)
    recorded = {"record_from": job["record"], "interval": round(job["every"] * STEP_MS, 1)}
    meters = nest.Create("multimeter", job["n"], recorded)
    nest.Connect(meters, neurons, "one_to_one")
    nest.Simulate((job["steps"] + 50) * STEP_MS)
    times = job["steps"] // job["every"]
    return {
        name: [list(row) for row in zip(*(meter.events[name].tolist()[:times] for meter in meters))]  # noqa: B905
        for name in job["record"]
    }


def run_synapses(job: dict[str, Any]) -> Any:
    """Pairs of neurons that repeat given spikes, a plastic synapse in each: the weights that were transmitted.

    The target takes the synapse at its port 1, where spikes are counted and not repeated.
    """
    start()
    trains = job["pre"] + job["post"]
    sources = generators([[step - 1 for step in train] for train in trains])
    parrots = nest.Create("parrot_neuron", len(trains))
    nest.Connect(sources, parrots, "one_to_one", {"delay": STEP_MS})
    pairs = len(job["pre"])
    pre, post = parrots[:pairs], parrots[pairs:]
    if "tau_minus_ms" in job:
        post.tau_minus = job["tau_minus_ms"]
    recorder = nest.Create("weight_recorder")
    nest.CopyModel(job["model"], "under test", {**job["common"], "weight_recorder": recorder})
    for one, other, weight, delay in zip(pre, post, job["weights"], job["delays"]):  # noqa: B905
        synapse = {
            "synapse_model": "under test",
            "receptor_type": 1,
            "weight": weight,
            "delay": round(delay * STEP_MS, 1),
            **job["own"],
        }
        nest.Connect(one, other, "one_to_one", synapse)
    nest.Simulate((job["steps"] + 50) * STEP_MS)
    events = recorder.events
    first = pre.tolist()[0]
    transmitted: list[list[list[float]]] = [[] for _ in range(pairs)]
    for t, sender, weight in zip(events["times"], events["senders"], events["weights"]):  # noqa: B905
        transmitted[int(sender) - first].append([round(t / STEP_MS), float(weight)])
    return [sorted(one) for one in transmitted]


def run_rates(job: dict[str, Any]) -> Any:
    """A recurrent network of rate neurons without noise: the rate of each after every step."""
    start()
    neurons = nest.Create(job["model"], job["n"], {"sigma": 0.0, **job["parameters"]})
    neurons.rate = job["rates"]
    ids = neurons.tolist()
    pre, post, weights, delays = ([row[column] for row in job["synapses"]] for column in range(4))
    synapse = {
        "synapse_model": "rate_connection_delayed",
        "weight": weights,
        "delay": [round(delay * STEP_MS, 1) for delay in delays],
    }
    nest.Connect([ids[i] for i in pre], [ids[j] for j in post], "one_to_one", synapse)
    meters = nest.Create("multimeter", job["n"], {"record_from": ["rate"], "interval": STEP_MS})
    nest.Connect(meters, neurons, "one_to_one")
    nest.Simulate((job["steps"] + 50) * STEP_MS)
    return [meter.events["rate"].tolist()[: job["steps"]] for meter in meters]


KINDS = {
    "network": run_network,
    "traces": run_traces,
    "saturating": run_saturating,
    "trains": run_trains,
    "noise": run_noise,
    "synapses": run_synapses,
    "rates": run_rates,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
