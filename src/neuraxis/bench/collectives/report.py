"""The report and the targets of `neuraxis bench collectives`."""

from __future__ import annotations

from typing import Any

import msgspec

from neuraxis.bench.collectives.measure import Results
from neuraxis.bench.collectives.patterns import PATTERNS, size_text
from neuraxis.bench.contenders import PEERS
from neuraxis.bench.harness import Report, Table, Target, left_out_lines, machine_lines, ratio_text

__all__ = ["report", "targets"]

_SMALL = 16 * 2**10  # largest size that counts as small
_LARGE = 64 * 2**20
_SIZE_MEANING = (
    "Size: bytes of float32 that one rank passes in; for scatter, all_to_all and reduce_scatter the whole input, "
    "cut into one part a rank (at least one number each). send_recv is half a round trip."
)


def report(results: Results) -> Report:
    plan, contenders, comparisons = results.plan, results.contenders, _comparisons(results)
    heading = [
        *machine_lines(results),
        f"{plan.ranks} ranks; microseconds per call, the median of {plan.rounds} round(s) in which all take turns.",
        _SIZE_MEANING,
        *left_out_lines(results.left_out, results.failures),
    ]
    ratios = [f"{peer}/{ours}" for peer, ours in comparisons]
    tables = []
    for pattern in plan.patterns:
        rows = [
            [
                size_text(size),
                *(_time(results.median_us(pattern, size, name)) for name in contenders),
                *(ratio_text(results.ratio(pattern, size, peer, ours)) for peer, ours in comparisons),
            ]
            for other, size in plan.cells()
            if other == pattern
        ]
        tables.append(Table(pattern, ["size", *(f"{name} µs" for name in contenders), *ratios], rows, bold=ratios))
    return Report(_data(results), heading, tables, (), targets(results), "Targets (for 2 cores)")


def targets(results: Results) -> list[Target]:
    """Return every target that the run's ranks, patterns, sizes and contenders can be compared with.

    A target demands that a contender of ours is so many times as fast as a peer at each of some sizes; the smallest
    ratio counts. The numbers are meant for two cores.
    """
    found = []
    for pattern in PATTERNS:
        for ours, peer, small, large in _wanted(pattern, results.plan.ranks):
            for wanted, sizes, least, most in (
                (small, f"up to {size_text(_SMALL)}", 0, _SMALL),
                (large, size_text(_LARGE), _LARGE, _LARGE),
            ):
                ratios = {
                    size: ratio
                    for other, size in results.plan.cells()
                    if other == pattern and least <= size <= most
                    for ratio in [results.ratio(pattern, size, peer, ours)]
                    if ratio is not None
                }
                if wanted is None or not ratios:
                    continue
                size = min(ratios, key=ratios.__getitem__)
                reached = ratios[size]
                what, where = (f"{pattern}, {sizes}", f" at {size_text(size)}") if size else (pattern, "")
                text = f"{what}: {ours} is {reached:.3g}x as fast as {peer}{where}, wanted {wanted:g}x"
                data: dict[str, object] = {"pattern": pattern, "sizes": sizes, "ours": ours, "peer": peer}
                data |= {"wanted": wanted, "reached": reached, "size": size}
                found.append(Target(text, reached >= wanted, 1 - reached / wanted, data))
    return found


def _wanted(pattern: str, ranks: int) -> list[tuple[str, str, float | None, float | None]]:
    """Return (ours, peer, wanted ratio at small sizes, wanted ratio at large sizes)."""
    if ranks == 4:
        return [("shm", "gloo", 20.0, None)]
    if ranks != 2:
        return []
    if pattern == "all_reduce":
        return [("shm", "gloo", 50.0, 3.0), ("shm", "mpi", 1.0, 1.0), ("torch-shm", "gloo", 10.0, None)]
    return [("shm", "gloo", 20.0, 2.0)]


def _data(results: Results) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, measured in zip(data["measurements"], results.measurements, strict=True):
        found["median_us"] = measured.median_us
    data["ratios"] = [
        {"pattern": pattern, "size": size, "peer": peer, "ours": ours, "ratio": ratio}
        for pattern, size in results.plan.cells()
        for peer, ours in _comparisons(results)
        if (ratio := results.ratio(pattern, size, peer, ours)) is not None
    ]
    return data


def _comparisons(results: Results) -> list[tuple[str, str]]:
    """Return (peer, ours): shm with each peer, and torch-shm with gloo, which it replaces."""
    measured = results.contenders
    pairs = [(peer, "shm") for peer in PEERS] + [("gloo", "torch-shm")]
    return [(peer, ours) for peer, ours in pairs if peer in measured and ours in measured]


def _time(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    digits = 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:,.{digits}f}"
