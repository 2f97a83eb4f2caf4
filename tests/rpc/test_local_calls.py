"""Calls of a process to itself: with deadline, slot and copies as in remote calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from neuraxis.errors import CallCancelled, CallTimeout, NotSerializable
from tests.rpc.meeting import Join, linger_after_calls, meeting, until


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


def test_they_have_a_deadline(join: Join) -> None:
    gate = threading.Event()
    me = join("me", {"wait": lambda: gate.wait(20), "echo": lambda value: value}, threads=1)
    with pytest.raises(CallTimeout, match=r"'me' has not replied within 0\.1 s"):
        me.call("me", "wait", timeout=0.1)
    with pytest.raises(CallTimeout):  # it never gets the place that the first one has
        me.call("me", "echo", [1], timeout=0.1)
    with pytest.raises(CallTimeout):
        me.call_async("me", "echo", [1], timeout=0.1).wait(20)
    gate.set()
    assert me.rpc_sync("me", "echo", 2) == 2


def test_arguments_are_taken_when_the_call_is_made(join: Join) -> None:
    gate = threading.Event()
    me = join("me", {"wait": lambda: gate.wait(20), "echo": lambda value: value}, threads=1)
    first = me.rpc_async("me", "wait")
    array, numbers = np.arange(100_000), [1, 2]
    second, third = me.rpc_async("me", "echo", array), me.rpc_async("me", "echo", numbers)
    array[:] = 0
    numbers.clear()
    with pytest.raises(NotSerializable):
        me.rpc_async("me", "echo", object())
    gate.set()
    assert first.wait(20) is True
    np.testing.assert_array_equal(second.wait(20), np.arange(100_000))
    assert third.wait(20) == [1, 2]


def test_a_place_that_an_own_call_had_is_had_by_the_next_one_of_others(join: Join) -> None:
    gate, entered = threading.Event(), threading.Event()
    me = join("me", {"wait": lambda: entered.set() or gate.wait(20), "echo": lambda value: value}, threads=1)
    other = join("other")
    own = me.rpc_async("me", "wait")
    assert entered.wait(20)
    queued = other.rpc_async("me", "echo", 5)
    until(lambda: len(me._transport._queue.calls) == 1, "it to be there")  # type: ignore[union-attr]
    gate.set()
    assert queued.wait(10) == 5
    assert own.wait(10) is True


def test_they_end_with_their_context(join: Join) -> None:
    """No thread is left behind, also not of calls that have not begun: the leak check looks."""
    gate, entered = threading.Event(), threading.Event()
    me = join("me", {"wait": lambda: entered.set() or gate.wait(20)}, threads=1)
    futures = [me.rpc_async("me", "wait") for _ in range(5)]
    assert entered.wait(20)
    ending = threading.Thread(target=me.shutdown)
    ending.start()
    until(lambda: me._pool.closed, "a context that begins no more calls")
    gate.set()
    ending.join(20)
    ends = [future.exception(20) for future in futures]
    assert [type(end) for end in ends if end is not None] == [CallCancelled] * 4


def test_one_that_has_ended_is_not_cancelled_by_the_end_of_its_context(join: Join) -> None:
    me = join("me", {"say": lambda: "spoken"}, threads=1)
    left = linger_after_calls(me, 0.5)
    future = me.rpc_async("me", "say")
    assert left.wait(20)
    me.shutdown()
    assert future.wait(20) == "spoken"


def test_they_call_themselves_to_any_depth_with_one_thread(join: Join) -> None:
    me = join("me", {"down": lambda left: left if not left else me.rpc_sync("me", "down", left - 1)}, threads=1)
    assert me.rpc_sync("me", "down", 20) == 0
    assert me._pool._free == 1  # places are what they were
