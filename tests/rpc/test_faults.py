"""Callees that die, stop or leave, callers that shut down: a specific error, and never a hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import (
    AlreadyInitialized,
    CallCancelled,
    CalleeDied,
    CalleeGone,
    CallRefused,
    CallTimeout,
    CommunicatorClosed,
    NotInitialized,
    NotSerializable,
    RemoteError,
)
from neuraxis.rpc import RpcContext, current_rpc_context, rpc_async, rpc_sync
from neuraxis.rpc.context import mesh_of_ranks
from neuraxis.rpc.transport import World
from tests.ranks import RankGroup
from tests.rpc.callees import gate

pytestmark = pytest.mark.alone


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def stopped(context: RpcContext) -> None:
    if context.rank != 0:
        return
    process = rpc_sync(1, "pid")
    begun = time.monotonic()
    with pytest.raises(CallTimeout):
        context.call(1, "stop", timeout=2.0)  # over the mesh it is unreachable after one second
    assert time.monotonic() - begun < 15
    with pytest.raises(CallTimeout):  # a call that begins now waits for it, too
        context.call(1, "echo", [1], timeout=0.3)
    assert rpc_sync(2, "echo", "others go on") == "others go on"
    os.kill(process, signal.SIGCONT)
    until(lambda: "rank1" in context.names(), "the stopped one to be seen again")
    assert rpc_sync(1, "echo", "it too") == "it too"


def test_a_stopped_callee_is_a_timeout(rank_group: RankGroup) -> None:
    rank_group.run(stopped)


def died(context: RpcContext) -> None:
    if context.rank != 0:
        return
    begun = time.monotonic()
    waiting = rpc_async(1, "wait_at_gate_of", 2, "never")
    with pytest.raises(CalleeDied, match=r"may or may not have run") as raised:
        rpc_sync(1, "die")
    assert raised.value.callee == "rank1"
    with pytest.raises(CalleeDied):
        waiting.wait()
    until(lambda: "rank1" not in context.names(), "its death to be known")
    with pytest.raises(CalleeGone):
        rpc_sync(1, "echo", 1)
    with pytest.raises(CalleeGone):
        rpc_async(1, "echo", 1).wait()
    assert time.monotonic() - begun < 20, "an error within seconds"
    assert context.names() == ["rank0", "rank2"]
    assert rpc_sync(0, "echo", "goes on") == "goes on"


def test_a_killed_callee(rank_group: RankGroup) -> None:
    if rank_group.backend == "mpi":
        pytest.skip("mpirun ends all ranks when one dies")
    rank_group.run(died)
    rank_group.broken = True


def nested_death(context: RpcContext) -> None:
    if context.rank == 0:
        with pytest.raises(RemoteError, match="CalleeDied") as raised:
            rpc_sync(2, "call_on", 1, "die")
        assert raised.value.callee == "rank2"  # the callee is alive
        assert isinstance(raised.value.__cause__, CalleeDied)
        assert raised.value.__cause__.callee == "rank1"
        assert "'rank2'" in "".join(raised.value.__notes__)


def test_the_death_of_the_callees_callee(rank_group: RankGroup) -> None:
    if rank_group.backend == "mpi":
        pytest.skip("mpirun ends all ranks when one dies")
    rank_group.run(nested_death)
    rank_group.broken = True


def leave_early(context: RpcContext) -> None:
    """Rank 1 leaves while it runs a call of rank 0's, and while it waits for one of rank 2's."""
    if context.rank == 0:
        waiting = rpc_async(1, "fall_asleep", 30)
        until(lambda: rpc_sync(2, "counted", "leaving") == 1, "rank 1 to leave")
        with pytest.raises((CalleeDied, CalleeGone, CallRefused)):  # the last where it came too late to begin
            waiting.wait(20)
        until(lambda: "rank1" not in context.names(), "rank 1 to be gone")
        with pytest.raises(CalleeGone):
            rpc_sync(1, "echo", 1)
        return
    if context.rank == 1:
        assert gate("asleep").wait(20)
        waiting = rpc_async(2, "wait_at_gate_of", 0, "never")
        rpc_sync(2, "count", "leaving")
        context.shutdown(graceful=False)
        with pytest.raises(CallCancelled):
            waiting.wait(20)
        with pytest.raises(CommunicatorClosed):
            context.rpc_sync(0, "echo", 1)
        assert not context.is_initialized


def test_shutting_down_while_calls_are_under_way(rank_group: RankGroup) -> None:
    rank_group.run(leave_early)
    rank_group.broken = True


def second_context(context: RpcContext) -> list[str]:
    context.shutdown()
    with pytest.raises(NotInitialized):
        current_rpc_context()
    with pytest.raises(AlreadyInitialized):
        context.initialize()
    second = RpcContext(context.backend, timeout=30.0)
    second.register_function("here", lambda: second.rank)
    with second:
        answers = [rpc_sync(rank, "here") for rank in range(second.world_size) if rank != second.rank]
        return [str(answer) for answer in answers]


def test_two_contexts_one_after_the_other(rank_group: RankGroup) -> None:
    assert rank_group.run(second_context) == [["1", "2"], ["0", "2"], ["0", "1"]]
    rank_group.broken = True  # the first context is what it drives


def agent_ends_first(context: RpcContext) -> str:
    """Somebody ends torch's own agent below a context: that can still be shut down, and another made."""
    from torch.distributed import rpc

    if context.rank == 1:
        rpc.shutdown(graceful=False)
    context.shutdown(graceful=False)
    second = RpcContext("tensorpipe", timeout=30.0)
    second.register_function("here", lambda: second.rank)
    with second:
        return str(second.rpc_sync((second.rank + 1) % 3, "here"))


