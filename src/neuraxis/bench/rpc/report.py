"""The report and the targets of `neuraxis bench rpc`."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from neuraxis.bench.collectives.patterns import size_text
from neuraxis.bench.harness import Report, Table, Target, left_out_lines, machine_lines
from neuraxis.bench.rpc.measure import MANY, METHODS, OURS, PEERS, TORCH_PEERS, Entry, Results

__all__ = ["report", "targets"]

_CLOSE_TO_RAW = 1.3
_MEANING = (
    f"p50, p99: time of a call. Calls/s: one after the other, and with {MANY} concurrent calls. By a peer: time of a "
    "median call divided by the peer's; below 1 it is faster. "
    "Each figure is the median of the rounds, each ratio the median of the rounds' ratios."
)


def report(results: Results) -> Report:
    plan = results.plan
    measured = [method for method in plan.methods if any(results.entry(size, method) for size in plan.sizes)]
    heading = [
        *machine_lines(results),
        "A caller and a callee, two processes of this host; an array of bytes is sent and returned.",
        f"The methods took turns, and the median of {plan.rounds} round(s) counts.",
        *(f"{method}: {METHODS[method].text}" for method in measured),
        *left_out_lines(results.left_out, results.failures),
    ]
    peers = [method for method in measured if method in PEERS]
    headings = ["method", "p50 µs", "p99 µs", "calls/s", f"{MANY} concurrent", *(f"by {peer}" for peer in peers)]
    tables = []
    for size in plan.sizes:
        entries = [entry for method in plan.methods if (entry := results.entry(size, method)) is not None]
        if entries:
            tables.append(Table(size_text(size), headings, [_row(results, entry, peers) for entry in entries]))
    return Report(_data(results), heading, tables, [_MEANING], targets(results))


def targets(results: Results) -> list[Target]:
    """Return every target that the run can be compared with, by the times of median calls."""
    found = []
    for size in results.plan.sizes:
        ratio = results.ratio(size, "zenoh", "raw-zenoh")
        if ratio is not None:
            text = f"{size_text(size)} over zenoh: {ratio:.2f} times raw Zenoh, wanted {_CLOSE_TO_RAW:g} at most"
            without = results.ratio(size, "zenoh", "raw-zenoh-tcp")
            if ratio > _CLOSE_TO_RAW and without is not None:
                text += f" ({without:.2f} times Zenoh without shared memory)"
            found.append(Target(text, ratio <= _CLOSE_TO_RAW))
    for size in results.plan.sizes:
        # torch can send an array or a tensor; the faster of the two counts.
        ratios = {peer: ratio for peer in TORCH_PEERS if (ratio := results.ratio(size, "shm", peer)) is not None}
        if ratios:
            peer = max(ratios, key=lambda peer: ratios[peer])
            text = f"{size_text(size)} over shm: {ratios[peer]:.2f} times {peer}, wanted less than 1"
            found.append(Target(text, ratios[peer] < 1))
    return found


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found in data["entries"]:
        found["medians"] = {
            name: statistics.median(found[name]) if found[name] else None
            for name in ("p50_us", "p99_us", "per_s", "many_per_s")
        }
    data["ratios"] = [
        {"size": size, "way": method, "peer": peer, "time": ratio, "many_per_s": results.many_ratio(size, method, peer)}
        for size in results.plan.sizes
        for method in OURS
        for peer in PEERS
        if (ratio := results.ratio(size, method, peer)) is not None
    ]
    data["sound"] = results.sound
    return data


def _row(results: Results, entry: Entry, peers: list[str]) -> list[str]:
    figures = (entry.p50_us, entry.p99_us, entry.per_s, entry.many_per_s)
    ratios = (results.ratio(entry.size, entry.method, peer) for peer in peers)
    return [
        entry.method,
        *(f"{statistics.median(rounds):,.0f}" if rounds else "-" for rounds in figures),
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]
