"""What regions say to each other: their spikes, window by window, and how they are.

A window is a head and two arrays: for each spike the step (after the window's first) and the neuron. It carries the
digest of the network that its sender runs: spikes of another network are no spikes here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["COMMAND", "HEALTH", "REPLAY", "SPIKES", "WHERE", "RegionStatus", "Window", "pack_window", "unpack_window"]

# The topics of a region's node; its data have one of their own.
SPIKES, HEALTH = "spikes", "health"
COMMAND, REPLAY, WHERE = "command", "replay", "where"

_HEAD = struct.Struct("<4sIqqqQ")
_MAGIC = b"nxw1"
MOST_STEPS = 65536


class Window(NamedTuple):
    """The spikes of the steps first..last. `epoch_ns` is when step 0 was by the wall clock, 0 in lockstep."""

    first: int
    last: int
    after: NDArray[np.uint16]
    ids: NDArray[np.int32]
    epoch_ns: int
    digest: int


class RegionStatus(msgspec.Struct):
    """How a region is doing, said a few times a second by the loop that runs it: who is stuck says nothing.

    Attributes:
        step: the last complete one.
        digest: of the network that it runs.
        waiting_for: the regions that it cannot go on without.
        hold_s: do not take it for stuck for so many seconds: it is about to do something long.
        leaving: it will say nothing more.
        missing: the regions that are silence to it now, and since which step.
    """

    step: int
    digest: int
    epoch_ns: int = 0
    waiting_for: list[str] = []
    hold_s: float = 0.0
    leaving: bool = False
    missing: dict[str, int] = {}
    late: int = 0
    missed_deadlines: int = 0
    jitter_ms: float = 0.0


def pack_window(window: Window) -> bytes:
    n = len(window.ids)
    head = _HEAD.pack(_MAGIC, n, window.first, window.last, window.epoch_ns, window.digest)
    return head + window.ids.tobytes() + window.after.tobytes()


def unpack_window(payload: object) -> Window:
    """ValueError if it is none."""
    if not isinstance(payload, bytes) or len(payload) < _HEAD.size:
        raise ValueError("no window of spikes")
    magic, n, first, last, epoch_ns, digest = _HEAD.unpack_from(payload)
    if magic != _MAGIC or len(payload) != _HEAD.size + 6 * n:
        raise ValueError("no window of spikes, or one that was cut")
    if not 1 <= first <= last < 2**31 or last - first >= MOST_STEPS:
        raise ValueError(f"a window of the steps {first} to {last}")
    ids = np.frombuffer(payload, np.int32, n, _HEAD.size)
    after = np.frombuffer(payload, np.uint16, n, _HEAD.size + 4 * n)
    return Window(first, last, after, ids, epoch_ns, digest)
