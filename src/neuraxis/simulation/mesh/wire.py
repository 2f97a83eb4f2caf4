"""Messages between regions: windows of spikes, and the status of a region (its heartbeat).

A window is a header and three arrays: the neuron of each spike, the outputs that continuous connections transmit, of
one step after the other, and the step of each spike relative to the first of the window. It carries the digest of the
sender's brain, so that spikes of another brain are refused, and the receiver knows how many outputs there must be.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["COMMAND", "HEALTH", "REPLAY", "SPIKES", "WHERE", "RegionStatus", "Window", "pack_window", "unpack_window"]

# Topics of a region's node. Payloads have a topic of their own (`Units.topic`).
SPIKES, HEALTH = "spikes", "health"
COMMAND, REPLAY, WHERE = "command", "replay", "where"

_HEAD = struct.Struct("<4sIqqqQ")
_MAGIC, _MAGIC_WITH_OUTPUTS = b"nxw1", b"nxo1"
_COUNT = struct.Struct("<Q")  # after the head, if there are outputs: their number
MOST_STEPS = 65536
_NO_OUTPUTS = np.zeros(0, np.float32)


class Window(NamedTuple):
    """The spikes and outputs of steps first..last.

    `epoch_ns` is the wall-clock time of step 0; in lockstep, the timeline. Without `outputs` they are all 0.
    """

    first: int
    last: int
    after: NDArray[np.uint16]
    ids: NDArray[np.int32]
    epoch_ns: int
    digest: int
    outputs: NDArray[np.float32] = _NO_OUTPUTS


class RegionStatus(msgspec.Struct):
    """Status of a region, and its heartbeat: the loop publishes it a few times a second, so a stuck region stops.

    Attributes
    ----------
    step : int
        Last completed step.
    digest : int
        Digest of its brain.
    epoch_ns : int
        Wall-clock time of its step 0 in ns; in lockstep, its timeline.
    waiting_for : list of str
        Regions whose spikes it waits for.
    hold_s : float
        Do not count it as missing for so many seconds: it is about to do something slow.
    leaving : bool
        True in its last message.
    missing : dict
        Regions that it counts as missing, and since which step.
    late, missed_deadlines, jitter_ms
        Steps that arrived too late, windows that began too late, and the 99th percentile of their lateness.
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
    n, outputs = len(window.ids), window.outputs.size
    magic = _MAGIC_WITH_OUTPUTS if outputs else _MAGIC
    head = _HEAD.pack(magic, n, window.first, window.last, window.epoch_ns, window.digest)
    if outputs:
        head += _COUNT.pack(outputs)
    return head + window.ids.tobytes() + window.outputs.tobytes() + window.after.tobytes()


def unpack_window(payload: object) -> Window:
    """Decode a window; raise ValueError if the payload is not one."""
    if not isinstance(payload, bytes) or len(payload) < _HEAD.size:
        raise ValueError("not a window of spikes")
    magic, n, first, last, epoch_ns, digest = _HEAD.unpack_from(payload)
    begin, outputs = _HEAD.size, 0
    if magic == _MAGIC_WITH_OUTPUTS and len(payload) >= begin + _COUNT.size:
        (outputs,) = _COUNT.unpack_from(payload, begin)
        begin += _COUNT.size
    elif magic != _MAGIC:
        raise ValueError("not a window of spikes, or truncated")
    if len(payload) != begin + 6 * n + 4 * outputs:
        raise ValueError("not a window of spikes, or truncated")
    if not 1 <= first <= last < 2**31 or last - first >= MOST_STEPS:
        raise ValueError(f"a window with the invalid steps {first} to {last}")
    ids = np.frombuffer(payload, np.int32, n, begin)
    values = np.frombuffer(payload, np.float32, outputs, begin + 4 * n)
    after = np.frombuffer(payload, np.uint16, n, begin + 4 * (n + outputs))
    return Window(first, last, after, ids, epoch_ns, digest, values)
