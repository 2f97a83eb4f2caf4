"""Remote objects: handles to objects that stay in the process that created them, with reference counting.

The owner of an object counts the references of each holder. A process that sends a handle first has the owner add a
reference for the receiver, while it holds one itself. So an object in transit always has a reference. A process
releases its reference when it has no handle left; the owner releases the references of dead processes.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from neuraxis.errors import CallRefused, UnknownFunction
from neuraxis.rpc.calls import Calls
from neuraxis.rpc.messages import Operation
from neuraxis.rpc.transport import Endpoint
from neuraxis.rpc.values import HandleData

if TYPE_CHECKING:
    from neuraxis.rpc.context import RpcContext
    from neuraxis.rpc.future import RpcFuture

__all__ = ["ObjectTable", "References", "RemoteObject"]

_MAX_HOLDERS = 10_000  # of one object
_MAX_UNCONFIRMED = 1000  # endpoints that were sent a handle by one holder and have not used it yet


class _Entry:
    def __init__(self, value: Any, kind: str) -> None:
        self.value = value
        self.kind = kind
        self.holders: Counter[Endpoint] = Counter()
        # (giver, holder) of references that the holder has not used yet: until then the giver may revoke them.
        self.unconfirmed: Counter[tuple[Endpoint, Endpoint]] = Counter()

    def confirm(self, holder: Endpoint) -> None:
        """Note that a holder has used its reference, so that no other endpoint can release it."""
        for pair in [pair for pair in self.unconfirmed if pair[1] == holder]:
            del self.unconfirmed[pair]

    def unconfirmed_of(self, giver: Endpoint) -> int:
        """Return the number of unconfirmed holders from `giver`; 0 if there are few in total."""
        if len(self.unconfirmed) < _MAX_UNCONFIRMED:
            return 0
        return sum(pair[0] == giver for pair in self.unconfirmed)


class ObjectTable:
    """The objects of a process by number, with their references. An object is freed with its last reference.

    Only holders may use an object and pass it on. A holder releases its own references; a giver may revoke a reference
    that the receiver has not used yet, because the message that carried the handle may have failed.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, value: Any, kind: str, holder: Endpoint) -> int:
        """Add an object with one reference; return its number."""
        entry = _Entry(value, kind)
        entry.holders[holder] = 1
        with self._lock:
            number = next(self._numbers)
            self._entries[number] = entry
            return number

    def method(self, number: int, name: str, caller: Endpoint) -> Any:
        """Return a public method of an object, for one of its holders."""
        entry = self._entry(number)
        self._check_holder(entry, number, caller)
        if entry.unconfirmed:
            with self._lock:
                entry.confirm(caller)
        if name.startswith("_"):
            raise CallRefused(f"{name!r} of a {entry.kind!r} is private. Call public methods only")
        # Methods of its class only: other attributes (a module, another function) were not meant to be called.
        if not callable(getattr(type(entry.value), name, None)):
            raise AttributeError(f"a {entry.kind!r} has no method {name!r}")
        return getattr(entry.value, name)

    def retain(self, number: int, holder: Endpoint, giver: Endpoint) -> None:
        """Add a reference for `holder`, to which `giver`, a holder itself, is about to send a handle."""
        with self._lock:
            entry = self._entry(number)
            self._check_holder(entry, number, giver)
            if holder not in entry.holders and len(entry.holders) >= _MAX_HOLDERS:
                raise CallRefused(f"object {number} has {_MAX_HOLDERS:,} holders. Release some before it is sent on")
            is_new = giver != holder and (giver, holder) not in entry.unconfirmed
            if is_new and entry.unconfirmed_of(giver) >= _MAX_UNCONFIRMED:
                raise CallRefused(
                    f"{giver.name!r} has sent object {number} to {_MAX_UNCONFIRMED:,} processes that have not used it "
                    "yet. Wait until some have"
                )
            entry.holders[holder] += 1
            if giver != holder:
                entry.unconfirmed[giver, holder] += 1

    def release(self, number: int, holder: Endpoint, sender: Endpoint) -> None:
        """Remove a reference of `holder`, on behalf of `sender`: the holder itself, or the giver of the reference.

        Raises
        ------
        CallRefused
            The sender is neither of them.
        """
        with self._lock:
            entry = self._entries.get(number)
            if entry is None or holder not in entry.holders:
                return
            if sender == holder:
                entry.confirm(holder)
            elif entry.unconfirmed[sender, holder] > 0:
                entry.unconfirmed[sender, holder] -= 1
                if not entry.unconfirmed[sender, holder]:
                    del entry.unconfirmed[sender, holder]
            else:
                raise CallRefused(f"{sender.name!r} cannot release a reference of {holder.name!r}")
            entry.holders[holder] -= 1
            if entry.holders[holder] <= 0:
                del entry.holders[holder]
            freed = None if entry.holders else self._entries.pop(number)
        del freed  # outside of the lock, since its finalizer may do anything

    def _check_holder(self, entry: _Entry, number: int, endpoint: Endpoint) -> None:
        if endpoint not in entry.holders:
            raise CallRefused(f"{endpoint.name!r} holds no reference to object {number}")

    def endpoints(self) -> set[Endpoint]:
        """Return all holders of references."""
        with self._lock:
            return {holder for entry in self._entries.values() for holder in entry.holders}

    def forget(self, endpoint: Endpoint) -> None:
        """Release all references of an endpoint that is gone."""
        freed = []
        with self._lock:
            for number, entry in list(self._entries.items()):
                entry.confirm(endpoint)
                if entry.holders.pop(endpoint, 0) and not entry.holders:
                    freed.append(self._entries.pop(number))
        freed.clear()

    def clear(self) -> None:
        with self._lock:
            freed, self._entries = self._entries, {}
        freed.clear()

    def _entry(self, number: int) -> _Entry:
        entry = self._entries.get(number)
        if entry is None:
            raise UnknownFunction(f"there is no object with the number {number}, or it was freed")
        return entry


