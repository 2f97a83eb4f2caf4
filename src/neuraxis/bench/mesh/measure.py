"""Measure the mesh: messages compared with raw Zenoh, nodes under load, brains by every method, and killed processes.

Under load, nodes publish at a fixed rate to each other: latency, and messages that are lost. The same load over raw
Zenoh, in sessions of the same configuration, shows the machine's part in it.
"""

from __future__ import annotations

import logging
import statistics
import struct
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from neuraxis.bench import harness
from neuraxis.bench.harness import Progress, check_rounds, parse_choices
from neuraxis.bench.machine import machine_state
from neuraxis.bench.mesh.brain import METHODS, BrainResults, measure_brains
from neuraxis.bench.mesh.messages import CASES, MessageEntry, measure_messages
from neuraxis.bench.mesh.workloads import BRAINS
from neuraxis.mesh.messages import declare_publisher, declare_subscriber
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology, open_session
from neuraxis.process import Team, WorkerLine

__all__ = [
    "CONTENDERS",
    "HEARS",
    "PARTS",
    "LoadEntry",
    "Plan",
    "Results",
    "measure",
    "measure_load",
    "parse_brains",
    "parse_parts",
    "window_trips",
]

PARTS = ("messages", "load", "brain", "faults")
CONTENDERS = ("raw", "ours")
HEARS = ("next", "all")  # to which other nodes each node subscribes: one, or all

_LOAD_NODES = 5
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 2.0
_LEAD_S = 0.3  # between the announcement of the start and the start
_IDLE_S = 1.0  # without messages for so long, no more are expected
_DEPTH = 10_000  # messages that a subscriber's queue holds
_STAMP = struct.Struct("<q")


