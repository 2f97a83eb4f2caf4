"""Calls between nodes that join and leave: presence, reconnection, and at-most-once execution."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from neuraxis.errors import (
    CalleeDied,
    CalleeGone,
    CallTimeout,
    InvalidArgument,
    NameTaken,
    NotInitialized,
    RendezvousTimeout,
    UnknownFunction,
)
from neuraxis.mesh import Node, Router
from neuraxis.rpc import RpcContext, init_rpc, rpc_sync
from neuraxis.rpc.calls import Invocation
from neuraxis.rpc.messages import Operation
from tests.rpc.meeting import linger_after_calls

Join = Callable[..., RpcContext]
_meshes = iter(range(1000))


@pytest.fixture
def join() -> Iterator[Join]:
    """Opens contexts on a mesh of this test's own, which are shut down after it."""
    mesh = f"rpc-test-{os.getpid()}-{next(_meshes)}"
    with ExitStack() as stack:

        def open_context(name: str, functions: dict[str, Any] | None = None, **options: Any) -> RpcContext:
            context = RpcContext(name=name, **{"mesh": mesh, "timeout": 20.0, **options})
            for title, function in (functions or {}).items():
                context.register_function(title, function)
            return stack.enter_context(context)

        yield open_context


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def test_names_that_join_later_and_leave(join: Join) -> None:
    first = join("first")
    with pytest.raises(CalleeGone, match=r"there is no such node .*present are first"):
        first.rpc_sync("second", "where")
    assert first.wait_for(["second"], 0.05) == ["second"]
    assert first.wait_for("second", 0.05) == ["second"]
    second = join("second", {"where": lambda: "second"})
    assert first.wait_for(["second"], 20) == []
    assert first.rpc_sync("second", "where") == "second"
    assert first.rank == first.world_size == -1
    second.shutdown()
    until(lambda: first.names() == ["first"], "the second to leave")
    with pytest.raises(CalleeGone):
        first.rpc_sync("second", "where")
    third = join("second", {"where": lambda: "another"})  # of the same name
    assert first.wait_for(["second"], 20) == []
    assert first.rpc_sync("second", "where") == "another"
    assert third.rpc_sync("second", "where") == "another"  # itself
    with pytest.raises(UnknownFunction):
        first.rpc_async("second", "nope").wait()


def test_a_leaving_node_first_replies_to_completed_calls(join: Join) -> None:
    caller = join("caller")
    callee = join("callee", {"say": lambda: "spoken"})
    assert caller.wait_for(["callee"], 20) == []
    left = linger_after_calls(callee, 1.0)
    future = caller.rpc_async("callee", "say")
    assert left.wait(20)
    callee.shutdown()
    assert future.wait(20) == "spoken"


def test_a_call_is_not_run_by_a_later_process_of_that_name(join: Join) -> None:
    ran: list[int] = []
    caller = join("caller")
    callee = join("callee", {"run": lambda: ran.append(1)})
    assert caller.wait_for(["callee"], 20) == []
    endpoint = caller._transport.find("callee")  # type: ignore[union-attr]
    callee.shutdown()
    join("callee", {"run": lambda: ran.append(2)})
    assert caller.wait_for(["callee"], 20) == []
    until(lambda: caller._transport.find("callee") != endpoint, "the other one")  # type: ignore[union-attr]
    with pytest.raises((CalleeDied, CalleeGone)):  # by whether its end was known when it was called
        caller._calls.call(Invocation(endpoint, Operation.CALL, "run"))
    assert ran == []


def test_a_node_that_takes_no_calls(join: Join) -> None:
    caller = join("caller")
    with Node("plain", mesh=caller._transport._link._node.mesh) as node:  # type: ignore[union-attr]
        assert node.wait_for(["caller"], 20) == []
        until(lambda: caller._transport._link._node.peer("plain") is not None, "the node")  # type: ignore[union-attr]
        with pytest.raises(CalleeGone, match="does not serve calls"):
            caller.rpc_sync("plain", "anything")


def test_a_name_is_had_once(join: Join) -> None:
    join("one")
    with pytest.raises(NameTaken):
        join("one")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("answers", ["while the router is away", "after it is back"])
