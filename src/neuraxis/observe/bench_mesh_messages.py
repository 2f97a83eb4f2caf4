"""What a node of ours adds to Zenoh: the same messages and questions by both, in turns, between the same two processes.

A message goes out when the one before has come back. Its way to the handler is measured by the monotonic clock, which
both processes share. Raw means: sessions with the same configuration, publishers with the same quality of service, the
same ring and a thread that reads it; bytes, without an envelope, numbers, or a codec.
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
from neuraxis.launch import Team, WorkerLine
from neuraxis.mesh.keys import ROOT
from neuraxis.mesh.kinds import declare_publisher, declare_subscriber
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology, open_session

__all__ = ["CASES", "MessageEntry", "measure_messages"]

CASES = (("publish", 64), ("publish", 10_240), ("request", 64))
_CONTENDERS = ("raw", "ours")
_LIMIT_S = 10.0
_END_S = 2.0
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
        """How many times raw Zenoh's time ours is: the median over the rounds."""
        pairs = zip(self.p50_us["ours"], self.p50_us["raw"], strict=True)
        return statistics.median(ours / raw for ours, raw in pairs)

    def __str__(self) -> str:
        return f"{self.what} {self.size} B"


def measure_messages(
    mesh: str, rounds: int, messages: int, tell: Callable[[str], None] = lambda what: None
) -> list[MessageEntry]:
    """Measure all cases; `messages` a round for each contender."""
    entries = [
        MessageEntry(what, size, {one: [] for one in _CONTENDERS}, {one: [] for one in _CONTENDERS}, messages)
        for what, size in CASES
    ]
    with Team(_serve, 2, mesh, grace_s=2.0) as team:
        team.gather(timeout=60.0)
        for number in range(-1, rounds):  # the first finds everything cold, and does not count
            for entry in entries:
                tell(str(entry))
                # Who is first changes from round to round.
                for contender in _CONTENDERS if number % 2 else reversed(_CONTENDERS):
                    count = messages if number >= 0 else min(messages, 100)
                    times = _block(team, entry.what, contender, entry.size, count)
                    if number >= 0:
                        entry.p50_us[contender].append(float(np.percentile(times, 50)))
                        entry.p99_us[contender].append(float(np.percentile(times, 99)))
    return entries


def _block(team: Team, what: str, contender: str, size: int, count: int) -> Sequence[float]:
    limit = 60.0 + _LIMIT_S
    team.send(0, (what, contender, size, count))
    asked: list[float] = team.receive([0], timeout=limit)[1]
    if what == "request":
        return asked
    team.send(1, "take")
    heard: list[float] = team.receive([1], timeout=limit)[1]
    if len(heard) != count:
        raise MeshError(f"{contender}: {count} messages of {size} B were sent, and {len(heard)} were heard")
    return heard


def _serve(line: WorkerLine, mesh: str) -> None:
    """The two processes: the first asks, the second answers. Both have what is raw beside what is ours."""
    with ExitStack() as stack:
        side: _Asker | _Answerer = (_Asker if line.rank == 0 else _Answerer)(mesh, stack)
        side.get_ready()
        line.send("ready")
        while True:
            message = line.receive()
            line.send(side.times() if message == "take" else side.ask(*message))


def _read_until_undeclared(declared: Any, read: Callable[[], None], stack: ExitStack) -> None:
    """Run `read` in a thread, which ends before Python does: one that is still in Zenoh then would end it badly."""
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    stack.callback(thread.join, _END_S)
    stack.callback(declared.undeclare)


class _Side:
    """A node, a raw session, and publishers and subscribers of both."""

    def __init__(self, mesh: str, stack: ExitStack, name: str, hears: str) -> None:
        self.node = stack.enter_context(Node(name, mesh=mesh, topology=Topology.local()))
        raw_mesh = f"{mesh}-raw"
        session = open_session(Topology.local(), raw_mesh)
        stack.callback(session.close)
        self.session = session
        self.prefix = f"{ROOT}/{raw_mesh}"
        self.raw_publisher = declare_publisher(session, f"{self.prefix}/{name}/message", "stream")
        self._raw = declare_subscriber(session, f"{self.prefix}/{hears}/message", 1000, 1, recover=False)
        self.node.subscribe(f"{hears}/message", lambda message: self.heard_ours(message.value), recover=False)
        _read_until_undeclared(self._raw, self._read, stack)

    def get_ready(self) -> None:
        """Wait until the other side hears both."""
        deadline = time.monotonic() + _LIMIT_S
        if not self.node.wait_for_subscribers("message", _LIMIT_S):
            raise MeshError("the other node did not come")
        while not self.raw_publisher.matching_status.matching:
            if time.monotonic() > deadline:
                raise MeshError("the other raw session did not come")
            time.sleep(0.002)

    def heard_ours(self, payload: bytes) -> None:
        raise NotImplementedError

    def heard_raw(self, payload: bytes) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        receive = self._raw.handler.recv
        while True:
            try:
                sample = receive()
            except Exception:  # the session is closed
                return
            self.heard_raw(bytes(sample.payload))


class _Asker(_Side):
    def __init__(self, mesh: str, stack: ExitStack) -> None:
        self._back = threading.Event()
        super().__init__(mesh, stack, "asker", "answerer")

    def heard_ours(self, payload: bytes) -> None:
        self._back.set()

    heard_raw = heard_ours

    def times(self) -> list[float]:
        return []

    def ask(self, what: str, contender: str, size: int, count: int) -> list[float]:
        """Round trips in microseconds; of what is published, the other side knows the way there."""
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
        self._back.clear()
        self.raw_publisher.put(payload)
        self._wait()

    def _publish_ours(self, payload: bytes) -> None:
        self._back.clear()
        self.node.publish("message", payload)
        self._wait()

    def _wait(self) -> None:
        if not self._back.wait(_LIMIT_S):
            raise MeshError(f"a message did not come back within {_LIMIT_S:g} s")

    def _request_raw(self, payload: bytes) -> None:
        import zenoh

        replies = self.session.get(
            f"{self.prefix}/answerer/question",
            zenoh.handlers.FifoChannel(4),
            payload=payload,
            timeout=_LIMIT_S,
            consolidation=zenoh.ConsolidationMode.NONE,
            congestion_control=zenoh.CongestionControl.BLOCK,
            express=True,
        )
        bytes(replies.recv().ok.payload)

    def _request_ours(self, payload: bytes) -> None:
        self.node.request("answerer", "question", payload, timeout=_LIMIT_S)


class _Answerer(_Side):
    def __init__(self, mesh: str, stack: ExitStack) -> None:
        import zenoh

        self._times: list[float] = []
        super().__init__(mesh, stack, "answerer", "asker")
        self.node.serve("question", lambda message: message.value)
        self._questions: Any = self.session.declare_queryable(
            f"{self.prefix}/answerer/question", zenoh.handlers.RingChannel(1000), complete=True
        )
        _read_until_undeclared(self._questions, self._answer, stack)

    def heard_ours(self, payload: bytes) -> None:
        self._times.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))
        self.node.publish("message", payload[: _STAMP.size])

    def heard_raw(self, payload: bytes) -> None:
        self._times.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))
        self.raw_publisher.put(payload[: _STAMP.size])

    def times(self) -> list[float]:
        times, self._times = self._times, []
        return times

    def ask(self, *question: Any) -> list[float]:
        raise NotImplementedError

    def _answer(self) -> None:
        while True:
            try:
                query = self._questions.handler.recv()
            except Exception:  # the session is closed
                return
            with query:
                query.reply(query.key_expr, bytes(query.payload))
