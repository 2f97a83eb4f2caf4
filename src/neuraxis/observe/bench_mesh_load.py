"""Nodes that publish at a rate to each other: how long messages take under load, and whether any is lost.

The same by raw Zenoh, in sessions of the same configuration, shows what is the machine's part in it.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from neuraxis.launch import Team, WorkerLine
from neuraxis.mesh.kinds import declare_publisher, declare_subscriber
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology, open_session

__all__ = ["CONTENDERS", "HEARS", "LoadEntry", "measure_load"]

CONTENDERS = ("raw", "ours")
HEARS = ("next", "all")  # whom each node hears: one other, or all others

_START_S = 60.0
_BEGIN_IN_S = 0.3
_END_S = 2.0
_QUIET_S = 1.0  # so long nothing came: nothing more comes
_WAITING = 10_000  # messages that may wait for a reader
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
    contender: str
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
    contender: str = "ours",
    *,
    mesh: str = "bench-load",
    topology: Topology | None = None,
) -> LoadEntry:
    """Let `nodes` processes publish messages of `size` bytes at a rate, for some time. By default all hear all."""
    data = (topology or Topology.local()).as_data()
    with Team(_serve, nodes, mesh, data, hears, contender, grace_s=3.0) as team:
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
        nodes, rate_hz, size, seconds, hears, contender, sent, sent * (nodes - 1 if hears == "all" else 1), len(taken),
        p50, p99, p999, float(taken.max(initial=0.0)), float(np.percentile(late, 99)),
    )  # fmt: skip


def _serve(line: WorkerLine, mesh: str, topology: dict[str, Any], hears: str, contender: str) -> None:
    """One node: hears the others, publishes at its rate, and says how long what it heard took."""
    logging.getLogger("neuraxis.mesh").setLevel(logging.ERROR)  # what is lost is told in the end
    others = [rank for rank in range(line.n) if rank != line.rank]
    heard = others if hears == "all" else [(line.rank + 1) % line.n]
    taken_us: list[float] = []

    def hear(payload: bytes) -> None:
        taken_us.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))

    how = Topology.from_data(topology)
    make = _OurNode if contender == "ours" else _RawNode
    with make(line.rank, mesh, how) as node:
        for rank in heard:
            node.hear(rank, hear)
        line.send("ready")
        line.receive()
        node.wait_for(others)
        line.send("listening")
        begin, rate_hz, size, seconds = line.receive()
        late_us = _publish(node, begin, rate_hz, size, seconds)
        _wait_for_quiet(taken_us, len(late_us) * len(heard))
        line.send({"sent": len(late_us), "taken_us": np.array(taken_us), "late_us": np.array(late_us)})
        line.receive()  # raises when the others are done as well


class _OurNode:
    def __init__(self, rank: int, mesh: str, topology: Topology) -> None:
        self._node = Node(f"load{rank}", mesh=mesh, topology=topology)

    def __enter__(self) -> _OurNode:
        return self

    def __exit__(self, *error: object) -> None:
        self._node.close()

    def hear(self, rank: int, handler: Callable[[bytes], None]) -> None:
        self._node.subscribe(f"load{rank}/data", lambda one: handler(one.value), recover=False, capacity=_WAITING)

    def wait_for(self, others: Sequence[int]) -> None:
        missing = self._node.wait_for([f"load{rank}" for rank in others], _START_S)
        if missing or not self._node.wait_for_subscribers("data", _START_S):
            raise TimeoutError(f"these did not come: {missing}")

    def publish(self, payload: bytes) -> None:
        self._node.publish("data", payload)


class _RawNode:
    def __init__(self, rank: int, mesh: str, topology: Topology) -> None:
        self._session = open_session(topology, mesh)
        self._publisher = declare_publisher(self._session, f"load/{rank}", "stream")
        self.publish: Callable[[bytes], None] = self._publisher.put
        self._subscribers: list[Any] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _RawNode:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._subscribers:
            one.undeclare()
        for thread in self._threads:  # one that is still in Zenoh when Python ends would end it badly
            thread.join(_END_S)
        self._session.close()

    def hear(self, rank: int, handler: Callable[[bytes], None]) -> None:
        self._subscribers.append(declare_subscriber(self._session, f"load/{rank}", _WAITING, 1, recover=False))
        receive = self._subscribers[-1].handler.recv

        def read() -> None:
            while True:
                try:
                    sample = receive()
                except Exception:  # the session is closed
                    return
                handler(bytes(sample.payload))

        self._threads.append(threading.Thread(target=read, daemon=True))
        self._threads[-1].start()

    def wait_for(self, others: Sequence[int]) -> None:
        """A session has links to all others before it is told that all of them hear it."""
        deadline = time.monotonic() + _START_S
        while len(list(self._session.info.peers_zid())) < len(others) or not self._publisher.matching_status.matching:
            if time.monotonic() > deadline:
                raise TimeoutError("the others did not come")
            time.sleep(0.01)
        time.sleep(_BEGIN_IN_S)  # what all others hear reaches this session a moment later


def _publish(node: _OurNode | _RawNode, begin: float, rate_hz: float, size: int, seconds: float) -> list[float]:
    rest = bytes(size - _STAMP.size)
    late_us = []
    for number in range(round(rate_hz * seconds)):
        due = begin + number / rate_hz
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
        now = time.monotonic_ns()
        late_us.append(1e-3 * now - 1e6 * due)
        node.publish(_STAMP.pack(now) + rest)
    return late_us


def _wait_for_quiet(heard: list[float], expected: int) -> None:
    count, since = len(heard), time.monotonic()
    while len(heard) < expected and time.monotonic() - since < _QUIET_S:
        time.sleep(0.02)
        if len(heard) != count:
            count, since = len(heard), time.monotonic()
