"""The membership state machine of the parameter server, driven by all orders of events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.training.server.staleness import Membership

TIMEOUT_S = 10.0
NAMES = "abcd"


class World:
    """A membership with workers as they really behave: each computes, gives its gradient, waits, and begins anew."""

    def __init__(self, mode: Any, staleness: int) -> None:
        self.membership = Membership(mode, staleness, straggler_timeout=TIMEOUT_S)
        self.now = 0.0
        self.computing: dict[str, int] = {}  # from which version
        self.waiting: set[str] = set()
        self.given: list[tuple[str, int]] = []  # in the round under way: who, from which version
        self.rounds: list[list[str]] = []
        self.lives: Counter[str] = Counter()
        self.steps_of_others: dict[str, dict[str, int]] = {}  # since one began: how many counted of each other's life

    def take_up(self, name: str) -> None:
        self.waiting.discard(name)
        self.computing[name] = self.membership.version
        self.steps_of_others[name] = {}

    def do(self, event: str, name: str) -> None:
        here = name in self.computing or name in self.waiting
        if event == "join" and not here:
            self.membership.join(name, self.now)
            self.lives[name] += 1
            self.take_up(name)
        elif event == "leave" and here:
            self.membership.leave(name, self.now)
            self.computing.pop(name, None)
            self.waiting.discard(name)
        elif event == "push" and name in self.computing:
            self.push(name)
        elif event == "wait":
            self.now += TIMEOUT_S / 3
            self.membership.suspend_stragglers(self.now)
        self.settle()

    def push(self, name: str) -> None:
        version, newest = self.computing.pop(name), self.membership.version
        outcome = self.membership.push(name, version, self.now)
        assert outcome.missed == newest - version
        self.waiting.add(name)
        if outcome.accepted:
            self.given.append((name, version))
            for other, counts in self.steps_of_others.items():
                if other != name:
                    life = f"{name} {self.lives[name]}"
                    counts[life] = counts.get(life, 0) + 1
            if self.membership.mode == "async":
                most = max(self.steps_of_others[name].values(), default=0)
                # It began at most `staleness` ahead of any other, and nobody is more than one step beyond that after
                # it; one more where the other was not waited for.
                assert most <= 2 * self.membership.staleness + 2

    def settle(self) -> None:
        """Apply the actions of the server after an event, and let workers continue that may."""
        membership = self.membership
        if membership.mode == "sync" and membership.round_is_over(len(self.given)):
            assert all(version == membership.version for _, version in self.given)
            self.rounds.append([name for name, _ in self.given])
            self.given = []
            membership.end_round(self.now)
        clocks = membership.clocks()
        active = {name: clock for name, clock in clocks.items() if name not in membership.suspended()}
        for name in sorted(self.waiting):
            if membership.may_proceed(name):
                if membership.mode == "async" and name in active:
                    assert clocks[name] - min(active.values()) <= membership.staleness
                self.take_up(name)
        assert set(clocks) == self.waiting | set(self.computing)

    def nobody_is_stuck(self) -> None:
        """A waiting worker continues after the timeout, whatever the others do."""
        for _ in range(8):
            self.do("wait", "")
        assert not self.waiting


events = st.lists(
    st.tuples(st.sampled_from(["join", "join", "push", "push", "push", "leave", "wait"]), st.sampled_from(NAMES)),
    max_size=60,
)


@settings(max_examples=300)
@given(st.sampled_from(["sync", "async"]), st.integers(0, 3), events)
def test_waits_are_bounded_and_stale_gradients_are_dropped(
    mode: str, staleness: int, story: list[tuple[str, str]]
) -> None:
    world = World(mode, staleness if mode == "async" else 0)
    for event, name in story:
        world.do(event, name)
    world.nobody_is_stuck()


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 5), st.randoms(use_true_random=False))
def test_in_sync_mode_every_round_has_everybody_once(workers: int, rounds: int, random: Any) -> None:
    world = World("sync", 0)
    for name in NAMES[:workers]:
        world.do("join", name)
    while len(world.rounds) < rounds:
        world.do("push", random.choice(sorted(world.computing)))
    assert all(sorted(members) == list(NAMES[:workers]) for members in world.rounds)
    assert world.membership.version == len(world.rounds)
    assert world.membership.dropped == 0


def test_the_first_round_waits_for_as_many_as_were_wanted() -> None:
    membership = Membership("sync", workers=2)
    membership.join("a", 0.0)
    assert not membership.may_proceed("a")
    assert not membership.round_is_over(1)
    membership.join("b", 1.0)
    assert membership.may_proceed("a")
    membership.leave("b", 2.0)
    assert membership.may_proceed("a")  # it has begun, and goes on with whoever is there


def test_a_round_ends_when_the_last_that_is_waited_for_leaves() -> None:
    membership = Membership("sync")
    for name in "ab":
        membership.join(name, 0.0)
    assert membership.push("a", 0, 1.0).accepted
    assert not membership.round_is_over(1)
    assert membership.blocking_members() == ["b"]
    membership.leave("b", 2.0)
    assert membership.round_is_over(1)


def test_a_slow_one_is_waited_for_so_long_and_is_one_of_them_again_with_its_next_gradient() -> None:
    membership = Membership("sync", straggler_timeout=TIMEOUT_S)
    for name in "ab":
        membership.join(name, 0.0)
    assert membership.suspend_stragglers(100.0) == []  # as long as nobody waits, everybody may take the time they need
    membership.push("a", 0, 100.0)
    assert membership.suspend_stragglers(100.0 + 0.99 * TIMEOUT_S) == []
    assert membership.suspend_stragglers(100.0 + TIMEOUT_S) == ["b"]
    assert membership.round_is_over(1)
    membership.end_round(111.0)
    late = membership.push("b", 0, 112.0)
    assert (late.accepted, late.missed, membership.dropped) == (False, 1, 1)
    assert membership.suspended() == []
    membership.push("a", 1, 113.0)
    assert membership.blocking_members() == ["b"]


def test_the_timeout_of_a_new_worker_starts_when_it_joins() -> None:
    membership = Membership("sync", straggler_timeout=TIMEOUT_S)
    for name in "ab":
        membership.join(name, 0.0)
    membership.push("a", 0, 0.0)
    membership.join("c", 9.0)
    assert membership.suspend_stragglers(10.0) == ["b"]
    assert membership.suspend_stragglers(18.9) == []
    assert membership.suspend_stragglers(19.0) == ["c"]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_exceeds_the_staleness_bound(staleness: int) -> None:
    membership = Membership("async", staleness)
    for name in "ab":
        membership.join(name, 0.0)
    for step in range(staleness + 1):
        assert membership.may_proceed("a"), step
        membership.push("a", membership.version, 1.0)
    assert not membership.may_proceed("a")
    assert membership.blocking_members() == ["b"]
    assert membership.push("b", 0, 2.0).accepted
    assert membership.may_proceed("a")


def test_a_gradient_of_a_dropped_worker_is_ignored_and_it_restarts_with_the_others() -> None:
    membership = Membership("async", 1, straggler_timeout=TIMEOUT_S)
    for name in "ab":
        membership.join(name, 0.0)
    for _ in range(2):
        membership.push("a", membership.version, 1.0)
    assert membership.suspend_stragglers(1.0 + TIMEOUT_S) == ["b"]
    membership.push("a", membership.version, 20.0)
    assert membership.clocks() == {"a": 3, "b": 0}
    assert not membership.push("b", 0, 21.0).accepted
    assert membership.clocks() == {"a": 3, "b": 3}
    assert membership.push("b", 3, 22.0).accepted


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_presumed_dead_rejoins_with_its_next_gradient(mode: Any) -> None:
    membership = Membership(mode)
    for name in "ab":
        membership.join(name, 0.0)
    membership.leave("b", 1.0)
    assert membership.push("b", 0, 2.0).accepted  # nothing has changed meanwhile
    assert membership.clocks()["b"] == 1
    membership.leave("b", 3.0)
    membership.push("a", membership.version, 4.0)
    if mode == "sync":
        membership.end_round(4.0)
    assert not membership.push("b", 0, 5.0).accepted
    assert "b" in membership.clocks()


def test_a_new_worker_starts_at_the_slowest_version() -> None:
    membership = Membership("async", 3)
    for name in "ab":
        membership.join(name, 0.0)
    for _ in range(3):
        membership.push("a", membership.version, 1.0)
    membership.push("b", membership.version, 1.0)
    assert membership.join("c", 2.0) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "later"}, "mode"),
        ({"mode": "async", "staleness": -1}, "staleness"),
        ({"mode": "sync", "staleness": 1}, "staleness"),
        ({"workers": 0}, "workers"),
        ({"straggler_timeout": 0.0}, "straggler_timeout"),
    ],
)
def test_invalid_arguments_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        Membership(**options)


def test_a_version_that_there_never_was_is_refused() -> None:
    membership = Membership()
    membership.join("a", 0.0)
    with pytest.raises(InvalidArgument, match="version 7"):
        membership.push("a", 7, 0.0)
