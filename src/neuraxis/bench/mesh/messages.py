"""Measure the latency that a node adds to Zenoh: the same messages and requests by both, in turns.

Two processes exchange messages; a message is sent when the previous one has returned. The latency to the handler is
measured by the monotonic clock, which both processes share. Raw means sessions with the same configuration, publishers
with the same quality of service, the same ring buffer and a thread that reads it; bytes without envelope, sequence
number or codec.
"""

from __future__ import annotations

import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from neuraxis.errors import MeshError
from neuraxis.mesh.keys import ROOT
from neuraxis.mesh.messages import declare_publisher, declare_subscriber
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology, open_session
from neuraxis.process import Team, WorkerLine

__all__ = ["CASES", "MessageEntry", "measure_messages"]

CASES = (("publish", 64), ("publish", 10_240), ("request", 64))
_CONTENDERS = ("raw", "ours")
_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 2.0
_STAMP = struct.Struct("<q")


class MessageEntry(msgspec.Struct):
    """One case: by contender, the median and the 99th percentile of each round, in microseconds."""

    what: str
    size: int
    p50_us: dict[str, list[float]]
    p99_us: dict[str, list[float]]
    messages: int = 0

    def median(self, contender: str) -> float:
        return statistics.median(self.p50_us[contender])

    def median_p99(self, contender: str) -> float:
        return statistics.median(self.p99_us[contender])

    @property
    def ratio(self) -> float:
        """The latency of ours divided by raw Zenoh's: the median over the rounds."""
        pairs = zip(self.p50_us["ours"], self.p50_us["raw"], strict=True)
        return statistics.median(ours / raw for ours, raw in pairs)

    def __str__(self) -> str:
        return f"{self.what} {self.size} B"


def measure_messages(
    mesh: str, rounds: int, messages: int, show: Callable[[str], None] = lambda what: None
) -> list[MessageEntry]:
    """Measure all cases, with `messages` in each round for each contender."""
    entries = [
        MessageEntry(what, size, {one: [] for one in _CONTENDERS}, {one: [] for one in _CONTENDERS}, messages)
        for what, size in CASES
    ]
    with Team(_serve, 2, mesh, grace=2.0) as team:
        team.gather(timeout=60.0)
        for number in range(-1, rounds):  # the first round warms up and does not count
            for entry in entries:
                show(str(entry))
                # The first contender alternates.
                for contender in _CONTENDERS if number % 2 else reversed(_CONTENDERS):
                    count = messages if number >= 0 else min(messages, 100)
                    times = _run_block(team, entry.what, contender, entry.size, count)
                    if number >= 0:
                        entry.p50_us[contender].append(float(np.percentile(times, 50)))
                        entry.p99_us[contender].append(float(np.percentile(times, 99)))
    return entries


def _run_block(team: Team, what: str, contender: str, size: int, count: int) -> Sequence[float]:
    limit = 60.0 + _TIMEOUT_S
    team.send(0, (what, contender, size, count))
    round_trips: list[float] = team.receive([0], timeout=limit)[1]
    if what == "request":
        return round_trips
    team.send(1, "take")
    latencies: list[float] = team.receive([1], timeout=limit)[1]
    if len(latencies) != count:
        raise MeshError(f"{contender}: {count} messages of {size} B were sent, and {len(latencies)} were received")
    return latencies


def _serve(line: WorkerLine, mesh: str) -> None:
    """Run one of the two processes: rank 0 sends, rank 1 replies. Both have a node and a raw session."""
    with ExitStack() as stack:
        side: _Sender | _Replier = (_Sender if line.rank == 0 else _Replier)(mesh, stack)
        side.wait_until_matched()
        line.send("ready")
        while True:
            message = line.receive()
            line.send(side.times() if message == "take" else side.send(*message))


def _read_until_undeclared(declared: Any, read: Callable[[], None], stack: ExitStack) -> None:
    """Run `read` in a thread that ends before the interpreter: a thread inside Zenoh at exit would crash it."""
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    stack.callback(thread.join, _END_TIMEOUT_S)
    stack.callback(declared.undeclare)


