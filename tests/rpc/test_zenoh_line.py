"""The mesh as a line: publishers that go while they are used, inboxes that are full, and what is known of the gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import CalleeDied, CalleeGone, CallRefused, CallTimeout
from neuraxis.rpc import RpcContext, sight, zenoh_lanes, zenoh_line, zenoh_outlets

Join = Callable[..., RpcContext]
_meshes = iter(range(1000))


@pytest.fixture
def join() -> Iterator[Join]:
    """Opens contexts on a mesh of this test's own, which are shut down after it."""
    mesh = f"rpc-line-{os.getpid()}-{next(_meshes)}"
    with ExitStack() as stack:

        def open_context(name: str, **functions: Any) -> RpcContext:
            context = RpcContext(name=name, mesh=mesh, timeout=20.0)
            for title, function in functions.items():
                context.register_function(title, function)
            return stack.enter_context(context)

        yield open_context


def line_of(context: RpcContext) -> Any:
    return context._transport._line  # type: ignore[union-attr]


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


@pytest.mark.parametrize("cores", [2, 16])
def test_calls_where_there_are_few_cores_and_where_there_are_many(
    cores: int, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zenoh_lanes, "usable_cores", lambda: cores)
    gate = threading.Event()
    callee = join("callee", length=len, wait=lambda: gate.wait(20))
    caller = join("caller")
    assert (line_of(caller)._lanes.poll_s > 0) == (cores > 2)
    assert caller.wait_for(["callee"], 20) == []
    assert [caller.rpc_sync("callee", "length", [0] * n) for n in range(100)] == list(range(100))
    slow = caller.rpc_async("callee", "wait")
    quick = [caller.rpc_async("callee", "length", [0] * n) for n in range(100)]
    assert [future.wait(20) for future in quick] == list(range(100))
    gate.set()
    assert slow.wait(20) is True
    callee.shutdown()
    with pytest.raises((CalleeGone, CalleeDied)):  # it may leave during the call
        caller.rpc_sync("callee", "length", [])


@pytest.mark.parametrize("cores", [2, 16])
def test_one_that_is_woken_when_its_reply_has_come_hears_nothing(
    cores: int, join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zenoh_lanes, "usable_cores", lambda: cores)
    join("callee", length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    assert caller.rpc_sync("callee", "length", [0]) == 1
    (lane,) = caller._transport._lanes  # type: ignore[union-attr]
    line_of(caller)._lanes._wake(lane)
    assert caller.rpc_sync("callee", "length", [0, 0]) == 2
    assert caplog.text == ""


def test_a_callee_goes_out_of_sight_while_it_is_sent_to(join: Join) -> None:
    join("callee", length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    line = line_of(caller)
    peer = line._node.peer("callee")
    over = threading.Event()
    failures: list[BaseException] = []

    def flicker() -> None:
        while not over.is_set():
            try:
                line._lose(peer)
                line._see(peer)
            except BaseException as error:
                failures.append(error)
                return

    thread = threading.Thread(target=flicker)
    thread.start()
    try:
        for _ in range(40):
            assert caller.rpc_sync("callee", "length", np.zeros(1_000_000, np.uint8)) == 1_000_000
    finally:
        over.set()
        thread.join()
    assert failures == []


def test_more_publishers_than_are_kept_lose_nothing(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenoh_outlets, "_MOST", 1)
    names = ["a", "b", "c"]
    for name in names:
        join(name, where=lambda name=name: name)
    caller = join("caller")
    assert caller.wait_for(names, 20) == []
    answers: list[list[str]] = []

    def call(name: str) -> None:
        answers.append([caller.call(name, "where", timeout=10) for _ in range(40)])

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [[name] * 40 for name in names]
    assert len(line_of(caller)._outlets) == 1


def test_an_inbox_that_is_full_drops_nothing(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenoh_line, "_INBOX_MESSAGES", 50)
    busy, eager = join("busy", echo=lambda value: value), join("eager")
    assert eager.wait_for(["busy"], 20) == []
    with busy._pool._changed:  # so nobody gets on who reads the inbox
        futures = [eager.call_async("busy", "echo", [number], timeout=10) for number in range(400)]
    outcomes = [future.exception(20) or future.wait() for future in futures]
    lost = [one for number, one in enumerate(outcomes) if one != number and not isinstance(one, CallRefused)]
    assert lost == []


def test_those_that_are_gone_for_long_are_forgotten(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "_FORGET_S", 0.0)
    first = join("first")
    for number in range(4):
        with RpcContext(name=f"passing{number}", mesh=line_of(first)._node.mesh) as passing:
            assert first.wait_for([passing.name], 20) == []
        until(lambda: first.names() == ["first"], "it to leave")
    until(lambda: line_of(first)._sight.all_in_sight() == [], "the last one to be out of sight")
    assert len(line_of(first)._sight) <= 2
    with pytest.raises(CalleeGone):
        first.rpc_sync("passing0", "anything")


def test_deadlines_are_kept_when_nobody_has_looked_at_the_clock_for_long(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zenoh_lanes, "_REST_S", 0.0)
    over = threading.Event()
    join("callee", wait=lambda: over.wait(20), echo=lambda value: value)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    lanes = line_of(caller)._lanes
    try:
        for _ in range(3):
            assert caller.rpc_sync("callee", "echo", 1) == 1
            until(lambda: not lanes._runs, "the clock to rest")
            with pytest.raises(CallTimeout):
                caller.call("callee", "wait", timeout=0.02)
    finally:
        over.set()


def test_many_threads_that_wait_have_their_own_deadlines(join: Join) -> None:
    over = threading.Event()
    join("callee", wait=lambda: over.wait(20))
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    outcomes: dict[float, object] = {}

    def call(timeout: float) -> None:
        try:
            outcomes[timeout] = caller.call("callee", "wait", timeout=timeout)
        except CallTimeout:
            outcomes[timeout] = "late"

    limits = [0.02, 0.05, 0.08, 0.11, 20.0, 19.0]
    threads = [threading.Thread(target=call, args=(limit,)) for limit in limits]
    for thread in threads:
        thread.start()
    until(lambda: len(outcomes) == 4, "those that have little time")
    over.set()
    for thread in threads:
        thread.join()
    assert outcomes == {limit: "late" if limit < 1 else True for limit in limits}
