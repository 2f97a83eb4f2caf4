"""The state machine of an upstream region: each rule, and properties for any order of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from neuraxis.simulation.mesh.upstream import AWAITED, LIVE, MISSING, Upstream
from neuraxis.simulation.mesh.wire import RegionStatus, Window

SILENCE_TIMEOUT_S = 1.0
LIFE, NEXT_LIFE = 1000, 2000


def hearing(lag: int = 5, now: float = 0.0) -> Upstream:
    return Upstream("v1", lag, SILENCE_TIMEOUT_S, last_heartbeat=now)


def window(first: int, last: int) -> Window:
    return Window(first, last, np.zeros(0, np.uint16), np.zeros(0, np.int32), 0, 0)


def word(step: int = 0, **more: object) -> RegionStatus:
    return RegionStatus(step, 0, **more)  # type: ignore[arg-type]


# --- signs of life ---


def test_an_upstream_is_awaited_first_and_blocks_its_targets() -> None:
    one = hearing(lag=5)
    assert one.state == AWAITED
    assert not one.blocks(0)  # what is felt in step 1 was emitted before the run began
    assert not one.blocks(4)
    assert one.blocks(5)  # step 6 needs what it emits in step 1


def test_an_upstream_silent_beyond_the_timeout_is_lost_and_any_message_counts() -> None:
    one = hearing()
    assert one.why_missing(SILENCE_TIMEOUT_S) == ""
    assert one.why_missing(SILENCE_TIMEOUT_S + 0.01) == "no sign of life"
    assert one.heartbeat(LIFE, 0.9, 3)
    assert one.why_missing(1.9) == ""
    assert one.status(word(3), LIFE, 1.9)
    assert one.why_missing(2.9) == ""
    assert one.why_missing(2.91) == "no sign of life"


def test_an_earlier_life_is_not_believed() -> None:
    one = hearing()
    assert one.heartbeat(NEXT_LIFE, 0.5, 10)
    assert not one.heartbeat(LIFE, 5.0, 99)
    assert not one.status(word(99, leaving=True, hold_s=60.0), LIFE, 5.0)
    assert (one.incarnation, one.published_step, one.last_heartbeat, one.left) == (NEXT_LIFE, 10, 0.5, False)
    assert one.why_missing(5.0) == "no sign of life"


def test_a_new_incarnation_starts_empty() -> None:
    one = hearing()
    one.heartbeat(LIFE, 0.1, 50)
    one.heartbeat(LIFE, 0.1, 40)  # words overtake each other
    assert one.published_step == 50
    one.status(word(50, leaving=True), LIFE, 0.2)
    assert one.heartbeat(NEXT_LIFE, 0.3, 7)
    assert (one.published_step, one.left) == (7, False)


def test_an_upstream_that_left_is_gone_once_all_its_windows_are_received() -> None:
    one = hearing()
    assert one.status(word(9, leaving=True), LIFE, 0.5)
    assert one.why_missing(0.5) == ""  # its last windows may be in flight
    assert one.heartbeat(LIFE, 0.51, 9)
    one.take(window(1, 9), 0.51)
    assert one.why_missing(0.51) == "left"
    assert one.heartbeat(NEXT_LIFE, 0.6, 0)
    assert one.why_missing(0.6) == ""


def test_an_upstream_that_left_is_not_awaited_whatever_is_missing() -> None:
    one = hearing()
    assert one.status(word(9, leaving=True), LIFE, 0.5)
    assert one.why_missing(0.7) == "left"
    one.heartbeat(LIFE, 0.75, 9)
    assert one.why_missing(0.75) == "left"


def test_requested_time_lasts_until_the_next_message() -> None:
    one = hearing()
    assert one.status(word(9, hold_s=30.0), LIFE, 0.1)
    assert one.why_missing(30.0) == ""
    assert one.why_missing(30.2) == "no sign of life"
    assert one.status(word(9), LIFE, 10.0)  # it is done with it
    assert one.why_missing(10.5) == ""
    assert one.why_missing(11.5) == "no sign of life"


def test_a_window_ends_the_time_that_was_asked_for() -> None:
    one = hearing()
    one.status(word(9, hold_s=30.0), LIFE, 0.1)
    assert one.heartbeat(LIFE, 5.0, 10)
    assert one.why_missing(6.5) == "no sign of life"


def test_a_new_life_has_not_asked_for_time() -> None:
    one = hearing()
    one.status(word(9, hold_s=600.0), LIFE, 0.1)
    assert one.heartbeat(NEXT_LIFE, 5.0, 0)
    assert one.why_missing(6.5) == "no sign of life"


@pytest.mark.parametrize("hold_s", [1e9, float("inf")])
def test_waiting_is_always_bounded(hold_s: float) -> None:
    one = hearing()
    one.status(word(9, hold_s=hold_s), LIFE, 0.0)
    assert one.why_missing(599.0) == ""
    assert one.why_missing(601.0) == "no sign of life"


@pytest.mark.parametrize("hold_s", [-5.0, float("nan"), float("-inf")])
def test_invalid_requests_for_time_are_ignored(hold_s: float) -> None:
    one = hearing()
    one.status(word(9, hold_s=hold_s), LIFE, 0.0)
    assert one.why_missing(0.5) == ""
    assert one.why_missing(1.5) == "no sign of life"


# --- windows ---


def test_consecutive_windows_are_received_and_a_gap_is_detected() -> None:
    one = hearing()
    assert one.take(window(1, 3), 0.0)
    assert not one.take(window(5, 6), 0.0)
    assert one.received == 3
    assert one.take(window(4, 4), 0.0)
    assert one.take(window(5, 6), 0.0)
    assert [(w.first, w.last) for w in one.ready] == [(1, 3), (4, 4), (5, 6)]


def test_windows_after_a_gap_are_buffered_until_it_is_filled() -> None:
    one = hearing()
    for first in (9, 3, 5):
        assert not one.take(window(first, first + 1), 0.0)
    assert (one.received, len(one.ready)) == (0, 0)
    assert not one.take(window(1, 2), 0.0)  # 7 and 8 are missing still
    assert one.received == 6
    assert one.take(window(6, 8), 0.0)
    assert [(w.first, w.last) for w in one.ready] == [(1, 2), (3, 4), (5, 6), (6, 8), (9, 10)]
    assert one.received == 10


def test_buffered_windows_of_an_earlier_incarnation_are_dropped() -> None:
    one = hearing()
    one.heartbeat(LIFE, 0.0, 9)
    one.take(window(5, 9), 0.0)
    one.heartbeat(NEXT_LIFE, 1.0, 4)
    assert one.take(window(1, 4), 1.0)
    assert one.received == 4


def test_the_buffer_of_windows_is_bounded() -> None:
    one = hearing()
    for first in range(2, 100_000):
        one.take(window(first + 1, first + 1), 0.0)
    assert len(one.out_of_order) < 20_000


def test_an_upstream_is_not_lost_while_messages_are_not_read() -> None:
    one = hearing()
    assert one.why_missing(10.0, listening_since=9.5) == ""
    assert one.why_missing(10.6, listening_since=9.5) == "no sign of life"
    assert one.why_missing(10.0, listening_since=1.0) == "no sign of life"


def test_repeated_windows_are_ignored_and_an_overlap_adds_its_new_part() -> None:
    one = hearing()
    one.take(window(1, 4), 0.0)
    assert one.take(window(1, 4), 0.0)
    assert one.take(window(2, 3), 0.0)
    assert len(one.ready) == 1
    assert one.take(window(3, 6), 0.0)
    assert (one.received, len(one.ready)) == (6, 2)


def test_it_blocks_until_the_input_of_the_next_step_is_received() -> None:
    one = hearing(lag=5)
    one.take(window(1, 3), 0.0)
    assert not one.blocks(7)
    assert one.blocks(8)


def test_a_restart_discards_older_windows() -> None:
    one = hearing()
    one.take(window(1, 3), 0.0)
    one.begin_at(20)
    assert (one.received, len(one.ready)) == (20, 0)
    assert one.take(window(21, 22), 0.0)
    one.begin_at(4)
    assert one.take(window(5, 6), 0.0)
    assert one.received == 6


# --- to ask again ---


def test_a_replay_is_requested_when_input_is_needed_and_late() -> None:
    one = hearing(lag=5)
    one.heartbeat(LIFE, 10.0, 8)
    assert not one.needs_replay(3, 10.0)  # not needed yet
    assert one.needs_replay(8, 10.0)
    one.requested_at = 10.0
    assert not one.needs_replay(8, 10.1)  # the reply may be in flight
    assert one.needs_replay(8, 10.3)
    one.take(window(9, 9), 10.3)
    assert not one.needs_replay(8, 10.35)  # so may be the windows before this one
    assert one.needs_replay(8, 10.5)


def test_unpublished_windows_are_not_requested() -> None:
    one = hearing(lag=5)
    one.heartbeat(LIFE, 10.0, 3)
    one.take(window(1, 3), 0.0)
    assert one.blocks(20)
    assert not one.needs_replay(20, 20.0)


def test_one_that_is_missing_is_not_asked() -> None:
    one = hearing(lag=5)
    one.heartbeat(LIFE, 0.0, 8)
    one.mark_missing("gone")
    assert not one.needs_replay(20, 20.0)


# --- silence, and its end ---


def test_a_lost_upstream_does_not_block_and_its_silence_starts_after_the_last_window() -> None:
    one = hearing()
    one.take(window(1, 7), 0.0)
    silence = one.mark_missing("gone")
    assert (silence.first, silence.last, silence.why) == (8, None, "gone")
    assert one.state == MISSING
    assert not any(one.blocks(step) for step in (0, 8, 10_000))


def test_one_that_is_back_is_waited_for_and_its_silence_has_an_end() -> None:
    one = hearing(lag=5)
    one.heartbeat(LIFE, 0.0, 7)
    one.take(window(1, 7), 0.0)
    assert one.mark_live(6) is None  # it was awaited: no silence
    one.mark_missing("gone")
    silence = one.mark_live(100)
    assert silence is one.outages[0]
    assert silence is not None
    assert silence.last == 95  # what it emitted until then would have been felt by step 100
    assert one.state == LIVE
    assert one.blocks(100)
    assert one.mark_live(101) is None
    assert silence.last == 95


def test_one_that_is_back_before_it_was_needed_was_no_silence() -> None:
    one = hearing(lag=50)
    one.take(window(1, 7), 0.0)
    one.mark_missing("stuck")
    silence = one.mark_live(20)
    assert silence is not None
    assert (silence.first, silence.last) == (8, 7)


def test_every_silence_is_kept() -> None:
    one = hearing(lag=5)
    for step in (10, 30, 50):
        one.begin_at(step)
        one.mark_missing("gone")
        one.mark_live(step + 15)
    assert [(s.first, s.last) for s in one.outages] == [(11, 20), (31, 40), (51, 60)]


# --- whatever happens ---


@dataclass
class Sender:
    """A region that publishes windows, some of which are lost, and that may die and restart."""

    life: int = 1
    step: int = 0
    journal: list[tuple[int, int]] = field(default_factory=list)


class AnyOrder(RuleBasedStateMachine):
    """A downstream region that uses `Upstream` as the node's loop does, under any order of events."""

    @initialize(lag=st.integers(1, 12))
    def begin(self, lag: int) -> None:
        self.now = 0.0
        self.one = Upstream("v1", lag, SILENCE_TIMEOUT_S)
        self.sender = Sender()
        self.step = 0  # of the downstream region
        self.received_before = 0
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
        before = (self.one.last_heartbeat, self.one.published_step, self.one.left)
        if self.one.incarnation:
            assert not self.one.heartbeat(self.one.incarnation - 1, self.now + 1000.0, step)
        assert (self.one.last_heartbeat, self.one.published_step, self.one.left) == before

    @rule(leaving=st.booleans(), hold_s=st.sampled_from([0.0, 0.0, 3.0]))
    def says_how_it_is(self, leaving: bool, hold_s: float) -> None:
        status = word(self.sender.step, leaving=leaving and self.sender.step % 3 == 0, hold_s=hold_s)
        if self.one.status(status, self.sender.life, self.now) and not self.one.left and self.one.state == MISSING:
            self.one.mark_live(self.step)

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
        """Advance the downstream region as far as possible; when blocked, do what the state machine returns."""
        one = self.one
        for _ in range(steps):
            if one.blocks(self.step):
                assert one.state != MISSING
                if why := one.why_missing(self.now):
                    one.mark_missing(why)
                    one.ready.clear()
                elif one.needs_replay(self.step, self.now):
                    one.requested_at = self.now
                    self.recover()
                    if one.blocks(self.step):
                        return
                else:
                    return
            needed = self.step + 1 - one.lag
            if needed >= 1:
                (self.felt if one.received >= needed else self.unfelt).add(needed)
            self.step += 1
            while one.ready and one.ready[0].last <= self.step:
                one.ready.popleft()

    def comes(self, one: Window, life: int) -> None:
        if not self.one.heartbeat(life, self.now, one.last):
            return
        if self.one.state != LIVE:
            self.one.mark_live(self.step)
        if not self.one.take(one, self.now):
            self.recover()
            self.one.take(one, self.now)

    def recover(self) -> None:
        """Request a replay of all missing windows; those that the log has dropped stay missing."""
        journal = self.sender.journal
        if journal and journal[0][0] > self.one.received + 1:
            self.one.begin_at(journal[0][0] - 1)
        for first, last in journal:
            self.one.take(window(first, last), self.now)
        if journal:
            assert self.one.received >= journal[-1][1]
            assert not self.one.out_of_order

    @invariant()
    def the_received_step_never_decreases(self) -> None:
        if hasattr(self, "one"):
            assert self.one.received >= self.received_before
            self.received_before = self.one.received

    @invariant()
    def what_waits_to_be_placed_goes_on_without_a_gap(self) -> None:
        if hasattr(self, "one") and self.one.ready:
            early = list(self.one.ready)
            assert early[-1].last == self.one.received
            for before, after in pairwise(early):
                assert before.last < after.last
                assert after.first <= before.last + 1

    @invariant()
    def nobody_waits_for_one_that_is_missing(self) -> None:
        if hasattr(self, "one") and self.one.state == MISSING:
            assert not self.one.blocks(self.step)
            assert self.one.outages[-1].last is None

    @invariant()
    def its_silences_come_one_after_the_other(self) -> None:
        if hasattr(self, "one"):
            ended = [s for s in self.one.outages if s.last is not None]
            assert len(self.one.outages) - len(ended) == (self.one.state == MISSING)
            for silence in ended:
                assert silence.last is not None
                assert silence.last >= silence.first - 1
            for before, after in pairwise(self.one.outages):
                assert before.first <= after.first

    @invariant()
    def what_was_not_felt_is_in_a_silence(self) -> None:
        if hasattr(self, "one"):
            for step in self.unfelt:
                assert any(s.first <= step and (s.last is None or step <= s.last) for s in self.one.outages), (
                    f"step {step} was not felt, and is in none of {self.one.outages}"
                )


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
