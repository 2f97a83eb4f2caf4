"""One rank of a contender: a process that measures what the benchmark requests, and blocks on a socket otherwise.

Requests arrive over a Unix socket, whichever launcher started the process (mpirun passes no descriptors on). A thread
reads them, so that the end of the benchmark, seen as the end of the stream, ends this process even in the middle of a
call that waits for a dead rank.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Client, Connection
from typing import Protocol, TypeVar

import msgspec

__all__ = ["ADDRESS", "CONTENDER", "TOKEN", "Hello", "Reply", "Request", "no_garbage_collection", "serve_rank"]

ADDRESS, CONTENDER, TOKEN = "NEURAXIS_BENCH_ADDRESS", "NEURAXIS_BENCH_CONTENDER", "NEURAXIS_BENCH_TOKEN"

_CALL_TIMEOUT_S = 60.0


class Hello(msgspec.Struct):
    """The handshake of a rank, once its group is complete or has failed."""

    token: str
    contender: str
    rank: int = -1
    problem: str = ""


class Request(msgspec.Struct):
    """A request to time `iterations` calls after `warmups`; a request without a pattern ends the rank."""

    pattern: str = ""
    size: int = 0
    iterations: int = 1
    warmups: int = 0
    check: bool = False


class Reply(msgspec.Struct):
    """The time of the calls on this rank, or why they failed; `facts` are further figures by name."""

    seconds: float = 0.0
    problem: str = ""
    facts: dict[str, float] = {}


class Member(Protocol):
    """One rank of the group that is measured."""

    rank: int

    def close(self) -> None: ...


M = TypeVar("M", bound=Member)


def serve_rank(join: Callable[[str, float], M], answer: Callable[[M, Request], Reply]) -> None:
    """Join a contender's group, send the handshake, and answer requests until one ends the rank."""
    contender = os.environ[CONTENDER]
    connection = Client(os.environ[ADDRESS], "AF_UNIX")
    hello = Hello(os.environ.pop(TOKEN), contender)
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    try:
        member = join(contender, _CALL_TIMEOUT_S)
    except Exception as error:
        hello.problem = _one_line(error)
        connection.send_bytes(msgspec.msgpack.encode(hello))
        raise SystemExit(1) from error
    hello.rank = member.rank
    connection.send_bytes(msgspec.msgpack.encode(hello))
    _serve(connection, requests, partial(answer, member))
    member.close()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable Python's cyclic garbage collector while something is timed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _serve(connection: Connection, requests: queue.SimpleQueue[Request], answer: Callable[[Request], Reply]) -> None:
    while (request := requests.get()).pattern:
        try:
            reply = answer(request)
        except Exception as error:
            reply = Reply(problem=_one_line(error))
        connection.send_bytes(msgspec.msgpack.encode(reply))


def _read(connection: Connection, requests: queue.SimpleQueue[Request]) -> None:
    while True:
        try:
            request = msgspec.msgpack.decode(connection.recv_bytes(), type=Request)
        except (EOFError, OSError):
            os._exit(1)  # the benchmark has ended; no call may keep this process
        requests.put(request)
        if not request.pattern:
            return


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
