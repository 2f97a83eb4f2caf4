"""Remote objects: used, passed on, and freed with their last handle."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from neuraxis.errors import CalleeGone, CallRefused, CallTimeout, NeuraxisError, UnknownFunction
from neuraxis.rpc import RemoteObject, RpcContext, remote_object, rpc_async, rpc_sync
from neuraxis.rpc import handles as handles_module
from neuraxis.rpc.handles import ObjectTable
from neuraxis.rpc.transport import Endpoint
from tests.ranks import RankGroup
from tests.ranks.stopping import resume, stop
from tests.rpc.callees import gate


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


def use(context: RpcContext) -> None:
    if context.rank != 0:
        return
    counter = remote_object(1, "Counter", 5)
    assert isinstance(counter, RemoteObject)
    assert counter.owner == "rank1"
    assert [counter.add(), counter.add(2), counter.add(by=3)] == [6, 8, 11]
    assert counter.add.rpc_async(4).wait() == 15
    assert remote_object(2, "make_counter", 7).add() == 8
    with pytest.raises(LookupError, match="of the counter") as raised:
        counter.fail()
    assert "callees.py" in raised.value.remote_traceback  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no method 'nope'"):
        counter.nope()
    with pytest.raises(AttributeError, match="no method 'helper'"):
        counter.helper()
    with pytest.raises(AttributeError, match="public"):
        counter._secret()
    with pytest.raises(CallRefused, match="private"):  # whatever a caller's own checks are
        context._call_method(counter, "_secret", (), {})
    with pytest.raises(CallRefused, match="private"):
        context._call_method(counter, "__class__", (), {})
    with pytest.raises(UnknownFunction, match="no class or factory 'echo'"):
        remote_object(1, "echo")
    with pytest.raises(CalleeGone):
        remote_object("nobody", "Counter")
    del counter, raised  # whose traceback has the handle, too
    gc.collect()
    until(lambda: rpc_sync(1, "counters") == rpc_sync(2, "counters") == 0, "the counters to be freed")


def test_methods_are_called_where_the_object_is(rank_group: RankGroup) -> None:
    rank_group.run(use)


def pass_on(context: RpcContext) -> None:
    if context.rank != 0:
        return
    counter = remote_object(1, "Counter", 5)
    assert rpc_sync(2, "add_to", counter, 2) == 7  # a third endpoint
    assert rpc_sync(1, "add_to", counter, 2) == 9  # its owner
    rpc_sync(2, "hold", counter)
    del counter
    gc.collect()
    time.sleep(0.1)  # what was let go too early would be freed now
    assert rpc_sync(1, "counters") == 1
    again = rpc_sync(2, "give")
    assert again.add() == 10
    rpc_sync(2, "let_go")
    assert again.add() == 11
    del again
    gc.collect()
    until(lambda: rpc_sync(1, "counters") == 0, "the counter to be freed")
    from_third = rpc_sync(2, "make_at", 1, 3)
    assert (from_third.owner, from_third.add()) == ("rank1", 4)
    mine = rpc_sync(2, "make_at", 0, 30)  # of this very process
    assert (mine.owner, mine.add()) == ("rank0", 31)
    del from_third, mine
    gc.collect()
    until(lambda: rpc_sync(1, "counters") == rpc_sync(0, "counters") == 0, "both to be freed")
    assert context.objects_kept == 0


def test_handles_are_passed_on(rank_group: RankGroup) -> None:
    rank_group.run(pass_on)


def keep_each_other(context: RpcContext) -> None:
    """Handles are counted, so a cycle stays; it goes when one of the objects drops its handle, as the docs advise."""
    if context.rank != 0:
        return
    one, other = remote_object(1, "Counter"), remote_object(2, "Counter")
    one.keep(other)
    other.keep(one)
    del one
    gc.collect()
    assert other.add() == 1
    assert (rpc_sync(1, "counters"), rpc_sync(2, "counters")) == (1, 1)
    other.keep(None)
    until(lambda: rpc_sync(1, "counters") == 0, "the first one to be freed")
    assert other.add() == 2
    del other
    gc.collect()
    until(lambda: rpc_sync(2, "counters") == 0, "the second one to be freed")


def test_a_cycle_of_handles_is_freed_when_one_is_dropped(rank_group: RankGroup) -> None:
    rank_group.run(keep_each_other)


def give_up(context: RpcContext) -> None:
    if context.rank == 0:
        with pytest.raises(CallTimeout):
            context.call(1, "slow_counter", ["late counters"], timeout=0.1)
        with pytest.raises(CallTimeout):
            context.call_async(1, "slow_counter", ["late counters"], timeout=0.1).wait()


def let_them_return(context: RpcContext) -> None:
    if context.rank == 1:
        until(lambda: context.objects_kept > 0, "the first of them")
        gate("late counters").set()


def see_them_freed(context: RpcContext) -> None:
    if context.rank == 0:
        cancelled = rpc_async(1, "slow_counter", "late counters")
        cancelled.cancel()
        del cancelled  # where it was done, it has its result
        until(lambda: rpc_sync(1, "counted", "slow counters") >= 2, "two of them")
        until(lambda: rpc_sync(1, "counters") == 0, "abandoned objects to be freed")


def test_the_object_of_an_abandoned_call_is_freed(rank_group: RankGroup) -> None:
    if rank_group.backend == "tensorpipe":
        pytest.skip("torch drops what comes too late, unread")
    for step in (give_up, let_them_return, see_them_freed):
        rank_group.run(step)


def hold_and_die(context: RpcContext) -> None:
    if context.rank == 0:
        rpc_sync(2, "hold_one_of", 1)
        assert rpc_sync(1, "counters") == 1
        with pytest.raises(ConnectionError):
            rpc_sync(2, "die")
        until(lambda: rpc_sync(1, "counters") == 0, "what the dead one held to be freed")
        assert rpc_sync(1, "echo", "goes on") == "goes on"


def test_objects_of_a_killed_holder_are_freed(rank_group: RankGroup) -> None:
    if rank_group.backend == "mpi":
        pytest.skip("mpirun ends all ranks when one dies")
    rank_group.run(hold_and_die)
    rank_group.broken = True  # a rank is missing


def test_an_object_that_a_stopped_process_holds_stays() -> None:
    """Over the mesh a stopped process is unreachable, and returns."""
    mesh = f"objects-{os.getpid()}"
    script = (
        "import sys; from neuraxis.rpc import RpcContext, remote_object\n"
        f"with RpcContext(name='holder', mesh={mesh!r}) as context:\n"
        "    assert not context.wait_for(['owner'], 20)\n"
        "    counter = remote_object('owner', 'dict')\n"
        "    print('holds', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print(len(counter.copy()), flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with RpcContext(name="owner", mesh=mesh) as owner:
        owner.register_function("dict", dict)
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdin is not None
            assert holder.stdout is not None
            try:
                assert holder.stdout.readline() == "holds\n"
                assert owner.objects_kept == 1
                stop(holder.pid)
                until(lambda: owner.names() == ["owner"], "the holder to be unreachable")
                time.sleep(0.7)  # longer than it takes to look at all holders
                assert owner.objects_kept == 1
                resume(holder.pid)
                until(lambda: owner.names() == ["holder", "owner"], "the holder to come back")
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "0\n"
            finally:
                holder.kill()
        until(lambda: owner.objects_kept == 0, "what it held to be freed")


def test_holders_that_somebody_invents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles_module, "_MAX_UNCONFIRMED", 5)
    monkeypatch.setattr(handles_module, "_MAX_HOLDERS", 9)
    table, a, b = ObjectTable(), Endpoint("a", 1), Endpoint("b", 1)
    number = table.add([1], "list", a)
    invented = [Endpoint("invented", life) for life in range(20)]
    for one in invented[:5]:
        table.retain(number, one, a)
    with pytest.raises(CallRefused, match="'a' has sent object 1 to 5 processes"):
        table.retain(number, invented[5], a)
    table.retain(number, a, a)  # references to those that have some are only counted
    table.retain(number, invented[0], a)
    assert table.method(number, "copy", invented[0])() == [1]
    table.retain(number, b, a)  # since one of them has used it
    table.retain(number, invented[6], b)
    table.retain(number, invented[7], b)
    with pytest.raises(CallRefused, match="has 9 holders"):
        table.retain(number, invented[8], b)
    table.release(number, invented[7], b)
    table.retain(number, invented[8], b)
    entry = table._entries[number]
    assert len(entry.holders) == 9
    for _ in range(20):  # given and taken back, it leaves nothing
        table.release(number, invented[8], b)
        table.retain(number, invented[8], b)
    table.release(number, invented[8], b)
    assert all(count > 0 for count in entry.unconfirmed.values())


def test_kept_objects_are_counted_by_holder() -> None:
    table, a, b, c = ObjectTable(), Endpoint("a", 1), Endpoint("b", 1), Endpoint("c", 1)
    number = table.add([1], "list", a)
    for _ in range(3):
        table.retain(number, b, a)
    table.release(number, b, a)  # the message that should have carried it was not sent
    for stranger in (c, Endpoint("a", 2)):
        with pytest.raises(CallRefused, match="holds no reference"):
            table.method(number, "copy", stranger)
        with pytest.raises(CallRefused, match="holds no reference"):
            table.retain(number, stranger, stranger)
        with pytest.raises(CallRefused, match="cannot release a reference of 'b'"):
            table.release(number, b, stranger)
    table.release(number, c, c)  # it holds nothing
    assert table.method(number, "copy", b)() == [1]
    with pytest.raises(CallRefused, match="cannot release a reference of 'b'"):
        table.release(number, b, a)  # b has used it meanwhile
    table.release(number, a, a)
    table.release(number, b, b)
    assert table.endpoints() == {b}
    table.forget(Endpoint("b", 2))  # another process of that name
    assert len(table) == 1
    table.forget(b)
    table.release(number, b, b)
    assert len(table) == 0
    with pytest.raises(NeuraxisError, match="no object with the number"):
        table.retain(number, a, a)
