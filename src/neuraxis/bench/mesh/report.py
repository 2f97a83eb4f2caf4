"""The report and the targets of `neuraxis bench mesh`."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from neuraxis.bench.harness import Report, Table, Target, left_out_lines, machine_lines
from neuraxis.bench.mesh.brain import BrainEntry
from neuraxis.bench.mesh.measure import Results, window_trips
from neuraxis.bench.mesh.workloads import BRAINS

__all__ = ["report", "targets"]

_CLOSE_TO_RAW = 1.25
_LOAD_P99_US = 2000.0
_WINDOW_TRIPS = 2.0


def report(results: Results) -> Report:
    plan, brain = results.plan, results.brain
    heading = [
        *machine_lines(results),
        f"Everything that is compared took turns; the median of {plan.rounds} round(s) counts.",
        *left_out_lines(brain.left_out, brain.failures),
    ]
    tables = [_message_table(results)] if results.messages else []
    tables += [_load_table(results)] if results.load else []
    tables += [_brain_table(results, name) for name in plan.brains if brain.of(name)]
    tables += [_fault_table(results)] if brain.faults else []
    notes = []
    if brain.disagreements:
        notes = ["NOT SOUND: results differ", *brain.disagreements]
    elif brain.entries:
        methods = len({entry.method for entry in brain.entries})
        notes = [f"All {methods} methods gave the same result for every brain, to the bit."]
    return Report(_data(results), heading, tables, notes, targets(results))


def targets(results: Results) -> list[Target]:
    """Return every target that the run can be compared with."""
    found = []
    for entry in results.messages:
        if entry.size == 64:
            text = f"{entry}: {entry.ratio:.2f} times raw Zenoh, wanted {_CLOSE_TO_RAW:g} at most"
            found.append(Target(text, entry.ratio <= _CLOSE_TO_RAW))
    for one in (one for one in results.load if one.contender == "ours"):
        text = (
            f"{one.nodes} nodes x {one.rate_hz:g} Hz x {one.size // 1024} KB, each received by "
            f"{'one other' if one.hears == 'next' else 'all others'}: {one.lost} of {one.expected:,} lost, p99 "
            f"{one.p99_us / 1000:.2f} ms, wanted none and less than {_LOAD_P99_US / 1000:g} ms"
        )
        found.append(Target(text, one.lost == 0 and one.p99_us < _LOAD_P99_US))
    trips = window_trips(results)
    if trips is not None:
        text = (
            f"a window between two regions over Zenoh: {trips:.2f} raw one-way latencies, "
            f"wanted {_WINDOW_TRIPS:g} at most"
        )
        found.append(Target(text, trips <= _WINDOW_TRIPS))
    return found


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, message in zip(data["messages"], results.messages, strict=True):
        found["ratio"] = message.ratio
    for found, load in zip(data["load"], results.load, strict=True):
        found["lost"] = load.lost
    for found, entry in zip(data["brain"]["entries"], results.brain.entries, strict=True):
        found["steps_per_second"] = entry.steps_per_second
        found["real_time_factor"] = entry.real_time_factor
    data["brain"]["disagreements"] = results.brain.disagreements
    return {**data, "window_trips": window_trips(results), "sound": results.sound}


def _message_table(results: Results) -> Table:
    headings = ["message", "raw p50 µs", "ours p50 µs", "ours/raw", "raw p99 µs", "ours p99 µs"]
    rows = [
        [
            str(entry),
            f"{entry.median('raw'):.0f}",
            f"{entry.median('ours'):.0f}",
            f"{entry.ratio:.2f}",
            f"{entry.median_p99('raw'):.0f}",
            f"{entry.median_p99('ours'):.0f}",
        ]
        for entry in results.messages
    ]
    meaning = (
        "publish: latency from the call to the handler in another process; request: round trip. Raw: Zenoh's own "
        "calls, in sessions of the same configuration, with bytes. ours/raw: the median of the ratios of the rounds."
    )
    return Table("Messages between two processes", headings, rows, meaning)


def _load_table(results: Results) -> Table:
    headings = ["load", "by", "sent", "received", "lost", "p50 ms", "p99 ms", "longest ms", "sent late ms"]
    rows = [
        [
            f"{one.nodes} nodes x {one.rate_hz:g} Hz x {one.size // 1024} KB, from {one.hears}",
            one.contender,
            f"{one.sent:,}",
            f"{one.received:,}",
            str(one.lost),
            f"{one.p50_us / 1000:.2f}",
            f"{one.p99_us / 1000:.2f}",
            f"{one.longest_us / 1000:.1f}",
            f"{one.late_us / 1000:.1f}",
        ]
        for one in results.load
    ]
    meaning = (
        "Each node is a process; it subscribes to one other (next), or to all others. By our nodes, and by raw Zenoh. "
        "Sent late: delay of senders against their schedule (p99), which shows that the machine lacks cores."
    )
    return Table("Nodes under load", headings, rows, meaning)


def _brain_table(results: Results, brain: str) -> Table:
    entries = results.brain.of(brain)
    first = entries[0]
    headings = ["method", "processes", "start s", "steps/s", "s per model s", "window p50 µs", "p99 µs"]
    headings += ["result", "one is killed"]
    rows = [
        [
            entry.method,
            str(entry.processes),
            f"{statistics.median(entry.start_seconds):.1f}",
            f"{entry.steps_per_second:,.0f}",
            f"{entry.real_time_factor:.3f}",
            _median(entry.window_p50_us),
            _median(entry.window_p99_us),
            _result(first, entry),
            str(results.brain.fault(entry.method) or "-"),
        ]
        for entry in entries
    ]
    meaning = (
        f"{first.neurons:,} neurons, steps of {first.dt_ms:g} ms; a window is {first.window_steps * first.dt_ms:g} ms, "
        "the shortest delay between two regions; its time is that between two ends of windows, in the region where it "
        "is longest. Result: the fingerprint, or that it is the same."
    )
    return Table(f"Brain {brain!r}: {BRAINS[brain]}", headings, rows, meaning)


def _fault_table(results: Results) -> Table:
    brain = results.brain.faults[0].brain
    headings = ["method", "reaction of the others", "first after s", "all after s", "error"]
    rows = []
    for fault in results.brain.faults:
        reaction = {"stops": "end", "hangs": "hang", "goes on": "continue with a new worker"}[fault.outcome]
        if fault.method == "sequential":
            reaction = "(there is one process)"
        if fault.silent_from is not None:
            reaction = f"continue; silence from step {fault.silent_from:,} (it was killed at {fault.at_step:,})"
        rows.append(
            [fault.method, reaction, f"{fault.noticed_s:.2f}", f"{fault.all_s:.2f}", _short(fault.error) or "-"]
        )
    meaning = (
        f"The process of the last region of brain {brain!r} is killed (SIGKILL) in mid-run. First: one of the others "
        "has ended, or has advanced further than it could without detecting the failure; all: the last of them has."
    )
    return Table("One process is killed", headings, rows, meaning)


def _result(first: BrainEntry, entry: BrainEntry) -> str:
    differ = set(entry.fingerprints) - {first.fingerprints[0]}
    if differ:
        return f"DIFFERS: {sorted(differ)[0]}"
    return first.fingerprints[0] if entry is first else "same"


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f}" if values else "-"


def _short(text: str) -> str:
    """Return the beginning of an error, without bars, which would end a cell of Markdown."""
    text = text.replace("|", "/")
    return text if len(text) <= 60 else text[:57] + "..."
