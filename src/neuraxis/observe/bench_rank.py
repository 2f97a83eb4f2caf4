"""One rank of a contender: a process that measures what its parent asks for, and sleeps otherwise.

Requests come over a Unix socket, whatever launcher started the process (mpirun passes no descriptors on).
They are read by a thread of their own, so that the parent's end, noticed as the end of the stream, ends this
process even in the middle of a call that waits for a rank which is gone.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from multiprocessing.connection import Client, Connection
from typing import Protocol, TypeVar

import msgspec

from neuraxis.observe.bench_calls import Calls, open_calls
from neuraxis.observe.bench_patterns import Buffers

__all__ = ["ADDRESS", "CONTENDER", "TOKEN", "Ask", "Hello", "Reply", "main", "serve_rank"]

ADDRESS, CONTENDER, TOKEN = "NEURAXIS_BENCH_ADDRESS", "NEURAXIS_BENCH_CONTENDER", "NEURAXIS_BENCH_TOKEN"

_CALL_LIMIT_S = 60.0


class Hello(msgspec.Struct):
    """A rank's first words, once its group is complete or has failed."""

    token: str
    contender: str
    rank: int = -1
    problem: str = ""


class Ask(msgspec.Struct):
    """Measure `iterations` calls, after `warmups` that do not count; no pattern means: end."""

    pattern: str = ""
    size: int = 0
    iterations: int = 1
    warmups: int = 0
    check: bool = False


class Reply(msgspec.Struct):
    """How long the calls took on this rank, or why they failed. `facts`: what else there is to tell, by name."""

    seconds: float = 0.0
    problem: str = ""
    facts: dict[str, float] = {}


class Member(Protocol):
    """One rank's membership in what is measured."""

    rank: int

    def close(self) -> None: ...


M = TypeVar("M", bound=Member)


def main() -> None:
    serve_rank(open_calls, _measure)


def serve_rank(join: Callable[[str, float], M], answer: Callable[[M, Ask], Reply]) -> None:
    """Join a contender's group, say so, and answer what is asked until the end is asked for."""
    contender = os.environ[CONTENDER]
    connection = Client(os.environ[ADDRESS], "AF_UNIX")
    hello = Hello(os.environ.pop(TOKEN), contender)
    asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, asks), daemon=True).start()
    try:
        member = join(contender, _CALL_LIMIT_S)
    except Exception as error:
        hello.problem = _one_line(error)
        connection.send_bytes(msgspec.msgpack.encode(hello))
        raise SystemExit(1) from error
    hello.rank = member.rank
    connection.send_bytes(msgspec.msgpack.encode(hello))
    _serve(connection, asks, partial(answer, member))
    member.close()


def _serve(connection: Connection, asks: queue.SimpleQueue[Ask], answer: Callable[[Ask], Reply]) -> None:
    while (ask := asks.get()).pattern:
        try:
            reply = answer(ask)
        except Exception as error:
            reply = Reply(problem=_one_line(error))
        connection.send_bytes(msgspec.msgpack.encode(reply))


def _read(connection: Connection, asks: queue.SimpleQueue[Ask]) -> None:
    while True:
        try:
            ask = msgspec.msgpack.decode(connection.recv_bytes(), type=Ask)
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone; no call may keep this process, and nobody reads its status
        asks.put(ask)
        if not ask.pattern:
            return


def _measure(calls: Calls, ask: Ask) -> Reply:
    buffers = Buffers(ask.pattern, ask.size, calls.ranks, calls.rank)
    operation = calls.operation(buffers)
    buffers.fill()
    # The first call finds cold caches and new pages, and sometimes a kernel to load; it never counts.
    operation()
    if ask.check:
        buffers.check()
    buffers.clear()
    for _ in repeat(None, ask.warmups):
        operation()
    # Ranks that only watch a ping-pong must not spin in a barrier meanwhile: they may share its cores.
    meet = operation if ask.pattern == "send_recv" else calls.barrier
    collecting = gc.isenabled()
    gc.disable()
    try:
        meet()
        start = time.perf_counter()
        for _ in repeat(None, ask.iterations):
            operation()
        seconds = time.perf_counter() - start
        meet()  # not in the time: an MPI library may need one more call to deliver what it has buffered
    finally:
        if collecting:
            gc.enable()
    return Reply(seconds)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
