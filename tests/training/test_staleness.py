"""Who may go on and whose gradient counts: the state machine alone, driven by all orders of events."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.training.staleness import Membership

PATIENCE_S = 10.0
NAMES = "abcd"


class World:
    """A membership with workers as they really behave: each computes, gives its gradient, waits, and begins anew."""

    def __init__(self, mode: Any, staleness: int) -> None:
        self.membership = Membership(mode, staleness, patience_s=PATIENCE_S)
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
            self.now += PATIENCE_S / 3
            self.membership.pass_time(self.now)
        self.settle()

    def push(self, name: str) -> None:
        version, newest = self.computing.pop(name), self.membership.version
        verdict = self.membership.push(name, version, self.now)
        assert verdict.missed == newest - version
        self.waiting.add(name)
        if verdict.accepted:
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
        """What the server does after each event, and the workers that may go on."""
        membership = self.membership
        if membership.mode == "sync" and membership.round_is_over(len(self.given)):
            assert all(version == membership.version for _, version in self.given)
            self.rounds.append([name for name, _ in self.given])
            self.given = []
            membership.end_round(self.now)
        clocks = membership.clocks()
        active = {name: clock for name, clock in clocks.items() if name not in membership.suspended()}
        for name in sorted(self.waiting):
            if membership.may_go_on(name):
                if membership.mode == "async" and name in active:
                    assert clocks[name] - min(active.values()) <= membership.staleness
                self.take_up(name)
        assert set(clocks) == self.waiting | set(self.computing)

    def nobody_is_stuck(self) -> None:
        """Whoever waits goes on when the patience is over, whatever those do that it waits for."""
        for _ in range(8):
            self.do("wait", "")
        assert not self.waiting


events = st.lists(
    st.tuples(st.sampled_from(["join", "join", "push", "push", "push", "leave", "wait"]), st.sampled_from(NAMES)),
    max_size=60,
)


@settings(max_examples=300)
@given(st.sampled_from(["sync", "async"]), st.integers(0, 3), events)
def test_nobody_waits_for_ever_and_nothing_old_counts(mode: str, staleness: int, story: list[tuple[str, str]]) -> None:
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
    assert not membership.may_go_on("a")
    assert not membership.round_is_over(1)
    membership.join("b", 1.0)
    assert membership.may_go_on("a")
    membership.leave("b", 2.0)
    assert membership.may_go_on("a")  # it has begun, and goes on with whoever is there


def test_a_round_ends_when_the_last_that_is_waited_for_leaves() -> None:
    membership = Membership("sync")
    for name in "ab":
        membership.join(name, 0.0)
    assert membership.push("a", 0, 1.0).accepted
    assert not membership.round_is_over(1)
    assert membership.waited_for() == ["b"]
    membership.leave("b", 2.0)
    assert membership.round_is_over(1)


def test_a_slow_one_is_waited_for_so_long_and_is_one_of_them_again_with_its_next_gradient() -> None:
    membership = Membership("sync", patience_s=PATIENCE_S)
    for name in "ab":
        membership.join(name, 0.0)
    assert membership.pass_time(100.0) == []  # as long as nobody waits, everybody may take the time they need
    membership.push("a", 0, 100.0)
    assert membership.pass_time(100.0 + 0.99 * PATIENCE_S) == []
    assert membership.pass_time(100.0 + PATIENCE_S) == ["b"]
    assert membership.round_is_over(1)
    membership.end_round(111.0)
    late = membership.push("b", 0, 112.0)
    assert (late.accepted, late.missed, membership.dropped) == (False, 1, 1)
    assert membership.suspended() == []
    membership.push("a", 1, 113.0)
    assert membership.waited_for() == ["b"]


def test_patience_with_one_who_has_just_come_begins_when_it_came() -> None:
    membership = Membership("sync", patience_s=PATIENCE_S)
    for name in "ab":
        membership.join(name, 0.0)
    membership.push("a", 0, 0.0)
    membership.join("c", 9.0)
    assert membership.pass_time(10.0) == ["b"]
    assert membership.pass_time(18.9) == []
    assert membership.pass_time(19.0) == ["c"]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_nobody_is_further_ahead_than_the_bound(staleness: int) -> None:
    membership = Membership("async", staleness)
    for name in "ab":
        membership.join(name, 0.0)
    for step in range(staleness + 1):
        assert membership.may_go_on("a"), step
        membership.push("a", membership.version, 1.0)
    assert not membership.may_go_on("a")
    assert membership.waited_for() == ["b"]
    assert membership.push("b", 0, 2.0).accepted
    assert membership.may_go_on("a")


def test_what_one_computed_that_was_left_behind_is_dropped_and_it_begins_with_the_others() -> None:
    membership = Membership("async", 1, patience_s=PATIENCE_S)
    for name in "ab":
        membership.join(name, 0.0)
    for _ in range(2):
        membership.push("a", membership.version, 1.0)
    assert membership.pass_time(1.0 + PATIENCE_S) == ["b"]
    membership.push("a", membership.version, 20.0)
    assert membership.clocks() == {"a": 3, "b": 0}
    assert not membership.push("b", 0, 21.0).accepted
    assert membership.clocks() == {"a": 3, "b": 3}
    assert membership.push("b", 3, 22.0).accepted


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_was_taken_for_dead_comes_back_with_its_next_gradient(mode: Any) -> None:
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


def test_who_comes_begins_with_the_slowest() -> None:
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
        ({"patience_s": 0.0}, "patience_s"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        Membership(**options)


def test_a_version_that_there_never_was_is_refused() -> None:
    membership = Membership()
    membership.join("a", 0.0)
    with pytest.raises(InvalidArgument, match="version 7"):
        membership.push("a", 7, 0.0)
