"""Measure training steps, ours and torch's, in one run.

All methods of training take turns within each round, in a different order each time. Differences and ratios are taken
within each round, and their median counts. A sample is many consecutive steps on every rank; its time is that of the
slowest rank divided by the steps. Before anything is timed, methods that must give equal parameters are compared.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from neuraxis.bench import harness
from neuraxis.bench.contenders import Contender, Contenders
from neuraxis.bench.harness import LeftOut, Progress, check_rounds, parse_choices
from neuraxis.bench.machine import machine_state
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.rank import Request
from neuraxis.comm.host import may_have_gpu
from neuraxis.errors import InvalidArgument
from neuraxis.imports import install_command, installed

__all__ = [
    "METHODS",
    "MODELS",
    "Entry",
    "Method",
    "Model",
    "Plan",
    "Results",
    "check_torch",
    "left_out_methods",
    "measure",
    "parse_models",
]


class Model(msgspec.Struct, frozen=True):
    """A model to train. `rows` is the batch of one rank, `gpu_rows` that of one with a GPU."""

    text: str
    rows: int
    gpu_rows: int


class Method(msgspec.Struct, frozen=True):
    """A method of training: its process group and a description.

    All methods with `equal` must give the same parameters.
    """

    group: str
    text: str
    equal: bool = False


MODELS = {
    "mlp": Model("MLP 64-128-128-10", 32, 4096),
    "conv": Model("convolutional net, 28 x 28, two convolutions and two linear layers", 16, 1024),
    "transformer": Model("transformer block, 256 wide, 4 heads, 32 tokens a row", 4, 256),
}

# A process has one context, so shm and gloo need separate processes. All other methods run in those of shm, in turns:
# the same processes, on the same cores, with the same data.
METHODS = {
    "one": Method("shm", "a module by itself, on each rank at the same time: nothing is exchanged"),
    "shm": Method("shm", "DataParallel over shm", equal=True),
    "gloo": Method("gloo", "DataParallel over gloo", equal=True),
    "ddp-gloo": Method("shm", "torch's DistributedDataParallel over gloo", equal=True),
    "ddp-shm": Method("shm", "torch's DistributedDataParallel over neuraxis's backend shm", equal=True),
    "shm-fp16": Method("shm", 'DataParallel over shm, compress="fp16"'),
    "shm-topk": Method("shm", "DataParallel over shm, compress=TopK(0.01)"),
    "shm-late": Method("shm", "DataParallel over shm, overlap=False", equal=True),
    "gloo-late": Method("gloo", "DataParallel over gloo, overlap=False", equal=True),
    "unsent": Method("shm", "DataParallel over shm, always in no_sync()"),
    "cuda-one": Method("cuda", "a module by itself on the GPU"),
    "cuda-fp32": Method("cuda", "DataParallel in an nccl context of one rank"),
    "cuda-bf16": Method("cuda", 'the same, precision="bf16"'),
    "cuda-fp16": Method("cuda", 'the same, precision="fp16", with its scaler'),
    "cuda-ddp": Method("cuda", "torch's DistributedDataParallel over nccl, one rank"),
}


class Plan(msgspec.Struct, frozen=True):
    """Train `models` by all `methods`, in turns, `rounds` times, in samples of about `sample_s` seconds."""

    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = msgspec.field(default=tuple(METHODS), name="ways")
    ranks: int = 2
    rounds: int = 21
    sample_s: float = 0.1  # short, and many of them: one that was disturbed then counts little

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidArgument(f"-n {self.ranks}: at least two ranks are needed to train together")
        check_rounds(self.rounds)

    @property
    def groups(self) -> list[str]:
        """The process groups that the methods need."""
        return list(dict.fromkeys(METHODS[method].group for method in self.methods))

    def ranks_of(self, method: str) -> int:
        return 1 if METHODS[method].group == "cuda" else self.ranks

    def samples_of(self, model: str, method: str) -> int:
        """Return the number of samples that all ranks together train on in one step."""
        rows = MODELS[model].gpu_rows if METHODS[method].group == "cuda" else MODELS[model].rows
        return rows * self.ranks_of(method)


def parse_models(text: str) -> tuple[str, ...]:
    """Return models from "mlp,conv"."""
    return parse_choices(text, "--models", MODELS)


def check_torch() -> None:
    """Raise `InvalidArgument` if torch is not installed."""
    if not installed("torch"):
        raise InvalidArgument(f"training needs torch, which is not installed: {install_command('torch')}")


def left_out_methods() -> dict[str, LeftOut]:
    """Return the methods that cannot be measured here, as far as can be known without loading torch."""
    if may_have_gpu(None, 0):
        return {}
    return {name: LeftOut(name, "there is no GPU here") for name, method in METHODS.items() if method.group == "cuda"}


_PROGRAM = "neuraxis.bench.training.rank"
_TRIAL_STEPS = 5
_LEAST_STEPS, _MOST_STEPS = 3, 5000
_EQUAL = 1e-3  # tolerance relative to the distance from the initial parameters: rounding of float32 in another order
_WORTH_HIDING = 0.05
_FIRST_BUCKET_BYTES = 1 << 20  # of DataParallel: a smaller model is sent in one piece after the backward pass


class Entry(msgspec.Struct):
    """One model and method: microseconds of a step in each round, and figures from its ranks.

    Attributes:
        bytes: that one rank sends in a step.
        error: of compression, ‖sent - wanted‖ / ‖wanted‖ of a rank's gradients.
        moved, along: distance from the initial parameters after the first steps, and its projection on a direction.
    """

    model: str
    method: str = msgspec.field(name="way")
    steps: int
    bytes: float
    error: float
    moved: float
    along: float
    rounds_us: list[float]

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)


class Results(harness.Results):
    """The results of a run."""

    plan: Plan
    entries: list[Entry]
    left_out: list[LeftOut]
    failures: list[str]

    def entry(self, model: str, method: str) -> Entry | None:
        return next((one for one in self.entries if (one.model, one.method) == (model, method) and one.rounds_us), None)

    def step_us(self, model: str, method: str) -> float | None:
        found = self.entry(model, method)
        return None if found is None else found.median_us

    def samples_per_s(self, model: str, method: str) -> float | None:
        """Return the samples per second of all ranks together."""
        step = self.step_us(model, method)
        return None if step is None else self.plan.samples_of(model, method) / step * 1e6

    def overhead_us(self, model: str, method: str) -> float | None:
        """Return the time of a step beyond that of the module by itself."""
        pairs = self._rounds_of(model, method, "cuda-one" if METHODS[method].group == "cuda" else "one")
        return statistics.median(step - alone for step, alone in pairs) if pairs else None

    def overhead_ratio(self, model: str, method: str, peer: str = "ddp-gloo") -> float | None:
        """Return an overhead divided by a peer's; None if the peer has no measurable one."""
        ours, theirs = self.overhead_us(model, method), self.overhead_us(model, peer)
        return None if ours is None or theirs is None or theirs <= 0 else ours / theirs

    def step_ratio(self, model: str, method: str, peer: str = "ddp-gloo") -> float | None:
        """Return the time of a step divided by a peer's."""
        pairs = self._rounds_of(model, method, peer)
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None

    def _rounds_of(self, model: str, method: str, other: str) -> list[tuple[float, float]]:
        """Return the times of two methods by round; a method that failed has fewer rounds."""
        one, two = self.entry(model, method), self.entry(model, other)
        return [] if one is None or two is None else list(zip(one.rounds_us, two.rounds_us, strict=False))

    def hidden(self, model: str, method: str) -> float | None:
        """Return the share of communication that overlaps the backward pass; None if there is too little to tell."""
        if not self.has_several_buckets(model):
            return None
        within, after, without = (self.step_us(model, one) for one in (method, f"{method}-late", "unsent"))
        if within is None or after is None or without is None or after - without < _WORTH_HIDING * without:
            return None
        return 1 - (within - without) / (after - without)

    def has_several_buckets(self, model: str) -> bool:
        """Return True if some gradients of a model are sent during its backward pass."""
        return any(one.model == model and one.bytes > _FIRST_BUCKET_BYTES for one in self.entries)

    @property
    def disagreements(self) -> list[str]:
        """Methods whose parameters should be equal and are not."""
        found = []
        for model in self.plan.models:
            equal = [one for one in self.entries if one.model == model and METHODS[one.method].equal]
            for one in equal[1:]:
                first = equal[0]
                if abs(one.along - first.along) > _EQUAL * first.moved or abs(one.moved / first.moved - 1) > _EQUAL:
                    found.append(
                        f"{model}: {one.method} has moved by {one.moved:.6g} ({one.along:.6g} in one direction), "
                        f"{first.method} by {first.moved:.6g} ({first.along:.6g})"
                    )
        return found

    @property
    def sound(self) -> bool:
        """True if every method that could be started was measured, and equal ones were equal."""
        return not self.failures and not self.disagreements


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the processes, measure, and end them. A method that fails is not measured any further."""
    results = Results(plan, [], list(left_out), [], **machine_state(plan.ranks))
    total, done = plan.rounds * len(plan.models), 0
    if progress is not None:
        progress(0, total, "starting the ranks")
    together = [group for group in plan.groups if group != "cuda"]
    alone = [group for group in plan.groups if group == "cuda"]
    with ExitStack() as stack:
        groups = [
            stack.enter_context(Contenders(names, ranks, _PROGRAM))
            for names, ranks in ((together, plan.ranks), (alone, 1))
            if names
        ]
        turns = _Turns(results, groups)
        for number in range(plan.rounds):
            for model in plan.models:
                turns.round(model, number)
                done += 1
                if progress is not None:
                    progress(done, total, model)
        results.failures += [f"{name}: {reason}" for group in groups for name, reason in group.failed.items()]
    results.entries.sort(key=lambda entry: (plan.models.index(entry.model), plan.methods.index(entry.method)))
    return results


class _Turns:
    """Run every method in turn on a model and store the times."""

    def __init__(self, results: Results, groups: Sequence[Contenders]) -> None:
        self._results = results
        self._groups = groups
        self._unable: set[tuple[str, str]] = set()

    def round(self, model: str, number: int) -> None:
        # A different order each time (the same in every run), so that no method always follows the same one.
        methods = random.Random(number).sample(self._results.plan.methods, len(self._results.plan.methods))
        for method in methods:
            name = METHODS[method].group
            group = next((group for group in self._groups if name in group.running), None)
            if group is None or (model, method) in self._unable:
                continue
            try:
                self._turn(group.running[name], model, method)
            except _Unable as problem:
                self._unable.add((model, method))
                self._results.failures.append(f"{model}/{method}: {problem}")
            except ContenderFailed as error:
                group.fail(name, str(error))

    def _turn(self, group: Contender, model: str, method: str) -> None:
        entry = self._results.entry(model, method)
        if entry is None:
            entry = _begin(group, model, method, self._results.plan.sample_s)
            self._results.entries.append(entry)
        reply = group.request(Request(f"{model}/{method}", 0, entry.steps, warmups=max(2, entry.steps // 10)))
        if reply.problem:
            raise ContenderFailed(reply.problem)
        entry.rounds_us.append(reply.seconds / entry.steps * 1e6)


class _Unable(Exception):
    """Every rank refused to train by one method; other methods can still be measured."""


def _begin(group: Contender, model: str, method: str, sample_s: float) -> Entry:
    """Make the first steps, check them, and find how many steps make a sample."""
    pattern = f"{model}/{method}"
    first = group.request(Request(pattern, check=True))
    if first.problem:
        raise _Unable(first.problem)
    # Twice: a trial that lost its core for a while must not make the samples too short.
    trials = [group.request(Request(pattern, 0, _TRIAL_STEPS, warmups=2)) for _ in range(2)]
    for trial in trials:
        if trial.problem:
            raise _Unable(trial.problem)
    steps = round(sample_s * _TRIAL_STEPS / max(min(trial.seconds for trial in trials), 1e-9))
    facts = {name: first.facts[name] for name in ("bytes", "error", "moved", "along")}
    return Entry(model, method, min(max(steps, _LEAST_STEPS), _MOST_STEPS), **facts, rounds_us=[])