class LoadEntry(msgspec.Struct):
    """The result of one load.

    Attributes:
        hears: to which other nodes each node subscribes.
        sent: messages that nodes published.
        expected: messages that nodes should have received: those sent, times the subscribers of each sender.
        late_us: delay of a message against its schedule, 99th percentile: the sender had no core.
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


class Plan(msgspec.Struct, frozen=True):
    """Plan of a measurement.

    Attributes:
        rounds: turns of everything that takes turns.
        messages: of each kind and contender in a round.
        load_s: seconds for which nodes publish under load.
        hears: to which other nodes each subscribes under load.
        steps, stretches: of each brain in a round, after as many steps that do not count.
        fault_brain: the brain of which a process is killed.
    """

    parts: tuple[str, ...] = PARTS
    methods: tuple[str, ...] = msgspec.field(default=METHODS, name="ways")
    brains: tuple[str, ...] = tuple(BRAINS)
    rounds: int = 3
    messages: int = 1000
    load_s: float = 5.0
    hears: tuple[str, ...] = HEARS
    steps: int = 10_000
    stretches: int = 3
    fault_brain: str = "two"

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    @property
    def processes(self) -> int:
        return _LOAD_NODES if "load" in self.parts else 2

    @classmethod
    def quick(cls, **changes: object) -> Plan:
        """Return a plan that takes half a minute."""
        short = cls(
            brains=("pair",), rounds=1, messages=100, load_s=0.5, hears=("next",), steps=1000, stretches=1,
            fault_brain="pair",
        )  # fmt: skip
        return msgspec.structs.replace(short, **changes)


class Results(harness.Results):
    """The results of a run."""

    plan: Plan
    messages: list[MessageEntry]
    load: list[LoadEntry]
    brain: BrainResults

    @property
    def sound(self) -> bool:
        """True if every method that could be run gave the same result for every brain."""
        return not self.brain.disagreements and not self.brain.failures


def parse_parts(text: str) -> tuple[str, ...]:
    return parse_choices(text, "--parts", PARTS)


def parse_brains(text: str) -> tuple[str, ...]:
    return parse_choices(text, "--brains", BRAINS)


def measure(plan: Plan, progress: Progress | None = None) -> Results:
    """Measure all parts, one after the other."""
    state = machine_state(plan.processes, "eclipse-zenoh")
    total = _turns(plan)
    done = 0

    def show(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(min(done, total), total, what)
        done += 1

    mesh = f"bench-{uuid.uuid4().hex[:12]}"  # unique
    results = Results(plan, [], [], BrainResults([], [], [], []), **state)
    if "messages" in plan.parts:
        results.messages = measure_messages(mesh, max(3, plan.rounds), plan.messages, show)
    if "load" in plan.parts:
        for hears in plan.hears:
            for contender in CONTENDERS:
                show(f"load, {hears}, {contender}")
                own = f"{mesh}-{hears}-{contender}"
                results.load.append(measure_load(seconds=plan.load_s, hears=hears, contender=contender, mesh=own))
    if "brain" in plan.parts or "faults" in plan.parts:
        brains = plan.brains if "brain" in plan.parts else ()
        killed = plan.fault_brain if "faults" in plan.parts else ""
        results.brain = measure_brains(plan.methods, brains, plan.rounds, plan.steps, plan.stretches, killed, show)
    return results


def window_trips(results: Results) -> float | None:
    """Return the time of a window over Zenoh between peers, in one-way latencies of raw Zenoh in the same run."""
    trips = [entry.median("raw") for entry in results.messages if (entry.what, entry.size) == CASES[0]]
    windows = [entry for entry in results.brain.of("pair") if entry.method == "zenoh-peers"]
    if not trips or not windows:
        return None
    return statistics.median(windows[0].window_p50_us) / trips[0]


def _turns(plan: Plan) -> int:
    turns = 0
    if "messages" in plan.parts:
        turns += (max(3, plan.rounds) + 1) * len(CASES)
    if "load" in plan.parts:
        turns += len(plan.hears) * len(CONTENDERS)
    if "brain" in plan.parts:
        turns += plan.rounds * len(plan.methods)
    elif "faults" in plan.parts:
        turns += len(plan.methods)
    return turns + ("faults" in plan.parts and "shm" in plan.methods)


# --- nodes under load ---


def measure_load(
    nodes: int = _LOAD_NODES,
    rate_hz: float = 1000.0,
    size: int = 10_240,
    seconds: float = 5.0,
    hears: str = "all",
    contender: str = "ours",
    *,
    mesh: str = "bench-load",
    topology: Topology | None = None,
) -> LoadEntry:
    """Let `nodes` processes publish messages of `size` bytes at `rate_hz` for `seconds`.

    Each subscribes to all others (`hears="all"`), or to the next one.
    """
    data = (topology or Topology.local()).as_data()
    with Team(_serve, nodes, mesh, data, hears, contender, grace=3.0) as team:
        team.gather(timeout=_START_TIMEOUT_S)
        team.broadcast("match")
        team.gather(timeout=_START_TIMEOUT_S)
        begin = time.monotonic() + _LEAD_S
        team.broadcast((begin, rate_hz, size, seconds))
        found: list[dict[str, Any]] = team.gather(timeout=seconds + _START_TIMEOUT_S)
    latencies = np.concatenate([one["latencies_us"] for one in found])
    late = np.concatenate([one["late_us"] for one in found])
    sent = sum(one["sent"] for one in found)
    p50, p99, p999 = (
        (float(one) for one in np.percentile(latencies, [50, 99, 99.9])) if len(latencies) else (0.0, 0.0, 0.0)
    )
    return LoadEntry(
        nodes, rate_hz, size, seconds, hears, contender, sent, sent * (nodes - 1 if hears == "all" else 1),
        len(latencies), p50, p99, p999, float(latencies.max(initial=0.0)), float(np.percentile(late, 99)),
    )  # fmt: skip


def _serve(line: WorkerLine, mesh: str, topology: dict[str, Any], hears: str, contender: str) -> None:
    """Run one node: subscribe to others, publish at the rate, and report the latencies of received messages."""
    logging.getLogger("neuraxis.mesh").setLevel(logging.ERROR)  # the results count lost messages
    others = [rank for rank in range(line.n) if rank != line.rank]
    sources = others if hears == "all" else [(line.rank + 1) % line.n]
    latencies_us: list[float] = []

    def receive(payload: bytes) -> None:
        latencies_us.append(1e-3 * (time.monotonic_ns() - _STAMP.unpack_from(payload)[0]))

    make = _OurNode if contender == "ours" else _RawNode
    with make(line.rank, mesh, Topology.from_data(topology)) as node:
        for rank in sources:
            node.subscribe(rank, receive)
        line.send("ready")
        line.receive()
        node.wait_for(others)
        line.send("matched")
        begin, rate_hz, size, seconds = line.receive()
        late_us = _publish(node, begin, rate_hz, size, seconds)
        _wait_until_idle(latencies_us, len(late_us) * len(sources))
        line.send({"sent": len(late_us), "latencies_us": np.array(latencies_us), "late_us": np.array(late_us)})
        line.receive()  # raises when the others are done


class _OurNode:
    def __init__(self, rank: int, mesh: str, topology: Topology) -> None:
        self._node = Node(f"load{rank}", mesh=mesh, topology=topology)

    def __enter__(self) -> _OurNode:
        return self

    def __exit__(self, *error: object) -> None:
        self._node.close()

    def subscribe(self, rank: int, handler: Callable[[bytes], None]) -> None:
        self._node.subscribe(f"load{rank}/data", lambda message: handler(message.value), recover=False, depth=_DEPTH)

    def wait_for(self, others: Sequence[int]) -> None:
        missing = self._node.wait_for([f"load{rank}" for rank in others], _START_TIMEOUT_S)
        if missing or not self._node.wait_for_subscribers("data", _START_TIMEOUT_S):
            raise TimeoutError(f"these nodes did not appear: {missing}")

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
        for thread in self._threads:  # a thread inside Zenoh at exit would crash the interpreter
            thread.join(_END_TIMEOUT_S)
        self._session.close()

    def subscribe(self, rank: int, handler: Callable[[bytes], None]) -> None:
        self._subscribers.append(declare_subscriber(self._session, f"load/{rank}", _DEPTH, 1, recover=False))
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
        """Wait for links to all others and for subscribers."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(list(self._session.info.peers_zid())) < len(others) or not self._publisher.matching_status.matching:
            if time.monotonic() > deadline:
                raise TimeoutError("the other sessions did not appear")
            time.sleep(0.01)
        time.sleep(_LEAD_S)  # subscriptions of the others arrive shortly after their links


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


def _wait_until_idle(received: list[float], expected: int) -> None:
    count, since = len(received), time.monotonic()
    while len(received) < expected and time.monotonic() - since < _IDLE_S:
        time.sleep(0.02)
        if len(received) != count:
            count, since = len(received), time.monotonic()
