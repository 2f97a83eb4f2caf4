"""What remote calls are meant to reach against Zenoh itself and against torch's, and whether a run reached it."""

from __future__ import annotations

import msgspec

from neuraxis.observe.bench_patterns import size_text
from neuraxis.observe.bench_rpc import Results
from neuraxis.observe.bench_rpc_plan import TORCH_PEERS

__all__ = ["Verdict", "verdicts"]

_CLOSE_TO_RAW = 1.3


class Verdict(msgspec.Struct):
    """One target, and whether this run reached it."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.met else 'MISSED'}"


def verdicts(results: Results) -> list[Verdict]:
    """Every target that what was measured can be held against, by the times of median calls."""
    found = []
    for size in results.plan.sizes:
        ratio = results.ratio(size, "zenoh", "raw-zenoh")
        if ratio is not None:
            text = f"{size_text(size)} over zenoh: {ratio:.2f} times raw Zenoh, wanted {_CLOSE_TO_RAW:g} at most"
            without = results.ratio(size, "zenoh", "raw-zenoh-tcp")
            if ratio > _CLOSE_TO_RAW and without is not None:
                text += f" ({without:.2f} times where Zenoh, too, has no shared memory)"
            found.append(Verdict(text, ratio <= _CLOSE_TO_RAW))
    for size in results.plan.sizes:
        # torch has two ways to send the same bytes; whoever wants speed takes the quicker.
        ratios = {peer: ratio for peer in TORCH_PEERS if (ratio := results.ratio(size, "shm", peer)) is not None}
        if ratios:
            peer = max(ratios, key=lambda peer: ratios[peer])
            text = f"{size_text(size)} over shm: {ratios[peer]:.2f} times {peer}, wanted less than 1"
            found.append(Verdict(text, ratios[peer] < 1))
    return found
