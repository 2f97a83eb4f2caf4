"""The mesh as a transport: publishers that leave while in use, full inboxes, and state of lost peers."""

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
from neuraxis.mesh.keys import call_key
from neuraxis.rpc import RpcContext, message_transport, zenoh_channels, zenoh_transport
from neuraxis.rpc import server as server_module

Join = Callable[..., RpcContext]
_meshes = iter(range(1000))


@pytest.fixture
def join() -> Iterator[Join]:
    """Opens contexts on a mesh of this test's own, which are shut down after it."""
    mesh = f"rpc-link-{os.getpid()}-{next(_meshes)}"
    with ExitStack() as stack:

        def open_context(name: str, threads: int = 4, **functions: Any) -> RpcContext:
            context = RpcContext(name=name, mesh=mesh, timeout=20.0, threads=threads)
            for title, function in functions.items():
                context.register_function(title, function)
            return stack.enter_context(context)

        yield open_context


def link_of(context: RpcContext) -> Any:
    return context._transport._link  # type: ignore[union-attr]


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


@pytest.mark.parametrize("cores", [2, 16])
def test_calls_where_there_are_few_cores_and_where_there_are_many(
    cores: int, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zenoh_channels, "usable_cores", lambda: cores)
    gate = threading.Event()
    callee = join("callee", length=len, wait=lambda: gate.wait(20))
    caller = join("caller")
    assert (link_of(caller)._reply_channels.spin_s > 0) == (cores > 2)
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
def test_a_caller_woken_after_its_reply_ignores_the_wake_up(
    cores: int, join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zenoh_channels, "usable_cores", lambda: cores)
    join("callee", length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    assert caller.rpc_sync("callee", "length", [0]) == 1
    (channel,) = caller._transport._idle_channels  # type: ignore[union-attr]
    link_of(caller)._reply_channels._wake(channel)
    assert caller.rpc_sync("callee", "length", [0, 0]) == 2
    assert caplog.text == ""


def test_a_callee_becomes_unreachable_during_a_send(join: Join) -> None:
    join("callee", length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    link = link_of(caller)
    peer = link._node.peer("callee")
    over = threading.Event()
    failures: list[BaseException] = []

    def flicker() -> None:
        while not over.is_set():
            try:
                link._on_leave(peer)
                link._on_join(peer)
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
    monkeypatch.setattr(zenoh_channels, "_MAX_PUBLISHERS", 1)
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
    assert len(link_of(caller)._publishers) == 1


def test_a_full_inbox_drops_nothing(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenoh_transport, "_INBOX_MESSAGES", 50)
    busy, eager = join("busy", echo=lambda value: value), join("eager")
    assert eager.wait_for(["busy"], 20) == []
    with busy._pool._changed:  # blocks the readers of the inbox
        futures = [eager.call_async("busy", "echo", [number], timeout=10) for number in range(400)]
    outcomes = [future.exception(20) or future.wait() for future in futures]
    lost = [one for number, one in enumerate(outcomes) if one != number and not isinstance(one, CallRefused)]
    assert lost == []


def test_long_lost_peers_are_removed(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenoh_transport, "_FORGET_S", 0.0)
    first = join("first")
    for number in range(4):
        with RpcContext(name=f"passing{number}", mesh=link_of(first)._node.mesh) as passing:
            assert first.wait_for([passing.name], 20) == []
        until(lambda: first.names() == ["first"], "it to leave")
    until(lambda: link_of(first)._tracker.reachable() == [], "the last one to be unreachable")
    assert len(link_of(first)._tracker) <= 2
    with pytest.raises(CalleeGone):
        first.rpc_sync("passing0", "anything")


def test_deadlines_hold_after_a_long_idle_time(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zenoh_channels, "_LINGER_S", 0.0)
    over = threading.Event()
    join("callee", wait=lambda: over.wait(20), echo=lambda value: value)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    channels = link_of(caller)._reply_channels
    try:
        for _ in range(3):
            assert caller.rpc_sync("callee", "echo", 1) == 1
            until(lambda: not channels._runs, "the clock to rest")
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


def test_a_frame_beyond_the_limit_is_dropped_and_counted(join: Join) -> None:
    callee, caller = join("callee", length=len), join("caller")
    assert caller.wait_for(["callee"], 20) == []
    assert caller.rpc_sync("callee", "length", b"12") == 2
    link_of(callee).largest = 100_000  # the caller's own limit stays: it sends as a hostile process would
    with pytest.raises(CallTimeout):
        caller.call("callee", "length", [bytes(110_000)], timeout=0.5)
    assert link_of(callee)._refusals.counts() == {"a frame that is too large": 1}
    assert caller.rpc_sync("callee", "length", bytes(90_000)) == 90_000


def test_frames_that_cannot_be_received_end_no_serving_thread(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = 2
    callee, caller = join("callee", threads, length=len), join("caller")
    assert caller.wait_for(["callee"], 20) == []
    link = link_of(caller)
    key = call_key(link._node.mesh, "callee", 0, "caller")

    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(zenoh_transport, "claims_sender", fail)
        for _ in range(2 * (threads + 1)):
            link._node.session.put(key, b"frame")
        refused = link_of(callee)._refusals
        until(lambda: refused.total() == 2 * (threads + 1), "all frames to be counted")
    assert caller.call("callee", "length", [b"123"], timeout=10) == 3
    with monkeypatch.context() as patch:
        patch.setattr(type(link_of(callee)), "receive", fail)
        assert caller.call("callee", "length", [b"1"], timeout=10) == 1  # by the thread that was listening
        until(lambda: callee._transport._refusals.total() > threads, "the link to fail")  # type: ignore[union-attr]
    assert caller.call("callee", "length", [b"1234"], timeout=10) == 4


def test_a_caller_gets_an_error_if_its_arrays_cannot_be_opened(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    callee, caller = join("callee", length=len), join("caller")
    assert caller.wait_for(["callee"], 20) == []
    array = np.zeros(1_000_000, np.uint8)
    until(
        lambda: link_of(caller)._shared._sender.reaches(endpoint_of(callee)) or not send(caller, array),
        "a shared buffer",
    )

    def fail(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(link_of(callee)._shared._receiver, "receive", fail)
        with pytest.raises(CallRefused, match="Too many open files"):
            caller.rpc_sync("callee", "length", array)
    assert send(caller, array) == len(array)


def endpoint_of(context: RpcContext) -> Any:
    return context._transport.me  # type: ignore[union-attr]


def send(caller: RpcContext, array: np.ndarray) -> Any:
    return caller.rpc_sync("callee", "length", array)


def test_calls_that_wait_are_bounded_in_bytes(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_transport, "_MAX_QUEUED_BYTES", 100_000)
    gate, entered = threading.Event(), threading.Event()
    callee = join("callee", 1, wait=lambda: entered.set() or gate.wait(20), length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    slow = caller.rpc_async("callee", "wait")
    assert entered.wait(20)
    futures = [caller.rpc_async("callee", "length", bytes(40_000)) for _ in range(5)]
    waiting = callee._transport._queue  # type: ignore[union-attr]
    try:
        for future in futures[2:]:
            with pytest.raises(CallRefused, match="bytes of calls are queued"):
                future.wait(20)
        assert len(waiting.calls) == 2
    finally:
        gate.set()
    assert slow.wait(20) is True
    assert [future.wait(20) for future in futures[:2]] == [40_000, 40_000]
    assert waiting._nbytes == 0
    assert caller.rpc_sync("callee", "length", bytes(200_000)) == 200_000


def test_an_inbox_is_emptied_while_all_places_are_taken(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes come than may wait, and the inbox has room for four frames: all are read, and most are refused."""
    monkeypatch.setattr(message_transport, "_MAX_QUEUED_BYTES", 2**20)
    monkeypatch.setattr(zenoh_transport, "_INBOX_MESSAGES", 4)
    gate, entered = threading.Event(), threading.Event()
    join("callee", 1, wait=lambda: entered.set() or gate.wait(20), length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    slow = caller.rpc_async("callee", "wait")
    assert entered.wait(20)
    try:
        futures = [caller.rpc_async("callee", "length", bytes(2**19 - 1000)) for _ in range(40)]
        for future in futures[2:]:
            with pytest.raises(CallRefused, match="bytes of calls are queued"):
                future.wait(20)
    finally:
        gate.set()
    assert slow.wait(20) is True
    assert [future.wait(20) for future in futures[:2]] == [2**19 - 1000] * 2


def test_an_inbox_is_emptied_while_callers_read_no_replies(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread that sends a reply blocks: calls are still read, bounded in bytes, counted, and refused."""
    monkeypatch.setattr(message_transport, "_MAX_QUEUED_BYTES", 2**20)
    callee = join("callee", 1, length=len)
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    gate, blocked, send = threading.Event(), threading.Event(), link_of(callee).send

    def send_when_open(*arguments: Any) -> None:
        blocked.set()
        assert gate.wait(20)
        send(*arguments)

    monkeypatch.setattr(link_of(callee), "send", send_when_open)
    transport: Any = callee._transport
    size = 2**19 - 1000
    futures = [caller.rpc_async("callee", "length", bytes(size))]
    try:
        assert blocked.wait(20)
        futures += [caller.rpc_async("callee", "length", bytes(size)) for _ in range(40)]
        until(
            lambda: transport._refusals.counts().get("a call that found no room in the queue") == 38, "all to be read"
        )
        assert transport._queue._nbytes <= 2**20
        assert len(transport._unsent) >= 37  # all refusals but the one that is being sent, and replies to repeats
    finally:
        gate.set()
    for future in futures[3:]:
        with pytest.raises(CallRefused, match=r"bytes of calls are queued, and 1,048,576 is the limit"):
            future.wait(20)
    assert [future.wait(20) for future in futures[:3]] == [size] * 3
    assert transport._queue._nbytes == len(transport._unsent) == 0
    assert caller.rpc_sync("callee", "length", "abc") == 3


def test_an_error_of_any_kind_ends_one_call_and_not_the_thread_that_keeps_deadlines(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    join("callee", wait=lambda: gate.wait(20))
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    link = link_of(caller)
    must_resend = link.must_resend

    def fail_once(*arguments: Any) -> bool:
        monkeypatch.setattr(link, "must_resend", must_resend)
        raise MemoryError("no room")

    monkeypatch.setattr(link, "must_resend", fail_once)
    try:
        with pytest.raises(MemoryError):
            caller.call_async("callee", "wait", timeout=15).wait(10)
        with pytest.raises(CallTimeout, match="has not replied"):
            caller.call_async("callee", "wait", timeout=0.3).wait(10)
    finally:
        gate.set()


def test_one_caller_cannot_push_out_cancellations_of_another(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MAX_CANCELLED", 20)
    gate, entered, ran = threading.Event(), threading.Event(), []
    callee = join("callee", 1, wait=lambda: entered.set() or gate.wait(20), run=ran.append)
    caller, greedy = join("caller"), join("greedy")
    assert caller.wait_for(["callee", "greedy"], 20) == [] == greedy.wait_for(["callee"], 20)
    slow = caller.rpc_async("callee", "wait")
    assert entered.wait(20)
    cancelled = callee._server._cancelled  # type: ignore[union-attr]
    assert caller.rpc_async("callee", "run", "cancelled").cancel()
    until(lambda: len(cancelled) == 1, "the first cancellation")
    for _ in range(30):
        assert greedy.rpc_async("callee", "run", "greedy").cancel()
    waiting = callee._transport._queue  # type: ignore[union-attr]
    until(lambda: len(cancelled) == 20 and len(waiting.calls) == 31, "the others")
    last = greedy.rpc_async("callee", "run", "last")
    gate.set()
    assert slow.wait(20) is True
    last.wait(20)
    assert "cancelled" not in ran
