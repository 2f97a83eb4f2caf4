"""A process of these tests: it connects to the test, starts its RPC context, and calls what it is told to."""

from __future__ import annotations

import multiprocessing.connection as mpc
import os
import socket
import sys
import traceback
import warnings

from tests.crew.worker import _answer, _next

TIMEOUT_S = 30.0


def main(address: str, backend: str) -> None:
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    connection = mpc.Connection(stream.detach())
    connection.send(int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]))
    warnings.simplefilter("error")
    try:
        import tests.rpc.callees  # noqa: F401  (what can be called)
        from neuraxis.rpc import RpcContext

        context = RpcContext(backend, timeout=TIMEOUT_S, threads=1).initialize()
    except BaseException:
        connection.send((False, traceback.format_exc()))
        raise
    connection.send((True, None))
    with context:
        while (order := _next(connection)) is not None:
            connection.send(_answer(context, *order))


if __name__ == "__main__":
    main(*sys.argv[1:])
