"""The shutdown state machine: request, wait and kill, on a simulated clock."""

from __future__ import annotations

from neuraxis.process.supervisor import Action, Shutdown


def test_healthy_ranks_are_not_signalled():
    shutdown = Shutdown(5.0)
    assert shutdown.deadline is None
    assert shutdown.step(1e9, any_rank_alive=True) is None


def test_after_a_failure_survivors_may_speak_then_are_asked_then_killed():
    shutdown = Shutdown(5.0)
    shutdown.failed(100.0)
    shutdown.failed(101.0)  # a second failure gives no more time
    assert shutdown.ranks_end_by_themselves
    assert shutdown.deadline == 101.5
    assert shutdown.step(101.4, any_rank_alive=True) is None
    assert shutdown.step(101.5, any_rank_alive=True) is Action.TERMINATE
    assert not shutdown.ranks_end_by_themselves
    assert shutdown.step(106.4, any_rank_alive=True) is None
    assert shutdown.step(106.5, any_rank_alive=True) is Action.KILL
    assert shutdown.deadline is None
    assert shutdown.step(1e9, any_rank_alive=True) is None


def test_no_waiting_when_all_ranks_have_ended():
    shutdown = Shutdown(5.0)
    shutdown.failed(100.0)
    assert shutdown.step(100.1, any_rank_alive=False) is Action.TERMINATE


def test_a_signal_that_was_forwarded_counts_as_asking_and_a_second_one_kills():
    shutdown = Shutdown(5.0)
    shutdown.signalled(100.0)
    assert shutdown.step(104.9, any_rank_alive=True) is None
    shutdown.end_now(104.9)
    assert shutdown.step(104.9, any_rank_alive=True) is Action.KILL


def test_a_timeout_asks_at_once():
    shutdown = Shutdown(2.0, timeout_at=100.0)
    assert shutdown.step(99.9, any_rank_alive=True) is None
    assert shutdown.step(100.0, any_rank_alive=True) is Action.TERMINATE
    assert shutdown.timed_out
    assert shutdown.step(102.0, any_rank_alive=True) is Action.KILL


def test_a_failure_replaces_the_timeout():
    shutdown = Shutdown(2.0, timeout_at=100.0)
    shutdown.failed(99.0)
    assert shutdown.step(100.0, any_rank_alive=True) is None
    assert not shutdown.timed_out


def test_ranks_that_were_asked_to_leave_have_the_time_they_were_promised():
    shutdown = Shutdown(0.4, settle_s=0.5)
    shutdown.request_end(100.0, 5.0)
    shutdown.failed(101.0)  # this does not shorten it for the others
    assert shutdown.ranks_end_by_themselves
    assert shutdown.step(104.9, any_rank_alive=True) is None
    assert shutdown.step(105.0, any_rank_alive=True) is Action.TERMINATE
    assert shutdown.step(105.4, any_rank_alive=True) is Action.KILL


def test_the_time_to_settle_can_be_chosen():
    shutdown = Shutdown(5.0, settle_s=0.5)
    shutdown.failed(100.0)
    assert shutdown.deadline == 100.5
    shutdown.end_now(100.1)
    assert shutdown.step(100.1, any_rank_alive=True) is Action.TERMINATE
