"""A process that serves `callees` until it is killed."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(name: str, mesh: str) -> None:
    import tests.rpc.callees  # noqa: F401  (what can be called)
    from neuraxis.rpc import RpcContext

    with RpcContext(name=name, mesh=mesh, timeout=20.0) as context:
        context.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
