"""The order of asking, waiting and killing, on a clock made of numbers."""

from __future__ import annotations

from neuraxis.launch.ending import Action, Ending


def test_nothing_happens_to_ranks_that_do_well():
    ending = Ending(5.0)
    assert ending.deadline is None
    assert ending.step(1e9, anyone_alive=True) is None


def test_after_a_failure_survivors_may_speak_then_are_asked_then_killed():
    ending = Ending(5.0)
    ending.failed(100.0)
    ending.failed(101.0)  # a second failure gives no more time
    assert ending.ranks_act_alone
    assert ending.deadline == 101.5
    assert ending.step(101.4, anyone_alive=True) is None
    assert ending.step(101.5, anyone_alive=True) is Action.TERMINATE
    assert not ending.ranks_act_alone
    assert ending.step(106.4, anyone_alive=True) is None
    assert ending.step(106.5, anyone_alive=True) is Action.KILL
    assert ending.deadline is None
    assert ending.step(1e9, anyone_alive=True) is None


def test_no_waiting_when_nobody_is_left():
    ending = Ending(5.0)
    ending.failed(100.0)
    assert ending.step(100.1, anyone_alive=False) is Action.TERMINATE


def test_a_signal_that_was_forwarded_counts_as_asking_and_a_second_one_kills():
    ending = Ending(5.0)
    ending.told(100.0)
    assert ending.step(104.9, anyone_alive=True) is None
    ending.hurry(104.9)
    assert ending.step(104.9, anyone_alive=True) is Action.KILL


def test_a_timeout_asks_at_once():
    ending = Ending(2.0, timeout_at=100.0)
    assert ending.step(99.9, anyone_alive=True) is None
    assert ending.step(100.0, anyone_alive=True) is Action.TERMINATE
    assert ending.timed_out
    assert ending.step(102.0, anyone_alive=True) is Action.KILL


def test_a_failure_replaces_the_timeout():
    ending = Ending(2.0, timeout_at=100.0)
    ending.failed(99.0)
    assert ending.step(100.0, anyone_alive=True) is None
    assert not ending.timed_out


def test_ranks_that_were_asked_to_leave_have_the_time_they_were_promised():
    ending = Ending(0.4, settle_s=0.5)
    ending.leave(100.0, 5.0)
    ending.failed(101.0)  # this does not shorten it for the others
    assert ending.ranks_act_alone
    assert ending.step(104.9, anyone_alive=True) is None
    assert ending.step(105.0, anyone_alive=True) is Action.TERMINATE
    assert ending.step(105.4, anyone_alive=True) is Action.KILL


def test_the_time_to_settle_can_be_chosen():
    ending = Ending(5.0, settle_s=0.5)
    ending.failed(100.0)
    assert ending.deadline == 100.5
    ending.hurry(100.1)
    assert ending.step(100.1, anyone_alive=True) is Action.TERMINATE
