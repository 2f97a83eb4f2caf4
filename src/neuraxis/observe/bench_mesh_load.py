"""Nodes that publish at a rate to each other: how long messages take under load, and whether any is lost."""

from __future__ import annotations

import logging
import struct
import time
from typing import Any

import msgspec
import numpy as np

from neuraxis.launch import Team, WorkerLine
from neuraxis.mesh.node import Node
from neuraxis.mesh.subscription import Message
from neuraxis.mesh.topology import Topology

__all__ = ["HEARS", "LoadEntry", "measure_load"]

HEARS = ("next", "all")  # whom each node hears: one other, or all others

_START_S = 60.0
_BEGIN_IN_S = 0.3
_QUIET_S = 1.0  # so long nothing came: nothing more comes
_STAMP = struct.Struct("<q")


class LoadEntry(msgspec.Struct):
    """What came of it.

    Attributes:
        sent: messages that nodes published.
        expected: messages that nodes should have heard: each of those sent, by everybody who hears its sender.
        late_us: by how much a message went out after its time, 99th percentile: a sender without a core.
    """

    nodes: int
    rate_hz: float
    size: int
    seconds: float
    hears: str
    sent: int
    expected: int
    received: int
    p50_us: float
    p99_us: float
    p999_us: float
    longest_us: float
    late_us: float

    @property
    def lost(self) -> int:
        return self.expected - self.received


def measure_load(
    nodes: int = 5,
    rate_hz: float = 1000.0,
    size: int = 10_240,
    seconds: float = 5.0,
    hears: str = "all",
    *,
    mesh: str = "bench-load",
    topology: Topology | None = None,
) -> LoadEntry:
    """Let `nodes` processes publish messages of `size` bytes at a rate, for some time. By default all hear all."""
    data = (topology or Topology.local()).as_data()
    with Team(_serve, nodes, mesh, data, hears, grace_s=3.0) as team:
        team.gather(timeout=_START_S)
        team.broadcast("listen")
        team.gather(timeout=_START_S)
        begin = time.monotonic() + _BEGIN_IN_S
        team.broadcast((begin, rate_hz, size, seconds))
        found: list[dict[str, Any]] = team.gather(timeout=seconds + _START_S)
    taken = np.concatenate([one["taken_us"] for one in found])
    late = np.concatenate([one["late_us"] for one in found])
    sent = sum(one["sent"] for one in found)
    p50, p99, p999 = (float(one) for one in np.percentile(taken, [50, 99, 99.9])) if len(taken) else (0.0, 0.0, 0.0)
    return LoadEntry(
        nodes, rate_hz, size, seconds, hears, sent, sent * (nodes - 1 if hears == "all" else 1), len(taken),
        p50, p99, p999, float(taken.max(initial=0.0)), float(np.percentile(late, 99)),
    )  # fmt: skip


def _serve(line: WorkerLine, mesh: str, topology: dict[str, Any], hears: str) -> None:
    """One node: hears the others, publishes at its rate, and says how long what it heard took."""
    logging.getLogger("neuraxis.mesh").setLevel(logging.ERROR)  # what is lost is told in the end
    others = [rank for rank in range(line.n) if rank != line.rank]
    heard = others if hears == "all" else [(line.rank + 1) % line.n]
    taken_us: list[float] = []

    def hear(message: Message) -> None:
        taken_us.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(message.value)[0]))

    with Node(f"load{line.rank}", mesh=mesh, topology=Topology.from_data(topology)) as node:
        for rank in heard:
            node.subscribe(f"load{rank}/data", hear, recover=False, capacity=10_000)
        line.send("ready")
        line.receive()
        missing = node.wait_for([f"load{rank}" for rank in others], _START_S)
        if missing or not node.wait_for_subscribers("data", _START_S):
            raise TimeoutError(f"these did not come: {missing}")
        line.send("listening")
        begin, rate_hz, size, seconds = line.receive()
        late_us = _publish(node, begin, rate_hz, size, seconds)
        _wait_for_quiet(taken_us, len(late_us) * len(heard))
        line.send({"sent": len(late_us), "taken_us": np.array(taken_us), "late_us": np.array(late_us)})
        line.receive()  # raises when the others are done as well


def _publish(node: Node, begin: float, rate_hz: float, size: int, seconds: float) -> list[float]:
    rest = bytes(size - _STAMP.size)
    late_us = []
    for number in range(round(rate_hz * seconds)):
        due = begin + number / rate_hz
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        now = time.monotonic_ns()
        late_us.append(1e-3 * now - 1e6 * due)
        node.publish("data", _STAMP.pack(now) + rest)
    return late_us


def _wait_for_quiet(heard: list[float], expected: int) -> None:
    count, since = len(heard), time.monotonic()
    while len(heard) < expected and time.monotonic() - since < _QUIET_S:
        time.sleep(0.02)
        if len(heard) != count:
            count, since = len(heard), time.monotonic()
