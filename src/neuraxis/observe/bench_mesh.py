"""The mesh, measured: messages beside raw Zenoh, nodes under load, brains in all ways to run them, and killed parts."""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import uuid
from collections.abc import Callable

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.observe.bench_machine import describe_machine
from neuraxis.observe.bench_mesh_brain import WAYS, BrainResults, measure_brains
from neuraxis.observe.bench_mesh_brains import BRAINS
from neuraxis.observe.bench_mesh_load import CONTENDERS, HEARS, LoadEntry, measure_load
from neuraxis.observe.bench_mesh_messages import CASES, MessageEntry, measure_messages

__all__ = ["PARTS", "Plan", "Results", "Verdict", "measure", "parse_brains", "parse_parts", "verdicts", "window_trips"]

PARTS = ("messages", "load", "brain", "faults")

Progress = Callable[[int, int, str], None]  # done, total, what is measured now

_CLOSE_TO_RAW = 1.25
_LOAD_P99_US = 2000.0
_WINDOW_TRIPS = 2.0


class Plan(msgspec.Struct, frozen=True):
    """What to measure, and how long.

    Attributes:
        rounds: turns of everything that takes turns.
        messages: of each kind and contender in a round.
        load_s: how long nodes publish; hears: whom each hears.
        steps, stretches: of each brain in a round; as many steps go before that do not count.
        fault_brain: the brain of which a process is killed.
    """

    parts: tuple[str, ...] = PARTS
    ways: tuple[str, ...] = WAYS
    brains: tuple[str, ...] = tuple(BRAINS)
    rounds: int = 3
    messages: int = 1000
    load_s: float = 5.0
    hears: tuple[str, ...] = HEARS
    steps: int = 10_000
    stretches: int = 3
    fault_brain: str = "two"

    @classmethod
    def quick(cls, **changes: object) -> Plan:
        """One that takes half a minute."""
        short = cls(
            brains=("pair",), rounds=1, messages=100, load_s=0.5, hears=("next",), steps=1000, stretches=1,
            fault_brain="pair",
        )  # fmt: skip
        return msgspec.structs.replace(short, **changes)


class Results(msgspec.Struct):
    """All that a run found out. `load_before`: how many processes wanted a core when it began, besides this one."""

    plan: Plan
    machine: dict[str, str]
    load_before: float
    messages: list[MessageEntry]
    load: list[LoadEntry]
    brain: BrainResults

    @property
    def sound(self) -> bool:
        """Whether every way that could be run gave the same result for every brain."""
        return not self.brain.disagreements and not self.brain.failures


class Verdict(msgspec.Struct):
    """One target, and whether this run reached it."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.met else 'MISSED'}"


def parse_parts(text: str) -> tuple[str, ...]:
    return _chosen(text, "--parts", PARTS)


def parse_brains(text: str) -> tuple[str, ...]:
    return _chosen(text, "--brains", tuple(BRAINS))


def measure(plan: Plan, progress: Progress | None = None) -> Results:
    """Measure all parts, one after the other."""
    machine = describe_machine()
    machine["zenoh"] = importlib.metadata.version("eclipse-zenoh")
    total = _turns(plan)
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(min(done, total), total, what)
        done += 1

    mesh = f"bench-{uuid.uuid4().hex[:12]}"  # nobody else's
    results = Results(plan, machine, os.getloadavg()[0], [], [], BrainResults([], [], [], []))
    if "messages" in plan.parts:
        results.messages = measure_messages(mesh, max(3, plan.rounds), plan.messages, tell)
    if "load" in plan.parts:
        for hears in plan.hears:
            for contender in CONTENDERS:
                tell(f"load, {hears}, {contender}")
                own = f"{mesh}-{hears}-{contender}"
                results.load.append(measure_load(seconds=plan.load_s, hears=hears, contender=contender, mesh=own))
    if "brain" in plan.parts or "faults" in plan.parts:
        brains = plan.brains if "brain" in plan.parts else ()
        killed = plan.fault_brain if "faults" in plan.parts else ""
        results.brain = measure_brains(plan.ways, brains, plan.rounds, plan.steps, plan.stretches, killed, tell)
    return results


def verdicts(results: Results) -> list[Verdict]:
    """Every target that what was measured can be held against."""
    found = []
    for entry in results.messages:
        if entry.size == 64:
            text = f"{entry}: {entry.ratio:.2f} times raw Zenoh, wanted {_CLOSE_TO_RAW:g} at most"
            found.append(Verdict(text, entry.ratio <= _CLOSE_TO_RAW))
    for one in (one for one in results.load if one.contender == "ours"):
        text = (
            f"{one.nodes} nodes x {one.rate_hz:g} Hz x {one.size // 1024} KB, each heard by {_listeners(one)}: "
            f"{one.lost} of {one.expected:,} lost, p99 {one.p99_us / 1000:.2f} ms, "
            f"wanted none and less than {_LOAD_P99_US / 1000:g} ms"
        )
        found.append(Verdict(text, one.lost == 0 and one.p99_us < _LOAD_P99_US))
    trips = window_trips(results)
    if trips is not None:
        text = (
            f"a window between two regions over Zenoh: {trips:.2f} raw one-way trips, wanted {_WINDOW_TRIPS:g} at most"
        )
        found.append(Verdict(text, trips <= _WINDOW_TRIPS))
    return found


def window_trips(results: Results) -> float | None:
    """What a window costs over Zenoh between peers, in one-way trips of raw Zenoh in the same run."""
    trips = [entry.median("raw") for entry in results.messages if (entry.what, entry.size) == CASES[0]]
    windows = [entry for entry in results.brain.of("pair") if entry.way == "zenoh-peers"]
    if not trips or not windows:
        return None
    return statistics.median(windows[0].window_p50_us) / trips[0]


def _listeners(load: LoadEntry) -> str:
    return "one other" if load.hears == "next" else "all others"


def _turns(plan: Plan) -> int:
    turns = 0
    if "messages" in plan.parts:
        turns += (max(3, plan.rounds) + 1) * len(CASES)
    if "load" in plan.parts:
        turns += len(plan.hears) * len(CONTENDERS)
    if "brain" in plan.parts:
        turns += plan.rounds * len(plan.ways)
    elif "faults" in plan.parts:
        turns += len(plan.ways)
    return turns + ("faults" in plan.parts and "shm" in plan.ways)


def _chosen(text: str, option: str, known: tuple[str, ...]) -> tuple[str, ...]:
    wanted = {word.strip() for word in text.split(",")}
    unknown = sorted(wanted - set(known))
    if unknown:
        raise InvalidArgument(f"{option}: {unknown[0]!r} is not one of {', '.join(known)}")
    return tuple(one for one in known if one in wanted)