def test_a_router_is_restarted_during_a_call_which_runs_once(join: Join, asynchronous: bool, answers: str) -> None:
    port = free_port()
    ran: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def run(what: str) -> str:
        ran.append(what)
        entered.set()
        assert leave.wait(20)
        return f"{what} done"

    where = f"tcp://127.0.0.1:{port}"
    router = Router([f"tcp/127.0.0.1:{port}"])
    try:
        callee, caller = join("callee", {"run": run}, init_method=where), join("caller", init_method=where)
        assert caller.wait_for(["callee"], 20) == []
        future = caller.rpc_async("callee", "run", "it") if asynchronous else None
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(caller.rpc_sync("callee", "run", "it")))
        if future is None:
            thread.start()
        assert entered.wait(20)
        router.close()
        until(lambda: caller.names() == ["caller"] and callee.names() == ["callee"], "both to be cut off")
        if answers == "while the router is away":
            leave.set()
            time.sleep(0.1)  # its reply goes nowhere
        router = Router([f"tcp/127.0.0.1:{port}"])
        until(lambda: callee.names() == ["callee", "caller"], "the two to meet again")
        leave.set()
        if future is None:
            thread.join(20)
        else:
            outcome.append(future.wait(20))
        assert outcome == ["it done"]
        assert ran == ["it"]
    finally:
        leave.set()
        for context in (caller, callee):
            context.shutdown()
        router.close()


def test_calls_without_a_router_name_the_lost_connection(join: Join) -> None:
    with Router(["tcp/127.0.0.1:0"]) as router:
        where = router.endpoints[0].replace("tcp/", "tcp://")
        join("callee", {"run": str}, init_method=where)
        caller = join("caller", init_method=where)
        assert caller.wait_for(["callee"], 20) == []
        router.close()
        until(lambda: caller.names() == ["caller"], "the caller to be cut off")
        expected = r": node 'caller' has lost its connection to the router \(tcp/127.*Start the router again"
        with pytest.raises(CallTimeout, match=f"has not replied within 0.3 s{expected}"):
            caller.call("callee", "run", [1], timeout=0.3)
        with pytest.raises(CalleeGone, match=f"'other' cannot be called{expected}"):
            caller.call("other", "run", [1], timeout=0.3)


def test_pickle_where_both_sides_allow_it(join: Join) -> None:
    join("open", {"echo": lambda value: value}, allow_pickle=True)
    caller = join("caller", allow_pickle=True)
    assert caller.wait_for(["open"], 20) == []
    assert caller.rpc_sync("open", "echo", [range(3), slice(1, 2)]) == [range(3), slice(1, 2)]


def test_await_cancels_the_call_with_its_task(join: Join) -> None:
    gate = threading.Event()
    join("callee", {"wait": lambda: gate.wait(20)})
    caller = join("caller")
    assert caller.wait_for(["callee"], 20) == []
    future = caller.rpc_async("callee", "wait")

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.05)

    asyncio.run(give_up())
    assert future.cancelled()
    gate.set()


def test_the_contexts_own_arguments(join: Join) -> None:
    for wrong in (
        {"backend": "carrier pigeon"}, {"timeout": 0}, {"timeout": True}, {"threads": 0}, {"world_size": 0},
        {"rank": 3, "world_size": 2}, {"rank": 1}, {"init_method": "nowhere"}, {"backend": "shm", "mesh": "m"},
        {"name": "no spaces"},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            RpcContext(**wrong).initialize()  # type: ignore[arg-type]
    new = RpcContext(name="unused")
    assert not new.is_initialized
    new.shutdown()
    with pytest.raises(NotInitialized):
        new.rpc_sync("a", "b")
    with pytest.raises(NotInitialized, match="init_rpc"):
        rpc_sync("a", "b")
    new.register_function("f", len)
    with pytest.raises(InvalidArgument, match="registered already"):
        new.register_function("f", max)
    with pytest.raises(InvalidArgument, match="not a function"):
        new.register_function("g", 5)  # type: ignore[arg-type]


def test_ranks_that_do_not_come(join: Join) -> None:
    with pytest.raises(RendezvousTimeout, match=r"ranks \[1\] have not connected") as raised:
        init_rpc(world_size=2, rank=0, timeout=0.3, mesh=f"missing-{os.getpid()}")
    assert raised.value.missing == (1,)


def test_one_thread_runs_one_call_at_a_time_and_two_run_two(join: Join) -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def work() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        with lock:
            inside[0] -= 1

    for threads in (1, 2):
        most[0] = 0
        join(f"pool{threads}", {"work": work}, threads=threads)
        caller = join(f"caller{threads}")
        assert caller.wait_for([f"pool{threads}"], 20) == []
        for future in [caller.rpc_async(f"pool{threads}", "work") for _ in range(8)]:
            future.wait(20)
        assert most[0] == threads
