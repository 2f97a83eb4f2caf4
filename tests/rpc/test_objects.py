"""Objects that stay where they are: used, passed on, and freed when nobody holds them any more."""

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
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.transport import Party
from tests.crew import Crew
from tests.crew.stopping import go_on, stop
from tests.rpc.callees import gate


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
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


def test_methods_are_called_where_the_object_is(crew: Crew) -> None:
    crew.run(use)


def pass_on(context: RpcContext) -> None:
    if context.rank != 0:
        return
    counter = remote_object(1, "Counter", 5)
    assert rpc_sync(2, "add_to", counter, 2) == 7  # a third party
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


def test_handles_are_passed_on(crew: Crew) -> None:
    crew.run(pass_on)


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
        until(lambda: rpc_sync(1, "counters") == 0, "what nobody waits for any more to be freed")


def test_what_a_call_makes_that_is_given_up_is_freed(crew: Crew) -> None:
    if crew.backend == "tensorpipe":
        pytest.skip("torch drops what comes too late, unread")
    for step in (give_up, let_them_return, see_them_freed):
        crew.run(step)


def hold_and_die(context: RpcContext) -> None:
    if context.rank == 0:
        rpc_sync(2, "hold_one_of", 1)
        assert rpc_sync(1, "counters") == 1
        with pytest.raises(ConnectionError):
            rpc_sync(2, "die")
        until(lambda: rpc_sync(1, "counters") == 0, "what the dead one held to be freed")
        assert rpc_sync(1, "echo", "goes on") == "goes on"


def test_what_a_killed_process_held_is_freed(crew: Crew) -> None:
    if crew.backend == "mpi":
        pytest.skip("mpirun ends all ranks when one dies")
    crew.run(hold_and_die)
    crew.broken = True  # a rank is missing


def test_an_object_that_a_stopped_process_holds_stays() -> None:
    """Over the mesh a stopped process is out of sight, and comes back."""
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
                until(lambda: owner.names() == ["owner"], "the holder to be out of sight")
                time.sleep(0.7)  # longer than it takes to look at all holders
                assert owner.objects_kept == 1
                go_on(holder.pid)
                until(lambda: owner.names() == ["holder", "owner"], "the holder to come back")
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert holder.stdout.readline() == "0\n"
            finally:
                holder.kill()
        until(lambda: owner.objects_kept == 0, "what it held to be freed")


def test_kept_objects_are_counted_by_holder() -> None:
    kept, a, b = Kept(), Party("a", 1), Party("b", 1)
    number = kept.add([1], "list", a)
    kept.hold(number, b)
    kept.hold(number, b)
    kept.release(number, a)
    kept.release(number, b)
    assert kept.parties() == {b}
    assert kept.method(number, "copy")() == [1]
    kept.forget(Party("b", 2))  # another process of that name
    assert len(kept) == 1
    kept.forget(b)
    kept.release(number, b)
    assert len(kept) == 0
    with pytest.raises(NeuraxisError, match="no object of number"):
        kept.hold(number, a)
