"""A process of these tests: a rank with an RPC context and the functions of `tests.rpc.callees`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from tests.ranks.worker import CONTEXT_TIMEOUT_S, serve


def main(address: str, backend: str) -> None:
    serve(address, lambda: _start_context(backend))


def _start_context(backend: str) -> Any:
    warnings.simplefilter("error")
    import tests.rpc.callees  # noqa: F401 - registers the functions
    from neuraxis.rpc import RpcContext

    return RpcContext(backend, timeout=CONTEXT_TIMEOUT_S, threads=1).initialize()


if __name__ == "__main__":
    main(*sys.argv[1:])
