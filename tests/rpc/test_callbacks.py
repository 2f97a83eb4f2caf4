"""Callbacks of finished calls block neither other calls nor the shutdown of a context."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from neuraxis.errors import CallCancelled, CallTimeout
from neuraxis.threads import Threads
from tests.rpc.meeting import Join, meeting, until


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


def test_a_callback_that_waits_holds_up_no_other_call(join: Join) -> None:
    gate = threading.Event()
    seen: list[int] = []
    callee = join("callee", {"echo": lambda value: value, "wait": lambda: gate.wait(20)})
    caller = join("caller", {"name": lambda: "caller"}, threads=1)
    for number in range(4):
        caller.rpc_async("callee", "echo", number).add_done_callback(lambda _: seen.append(1) or gate.wait(20))
    until(lambda: len(seen) == 4, "all callbacks to wait")
    assert caller.call_async("callee", "echo", [5], timeout=10).wait(15) == 5
    assert callee.call("caller", "name", timeout=10) == "caller"  # it still serves
    slow = caller.call_async("callee", "wait", timeout=0.1)
    slow.add_done_callback(lambda _: gate.wait(20))
    slower = caller.call_async("callee", "wait", timeout=0.2)
    for late in (slow, slower):  # and deadlines are still looked at
        with pytest.raises(CallTimeout):
            late.result(15)
    gate.set()


def test_a_callback_may_call(join: Join) -> None:
    join("callee", {"echo": lambda value: value})
    caller = join("caller", threads=1)
    sums: list[int] = []
    future = caller.rpc_async("callee", "echo", 1)
    future.add_done_callback(lambda done: sums.append(done.wait() + caller.rpc_sync("callee", "echo", 2)))
    until(lambda: bool(sums), "the callback")
    assert sums == [3]


def test_callbacks_of_a_call_run_in_their_order(join: Join) -> None:
    gate = threading.Event()
    join("callee", {"wait": lambda: gate.wait(20)})
    caller = join("caller")
    future = caller.rpc_async("callee", "wait")
    order: list[int] = []
    for number in range(20):
        future.add_done_callback(lambda _, number=number: order.append(number))
        if number == 7:
            future.add_done_callback(lambda _: 1 / 0)  # which is logged, and hinders none of the others
    gate.set()
    until(lambda: len(order) == 20, "all callbacks")
    assert order == list(range(20))
    future.add_done_callback(lambda _: order.append(20))  # at once
    assert order[-1] == 20


def test_a_context_ends_though_a_callback_does_not(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuraxis.rpc.context._END_S", 0.1)
    gate, called = threading.Event(), threading.Event()
    held, asked = threading.Event(), threading.Event()
    join("callee", {"held": lambda: asked.wait(20), "wait": lambda: gate.wait(20)})
    caller = join("caller")
    first = caller.rpc_async("callee", "held")
    first.add_done_callback(lambda _: held.set() or gate.wait(20))
    asked.set()  # not before: the callback of what is done already is called at once, here
    late = caller.call_async("callee", "wait", timeout=0.5)
    late.add_done_callback(lambda _: gate.wait(20))
    with pytest.raises(CallTimeout):
        late.result(20)
    assert held.wait(20)
    waiting = caller.rpc_async("callee", "wait")
    waiting.add_done_callback(lambda _: called.set())
    ending = threading.Thread(target=caller.shutdown)
    ending.start()
    ending.join(20)
    assert not ending.is_alive()
    with pytest.raises(CallCancelled):
        waiting.wait(20)
    assert called.wait(20)
    gate.set()


def test_threads_are_used_again_and_end_together() -> None:
    threads = Threads("test")
    gate, ran = threading.Event(), []
    for number in range(3):
        threads.run(lambda number=number: (gate.wait(20), ran.append(threading.current_thread())))
    gate.set()
    until(lambda: len(ran) == 3, "all three")
    until(lambda: threads.idle == 3, "their threads")
    for number in range(20):
        threads.run(lambda: ran.append(threading.current_thread()))
        until(lambda number=number: len(ran) == number + 4 and threads.idle == 3, "the job")  # type: ignore[misc]
    assert set(ran[3:]) <= set(ran[:3])
    threads.run(lambda: 1 / 0)  # which is logged
    assert threads.close(20)
    assert not any(thread.is_alive() for thread in ran)
    assert not threads.run(lambda: ran.clear())
    assert len(ran) == 23


def test_threads_are_closed_while_they_are_started() -> None:
    for _ in range(50):
        threads = Threads("test")
        starter = threading.Thread(target=lambda threads=threads: [threads.run(lambda: None) for _ in range(5)])
        starter.start()
        assert threads.close(20)
        starter.join()
        assert threads.close(20)
