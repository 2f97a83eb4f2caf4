"""What a region knows of one that it hears: each rule of it, and what holds whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from neuraxis.execution.mesh.upstream import AWAITED, LIVE, MISSING, Upstream
from neuraxis.execution.mesh.wire import RegionStatus, Window

PATIENCE_S = 1.0
LIFE, NEXT_LIFE = 1000, 2000


def hearing(lag: int = 5, now: float = 0.0) -> Upstream:
    return Upstream("v1", lag, PATIENCE_S, last_sign=now)


def window(first: int, last: int) -> Window:
    return Window(first, last, np.zeros(0, np.uint16), np.zeros(0, np.int32), 0, 0)


def word(step: int = 0, **more: object) -> RegionStatus:
    return RegionStatus(step, 0, **more)  # type: ignore[arg-type]


# --- signs of life ---


def test_it_is_awaited_first_and_blocks_who_needs_it() -> None:
    one = hearing(lag=5)
    assert one.state == AWAITED
    assert not one.blocks(0)  # what is felt in step 1 was emitted before the run began
    assert not one.blocks(4)
    assert one.blocks(5)  # step 6 needs what it emits in step 1


def test_who_says_nothing_within_the_patience_is_gone_and_every_sign_counts() -> None:
    one = hearing()
    assert one.is_gone(PATIENCE_S) == ""
    assert one.is_gone(PATIENCE_S + 0.01) == "said nothing"
    assert one.sign(LIFE, 0.9, 3)
    assert one.is_gone(1.9) == ""
    assert one.status(word(3), LIFE, 1.9)
    assert one.is_gone(2.9) == ""
    assert one.is_gone(2.91) == "said nothing"


def test_an_earlier_life_is_not_believed() -> None:
    one = hearing()
    assert one.sign(NEXT_LIFE, 0.5, 10)
    assert not one.sign(LIFE, 5.0, 99)
    assert not one.status(word(99, leaving=True, hold_s=60.0), LIFE, 5.0)
    assert (one.incarnation, one.said_step, one.last_sign, one.left) == (NEXT_LIFE, 10, 0.5, False)
    assert one.is_gone(5.0) == "said nothing"


def test_a_new_life_begins_from_nothing_said() -> None:
    one = hearing()
    one.sign(LIFE, 0.1, 50)
    one.sign(LIFE, 0.1, 40)  # words overtake each other
    assert one.said_step == 50
    one.status(word(50, leaving=True), LIFE, 0.2)
    assert one.sign(NEXT_LIFE, 0.3, 7)
    assert (one.said_step, one.left) == (7, False)


def test_one_that_left_is_gone_as_soon_as_all_that_it_said_was_heard() -> None:
    one = hearing()
    assert one.status(word(9, leaving=True), LIFE, 0.5)
    assert one.is_gone(0.5) == ""  # its last windows may be on their way
    assert one.sign(LIFE, 0.51, 9)
    one.take(window(1, 9), 0.51)
    assert one.is_gone(0.51) == "left"
    assert one.sign(NEXT_LIFE, 0.6, 0)
    assert one.is_gone(0.6) == ""


def test_one_that_left_is_not_waited_for_however_much_of_it_was_not_heard() -> None:
    one = hearing()
    assert one.status(word(9, leaving=True), LIFE, 0.5)
    assert one.is_gone(0.7) == "left"
    one.sign(LIFE, 0.75, 9)
    assert one.is_gone(0.75) == "left"


def test_who_asked_for_time_gets_it_until_its_next_word() -> None:
    one = hearing()
    assert one.status(word(9, hold_s=30.0), LIFE, 0.1)
    assert one.is_gone(30.0) == ""
    assert one.is_gone(30.2) == "said nothing"
    assert one.status(word(9), LIFE, 10.0)  # it is done with it
    assert one.is_gone(10.5) == ""
    assert one.is_gone(11.5) == "said nothing"


def test_a_window_ends_the_time_that_was_asked_for() -> None:
    one = hearing()
    one.status(word(9, hold_s=30.0), LIFE, 0.1)
    assert one.sign(LIFE, 5.0, 10)
    assert one.is_gone(6.5) == "said nothing"


def test_a_new_life_has_not_asked_for_time() -> None:
    one = hearing()
    one.status(word(9, hold_s=600.0), LIFE, 0.1)
    assert one.sign(NEXT_LIFE, 5.0, 0)
    assert one.is_gone(6.5) == "said nothing"


@pytest.mark.parametrize("hold_s", [1e9, float("inf")])
def test_nobody_is_waited_for_without_end(hold_s: float) -> None:
    one = hearing()
    one.status(word(9, hold_s=hold_s), LIFE, 0.0)
    assert one.is_gone(599.0) == ""
    assert one.is_gone(601.0) == "said nothing"


@pytest.mark.parametrize("hold_s", [-5.0, float("nan"), float("-inf")])
def test_time_that_makes_no_sense_is_none(hold_s: float) -> None:
    one = hearing()
    one.status(word(9, hold_s=hold_s), LIFE, 0.0)
    assert one.is_gone(0.5) == ""
    assert one.is_gone(1.5) == "said nothing"


# --- windows ---


def test_windows_that_go_on_are_heard_and_a_gap_is_seen() -> None:
    one = hearing()
    assert one.take(window(1, 3), 0.0)
    assert not one.take(window(5, 6), 0.0)
    assert one.heard == 3
    assert one.take(window(4, 4), 0.0)
    assert one.take(window(5, 6), 0.0)
    assert [(w.first, w.last) for w in one.early] == [(1, 3), (4, 4), (5, 6)]


def test_what_comes_before_a_gap_is_filled_is_kept_and_heard_when_it_is() -> None:
    one = hearing()
    for first in (9, 3, 5):
        assert not one.take(window(first, first + 1), 0.0)
    assert (one.heard, len(one.early)) == (0, 0)
    assert not one.take(window(1, 2), 0.0)  # 7 and 8 are missing still
    assert one.heard == 6
    assert one.take(window(6, 8), 0.0)
    assert [(w.first, w.last) for w in one.early] == [(1, 2), (3, 4), (5, 6), (6, 8), (9, 10)]
    assert one.heard == 10


def test_what_an_earlier_life_said_ahead_of_a_gap_does_not_fill_that_of_another() -> None:
    one = hearing()
    one.sign(LIFE, 0.0, 9)
    one.take(window(5, 9), 0.0)
    one.sign(NEXT_LIFE, 1.0, 4)
    assert one.take(window(1, 4), 1.0)
    assert one.heard == 4


def test_nobody_can_have_it_keep_more_and_more() -> None:
    one = hearing()
    for first in range(2, 100_000):
        one.take(window(first + 1, first + 1), 0.0)
    assert len(one.ahead) < 20_000


def test_who_was_not_listened_to_is_not_gone() -> None:
    one = hearing()
    assert one.is_gone(10.0, listening_since=9.5) == ""
    assert one.is_gone(10.6, listening_since=9.5) == "said nothing"
    assert one.is_gone(10.0, listening_since=1.0) == "said nothing"


def test_what_was_heard_already_is_not_heard_again_and_an_overlap_is_new_to_its_end() -> None:
    one = hearing()
    one.take(window(1, 4), 0.0)
    assert one.take(window(1, 4), 0.0)
    assert one.take(window(2, 3), 0.0)
    assert len(one.early) == 1
    assert one.take(window(3, 6), 0.0)
    assert (one.heard, len(one.early)) == (6, 2)


def test_it_blocks_until_what_the_next_step_needs_was_heard() -> None:
    one = hearing(lag=5)
    one.take(window(1, 3), 0.0)
    assert not one.blocks(7)
    assert one.blocks(8)


def test_where_it_begins_again_nothing_older_is_kept() -> None:
    one = hearing()
    one.take(window(1, 3), 0.0)
    one.begin_at(20)
    assert (one.heard, len(one.early)) == (20, 0)
    assert one.take(window(21, 22), 0.0)
    one.begin_at(4)
    assert one.take(window(5, 6), 0.0)
    assert one.heard == 6


# --- to ask again ---


def test_it_is_asked_for_what_it_said_when_that_is_needed_and_late() -> None:
    one = hearing(lag=5)
    one.sign(LIFE, 10.0, 8)
    assert not one.should_ask(3, 10.0)  # not needed yet
    assert one.should_ask(8, 10.0)
    one.asked_at = 10.0
    assert not one.should_ask(8, 10.1)  # the answer may be on its way
    assert one.should_ask(8, 10.3)
    one.take(window(9, 9), 10.3)
    assert not one.should_ask(8, 10.35)  # so may be the windows before this one
    assert one.should_ask(8, 10.5)


def test_what_it_has_not_said_yet_is_not_asked_for() -> None:
    one = hearing(lag=5)
    one.sign(LIFE, 10.0, 3)
    one.take(window(1, 3), 0.0)
    assert one.blocks(20)
    assert not one.should_ask(20, 20.0)


def test_one_that_is_missing_is_not_asked() -> None:
    one = hearing(lag=5)
    one.sign(LIFE, 0.0, 8)
    one.give_up("gone")
    assert not one.should_ask(20, 20.0)


# --- silence, and its end ---


def test_nobody_waits_for_one_that_is_missing_and_its_silence_begins_after_what_was_heard() -> None:
    one = hearing()
    one.take(window(1, 7), 0.0)
    silence = one.give_up("gone")
    assert (silence.first, silence.last, silence.why) == (8, None, "gone")
    assert one.state == MISSING
    assert not any(one.blocks(step) for step in (0, 8, 10_000))


def test_one_that_is_back_is_waited_for_and_its_silence_has_an_end() -> None:
    one = hearing(lag=5)
    one.sign(LIFE, 0.0, 7)
    one.take(window(1, 7), 0.0)
    assert one.welcome(6) is None  # it was awaited: no silence
    one.give_up("gone")
    silence = one.welcome(100)
    assert silence is one.silences[0]
    assert silence is not None
    assert silence.last == 95  # what it emitted until then would have been felt by step 100
    assert one.state == LIVE
    assert one.blocks(100)
    assert one.welcome(101) is None
    assert silence.last == 95


def test_one_that_is_back_before_it_was_needed_was_no_silence() -> None:
    one = hearing(lag=50)
    one.take(window(1, 7), 0.0)
    one.give_up("stuck")
    silence = one.welcome(20)
    assert silence is not None
    assert (silence.first, silence.last) == (8, 7)


def test_every_silence_is_kept() -> None:
    one = hearing(lag=5)
    for step in (10, 30, 50):
        one.begin_at(step)
        one.give_up("gone")
        one.welcome(step + 15)
    assert [(s.first, s.last) for s in one.silences] == [(11, 20), (31, 40), (51, 60)]


# --- whatever happens ---


@dataclass
class Sender:
    """A region that says windows, some of which are lost, and may die and come back."""

    life: int = 1
    step: int = 0
    journal: list[tuple[int, int]] = field(default_factory=list)


class AnyOrder(RuleBasedStateMachine):
    """A region that hears another one by the rules of the loop that uses `Upstream`, with whatever may happen to it."""

    @initialize(lag=st.integers(1, 12))
    def begin(self, lag: int) -> None:
        self.now = 0.0
        self.one = Upstream("v1", lag, PATIENCE_S)
        self.sender = Sender()
        self.step = 0  # of the one who hears
        self.heard_before = 0
        self.felt: set[int] = set()  # steps of the sender that were known when they were needed
        self.unfelt: set[int] = set()

    @rule(length=st.integers(1, 6), arrives=st.booleans(), repeat=st.integers(1, 2))
    def says_a_window(self, length: int, arrives: bool, repeat: int) -> None:
        sender = self.sender
        first, sender.step = sender.step + 1, sender.step + length
        sender.journal.append((first, sender.step))
        for _ in range(repeat * arrives):
            self.comes(window(first, sender.step), sender.life)

    @rule(back=st.integers(0, 30))
    def an_old_window_comes_again(self, back: int) -> None:
        if self.sender.journal:
            self.comes(window(*self.sender.journal[-1 - back % len(self.sender.journal)]), self.sender.life)

    @rule(step=st.integers(0, 100))
    def a_word_of_an_earlier_life_comes(self, step: int) -> None:
        before = (self.one.last_sign, self.one.said_step, self.one.left)
        if self.one.incarnation:
            assert not self.one.sign(self.one.incarnation - 1, self.now + 1000.0, step)
        assert (self.one.last_sign, self.one.said_step, self.one.left) == before

    @rule(leaving=st.booleans(), hold_s=st.sampled_from([0.0, 0.0, 3.0]))
    def says_how_it_is(self, leaving: bool, hold_s: float) -> None:
        status = word(self.sender.step, leaving=leaving and self.sender.step % 3 == 0, hold_s=hold_s)
        if self.one.status(status, self.sender.life, self.now) and not self.one.left and self.one.state == MISSING:
            self.one.welcome(self.step)

    @rule(since=st.integers(0, 40))
    def dies_and_comes_back_from_an_older_state(self, since: int) -> None:
        sender = self.sender
        sender.life += 1
        sender.step = max(0, sender.step - since)
        sender.journal = []

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.6, 1.1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(steps=st.integers(1, 20))
    def runs(self, steps: int) -> None:
        """The one who hears goes on as far as it can; where it cannot, it does what the state machine says."""
        one = self.one
        for _ in range(steps):
            if one.blocks(self.step):
                assert one.state != MISSING
                if why := one.is_gone(self.now):
                    one.give_up(why)
                    one.early.clear()
                elif one.should_ask(self.step, self.now):
                    one.asked_at = self.now
                    self.recover()
                    if one.blocks(self.step):
                        return
                else:
                    return
            needed = self.step + 1 - one.lag
            if needed >= 1:
                (self.felt if one.heard >= needed else self.unfelt).add(needed)
            self.step += 1
            while one.early and one.early[0].last <= self.step:
                one.early.popleft()

    def comes(self, one: Window, life: int) -> None:
        if not self.one.sign(life, self.now, one.last):
            return
        if self.one.state != LIVE:
            self.one.welcome(self.step)
        if not self.one.take(one, self.now):
            self.recover()
            self.one.take(one, self.now)

    def recover(self) -> None:
        """It is asked for all that was not heard; what it does not have any more is not there."""
        journal = self.sender.journal
        if journal and journal[0][0] > self.one.heard + 1:
            self.one.begin_at(journal[0][0] - 1)
        for first, last in journal:
            self.one.take(window(first, last), self.now)
        if journal:
            assert self.one.heard >= journal[-1][1]
            assert not self.one.ahead

    @invariant()
    def what_is_heard_never_goes_back(self) -> None:
        if hasattr(self, "one"):
            assert self.one.heard >= self.heard_before
            self.heard_before = self.one.heard

    @invariant()
    def what_waits_to_be_placed_goes_on_without_a_gap(self) -> None:
        if hasattr(self, "one") and self.one.early:
            early = list(self.one.early)
            assert early[-1].last == self.one.heard
            for before, after in pairwise(early):
                assert before.last < after.last
                assert after.first <= before.last + 1

    @invariant()
    def nobody_waits_for_one_that_is_missing(self) -> None:
        if hasattr(self, "one") and self.one.state == MISSING:
            assert not self.one.blocks(self.step)
            assert self.one.silences[-1].last is None

    @invariant()
    def its_silences_come_one_after_the_other(self) -> None:
        if hasattr(self, "one"):
            ended = [s for s in self.one.silences if s.last is not None]
            assert len(self.one.silences) - len(ended) == (self.one.state == MISSING)
            for silence in ended:
                assert silence.last is not None
                assert silence.last >= silence.first - 1
            for before, after in pairwise(self.one.silences):
                assert before.first <= after.first

    @invariant()
    def what_was_not_felt_is_in_a_silence(self) -> None:
        if hasattr(self, "one"):
            for step in self.unfelt:
                assert any(s.first <= step and (s.last is None or step <= s.last) for s in self.one.silences), (
                    f"step {step} was not felt, and is in none of {self.one.silences}"
                )


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
