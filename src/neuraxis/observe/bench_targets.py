"""What the collectives are meant to reach against their peers, and whether a run reached it.

The numbers are for two cores; a run elsewhere is compared all the same, as information.
"""

from __future__ import annotations

import msgspec

from neuraxis.observe.bench_collectives import Results
from neuraxis.observe.bench_patterns import PATTERNS, size_text

__all__ = ["Verdict", "verdicts"]

_SMALL = 16 * 2**10  # "small" is up to here
_LARGE = 64 * 2**20


class Verdict(msgspec.Struct):
    """One target: `ours` is to be `wanted` times as fast as `peer`; `reached` at `size`, where it is least."""

    pattern: str
    sizes: str
    ours: str
    peer: str
    wanted: float
    reached: float
    size: int
    met: bool

    def __str__(self) -> str:
        what, where = f"{self.pattern}, {self.sizes}", f" at {size_text(self.size)}"
        if not self.size:
            what, where = self.pattern, ""  # a barrier
        state = "met" if self.met else f"missed by {1 - self.reached / self.wanted:.0%}"
        text = f"{self.reached:.3g}x as fast as {self.peer}{where}, wanted {self.wanted:g}x"
        return f"{what}: {self.ours} is {text}: {state}"


def verdicts(results: Results) -> list[Verdict]:
    """Every target that the run's ranks, patterns, sizes and contenders can be held against."""
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
                met = ratios[size] >= wanted
                found.append(Verdict(pattern, sizes, ours, peer, wanted, ratios[size], size, met))
    return found


def _wanted(pattern: str, ranks: int) -> list[tuple[str, str, float | None, float | None]]:
    """(ours, peer, how many times as fast on small ones, on large ones)"""
    if ranks == 4:
        return [("shm", "gloo", 20.0, None)]
    if ranks != 2:
        return []
    if pattern == "all_reduce":
        return [("shm", "gloo", 50.0, 3.0), ("shm", "mpi", 1.0, 1.0), ("torch-shm", "gloo", 10.0, None)]
    return [("shm", "gloo", 20.0, 2.0)]
