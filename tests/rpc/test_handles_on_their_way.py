"""Handles in unread messages: their objects are freed nevertheless."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from neuraxis.errors import CalleeDied, CallRefused, CallTimeout, InvalidArgument, NotSerializable, UnknownFunction
from neuraxis.rpc import RemoteObject, RpcContext
from neuraxis.rpc.messages import Operation
from neuraxis.rpc.values import Values
from tests.ranks.stopping import resume, stop
from tests.rpc.meeting import Join, meeting, until


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


class Thing:
    def value(self) -> int:
        return 1


def freed(owner: RpcContext) -> None:
    gc.collect()
    until(lambda: owner.objects_kept == 0, "the object to be freed")


def slow_maker(context: RpcContext, gate: threading.Event) -> Any:
    def make() -> RemoteObject:
        assert gate.wait(20)
        return context.remote_object(context.name, "Thing")

    return make


@pytest.mark.parametrize("how", ["cancelled", "too late", "too late on a channel", "too late to itself"])
def test_in_a_reply_that_is_not_waited_for(join: Join, how: str) -> None:
    gate, made = threading.Event(), threading.Event()
    owner = join("owner", {"Thing": Thing, "echo": lambda value: value})
    maker = slow_maker(owner, gate)
    owner.register_function("make", lambda: (maker(), made.set())[:1])
    caller = owner if how == "too late to itself" else join("caller")
    if how == "cancelled":
        assert caller.rpc_async("owner", "make").cancel()
    elif how == "too late":
        with pytest.raises(CallTimeout):
            caller.call_async("owner", "make", timeout=0.1).wait(20)
    else:
        with pytest.raises(CallTimeout):
            caller.call("owner", "make", timeout=0.1)
    gate.set()
    if how != "cancelled":  # which may have come before it began
        assert made.wait(20)
    until(lambda: caller.rpc_sync("owner", "echo", 1) == 1 and owner.objects_kept == 0, "the object to be freed")


def test_in_a_reply_that_is_cancelled_after_the_call_has_begun(join: Join) -> None:
    gate, entered, made = threading.Event(), threading.Event(), threading.Event()
    owner = join("owner", {"Thing": Thing})
    maker = slow_maker(owner, gate)
    owner.register_function("make", lambda: (entered.set(), maker(), made.set())[1:2])
    caller = join("caller")
    future = caller.rpc_async("owner", "make")
    assert entered.wait(20)
    assert future.cancel()
    gate.set()
    assert made.wait(20)
    freed(owner)


def test_in_a_request_that_is_refused(join: Join) -> None:
    owner, callee = join("owner", {"Thing": Thing}), join("callee", {"use": lambda thing: thing.value()})
    handle = callee.remote_object("owner", "Thing")
    del handle
    freed(owner)
    thing = owner.remote_object("owner", "Thing")
    third = join("third")
    theirs = third.remote_object("owner", "Thing")
    assert third.rpc_sync("callee", "use", theirs) == 1
    callee._transport.refuse()  # type: ignore[union-attr]
    for _ in range(3):
        with pytest.raises(CallRefused):
            owner.rpc_sync("callee", "use", thing)
        with pytest.raises(CallRefused):
            third.rpc_sync("callee", "use", (theirs, {1: theirs}))
    del thing, theirs
    freed(owner)


def test_in_a_request_that_cannot_be_read(join: Join) -> None:
    owner, callee = join("owner", {"Thing": Thing}, allow_pickle=True), join("callee", {"use": len})
    thing = owner.remote_object("owner", "Thing")
    with pytest.raises(CallRefused, match="pickle"):
        owner.rpc_sync("callee", "use", [thing, range(3), thing])
    assert callee.objects_kept == 0
    del thing
    freed(owner)


def test_handles_in_unserializable_messages_are_released(join: Join) -> None:
    owner, callee = join("owner", {"Thing": Thing}), join("callee", {"use": len})
    thing, theirs = owner.remote_object("owner", "Thing"), callee.remote_object("owner", "Thing")
    for context, one, to in ((owner, thing, "callee"), (callee, theirs, "owner")):
        with pytest.raises(NotSerializable):
            context.rpc_sync(to, "use", [one, object()])
        with pytest.raises(InvalidArgument, match="bytes"):
            context.rpc_sync(to, "use", [one, bytes(70_000_000)])
        with pytest.raises(InvalidArgument, match="bytes"):
            context.rpc_async(to, "use", [one, bytes(70_000_000)])
    del thing, theirs, one
    freed(owner)


def test_in_a_result_that_cannot_be_sent(join: Join) -> None:
    owner = join("owner", {"Thing": Thing})
    owner.register_function("bad", lambda: [owner.remote_object("owner", "Thing"), object()])
    owner.register_function("big", lambda: [owner.remote_object("owner", "Thing"), bytes(70_000_000)])
    caller = join("caller")
    for name in ("bad", "big"):
        with pytest.raises(NotSerializable):
            caller.rpc_sync("owner", name)
    freed(owner)


def test_an_unreadable_reply_keeps_no_arguments_alive(join: Join) -> None:
    join("callee", {"echo": lambda value: value})
    caller = join("caller")
    values = caller._values

    def damaged(frame: Any, head: Any) -> Any:
        return Values.decode(values, frame, head._replace(body=head.end - 1))

    values.decode = damaged  # type: ignore[method-assign]
    try:
        gc.disable()
        future = caller.rpc_async("callee", "echo", ["text"])
        with pytest.raises(CalleeDied, match="cannot be decoded"):
            future.wait(20)
        gone = weakref.ref(future)
        del future
        until(lambda: gone() is None, "the future of a call that is over")
    finally:
        gc.enable()


def test_errors_do_not_keep_arguments_alive(join: Join) -> None:
    """An error that refers to itself keeps handles until the garbage collector comes by."""
    gate = threading.Event()

    def fail(*_: Any) -> None:
        raise ValueError("no")

    owner = join("owner", {"Thing": Thing, "fail": fail, "wait": lambda *_: gate.wait(20)})
    caller = join("caller", {"fail": fail, "wait": lambda *_: gate.wait(20)})
    try:
        gc.disable()
        for to in ("owner", "caller"):
            for name, error in (("fail", ValueError), ("wait", CallTimeout), ("nope", UnknownFunction)):
                for start in (False, True):
                    thing = caller.remote_object("owner", "Thing")
                    given = weakref.ref(thing)
                    try:
                        if start:
                            caller.call_async(to, name, [thing], timeout=0.1).wait()
                        else:
                            caller.call(to, name, [thing], timeout=0.1)
                    except error:
                        pass
                    del thing
                    until(lambda given=given: given() is None, f"{to} {name} {start}")  # type: ignore[misc]
    finally:
        gc.enable()
        gate.set()
    freed(owner)


def test_an_object_is_released_while_all_slots_are_busy(join: Join) -> None:
    gate, entered = threading.Event(), threading.Event()
    owner = join("owner", {"Thing": Thing, "wait": lambda: entered.set() or gate.wait(20)}, threads=1)
    caller = join("caller")
    thing = owner.remote_object("owner", "Thing")
    waiting = caller.rpc_async("owner", "wait")
    assert entered.wait(20)
    assert owner.objects_kept == 1
    del thing
    freed(owner)
    gate.set()
    assert waiting.wait(20) is True


def test_an_object_is_released_after_its_owner_was_stopped(join: Join) -> None:
    holder = join("holder")
    mesh = holder._transport._link._node.mesh  # type: ignore[union-attr]
    script = (
        "import sys; from neuraxis.rpc import RpcContext\n"
        f"with RpcContext(name='owner', mesh={mesh!r}) as owner:\n"
        "    owner.register_function('list', list)\n"
        "    owner.register_function('kept', lambda: owner.objects_kept)\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            assert holder.wait_for(["owner"], 20) == []
            thing = holder.remote_object("owner", "list")
            assert holder.rpc_sync("owner", "kept") == 1
            stop(owner.pid)
            del thing
            gc.collect()
            until(lambda: holder.names() == ["holder"], "the owner to be unreachable")
            resume(owner.pid)
            until(lambda: "owner" in holder.names(), "the owner to come back")
            until(lambda: holder.rpc_sync("owner", "kept") == 0, "the object to be freed")
        finally:
            owner.kill()


def test_messages_about_handles_are_validated(join: Join) -> None:
    owner, caller = join("owner", {"Thing": Thing}), join("caller")
    endpoint = owner._transport.me  # type: ignore[union-attr]
    for operation, args in [
        (Operation.RETAIN, [1]),
        (Operation.RETAIN, ["1", "name", 1]),
        (Operation.RETAIN, [1, 5, 1]),
        (Operation.RETAIN, [1, "name", None]),
        (Operation.RELEASE, []),
        (Operation.RELEASE, [None]),
        (Operation.CANCEL, [[]]),
    ]:
        with pytest.raises(CallRefused, match="malformed"):
            caller._calls.control(endpoint, operation, args)
    assert owner.objects_kept == 0
