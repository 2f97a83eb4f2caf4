"""Measure calls of functions in another process, ours and those of peers, in one run.

Caller and callee are two processes of one host; the callee returns the data that the caller sends. All methods take
turns within each round, in a different order each time. Ratios are taken within each round, and their median counts.

TensorPipe polls while it waits, which occupies a core for each process even without calls. Such process groups are
paused between their turns; otherwise the others would share their cores with them.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence

import msgspec

from neuraxis.bench import harness
from neuraxis.bench.collectives.patterns import size_text
from neuraxis.bench.contenders import Contender, Contenders
from neuraxis.bench.harness import LeftOut, Progress, check_rounds, parse_choices
from neuraxis.bench.machine import machine_state
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.rank import Reply, Request
from neuraxis.imports import install_command, installed

__all__ = [
    "MANY",
    "METHODS",
    "OURS",
    "PEERS",
    "POLLING",
    "SIZES",
    "TORCH_PEERS",
    "Entry",
    "Method",
    "Plan",
    "Results",
    "left_out_methods",
    "measure",
    "parse_methods",
]

SIZES = (64, 4096, 1 << 20)
MANY = 32  # concurrent calls


class Method(msgspec.Struct, frozen=True):
    """A method of remote calls: its process group and a description. `many`: it has asynchronous calls."""

    group: str
    text: str
    many: bool = True
    needs_torch: bool = False


# Every group is a caller and a callee: a process can be in one torch agent and in one context of ranks only.
METHODS = {
    "zenoh": Method("zenoh", "RpcContext over zenoh"),
    "shm": Method("shm", "RpcContext over shm"),
    "gloo": Method("gloo", "RpcContext over gloo", needs_torch=True),
    "tensorpipe": Method("tensorpipe", "RpcContext over tensorpipe", needs_torch=True),
    "raw-zenoh": Method("raw-zenoh", "Zenoh's own get and queryable, with bytes and its own settings"),
    "raw-zenoh-tcp": Method(
        "raw-zenoh-tcp", "the same without its shared memory, which sessions of the mesh do not use"
    ),
    "torch-rpc": Method("torch-rpc", "torch.distributed.rpc by itself (TensorPipe)", needs_torch=True),
    "torch-tensor": Method("torch-rpc", "the same, with a tensor in place of an array", needs_torch=True),
    "managers": Method(
        "managers", "multiprocessing.managers: a method of a proxy, which has no asynchronous calls", False
    ),
}
OURS = ("zenoh", "shm", "gloo", "tensorpipe")
PEERS = ("raw-zenoh", "raw-zenoh-tcp", "torch-rpc", "torch-tensor", "managers")
TORCH_PEERS = ("torch-rpc", "torch-tensor")
POLLING = ("tensorpipe", "torch-rpc") if sys.platform == "linux" else ()  # groups that use cores while they wait


class Plan(msgspec.Struct, frozen=True):
    """Call by all `methods` with all `sizes`, in turns, `rounds` times, in samples of about `sample_s` seconds."""

    methods: tuple[str, ...] = msgspec.field(default=tuple(METHODS), name="ways")
    sizes: tuple[int, ...] = SIZES
    rounds: int = 7
    sample_s: float = 0.3

    def __post_init__(self) -> None:
        check_rounds(self.rounds)

    @property
    def groups(self) -> list[str]:
        """The process groups that the methods need."""
        return list(dict.fromkeys(METHODS[method].group for method in self.methods))


def parse_methods(text: str) -> tuple[str, ...]:
    """Return the methods named in a text such as "zenoh,raw-zenoh"."""
    return parse_choices(text, "--methods", METHODS)


def left_out_methods() -> dict[str, LeftOut]:
    """Return the methods that cannot be measured here, as far as can be known without loading torch."""
    if installed("torch"):
        return {}
    remedy = install_command("torch")
    return {
        name: LeftOut(name, "torch is not installed", remedy) for name, method in METHODS.items() if method.needs_torch
    }


_PROGRAM = "neuraxis.bench.rpc.rank"
_TRIAL_CALLS = 50
_LEAST_CALLS, _MOST_CALLS = 100, 50_000  # fewer have no 99th percentile


class Entry(msgspec.Struct):
    """One size and method, by round: microseconds of a call, and calls per second, sequential and concurrent.

    `calls` and `many_calls` are the numbers of calls in a sample.
    """

    size: int
    method: str = msgspec.field(name="way")
    calls: int
    many_calls: int = 0
    p50_us: list[float] = []
    p99_us: list[float] = []
    per_s: list[float] = []
    many_per_s: list[float] = []


class Results(harness.Results):
    """The results of a run."""

    plan: Plan
    entries: list[Entry]
    left_out: list[LeftOut]
    failures: list[str]

    def entry(self, size: int, method: str) -> Entry | None:
        return next((one for one in self.entries if (one.size, one.method) == (size, method) and one.p50_us), None)

    def ratio(self, size: int, method: str, peer: str) -> float | None:
        """Return the median over the rounds of our median call time divided by the peer's."""
        ours, theirs = self.entry(size, method), self.entry(size, peer)
        if ours is None or theirs is None:
            return None
        # A contender that failed has fewer rounds.
        return statistics.median(a / b for a, b in zip(ours.p50_us, theirs.p50_us, strict=False))

    def many_ratio(self, size: int, method: str, peer: str) -> float | None:
        """Return the median over the rounds of our concurrent calls per second divided by the peer's."""
        ours, theirs = self.entry(size, method), self.entry(size, peer)
        if ours is None or theirs is None or not ours.many_per_s or not theirs.many_per_s:
            return None
        return statistics.median(a / b for a, b in zip(ours.many_per_s, theirs.many_per_s, strict=False))

    @property
    def sound(self) -> bool:
        """True if every method that could be started was measured."""
        return not self.failures


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the processes, measure, and end them. A process group that fails is not measured any further."""
    results = Results(plan, [], list(left_out), [], **machine_state(2, "eclipse-zenoh"))
    total, done = plan.rounds * len(plan.sizes), 0
    if progress is not None:
        progress(0, total, "starting callers and callees")
    with Contenders(plan.groups, 2, _PROGRAM) as groups:
        for name in POLLING:
            if name in groups.running:
                groups.running[name].pause()
        for number in range(plan.rounds):
            for size in plan.sizes:
                _round(results, groups, size, number)
                done += 1
                if progress is not None:
                    progress(done, total, size_text(size))
        results.failures += [f"{name}: {reason}" for name, reason in groups.failed.items()]
    results.entries.sort(key=lambda entry: (plan.sizes.index(entry.size), plan.methods.index(entry.method)))
    return results


def _round(results: Results, groups: Contenders, size: int, number: int) -> None:
    # A different order each time (the same in every run), so that no method always follows the same one.
    for method in random.Random(number).sample(results.plan.methods, len(results.plan.methods)):
        name = METHODS[method].group
        if name not in groups.running:
            continue
        group = groups.running[name]
        try:
            group.resume()
            _turn(results, group, size, method)
            if name in POLLING:
                group.pause()
        except ContenderFailed as error:
            groups.fail(name, str(error))


def _turn(results: Results, group: Contender, size: int, method: str) -> None:
    entry = results.entry(size, method)
    if entry is None:
        entry = _begin(group, size, method, results.plan.sample_s)
        results.entries.append(entry)
    one = _request(group, Request(f"{method}/one", size, entry.calls, warmups=max(2, entry.calls // 10)))
    if entry.many_calls:
        many = _request(group, Request(f"{method}/many", size, entry.many_calls, warmups=2))
        entry.many_per_s.append(entry.many_calls / many.seconds)
    entry.p50_us.append(one.facts["p50_us"])
    entry.p99_us.append(one.facts["p99_us"])
    entry.per_s.append(entry.calls / one.seconds)


def _begin(group: Contender, size: int, method: str, sample_s: float) -> Entry:
    """Make the first calls: check that they return the data, and find how many calls make a sample."""
    _request(group, Request(f"{method}/one", size, 1, check=True))

    def calls_for(pattern: str, calls: int) -> int:
        # Twice: a trial that lost its core for a while must not make the samples too short.
        trials = [
            _request(group, Request(f"{method}/{pattern}", size, calls, warmups=calls // 5)).seconds for _ in range(2)
        ]
        return min(max(round(sample_s * calls / max(min(trials), 1e-9)), _LEAST_CALLS), _MOST_CALLS)

    return Entry(
        size,
        method,
        calls_for("one", _TRIAL_CALLS),
        calls_for("many", _TRIAL_CALLS + MANY) if METHODS[method].many else 0,
    )


def _request(group: Contender, request: Request) -> Reply:
    reply = group.request(request)
    if reply.problem:
        raise ContenderFailed(reply.problem)
    return reply