class RemoteObject:
    """A handle to an object of another process, as returned by `remote_object`.

    Its public methods run in that process. It may be sent to others as an argument or result. The object is freed when
    no process has a handle any more.

    Examples
    --------
    >>> from collections import Counter
    >>> from neuraxis.rpc import RpcContext
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("Counter", Counter)
    ...     counter = context.remote_object("rank0", "Counter", "banana")
    ...     counter.update("bandana")  # waits, and returns the result of the method
    ...     future = counter.most_common.rpc_async(1)
    ...     future.wait(timeout=10.0)
    [('a', 6)]
    """

    def __init__(
        self, context: RpcContext, owner: Endpoint, number: int, kind: str, release: Callable[[Endpoint, int], None]
    ) -> None:
        self._context = context
        self._owner = owner
        self._number = number
        self._kind = kind
        self._finalizer = weakref.finalize(self, release, owner, number)
        self._finalizer.atexit = False  # the references of a process are released when it leaves

    def _detach(self) -> None:
        """Disable the finalizer, so that this handle releases no reference."""
        self._finalizer.detach()

    @property
    def owner(self) -> str:
        """The name of the process that owns the object."""
        return self._owner.name

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):  # Python itself looks up many of these
            raise AttributeError(f"a remote {self._kind!r} has no attribute {name!r}. Call public methods only")
        return RemoteMethod(self, name)

    def __repr__(self) -> str:
        return f"<RemoteObject {self._kind!r}, number {self._number} of {self._owner.name!r}>"


class RemoteMethod:
    """A method of a remote object: a call waits for its result, `rpc_async` returns a future."""

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


class References:
    """The handles of one context. `calls` is set during initialization."""

    handle_type: type = RemoteObject

    def __init__(self, context: RpcContext, table: ObjectTable) -> None:
        self._context = weakref.ref(context)
        self._objects = table
        self.calls: Calls | None = None

    def created(self, number: int, kind: str) -> RemoteObject:
        """Return the handle of an object that was just created here, with its first reference."""
        return self._handle(self._open_calls().me, number, kind)

    def describe(self, handle: RemoteObject) -> HandleData:
        return HandleData(handle._owner.name, handle._owner.incarnation, handle._number, handle._kind)

    def retain_for(self, handles: Sequence[RemoteObject], endpoint: Endpoint) -> None:
        calls = self._open_calls()
        retained: list[RemoteObject] = []
        try:
            for handle in handles:
                if handle._owner == calls.me:
                    self._objects.retain(handle._number, endpoint, calls.me)
                else:
                    calls.control(
                        handle._owner, Operation.RETAIN, [handle._number, endpoint.name, endpoint.incarnation]
                    )
                retained.append(handle)
        except BaseException:
            for handle in retained:
                self._release(handle._owner, handle._number, endpoint)
            raise

    def adopt(self, data: HandleData) -> RemoteObject:
        return self._handle(Endpoint(data.owner, data.incarnation), data.number, data.kind)

    def detach(self, handle: RemoteObject) -> None:
        handle._detach()

    def release(self, data: HandleData) -> None:
        self._release(Endpoint(data.owner, data.incarnation), data.number, self._open_calls().me)

    def _handle(self, owner: Endpoint, number: int, kind: str) -> RemoteObject:
        context = self._context()
        assert context is not None  # the caller is one of its threads
        return RemoteObject(context, owner, number, kind, _releaser(self))

    def _release(self, owner: Endpoint, number: int, holder: Endpoint) -> None:
        calls = self.calls
        if calls is not None:
            calls.notify(owner, Operation.RELEASE, [number, holder.name, holder.incarnation])

    def _open_calls(self) -> Calls:
        assert self.calls is not None  # frames are written and read by initialized contexts
        return self.calls


def _releaser(references: References) -> Callable[[Endpoint, int], None]:
    """Return a function that releases a reference; as part of a finalizer it must not keep the context alive."""
    weak = weakref.ref(references)

    def release(owner: Endpoint, number: int) -> None:
        alive = weak()
        if alive is not None and alive.calls is not None:
            alive._release(owner, number, alive.calls.me)

    return release
