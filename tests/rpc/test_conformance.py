"""Semantics of calls, the same over every backend: values, errors, threads, futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import (
    CallCancelled,
    CalleeGone,
    CallRefused,
    CallTimeout,
    InvalidArgument,
    NotSerializable,
    PeerLost,
    RemoteError,
    UnknownFunction,
)
from neuraxis.rpc import RpcContext, RpcFuture, rpc_async, rpc_sync
from tests.ranks import RankGroup
from tests.rpc.callees import gate


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def values_come_back(context: RpcContext) -> None:
    if context.rank != 0:
        return
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    big = np.arange(300_000, dtype=np.int64)
    for value in [
        None, True, 7, 2**80, 1.5, "text", b"bytes", [1, [2]], (1, (2,)), {"a": 1}, {1: "b"}, {3, 4}, 1j, [], {},
    ]:  # fmt: skip
        for rank in (0, 1, 2):
            back = rpc_sync(rank, "echo", value)
            assert back == value, (back, value)
            assert type(back) is type(value), (back, value)
    for value in (array, big, big[::3], array.T, np.array("x" * 2000), np.zeros((0, 3)), np.float64(2.5)):
        for wrap in (lambda v: v, lambda v: [v, 1], lambda v: ({"deep": (v,)},)):
            back = rpc_sync(1, "echo", wrap(value))
            while not isinstance(back, np.ndarray | np.generic):
                back = back[0] if isinstance(back, list | tuple) else back["deep"]
            np.testing.assert_array_equal(back, value)
            assert back.dtype == value.dtype
            if back.ndim:
                assert back.flags.writeable
                back[...] = back
    assert rpc_sync(1, "describe", 1, 2, x=3) == [[1, 2], {"x": 3}]
    assert rpc_sync("rank2", "renamed", 1, right=4) == 5
    assert [rpc_sync(rank, "name") for rank in range(3)] == ["rank0", "rank1", "rank2"] == context.names()
    assert rpc_sync(1, "describe", name="n", dst=3) == [[], {"name": "n", "dst": 3}]


def test_values_round_trip(rank_group: RankGroup) -> None:
    rank_group.run(values_come_back)


def import_torch(context: RpcContext) -> None:
    importlib.import_module("torch")


def tensors_come_back(context: RpcContext) -> None:
    import torch

    if context.rank == 0:
        for tensor in (torch.arange(5.0), torch.randn(300, 400).bfloat16(), torch.zeros(2, 3).t()):
            for value in (tensor, {"state": tensor}):
                back = rpc_sync(1, "echo", value)
                back = back["state"] if isinstance(back, dict) else back
                assert back.dtype == tensor.dtype
                assert torch.equal(back, tensor)
                back += 1


def test_tensors_round_trip(rank_group: RankGroup) -> None:
    rank_group.run(import_torch)  # in a rank that has not imported it a tensor arrives as an array
    rank_group.run(tensors_come_back)


def errors_come_back(context: RpcContext) -> None:
    if context.rank != 0:
        return

    def raised(kind: str) -> Any:
        with pytest.raises(Exception) as caught:  # noqa: PT011  (which one is what is looked at)
            rpc_sync(1, "fail", kind)
        error: Any = caught.value
        assert "fail" in error.remote_traceback, error
        assert any("callees.py" in note for note in error.__notes__)
        assert any("'rank1'" in note for note in error.__notes__)
        return error

    key, value, lost = raised("key"), raised("value"), raised("lost")
    assert (type(key), key.args) == (KeyError, ("k",))
    assert (type(value), value.args) == (ValueError, ("v", 2))
    assert (type(lost), lost.rank, lost.signal, lost.sequence) == (PeerLost, 7, 9, 4)
    assert "rank 7 is gone" in str(lost)
    missing = raised("os")
    assert (type(missing), missing.errno, missing.filename) == (FileNotFoundError, 2, "/nowhere")
    assert raised("unicode").object == b"\xff"
    assert type(raised("stop")) is StopIteration
    assert "KeyError: 'missing'" in raised("chained").remote_traceback
    for kind, text in {
        "own": "tests.rpc.callees.Own: mine",
        "odd": "tests.rpc.callees.Odd: 1 and 2",
        "interrupt": "KeyboardInterrupt: no",
        "group": "ExceptionGroup: several",
    }.items():
        error = raised(kind)
        assert type(error) is RemoteError, kind
        assert str(error).startswith(text), kind
        assert error.callee == "rank1"
        assert text.startswith(error.kind)
    assert isinstance(raised("surrogate"), ValueError)
    unsendable = raised("unsendable")  # an argument that cannot travel comes as its text
    assert (type(unsendable), str(unsendable)[:15]) == (ValueError, "<object object ")
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        rpc_sync(1, "exit_now")
    assert rpc_sync(1, "echo", 1) == 1


def test_errors_keep_their_type(rank_group: RankGroup) -> None:
    rank_group.run(errors_come_back)


def wrong_calls(context: RpcContext) -> None:
    if context.rank != 0:
        return
    with pytest.raises(UnknownFunction, match=r"'rank1' has registered no function 'nope'; it has .*echo"):
        rpc_sync(1, "nope")
    with pytest.raises(UnknownFunction, match="that name is something else"):
        rpc_sync(1, "Counter")
    with pytest.raises(LookupError):
        rpc_async(1, "os.system").wait()
    for nobody in (3, -1, "rank7"):
        with pytest.raises(CalleeGone):
            rpc_sync(nobody, "echo", 1)
        future = rpc_async(nobody, "echo", 1)
        with pytest.raises(ConnectionError):
            future.wait()
    for what in (None, 1.5, True):
        with pytest.raises(InvalidArgument, match="dst"):
            rpc_sync(what, "echo")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="name"):
        rpc_sync(1, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="timeout"):
        context.call(1, "echo", [1], timeout=0)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        rpc_sync(1, "echo")
    with pytest.raises(NotSerializable, match=r"remote_object.*allow_pickle"):
        rpc_sync(1, "echo", object())
    with pytest.raises(NotSerializable, match="object"):
        rpc_sync(1, "unsendable")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotSerializable, match="contains itself"):
        rpc_sync(1, "echo", loop)
    assert rpc_sync(1, "echo", 1) == 1


def test_wrong_calls_are_different_errors(rank_group: RankGroup) -> None:
    rank_group.run(wrong_calls)


def pickled_by_one_side(context: RpcContext) -> None:
    if context.rank == 0:
        context._values._serializer.allow_pickle = True  # as RpcContext(allow_pickle=True) has it; the others do not
        try:
            with pytest.raises(CallRefused, match=r"pickle is not allowed.*'rank1'"):
                rpc_sync(1, "echo", range(3))
            assert rpc_sync(0, "echo", range(3)) == range(3)
        finally:
            context._values._serializer.allow_pickle = False


def test_pickle_needs_both_sides(rank_group: RankGroup) -> None:
    rank_group.run(pickled_by_one_side)


def call_back_and_forth(context: RpcContext) -> Any:
    if context.rank == 0:
        assert rpc_sync(1, "ping_pong", 7, 1, 0) == [1, 0, 1, 0, 1, 0, 1, 0]
        assert rpc_sync(1, "around", [2, 0, 1, 2, 1]) == ["rank1", "rank2", "rank0", "rank1", "rank2", "rank1"]
        futures = [rpc_async(1, "ping_pong", 3, 1, 0) for _ in range(10)]
        assert [future.wait() for future in futures] == [[1, 0, 1, 0]] * 10
    return None


def test_calls_that_call_back_do_not_deadlock(rank_group: RankGroup) -> None:
    """Each rank has one thread that serves."""
    rank_group.run(call_back_and_forth)


def many_at_once(context: RpcContext) -> None:
    other = (context.rank + 1) % context.world_size
    futures = [rpc_async(other, "echo", number) for number in range(200)]
    assert [future.wait() for future in futures] == list(range(200))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: rpc_sync(other, "echo", number), range(100))) == list(range(100))

    async def together() -> list[Any]:
        return await asyncio.gather(*(rpc_async(other, "echo", number) for number in range(50)))

    assert asyncio.run(together()) == list(range(50))

    async def failing() -> None:
        with pytest.raises(KeyError):
            await rpc_async(other, "fail", "key")

    asyncio.run(failing())


def test_many_at_once(rank_group: RankGroup) -> None:
    rank_group.run(many_at_once)


def futures(context: RpcContext) -> None:
    if context.rank != 0:
        return
    future = rpc_async(1, "echo", "never mind")
    assert isinstance(future, RpcFuture)
    assert future.wait(20) == "never mind"
    assert future.done()
    assert not future.cancel()
    seen: list[Any] = []
    called = threading.Event()
    future.add_done_callback(lambda done: seen.append(done.wait()))
    waiting = rpc_async(1, "sleep", 0.3)
    waiting.add_done_callback(lambda done: (seen.append(done.wait()), called.set()))
    assert not waiting.done()
    with pytest.raises(CallTimeout, match="it continues"):
        waiting.wait(0.01)
    assert waiting.wait() == 0.3
    assert called.wait(20)
    assert seen == ["never mind", 0.3]
    assert isinstance(rpc_async(1, "fail", "key").exception(), KeyError)
    big = np.arange(100_000)
    sent = [rpc_async(1, "echo", big), rpc_async(1, "echo", {"state": [big]})]
    big[:] = 0  # what was sent stays what it was
    np.testing.assert_array_equal(sent[0].wait(), np.arange(100_000))
    np.testing.assert_array_equal(sent[1].wait()["state"][0], np.arange(100_000))


def test_futures(rank_group: RankGroup) -> None:
    rank_group.run(futures)


_begun: list[RpcFuture] = []


def take_the_only_place(context: RpcContext) -> None:
    if context.rank == 0:
        _begun.append(rpc_async(1, "wait_at", "cancelled"))


def see_it_taken(context: RpcContext) -> None:
    if context.rank == 1:
        until(lambda: context._pool._free == 0, "the call")


def cancel(context: RpcContext) -> None:
    if context.rank != 0:
        return
    queued = rpc_async(1, "count", "cancelled")
    assert queued.cancel()
    assert queued.cancel()
    assert queued.cancelled()
    assert queued.done()
    with pytest.raises(CallCancelled):
        queued.wait()
    begun = _begun.pop()
    assert begun.cancel()  # no caller waits any longer; the call continues there
    with pytest.raises(concurrent.futures.CancelledError):
        begun.wait()


def give_the_place_back(context: RpcContext) -> None:
    if context.rank == 1:
        until(lambda: len(context._server._cancelled) == 2, "the word of it")
        gate("cancelled").set()


def see_what_has_run(context: RpcContext) -> None:
    if context.rank == 0:
        assert rpc_sync(1, "counted", "cancelled") == 0


def test_cancelled_before_it_began_it_does_not_run(rank_group: RankGroup) -> None:
    for step in (take_the_only_place, see_it_taken, cancel, give_the_place_back, see_what_has_run):
        rank_group.run(step)


def slow_calls(context: RpcContext) -> None:
    if context.rank != 0:
        return
    with pytest.raises(CallTimeout, match=r"'rank1' has not replied within 0\.2 s"):
        context.call(1, "wait_at", ["late"], timeout=0.2)
    with pytest.raises(TimeoutError):
        context.call_async(1, "wait_at", ["late"], timeout=0.2).wait()


def let_them_answer(context: RpcContext) -> None:
    gate("late").set()


def ask_others(context: RpcContext) -> None:
    """A late reply is not taken for the reply to the next call."""
    if context.rank == 0:
        for number in range(20):
            assert rpc_sync(1, "echo", number) == number


def test_too_slow(rank_group: RankGroup) -> None:
    for step in (slow_calls, let_them_answer, ask_others):
        rank_group.run(step)


def waiting_functions(context: RpcContext) -> None:
    if context.rank == 0:
        waiting = [rpc_async(1, "wait_at_gate_of", 2, "held") for _ in range(5)]
        assert rpc_sync(1, "echo", "meanwhile") == "meanwhile"
        assert not any(future.done() for future in waiting)
        for future in waiting:
            future.cancel()


def open_gate(context: RpcContext) -> None:
    gate("held").set()


def test_a_waiting_function_releases_its_slot(rank_group: RankGroup) -> None:
    """Five calls of rank 1 wait for rank 2; a sixth runs there, though it has a single thread."""
    rank_group.run(waiting_functions)
    rank_group.run(open_gate)
