"""Who holds the objects that handles stand for.

The owner counts who holds an object. Whoever sends a handle first has the owner count whom it is sent to, while it
holds the object itself: so there is no moment at which nobody holds one that is on its way. A handle that is no longer
used anywhere in a process is released; what a dead process held is released for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neuraxis.rpc.calls import Calls
from neuraxis.rpc.handles import RemoteObject
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.messages import Operation
from neuraxis.rpc.transport import Party
from neuraxis.rpc.values import HandleData

if TYPE_CHECKING:
    from neuraxis.rpc.context import RpcContext

__all__ = ["Ownership"]


class Ownership:
    """The handles of one context. `calls` is set when there are any."""

    handle_type: type = RemoteObject

    def __init__(self, context: RpcContext, kept: Kept) -> None:
        self._context = weakref.ref(context)
        self._kept = kept
        self.calls: Calls | None = None

    def made(self, number: int, kind: str) -> RemoteObject:
        """The handle of an object that was just made here, which this process holds by it."""
        return self._handle(self._open_calls().me, number, kind)

    def describe(self, handle: RemoteObject) -> HandleData:
        return HandleData(handle._owner.name, handle._owner.life, handle._number, handle._kind)

    def hold_for(self, handles: Sequence[RemoteObject], party: Party) -> None:
        calls = self._open_calls()
        held: list[RemoteObject] = []
        try:
            for handle in handles:
                if handle._owner == calls.me:
                    self._kept.hold(handle._number, party)
                else:
                    calls.control(handle._owner, Operation.HOLD, [handle._number, party.name, party.life])
                held.append(handle)
        except BaseException:
            for handle in held:
                self._release(handle._owner, handle._number, party)
            raise

    def adopt(self, data: HandleData) -> RemoteObject:
        return self._handle(Party(data.owner, data.life), data.number, data.kind)

    def disown(self, handle: RemoteObject) -> None:
        handle._hold_nothing()

    def let_go(self, data: HandleData) -> None:
        self._release(Party(data.owner, data.life), data.number, self._open_calls().me)

    def _handle(self, owner: Party, number: int, kind: str) -> RemoteObject:
        context = self._context()
        assert context is not None  # who calls is one of its threads
        return RemoteObject(context, owner, number, kind, _releaser(self))

    def _release(self, owner: Party, number: int, holder: Party) -> None:
        calls = self.calls
        if calls is not None:
            calls.tell(owner, Operation.RELEASE, [number, holder.name, holder.life])

    def _open_calls(self) -> Calls:
        assert self.calls is not None  # frames are written and read by initialized contexts
        return self.calls


def _releaser(ownership: Ownership) -> Callable[[Party, int], None]:
    """Lets go of an object, unless the context is gone: a finalizer must not keep it alive."""
    weak = weakref.ref(ownership)

    def release(owner: Party, number: int) -> None:
        alive = weak()
        if alive is not None and alive.calls is not None:
            alive._release(owner, number, alive.calls.me)

    return release
