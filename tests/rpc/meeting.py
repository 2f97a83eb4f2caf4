"""RPC contexts on a separate mesh per test, and waiting for a condition."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from neuraxis.rpc import RpcContext

__all__ = ["Join", "linger_after_calls", "meeting", "until"]

Join = Callable[..., RpcContext]
_meshes = itertools.count()


@contextmanager
def meeting() -> Iterator[Join]:
    """Opens contexts by name, with functions that they serve, all of which see each other. All are shut down."""
    mesh = f"rpc-meeting-{os.getpid()}-{next(_meshes)}"
    contexts: dict[str, RpcContext] = {}
    with ExitStack() as stack:

        def join(name: str, functions: dict[str, Any] | None = None, **options: Any) -> RpcContext:
            context = RpcContext(name=name, **{"mesh": mesh, "timeout": 20.0, **options})
            for title, function in (functions or {}).items():
                context.register_function(title, function)
            stack.enter_context(context)
            assert context.wait_for(contexts, 20) == []
            assert all(other.wait_for([name], 20) == [] for other in contexts.values() if other.is_initialized)
            contexts[name] = context
            return context

        yield join


def linger_after_calls(context: RpcContext, seconds: float) -> threading.Event:
    """Keep a context, when a function has ended, from telling its result for a while; set when that begins."""
    leave, left = context._pool.leave, threading.Event()

    def leave_and_linger() -> None:
        leave()
        left.set()
        time.sleep(seconds)

    context._pool.leave = leave_and_linger  # type: ignore[method-assign]
    return left


def until(true: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)
