"""Handles: objects that stay in the process that made them, used from elsewhere.

How an object is counted, and freed, is told in `ownership`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neuraxis.rpc.transport import Party

if TYPE_CHECKING:
    from neuraxis.rpc.context import RpcContext
    from neuraxis.rpc.future import RpcFuture

__all__ = ["RemoteObject"]


class RemoteObject:
    """An object of another process. Its public methods are called there; it may be sent to others, as an argument.

    counter = remote_object("server", "Counter", 5)
    counter.add(3)                      # waits, and returns what the method returned
    future = counter.add.rpc_async(4)   # does not wait

    It is freed when the last handle to it is gone, or the last process that had one.
    """

    def __init__(
        self, context: RpcContext, owner: Party, number: int, kind: str, release: Callable[[Party, int], None]
    ) -> None:
        self._context = context
        self._owner = owner
        self._number = number
        self._kind = kind
        self._finalizer = weakref.finalize(self, release, owner, number)
        self._finalizer.atexit = False  # what a process holds is released when it leaves

    def _hold_nothing(self) -> None:
        self._finalizer.detach()

    @property
    def owner(self) -> str:
        """The name of the process that has the object."""
        return self._owner.name

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):  # Python itself asks for many of these
            raise AttributeError(
                f"a remote {self._kind!r} has no attribute {name!r}: only public methods can be called"
            )
        return RemoteMethod(self, name)

    def __repr__(self) -> str:
        return f"<RemoteObject {self._kind!r}, number {self._number} of {self._owner.name!r}>"


class RemoteMethod:
    """A method of a remote object: call it to wait for its result."""

    def __init__(self, of: RemoteObject, name: str) -> None:
        self._of = of
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        of = self._of
        return of._context._call_method(of, self._name, args, kwargs)

    def rpc_async(self, *args: Any, **kwargs: Any) -> RpcFuture:
        of = self._of
        return of._context._start_method(of, self._name, args, kwargs)

    def __repr__(self) -> str:
        return f"<method {self._name!r} of {self._of!r}>"
