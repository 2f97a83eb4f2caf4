"""The process's RPC context, and its calls as flat functions."""

from __future__ import annotations

from typing import Any

from neuraxis.errors import NotInitialized
from neuraxis.rpc.context import RpcContext, open_contexts
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.handles import RemoteObject

__all__ = ["current_rpc_context", "init_rpc", "remote_object", "rpc_async", "rpc_sync"]


def init_rpc(
    backend: str = "zenoh",
    init_method: str | None = None,
    world_size: int = -1,
    rank: int = -1,
    timeout: float = 1800.0,
    **options: Any,
) -> RpcContext:
    """Start an RPC context and return it; see RpcContext for the arguments."""
    return RpcContext(backend, init_method, world_size, rank, timeout, **options).initialize()


def current_rpc_context() -> RpcContext:
    """The context that was initialized last in this process and is not shut down; NotInitialized if there is none."""
    if not open_contexts:
        raise NotInitialized(
            "there is no RPC context in this process: call init_rpc() first, or use `with RpcContext():`"
        )
    return open_contexts[-1]


def rpc_sync(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that another rank or node has registered, and return its result."""
    return current_rpc_context().rpc_sync(dst, name, *args, **kwargs)


def rpc_async(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RpcFuture:
    """Call it without waiting: a future."""
    return current_rpc_context().rpc_async(dst, name, *args, **kwargs)


def remote_object(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RemoteObject:
    """Make an object by a class or factory that `dst` has registered; it stays there, and is used from here."""
    return current_rpc_context().remote_object(dst, name, *args, **kwargs)
