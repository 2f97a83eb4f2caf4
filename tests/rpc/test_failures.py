"""Attribution of failures: to the call itself, the function, or a call that the function made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from neuraxis.errors import (
    CallCancelled,
    CalleeGone,
    CallRefused,
    CallTimeout,
    InvalidArgument,
    NeuraxisError,
    NotSerializable,
    RemoteError,
    RpcError,
    UnknownFunction,
)
from neuraxis.rpc.registry import Registry
from neuraxis.wire.exceptions import from_data, to_data
from neuraxis.wire.objects import Unreadable
from tests.rpc.meeting import Join, meeting, until


@pytest.fixture
def join() -> Iterator[Join]:
    with meeting() as join:
        yield join


class Picky:
    def __repr__(self) -> str:
        return "<picky>"


def test_a_failed_call_of_the_function_is_not_a_failed_call_of_ones_own(join: Join) -> None:
    def raise_(kind: str) -> None:
        raise {
            "timeout": CallTimeout("third was slow", "third"),
            "refused": CallRefused("third refuses", "third"),
            "cancelled": CallCancelled("given up", "third"),
            "remote": RemoteError("Own: mine", "third", "Own", "its traceback"),
        }[kind]

    callee = join("callee", {"raise": raise_, "ask": lambda *what: callee.rpc_sync(*what)})
    caller = join("caller")
    for kind, what in {
        "timeout": CallTimeout,
        "refused": CallRefused,
        "cancelled": CallCancelled,
        "remote": RemoteError,
    }.items():
        for call in (caller.call, lambda *args: caller.call_async(*args).wait()):
            with pytest.raises(RemoteError) as raised:
                call("callee", "raise", [kind])
            assert type(raised.value) is RemoteError
            assert raised.value.callee == "callee"
            assert raised.value.kind == f"neuraxis.errors.{what.__name__}"
            assert "raise_" in raised.value.remote_traceback
            assert type(raised.value.__cause__) is what
            assert raised.value.__cause__.callee == "third"
    with pytest.raises(RemoteError, match=r"CalleeGone: 'nobody' cannot be called") as raised:
        caller.rpc_sync("callee", "ask", "nobody", "f")
    assert isinstance(raised.value.__cause__, CalleeGone)
    with pytest.raises(RemoteError, match="UnknownFunction") as raised:
        caller.rpc_sync("callee", "ask", "caller", "nope")
    assert isinstance(raised.value.__cause__, UnknownFunction)
    with pytest.raises(UnknownFunction):  # one's own
        caller.rpc_sync("callee", "nope")


def test_errors_keep_their_type_whatever_they_hold(join: Join) -> None:
    def raise_(kind: str) -> None:
        raise {
            "one": ValueError(Picky()),
            "two": KeyError("first", Picky()),
            "own": InvalidArgument(Picky()),
            "long": ValueError("x" * 70_000_000),
            "bytes": ValueError(bytes(200_000)),
            "many": ValueError(*range(10_000)),
        }[kind]

    def noted() -> None:
        error = ValueError("noted")
        for _ in range(300):
            error.add_note("n" * 10_000)
        error.picky = Picky()  # type: ignore[attr-defined]
        error.kept = 7  # type: ignore[attr-defined]
        raise error

    join("callee", {"raise": raise_, "noted": noted})
    caller = join("caller", timeout=10)

    def raised(kind: str) -> Any:
        with pytest.raises(Exception) as caught:  # noqa: PT011  (which one is what is looked at)
            caller.rpc_sync("callee", "raise", kind)
        return caught.value

    one, two, own, long, some_bytes = (raised(kind) for kind in ("one", "two", "own", "long", "bytes"))
    assert (type(one), one.args) == (ValueError, ("<picky>",))
    assert (type(two), two.args) == (KeyError, ("first", "<picky>"))
    assert (type(own), str(own)) == (InvalidArgument, "<picky>")
    assert (type(long), str(long)[:3], len(str(long)) < 30_000) == (ValueError, "xxx", True)
    assert (type(some_bytes), len(str(some_bytes)) < 30_000) == (ValueError, True)
    assert type(raised("many")) is ValueError
    with pytest.raises(ValueError, match="noted") as caught:
        caller.rpc_sync("callee", "noted")
    assert vars(caught.value)["kept"] == 7
    assert vars(caught.value)["picky"] == "<picky>"
    assert sum(len(note) for note in caught.value.__notes__) < 200_000


def test_an_error_that_cannot_be_described_is_one() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise KeyError("no")

    nasty = Nasty("n")
    assert "of the exception raised" in str(from_data(to_data(nasty, of_function=True), "callee"))
    nasty.__notes__ = 5  # type: ignore[assignment]
    found = from_data(to_data(nasty, of_function=True), "callee")
    assert (type(found), "Nasty" in str(found)) == (RuntimeError, True)


def test_results_that_are_no_failures() -> None:
    good = to_data(ValueError("v"), of_function=True)
    assert type(from_data(good, "callee")) is ValueError
    for bad in (None, [], {}, {**good, "text": 5}, {**good, "notes": [1]}, {**good, "args": {}}):
        with pytest.raises(Unreadable):
            from_data(bad, "callee")


def test_a_result_that_is_refused_has_run(join: Join) -> None:
    """So the error is not CallRefused."""
    ran: list[int] = []

    def run(result: int) -> Any:
        ran.append(1)
        return range(result) if result < 100 else bytes(result)

    join("open", {"run": run}, allow_pickle=True)
    caller = join("caller")
    with pytest.raises(NotSerializable, match=r"'open'.*allow_pickle") as raised:
        caller.rpc_sync("open", "run", 3)
    assert not isinstance(raised.value, RpcError)
    with pytest.raises(NotSerializable, match=r"allow_pickle"):
        caller.rpc_async("open", "run", 3).wait()
    with pytest.raises(NotSerializable, match=r"the result has 70,000,\d+ bytes"):
        caller.rpc_sync("open", "run", 70_000_000)
    assert len(ran) == 3


def test_an_async_function_is_run_to_its_end(join: Join) -> None:
    async def add(left: int, right: int) -> int:
        await asyncio.sleep(0)
        return left + right

    async def ask(left: int) -> list[int]:
        return await asyncio.gather(*(callee.rpc_async("caller", "back", number) for number in range(left)))

    class Server:
        async def twice(self, value: int) -> int:
            return value * 2

    async def fail() -> None:
        raise KeyError("k")

    callee = join("callee", {"add": add, "ask": ask, "Server": Server, "fail": fail}, threads=1)
    caller = join("caller", {"back": lambda number: caller.rpc_sync("callee", "add", number, 1)}, threads=1)
    assert caller.rpc_sync("callee", "add", 2, 3) == 5
    assert caller.rpc_sync("callee", "ask", 5) == [1, 2, 3, 4, 5]  # with a single thread, which it gives free meanwhile
    assert caller.remote_object("callee", "Server").twice(4) == 8
    with pytest.raises(KeyError):
        caller.rpc_sync("callee", "fail")
    until(lambda: callee._pool._free == 1, "the slot, which is released after the reply is sent")


def test_a_name_is_registered_for_one_function() -> None:
    registry = Registry()
    source = "def work(): return {}\n"
    made: list[Any] = []
    for module, file, value in [("one", "/one.py", 1), ("two", "/two.py", 2), ("__main__", "/one.py", 3)]:
        names: dict[str, Any] = {"__name__": module}
        exec(compile(source.format(value), file, "exec"), names)
        made.append(names["work"])
    first, second, again = made
    registry.add("work", first)
    with pytest.raises(InvalidArgument, match=r"'work'.*one\.work \(/one\.py:1\).*two\.work \(/two\.py:1\)"):
        registry.add("work", second)
    assert registry.function("work") is first
    registry.add("work", again)  # the same file, once by name and once as the program
    assert registry.function("work") is again

    class Thing:
        def work(self) -> None: ...

    one, other = Thing(), Thing()
    registry.add("method", one.work)
    registry.add("method", one.work)
    with pytest.raises(InvalidArgument, match="Use another name"):
        registry.add("method", other.work)
    with pytest.raises(NeuraxisError):
        registry.add("work", first, factory=True)