@pytest.mark.parametrize("rank_group", ["tensorpipe"], indirect=True)
def test_a_context_ends_though_torchs_agent_has(rank_group: RankGroup) -> None:
    assert rank_group.run(agent_ends_first) == ["1", "2", "0"]
    rank_group.broken = True


def test_the_contexts_of_a_job_are_counted_apart_from_others() -> None:
    mine, other = World(0, 2, f"mine-{os.getpid()}"), World(1, 3, f"other-{os.getpid()}")
    meshes = [mesh_of_ranks(mine)]
    with RpcContext(mesh=f"unnamed-{os.getpid()}"):  # which is given a name
        meshes += [mesh_of_ranks(other), mesh_of_ranks(mine)]
    assert [mesh[-2:] for mesh in meshes] == ["-1", "-1", "-2"]
    assert meshes[0] != meshes[1]


def test_an_oversized_call_and_an_oversized_result() -> None:
    mesh = f"sizes-{os.getpid()}"
    with RpcContext(name="big", mesh=mesh) as big, RpcContext(name="small", mesh=mesh) as small:
        big.register_function("length", len)
        big.register_function("zeros", lambda size: bytes(size))
        assert small.wait_for(["big"], 20) == []
        assert small.rpc_sync("big", "length", bytes(2**22)) == 2**22
        with pytest.raises(ValueError, match=r"70,000,\d+ bytes; over this backend a message has"):
            small.rpc_sync("big", "length", bytes(70_000_000))
        with pytest.raises(NotSerializable, match=r"the result has 70,000,\d+ bytes"):
            small.rpc_sync("big", "zeros", 70_000_000)
        assert small.rpc_sync("big", "length", b"123") == 3


def test_more_calls_than_can_wait_are_refused() -> None:
    mesh = f"queue-{os.getpid()}"
    gate = threading.Event()
    with (
        RpcContext(name="busy", mesh=mesh, threads=1) as busy,
        RpcContext(name="eager", mesh=mesh, timeout=60) as eager,
    ):
        busy.register_function("wait", lambda: gate.wait(30))
        assert eager.wait_for(["busy"], 20) == []
        futures = [eager.rpc_async("busy", "wait") for _ in range(1101)]
        until(lambda: sum(future.done() for future in futures) == 100, "those that find no room")
        gate.set()
        outcomes: list[Any] = [future.exception(30) or future.wait() for future in futures]
        assert outcomes.count(True) == 1001
        refused = [one for one in outcomes if one is not True]
        assert all(isinstance(one, CallRefused) for one in refused)
        assert "1,000 calls are queued" in str(refused[0])
