"""The RPC context: a process that calls and can be called.

Data flows one way: a call is written as bytes here (`calls`, `values`), carried by a transport, run by the other side's
`server`, and its reply read here. The transports differ in whom they reach; what a call means is the same on all.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from neuraxis.errors import (
    AlreadyInitialized,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
    RendezvousTimeout,
)
from neuraxis.mesh import Topology
from neuraxis.rpc.backends import BACKENDS, Options, open_transport
from neuraxis.rpc.calls import Ask, Calls, seconds
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.handles import RemoteObject
from neuraxis.rpc.housekeeping import Housekeeping
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.messages import Operation
from neuraxis.rpc.own_calls import OwnCalls
from neuraxis.rpc.ownership import Ownership
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.registry import Registry, everywhere
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Party, Transport
from neuraxis.rpc.values import Values
from neuraxis.rpc.world import find_world

__all__ = ["BACKENDS", "RpcContext", "open_contexts"]

_END_S = 2.0  # how long functions that run are waited for when a context ends
_LOOK_S = 0.02
_RETURN_S = 60.0  # how long it is remembered what one has asked that was cut off, and may come back


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
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InvalidArgument(f"threads={threads!r}: a number of threads, 1 or more, is expected")
        if backend != "zenoh" and (mesh is not None or topology is not None):
            raise InvalidArgument(f"mesh and topology are for the backend zenoh, not for {backend!r}")
        self.backend = backend
        self.timeout = seconds(timeout)
        self.threads = threads
        self.allow_pickle = allow_pickle
        self._world = find_world(rank, world_size, init_method)
        self._options = Options(self._world, init_method, self.timeout, name, threads, mesh, topology)
        self._registry = Registry(everywhere)
        self._kept = Kept()
        self._ownership = Ownership(self, self._kept)
        self._values = Values(allow_pickle, self._ownership)
        self._transport: Transport | None = None
        self._closing = ExitStack()
        self._done: set[Party] = set()  # ranks that have no more calls to make
        self._ended = threading.Event()  # no more calls
        self._ending = threading.Lock()
        self._gone = threading.Event()  # all is freed

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
            self._assemble(transport)
            open_contexts.append(self)
            transport.serve(self._server, self._pool, self.threads)
            if not self._world.is_open:
                self._meet(transport)
        except BaseException:
            self.shutdown(graceful=False)
            raise
        return self

    def _assemble(self, transport: Transport) -> None:
        """Make the parts; what is made first is closed last."""
        self._closing.callback(self._kept.clear)
        callbacks = Threads("neuraxis rpc callback")
        self._closing.callback(callbacks.close, _END_S)
        self._closing.callback(transport.close)
        self._values.me, self._values.largest = transport.me, transport.largest
        self._pool = Pool(self.threads, transport.place_given_back)
        self._server = Server(
            transport.me, self._registry, self._values, self._kept, self._ownership.made, self._done.add
        )
        own = OwnCalls(self._server, self._pool, transport)
        self._closing.callback(own.close)
        self._closing.callback(self._ended.set)
        housekeeping = Housekeeping([(self._kept, 0.0), (self._server.once, _RETURN_S)], transport.is_gone)
        self._closing.callback(housekeeping.close, _END_S)
        self._closing.callback(self._pool.wait_until_empty, _END_S)
        self._closing.callback(self._pool.close)
        self._closing.callback(transport.refuse)
        self._calls = self._ownership.calls = Calls(
            transport, own, self._values, self._pool, self.timeout, housekeeping, callbacks
        )

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
            self._gone.wait(self.timeout)
            return
        try:
            if not self._world.is_open and graceful is not False:
                self._wait_until_all_are_done(self._transport)
        finally:
            if self in open_contexts:
                open_contexts.remove(self)
            try:
                self._closing.close()
            finally:
                self._ended.set()
                self._gone.set()

    def _wait_until_all_are_done(self, transport: Transport) -> None:
        others: dict[int, Party] = {}
        for rank in range(self._world.size):
            if rank != self._world.rank:
                try:
                    others[rank] = transport.find(rank)
                    self._calls.control(others[rank], Operation.DONE, [])
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
        to = self._find(dst)
        return self._calls.call(Ask(to, Operation.CALL, name, args, kwargs, timeout))

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
        try:
            to = self._find(dst)
        except ConnectionError as error:
            return self._calls.failed(str(dst), name, error)
        return self._calls.start(Ask(to, Operation.CALL, name, args, kwargs, timeout))

    def remote_object(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RemoteObject:
        """Make an object by a class or factory that `dst` has registered; it stays there, and is used from here."""
        to = self._find(dst)
        made = self._calls.call(Ask(to, Operation.MAKE, name, args, kwargs))
        assert isinstance(made, RemoteObject)
        return made

    def _call_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._check()
        return self._calls.call(_of_method(of, name, args, kwargs))

    def _start_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> RpcFuture:
        self._check()
        return self._calls.start(_of_method(of, name, args, kwargs), keep=of)

    def _find(self, dst: object) -> Party:
        transport = self._check()
        if isinstance(dst, bool) or not isinstance(dst, int | str):
            raise InvalidArgument(f"dst={dst!r}: a rank or the name of a node is expected")
        return transport.find(dst)

    def _check(self) -> Transport:
        if self._transport is None:
            raise NotInitialized("this RPC context is not initialized: use it in a `with`, or call initialize()")
        if self._ended.is_set():
            raise CommunicatorClosed("this RPC context was shut down; make a new RpcContext")
        if os.getpid() != self._pid:
            raise ForkedProcess("this RPC context belongs to the process that made it; make one in this process")
        return self._transport


def _of_method(of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Ask:
    return Ask(of._owner, Operation.METHOD, name, [of._number, *args], kwargs)


open_contexts: list[RpcContext] = []
"""Those of this process that are initialized and not shut down, in their order."""


@atexit.register
def _end_all() -> None:
    """What a program has left open: others are told that it leaves, and nothing keeps the process from ending."""
    for context in list(open_contexts):
        context.shutdown(graceful=False)
