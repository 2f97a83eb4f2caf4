"""Functions and objects that the processes of these tests serve."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from neuraxis.errors import PeerLost
from neuraxis.rpc import RemoteObject, current_rpc_context, remote, remote_object, rpc_sync

counts: dict[str, int] = {}
_gates: dict[str, threading.Event] = {}
_lock = threading.Lock()


def gate(name: str) -> threading.Event:
    with _lock:
        return _gates.setdefault(name, threading.Event())


@remote
def echo(value: Any) -> Any:
    return value


@remote
def describe(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@remote(name="renamed")
def add(left: int, right: int = 10) -> int:
    return left + right


@remote
def name() -> str:
    return current_rpc_context().name


@remote
def pid() -> int:
    return os.getpid()


@remote
def count(what: str) -> int:
    with _lock:
        counts[what] = counts.get(what, 0) + 1
        return counts[what]


@remote
def counted(what: str) -> int:
    return counts.get(what, 0)


@remote
def ping_pong(left: int, me: int, other: int) -> list[int]:
    """Calls back and forth, with a single thread on each side."""
    return [me] if left == 0 else [me, *rpc_sync(other, "ping_pong", left - 1, other, me)]


@remote
def around(ranks: list[int]) -> list[str]:
    here = current_rpc_context().name
    return [here] if not ranks else [here, *rpc_sync(ranks[0], "around", ranks[1:])]


@remote
def wait_at(name: str) -> str:
    """Runs until it is let through, with its place in the pool."""
    assert gate(name).wait(20)
    return name


@remote
def wait_at_gate_of(rank: int, name: str) -> str:
    """Waits for a call of its own, so it has no place in the pool."""
    return str(rpc_sync(rank, "wait_at", name))


@remote
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@remote
def fall_asleep(seconds: float) -> None:
    gate("asleep").set()
    time.sleep(seconds)


@remote
def die() -> None:
    time.sleep(0.3)  # this process has a request of the test, too, and must have replied to it
    os.kill(os.getpid(), signal.SIGKILL)


@remote
def exit_now() -> None:
    raise SystemExit(3)


@remote
def stop() -> str:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)  # this thread may run on for a moment, while another one takes the signal
    return "went on"


class Own(Exception):
    """An exception that callers do not have."""


class Odd(ValueError):
    """A built-in one's child: no built-in one itself."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")


@remote
def fail(kind: str) -> None:
    if kind == "chained":
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("the second") from error
    errors: dict[str, BaseException] = {
        "key": KeyError("k"),
        "value": ValueError("v", 2),
        "os": FileNotFoundError(2, "No such file", "/nowhere"),
        "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "stop": StopIteration(7),
        "lost": PeerLost("rank 7 is gone", rank=7, signal=9, operation="barrier", sequence=4),
        "own": Own("mine"),
        "odd": Odd(1, 2),
        "interrupt": KeyboardInterrupt("no"),
        "surrogate": ValueError("\udc80"),
        "unsendable": ValueError(object()),
        "group": ExceptionGroup("several", [ValueError(1)]),
    }
    raise errors[kind]


@remote
def unsendable() -> object:
    return object()


@remote
def many_bytes(size: int) -> bytes:
    return bytes(size)


@remote
class Counter:
    """An object that stays where it is."""

    alive = 0

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.helper = os.getpid  # not of the class: not to be called
        Counter.alive += 1

    def __del__(self) -> None:
        Counter.alive -= 1

    def add(self, by: int = 1) -> int:
        self.value += by
        return self.value

    def keep(self, other: RemoteObject | None) -> None:
        self.other = other

    def fail(self) -> None:
        raise LookupError("of the counter")

    def _secret(self) -> str:
        return "secret"


@remote(factory=True)
def make_counter(value: int) -> Counter:
    return Counter(value)


@remote
def counters() -> int:
    return Counter.alive


_held: list[RemoteObject] = []


@remote
def add_to(counter: RemoteObject, by: int) -> int:
    return int(counter.add(by))


@remote
def hold(counter: RemoteObject) -> None:
    _held.append(counter)


@remote
def let_go() -> None:
    _held.clear()


@remote
def give() -> RemoteObject:
    return _held[0]


@remote
def make_at(rank: int, value: int) -> RemoteObject:
    return remote_object(rank, "Counter", value)


@remote
def hold_one_of(rank: int) -> None:
    _held.append(remote_object(rank, "Counter"))


_extremes: list[list[float]] = []


@remote
def keep_extremes(array: Any) -> None:
    _extremes.append([float(array.min()), float(array.max())])


@remote
def extremes() -> list[list[float]]:
    return _extremes


@remote
def slow_counter(name: str) -> RemoteObject:
    made = remote_object(current_rpc_context().name, "Counter")
    wait_at(name)
    count("slow counters")
    return made


@remote
def call_on(rank: int, what: str) -> Any:
    return rpc_sync(rank, what)
