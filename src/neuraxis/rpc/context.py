"""The RPC context: a process that calls and can be called.

Data flows one way: a call is written as bytes here (`values`), carried by a transport, run by the other side's
`server`, and its reply read here. The transports differ in whom they reach; what a call means is the same on all.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import (
    AlreadyInitialized,
    CalleeDied,
    CallRefused,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
    RendezvousTimeout,
)
from neuraxis.mesh import Topology
from neuraxis.rpc.backends import BACKENDS, Options, open_transport
from neuraxis.rpc.failures import from_data
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.handles import RemoteObject
from neuraxis.rpc.housekeeping import Housekeeping
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import CONTROL_OPERATIONS, Kind, Operation, read_head, read_reply
from neuraxis.rpc.numbers import Numbers
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.registry import Registry, everywhere
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Party, Request, Transport
from neuraxis.rpc.values import Values
from neuraxis.rpc.world import find_world

__all__ = ["BACKENDS", "RpcContext", "open_contexts"]

_CONTROL_S = 10.0  # for what the other side does at once
_END_S = 2.0  # how long functions that run are waited for when a context ends
_LOOK_S = 0.02


class RpcContext:
    """This process among those that call each other; a context manager.

    Args:
        backend: "zenoh" (the default: ranks, and nodes that come and go, on this machine or many), "shm" (the fastest,
            for the ranks of one host), "gloo", "mpi", or "tensorpipe" (torch.distributed.rpc). The default is not
            "tensorpipe" because that needs torch, a number of ranks that never changes, and trust in every one of
            them: it unpickles what they send, before anybody is asked.
        init_method: where the parties meet. zenoh: nothing for peers on this machine, "tcp://host:port" or
            "tls://host:port" for a router. The others: as in `DistributedContext`.
        world_size, rank: how many ranks there are and which one this is; -1 asks the launcher's variables. Without
            any, this is a node of an open world (zenoh only), which others join and leave.
        timeout: the deadline of every call, and of the meeting, in seconds.
        name: by which others call this process; "rank<r>" by default, or one made of host and process.
        threads: how many calls are served at the same time.
        allow_pickle: whether values that are no plain data, arrays or tensors may be pickled; both sides must allow it.
            Whoever can call this process can then run code in it.
        mesh, topology: zenoh only: the mesh, and how it is reached, as of `neuraxis.mesh.Node`.
    """

    def __init__(
        self,
        backend: str = "zenoh",
        init_method: str | None = None,
        world_size: int = -1,
        rank: int = -1,
        timeout: float = 1800.0,
        *,
        name: str | None = None,
        threads: int = 8,
        allow_pickle: bool = False,
        mesh: str | None = None,
        topology: Topology | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise InvalidArgument(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
            raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InvalidArgument(f"threads={threads!r}: a number of threads, 1 or more, is expected")
        if backend != "zenoh" and (mesh is not None or topology is not None):
            raise InvalidArgument(f"mesh and topology are for the backend zenoh, not for {backend!r}")
        self.backend = backend
        self.timeout = float(timeout)
        self.threads = threads
        self.allow_pickle = allow_pickle
        self._world = find_world(rank, world_size, init_method)
        self._options = Options(self._world, init_method, self.timeout, name, threads, mesh, topology)
        self._registry = Registry(everywhere)
        self._kept = Kept()
        self._numbers = Numbers()
        self._threads = Threads("neuraxis rpc call")
        self._values = Values(allow_pickle, RemoteObject, self._export, self._adopt)
        self._transport: Transport | None = None
        self._done: set[Party] = set()  # ranks that have no more calls to make
        self._ended = threading.Event()
        self._ending = threading.Lock()

    def __repr__(self) -> str:
        if self._transport is None:
            return f"<RpcContext, backend {self.backend!r}, not initialized>"
        return (
            f"<RpcContext {self._transport.me.name!r}, backend {self.backend!r}{', shut down' * self._ended.is_set()}>"
        )

    # --- life -------------------------------------------------------------------------------------------------

    def initialize(self) -> RpcContext:
        """Meet the others, and call and be called from now on. In a world of ranks it returns when all are there."""
        if self._transport is not None:
            raise AlreadyInitialized("this RPC context is initialized already; after shutdown() make a new one")
        transport = open_transport(self.backend, self._options)
        self._pid = os.getpid()
        self._transport = transport
        try:
            self._values.me = transport.me
            self._largest = transport.largest
            self._pool = Pool(self.threads, transport.place_given_back)
            self._server = Server(
                transport.me,
                self._registry,
                self._values,
                self._kept,
                transport.largest,
                self._handle_for,
                self._done.add,
            )
            self._housekeeping = Housekeeping(self._kept, transport.is_gone)
            open_contexts.append(self)
            transport.serve(self._server, self._pool, self.threads)
            if not self._world.is_open:
                self._meet(transport)
        except BaseException:
            self.shutdown(graceful=False)
            raise
        return self

    def _meet(self, transport: Transport) -> None:
        missing = transport.wait_for(range(self._world.size), self.timeout)
        if missing:
            ranks = tuple(rank for rank in missing if isinstance(rank, int))
            raise RendezvousTimeout(f"ranks {list(ranks)} have not come within {self.timeout:g} s", ranks)

    def shutdown(self, graceful: bool | None = None) -> None:
        """Leave, and free everything. A second call does nothing.

        Calls that are being served get two seconds to end; what was called from here and has not ended ends with
        CallCancelled. `graceful`, the default in a world of ranks, goes on serving until every rank has come here, or
        is gone.
        """
        if self._transport is None or os.getpid() != self._pid:
            return
        if not self._ending.acquire(blocking=False):
            self._ended.wait(self.timeout)
            return
        try:
            if not self._world.is_open and graceful is not False:
                self._wait_until_all_are_done(self._transport)
            if hasattr(self, "_housekeeping"):
                self._transport.refuse()
                self._pool.wait_until_empty(_END_S)
                self._housekeeping.close(_END_S)
        finally:
            self._ended.set()
            if self in open_contexts:
                open_contexts.remove(self)
            self._transport.close()
            self._kept.clear()

    def _wait_until_all_are_done(self, transport: Transport) -> None:
        others: dict[int, Party] = {}
        for rank in range(self._world.size):
            if rank != self._world.rank:
                try:
                    others[rank] = transport.find(rank)
                    self._control(others[rank], Operation.DONE, [])
                except (ConnectionError, TimeoutError, PermissionError):
                    pass  # it is gone
        deadline = time.monotonic() + self.timeout
        while any(party not in self._done and not transport.is_gone(party) for party in others.values()):
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_S)

    def serve_forever(self) -> None:
        """Serve until `shutdown` is called in another thread, or Ctrl-C is pressed."""
        self._check()
        try:
            while not self._ended.wait(0.5):
                pass
        except KeyboardInterrupt:
            self.shutdown(graceful=False)

    def __enter__(self) -> RpcContext:
        return self if self.is_initialized else self.initialize()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown(graceful=None if kind is None else False)

    @property
    def is_initialized(self) -> bool:
        return self._transport is not None and not self._ended.is_set()

    # --- what it knows ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """By which others call this process."""
        return self._check().me.name

    @property
    def rank(self) -> int:
        """-1 in an open world."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """-1 in an open world."""
        return self._world.size

    def names(self) -> list[str]:
        """Who is here and can be called, by name."""
        return self._check().names()

    def wait_for(self, names: Iterable[int | str], timeout: float | None = None) -> list[int | str]:
        """Wait until others are here; those that have not come in time."""
        return self._check().wait_for(names, self.timeout if timeout is None else timeout)

    @property
    def objects_kept(self) -> int:
        """How many objects of this process are held by somebody."""
        return len(self._kept)

    # --- what others may call ---------------------------------------------------------------------------------

    def register_function(self, name: str, func: Callable[..., Any]) -> None:
        """Let others call `func` in this context as `name`. A class is registered as a factory of remote objects."""
        self._registry.add(name, func)

    def register_factory(self, name: str, factory: Callable[..., Any]) -> None:
        """Let others make objects here with `factory`, which stay here: see `remote_object`."""
        self._registry.add(name, factory, factory=True)

    # --- to call ----------------------------------------------------------------------------------------------

    def rpc_sync(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that another rank or node has registered, and return its result."""
        return self.call(dst, name, args, kwargs)

    def rpc_async(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RpcFuture:
        """Call it without waiting. What cannot be sent is an error here, everything else one of the future."""
        return self.call_async(dst, name, args, kwargs)

    def call(
        self,
        dst: int | str,
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """As `rpc_sync`, with a deadline of its own."""
        return self._call(self._check().find(_checked(dst)), Operation.CALL, name, args, kwargs, timeout)

    def call_async(
        self,
        dst: int | str,
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> RpcFuture:
        """As `rpc_async`, with a deadline of its own."""
        transport = self._check()
        try:
            party = transport.find(_checked(dst))
        except ConnectionError as error:
            future = self._future(str(dst), name)
            future.finish(None, error)
            return future
        return self._start(party, Operation.CALL, name, args, kwargs, timeout)

    def remote_object(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RemoteObject:
        """Make an object by a class or factory that `dst` has registered; it stays there, and is used from here."""
        made = self._call(self._check().find(_checked(dst)), Operation.MAKE, name, args, kwargs, None)
        assert isinstance(made, RemoteObject)
        return made

    def _call_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._call(of._owner, Operation.METHOD, name, [of._number, *args], kwargs, None)

    def _start_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> RpcFuture:
        return self._start(of._owner, Operation.METHOD, name, [of._number, *args], kwargs, None, keep=of)

    def _call(
        self,
        to: Party,
        operation: Operation,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        timeout: float | None,
    ) -> Any:
        transport = self._check()
        with self._numbers.one() as (number, settled):
            request = self._request(to, number, settled, operation, name, args, kwargs, _limit(timeout, self.timeout))
            if to == transport.me:
                reply = self._answer_here(request)
            else:
                with self._pool.waiting():
                    reply = transport.call(request)
        return self._read(reply, to)

    def _answer_here(self, request: Request) -> bytes:
        """Call a function of this process: as any other, by bytes, and with a place in the pool."""
        frame = request.write(INBOX).joined()
        with self._pool.waiting():
            self._pool.enter()
            try:
                answer = self._server.control if request.is_control else self._server.answer
                return answer(frame, read_head(frame)).joined()
            finally:
                self._pool.leave()

    def _start(
        self,
        to: Party,
        operation: Operation,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        timeout: float | None,
        keep: Any = None,
    ) -> RpcFuture:
        transport = self._check()
        number, settled = self._numbers.take()
        future = self._future(to.name, name, lambda: self._cancel(to, number))
        future.sent = keep, args, kwargs  # handles among them are held until the call is over

        def done(reply: Any, error: BaseException | None) -> None:
            result = None
            self._numbers.settle(number)
            if error is None and not future.cancelled():
                try:
                    result = self._read(reply, to)
                except BaseException as raised:
                    error = raised
            future.sent = None
            future.finish(result, error)

        try:
            request = self._request(to, number, settled, operation, name, args, kwargs, _limit(timeout, self.timeout))
            if to == transport.me:
                self._threads.run(lambda: self._finish_here(request, done))
            else:
                transport.start(request, done)
        except BaseException:
            self._numbers.settle(number)
            raise
        return future

    def _finish_here(self, request: Request, done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            reply = self._answer_here(request)
        except BaseException as error:
            done(None, error)
        else:
            done(reply, None)

    def _future(self, callee: str, name: str, on_cancel: Callable[[], None] = lambda: None) -> RpcFuture:
        return RpcFuture(callee, f"{name!r} of {callee!r}", on_cancel, self._pool.waiting)

    def _cancel(self, to: Party, number: int) -> None:
        self._housekeeping.do(lambda: self._control(to, Operation.CANCEL, [number]))

    def _request(
        self,
        to: Party,
        number: int,
        settled: int,
        operation: Operation,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None,
        timeout: float,
    ) -> Request:
        if not isinstance(name, str):
            raise InvalidArgument(f"name={name!r}: the name of a registered function is expected")
        is_control = operation in CONTROL_OPERATIONS
        kind = Kind.CONTROL if is_control else Kind.CALL
        value = [int(operation), name, list(args), kwargs or {}]

        def write(lane: int) -> Frame:
            frame = self._values.encode(kind, lane, number, settled, value, to)
            if len(frame) > self._largest:
                raise InvalidArgument(
                    f"{name!r}: the arguments have {len(frame):,} bytes; over {self.backend} a message has "
                    f"{self._largest:,} at most"
                )
            return frame

        return Request(to, number, is_control, write, timeout)

    def _read(self, reply: Any, sender: Party) -> Any:
        try:
            succeeded, result = read_reply(self._values.decode(reply, read_head(reply)))
        except Unreadable as error:
            raise CalleeDied(f"the answer of {sender.name!r} cannot be read: {error}", sender.name) from error
        except TypeError as error:
            raise CallRefused(f"the answer of {sender.name!r} is refused: {error}", sender.name) from None
        if succeeded:
            return result
        raise from_data(result, sender.name)

    def _control(self, to: Party, operation: Operation, args: list[Any]) -> None:
        self._call(to, operation, "", args, None, _CONTROL_S)

    # --- handles ----------------------------------------------------------------------------------------------

    def _handle_for(self, number: int, kind: str) -> RemoteObject:
        """The handle of an object that was just made here, which this process holds by it."""
        self._housekeeping.look()
        return RemoteObject(self, self._check().me, number, kind, _releaser(self))

    def _export(self, handle: RemoteObject, to: Party) -> list[Any]:
        owner = handle._owner
        if owner == self._check().me:
            self._kept.hold(handle._number, to)
        else:
            self._control(owner, Operation.HOLD, [handle._number, to.name, to.life])
        return [owner.name, owner.life, handle._number, handle._kind]

    def _adopt(self, data: list[Any]) -> RemoteObject:
        name, life, number, kind = data
        return RemoteObject(self, Party(name, life), number, kind, _releaser(self))

    def _release(self, owner: Party, number: int) -> None:
        if not self.is_initialized:
            return
        # Not here: a finalizer may run anywhere, in the midst of what it would need.
        self._housekeeping.do(lambda: self._control(owner, Operation.RELEASE, [number]))

    def _check(self) -> Transport:
        if self._transport is None:
            raise NotInitialized("this RPC context is not initialized: use it in a `with`, or call initialize()")
        if self._ended.is_set():
            raise CommunicatorClosed("this RPC context was shut down; make a new RpcContext")
        if os.getpid() != self._pid:
            raise ForkedProcess("this RPC context belongs to the process that made it; make one in this process")
        return self._transport


def _releaser(context: RpcContext) -> Callable[[Party, int], None]:
    """Lets go of an object, unless the context is gone: a finalizer must not keep it alive."""
    weak = weakref.ref(context)

    def release(owner: Party, number: int) -> None:
        alive = weak()
        if alive is not None:
            alive._release(owner, number)

    return release


def _checked(dst: object) -> int | str:
    if isinstance(dst, bool) or not isinstance(dst, int | str):
        raise InvalidArgument(f"dst={dst!r}: a rank or the name of a node is expected")
    return dst


def _limit(timeout: float | None, otherwise: float) -> float:
    if timeout is None:
        return otherwise
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)


open_contexts: list[RpcContext] = []
"""Those of this process that are initialized and not shut down, in their order."""


@atexit.register
def _end_all() -> None:
    """What a program has left open: others are told that it leaves, and nothing keeps the process from ending."""
    for context in list(open_contexts):
        context.shutdown(graceful=False)
