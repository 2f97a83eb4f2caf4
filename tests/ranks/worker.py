"""One rank of a rank group: connect to the test, start a context, and call the requested functions."""

from __future__ import annotations

import importlib
import multiprocessing.connection as mpc
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["CONTEXT_TIMEOUT_S", "main", "serve"]

CONTEXT_TIMEOUT_S = 30.0


def main(address: str, backend: str) -> None:
    serve(address, lambda: _start_context(backend))


def _start_context(backend: str) -> Any:
    from neuraxis.comm import DistributedContext

    return DistributedContext(backend, timeout=CONTEXT_TIMEOUT_S).initialize()


def serve(address: str, start_context: Callable[[], Any]) -> None:
    """Connect to the test at `address` and call functions for it, with the context that `start_context` returns."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    connection = mpc.Connection(stream.detach())
    connection.send(int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]))
    try:
        context = start_context()
    except BaseException:
        connection.send((False, traceback.format_exc()))
        raise
    connection.send((True, None))
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "ComplexHalf support is experimental")  # torch's complex32
    with context:
        while (order := _next(connection)) is not None:
            connection.send(_answer(context, *order))


def _next(connection: Any) -> Any:
    try:
        return connection.recv()
    except EOFError:  # the test process is gone
        return None


def _answer(context: Any, module: str, name: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return True, function(context, *arguments)  # type: ignore[operator]
    except BaseException:
        return False, traceback.format_exc()


if __name__ == "__main__":
    main(*sys.argv[1:])
