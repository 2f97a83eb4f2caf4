"""The report and the targets of `neuraxis bench models`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from neuraxis.bench.harness import Report, Table, Target, left_out_lines, machine_lines, ratio_text
from neuraxis.bench.models.catalogue import CASES, NETWORKS, Case
from neuraxis.bench.models.measure import OURS, Entry, Results, contenders

__all__ = ["report", "targets"]

_RATIO = "A ratio says how many times as long the other simulator takes. Rates are spikes a second of a neuron."
_SECONDS = "Processor seconds for a second of model time."

# At most so many nanoseconds for a neuron and step, and at least so many times as fast as a peer.
_WANTED_NS = {"adex": 30.0, "hh_cond_exp": 7.0}
_WANTED_RATIOS = (("adex", "nest", 10.0), ("cuba", "brian2", 5.0), ("coba", "brian2", 8.0), ("cobahh", "brian2", 8.0))


def report(results: Results) -> Report:
    plan = results.plan
    tables = []
    for title, unit, cases, scale, meaning in (
        (f"Models: {plan.neurons:,} neurons without synapses", "ns a neuron-step", CASES, 1.0, _RATIO),
        ("Networks: 4,000 neurons", "s for 1 s", NETWORKS, 4000 * 10_000 * 1e-9, _SECONDS),
    ):
        simulators = contenders(plan, cases is NETWORKS)
        rows = [_row(results, case, simulators, scale) for case in cases if results.entry(case.name, OURS)]
        bold = [f"{peer} ratio" for peer in simulators[1:]]
        tables.append(Table(title, ["name", *_headings(simulators, unit)], rows, meaning, bold))
    return Report(
        _data(results), _heading(results), [table for table in tables if table.rows], _notes(results), targets(results)
    )


def targets(results: Results) -> list[Target]:
    """Return every target that the run can be compared with."""
    found = []
    for case, wanted in _WANTED_NS.items():
        if entry := results.entry(case, OURS):
            text = f"{case}: {entry.nanoseconds:.3g} ns a neuron-step, wanted {wanted:g} or less"
            missed = entry.nanoseconds / wanted - 1
            found.append(Target(text, missed <= 0, missed, {"case": case, "reached": entry.nanoseconds}))
    for case, peer, wanted in _WANTED_RATIOS:
        if (ratio := results.ratio(case, peer)) is not None:
            text = f"{case}: {ratio:.3g}x as fast as {peer}, wanted {wanted:g}x or more"
            missed = 1 - ratio / wanted
            found.append(Target(text, missed <= 0, missed, {"case": case, "peer": peer, "reached": ratio}))
    return found


def _headings(simulators: Sequence[str], unit: str) -> list[str]:
    peers = simulators[1:]
    return [
        f"{OURS} {unit}",
        *(heading for peer in peers for heading in (f"{peer} {unit}", f"{peer} ratio")),
        *(f"{simulator} Hz" for simulator in simulators),
    ]


def _row(results: Results, case: Case, simulators: Sequence[str], scale: float) -> list[str]:
    def time(entry: Entry | None) -> str:
        return "-" if entry is None else f"{entry.nanoseconds * scale:.3g}"

    def rate(entry: Entry | None) -> str:
        return "-" if entry is None else f"{entry.samples[0].rate_hz:.1f}"

    entries = {simulator: results.entry(case.name, simulator) for simulator in simulators}
    cells = [case.name, time(entries[OURS])]
    for peer in simulators[1:]:
        cells += [time(entries[peer]), ratio_text(results.ratio(case.name, peer))]
    return cells + [rate(entry) for entry in entries.values()]


def _heading(results: Results) -> list[str]:
    plan = results.plan
    method = (
        f"Processor time of one thread, dt 0.1 ms, after 100 ms that do not count: medians of {plan.repeats} round(s) "
        "in which all take turns."
    )
    times = (
        f"Model time of a sample: {plan.time_ms:g} ms on neuraxis, {plan.peer_time_ms:g} ms on the others; of a "
        f"network {plan.network_ms:g} ms."
    )
    return [*machine_lines(results), method, times, *left_out_lines(results.left_out, results.failures)]


def _notes(results: Results) -> list[str]:
    lines = []
    if "nest" in results.plan.peers:
        lines.append("nest computes in float64, and integrates conductances, adex and Hodgkin-Huxley adaptively.")
    if "brian2" in results.plan.peers:
        lines.append(
            "brian2 is a compiled C++ program in float32 with -O3 -march=native -ffast-math. Its methods: exact for "
            "linear models and cuba, rk4 for lif_cond_exp and coba, euler for adex (with a threshold of -40.4 mV, as "
            "in its examples) and izhikevich, exponential_euler for Hodgkin-Huxley and cobahh. neuraxis solves linear "
            "models exactly, lif_cond_exp and coba by rk4, and adex in 8 substeps of Heun's method."
        )
    return lines


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    del data["plan"]["peers_python"]  # a path of this machine
    for found, entry in zip(data["entries"], results.entries, strict=True):
        if entry.samples:
            found["median"] = {"nanoseconds": entry.nanoseconds, "ratio": results.ratio(entry.case, entry.simulator)}
    return data