class _Side:
    """A node and a raw session, each with a publisher and a subscriber."""

    def __init__(self, mesh: str, stack: ExitStack, name: str, other: str) -> None:
        self.node = stack.enter_context(Node(name, mesh=mesh, topology=Topology.local()))
        raw_mesh = f"{mesh}-raw"
        session = open_session(Topology.local(), raw_mesh)
        stack.callback(session.close)
        self.session = session
        self.prefix = f"{ROOT}/{raw_mesh}"
        self.raw_publisher = declare_publisher(session, f"{self.prefix}/{name}/message", "stream")
        self._raw = declare_subscriber(session, f"{self.prefix}/{other}/message", 1000, 1, recover=False)
        self.node.subscribe(f"{other}/message", lambda message: self.on_ours(message.value), recover=False, depth=1000)
        _read_until_undeclared(self._raw, self._read, stack)

    def wait_until_matched(self) -> None:
        """Wait until the other process has subscribed to both."""
        deadline = time.monotonic() + _TIMEOUT_S
        if not self.node.wait_for_subscribers("message", _TIMEOUT_S):
            raise MeshError("the other node did not appear")
        while not self.raw_publisher.matching_status.matching:
            if time.monotonic() > deadline:
                raise MeshError("the other raw session did not appear")
            time.sleep(0.002)

    def on_ours(self, payload: bytes) -> None:
        raise NotImplementedError

    def on_raw(self, payload: bytes) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        receive = self._raw.handler.recv
        while True:
            try:
                sample = receive()
            except Exception:  # the session is closed
                return
            self.on_raw(bytes(sample.payload))


class _Sender(_Side):
    def __init__(self, mesh: str, stack: ExitStack) -> None:
        self._returned = threading.Event()
        super().__init__(mesh, stack, "sender", "replier")

    def on_ours(self, payload: bytes) -> None:
        self._returned.set()

    on_raw = on_ours

    def times(self) -> list[float]:
        return []

    def send(self, what: str, contender: str, size: int, count: int) -> list[float]:
        """Return round trips in microseconds; the other process measures the latency of published messages."""
        send = {
            ("publish", "raw"): self._publish_raw,
            ("publish", "ours"): self._publish_ours,
            ("request", "raw"): self._request_raw,
            ("request", "ours"): self._request_ours,
        }[what, contender]
        rest = bytes(size - _STAMP.size)
        times = []
        for _ in range(count):
            begun = time.monotonic_ns()
            send(_STAMP.pack(begun) + rest)
            times.append(1e-3 * (time.monotonic_ns() - begun))
        return times

    def _publish_raw(self, payload: bytes) -> None:
        self._returned.clear()
        self.raw_publisher.put(payload)
        self._wait()

    def _publish_ours(self, payload: bytes) -> None:
        self._returned.clear()
        self.node.publish("message", payload)
        self._wait()

    def _wait(self) -> None:
        if not self._returned.wait(_TIMEOUT_S):
            raise MeshError(f"a message did not return within {_TIMEOUT_S:g} s")

    def _request_raw(self, payload: bytes) -> None:
        import zenoh

        replies = self.session.get(
            f"{self.prefix}/replier/echo",
            zenoh.handlers.FifoChannel(4),
            payload=payload,
            timeout=_TIMEOUT_S,
            consolidation=zenoh.ConsolidationMode.NONE,
            congestion_control=zenoh.CongestionControl.BLOCK,
            express=True,
        )
        bytes(replies.recv().ok.payload)

    def _request_ours(self, payload: bytes) -> None:
        self.node.request("replier", "echo", payload, timeout=_TIMEOUT_S)


class _Replier(_Side):
    def __init__(self, mesh: str, stack: ExitStack) -> None:
        import zenoh

        self._times: list[float] = []
        super().__init__(mesh, stack, "replier", "sender")
        self.node.serve("echo", lambda message: message.value)
        self._queryable: Any = self.session.declare_queryable(
            f"{self.prefix}/replier/echo", zenoh.handlers.RingChannel(1000), complete=True
        )
        _read_until_undeclared(self._queryable, self._answer, stack)

    def on_ours(self, payload: bytes) -> None:
        self._times.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))
        self.node.publish("message", payload[: _STAMP.size])

    def on_raw(self, payload: bytes) -> None:
        self._times.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))
        self.raw_publisher.put(payload[: _STAMP.size])

    def times(self) -> list[float]:
        times, self._times = self._times, []
        return times

    def send(self, *request: Any) -> list[float]:
        raise NotImplementedError

    def _answer(self) -> None:
        while True:
            try:
                query = self._queryable.handler.recv()
            except Exception:  # the session is closed
                return
            with query:
                query.reply(query.key_expr, bytes(query.payload))
