"""The RPC context: a process that makes and serves remote calls.

Data flows one way: `calls` and `values` serialize a call, a transport carries it, the `server` of the other side runs
it, and the reply is decoded here. Transports differ in which processes they reach; calls mean the same on all of them.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any

from neuraxis.comm.backends.torch import require_torch
from neuraxis.errors import (
    AlreadyInitialized,
    CallCancelled,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
    RendezvousTimeout,
)
from neuraxis.mesh import Topology
from neuraxis.mesh.services import check_threads
from neuraxis.request_reply import Exchange, check_timeout
from neuraxis.rpc.calls import Calls, Invocation
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.handles import ObjectTable, References, RemoteObject
from neuraxis.rpc.message_transport import call_and_wait, pending_calls, too_slow
from neuraxis.rpc.messages import Head, Operation, read_head
from neuraxis.rpc.pool import Housekeeping, Pool
from neuraxis.rpc.registry import Registry, everywhere
from neuraxis.rpc.server import Server
from neuraxis.rpc.transport import INBOX, Done, Endpoint, Reply, Request, Transport, World, find_world
from neuraxis.rpc.values import Values
from neuraxis.threads import Threads

__all__ = [
    "BACKENDS",
    "LocalCalls",
    "Options",
    "RpcContext",
    "current_rpc_context",
    "init_rpc",
    "open_contexts",
    "open_transport",
    "remote_object",
    "rpc_async",
    "rpc_sync",
]

BACKENDS: tuple[str, ...] = ("zenoh", "shm", "gloo", "mpi", "tensorpipe")

_END_S = 2.0  # how long `close` waits for running functions
_CLOSE_S = 0.5  # for threads; running functions have been waited for
_POLL_S = 0.02
_RETURN_S = 60.0  # how long requests of an unreachable caller are remembered for deduplication

_names = count(1)
_worlds: defaultdict[str, count[int]] = defaultdict(lambda: count(1))  # by job: all its ranks count alike


@dataclass(frozen=True)
class Options:
    """The options of a context that its transport needs."""

    world: World
    init_method: str | None
    timeout: float
    name: str | None
    threads: int
    mesh: str | None
    topology: Topology | None


def open_transport(backend: str, options: Options) -> Transport:
    """Open the transport of this process; in a world of ranks all of them do."""
    if backend == "zenoh":
        return _open_zenoh(options)
    if backend == "tensorpipe":
        require_torch(backend)
        from neuraxis.rpc.tensorpipe_transport import open_tensorpipe

        return open_tensorpipe(options.world, options.init_method, options.timeout, options.name)
    from neuraxis.rpc.group_transport import open_group
    from neuraxis.rpc.message_transport import MessageTransport

    return MessageTransport(open_group(backend, options.world, options.init_method, options.timeout, options.name))


def _open_zenoh(options: Options) -> Transport:
    from neuraxis.rpc.message_transport import MessageTransport
    from neuraxis.rpc.zenoh_transport import ZenohLink

    world = options.world
    mesh = options.mesh
    if mesh is None:
        mesh = "default" if world.is_open else mesh_of_ranks(world)
    name = options.name
    if name is None:
        name = f"rank{world.rank}" if not world.is_open else _generate_name()
    topology = options.topology or _topology(options.init_method)
    return MessageTransport(ZenohLink(name, mesh, topology, world.rank))


def mesh_of_ranks(world: World) -> str:
    """Return the mesh of the next context of a job, different from that of earlier contexts.

    The ranks of a job create their contexts in the same order.
    """
    job = f"{world.job or 'ranks'}-{world.size}"
    return f"rpc-{job}-{next(_worlds[job])}"


def _topology(init_method: str | None) -> Topology | None:
    if init_method is None or init_method == "env://":
        return None
    found = re.fullmatch(r"(tcp|tls|quic)://(.+)", init_method)
    if found is None:
        raise InvalidArgument(f"init_method={init_method!r}: tcp://host:port of a router is expected, or None")
    if found[1] != "tcp":
        raise InvalidArgument(
            f"init_method={init_method!r}: TLS needs keys, which init_method cannot name. Pass topology=Topology("
            f"'client', ('{found[1]}/{found[2]}',), tls=Tls.from_folder(FOLDER, ROLE)) instead"
        )
    return Topology.from_options(connect=[f"{found[1]}/{found[2]}"])


def _generate_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_.\-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{next(_names)}"


class _LocalCall(Exchange[Reply]):
    """A call of a process to itself, which is never lost; `run` runs it."""

    def __init__(self, to: Endpoint, timeout: float, run: Callable[[], object]) -> None:
        self._to = to
        self._timeout = timeout
        self._run = run

    def send(self, timeout: float) -> None:
        self._run()

    def must_resend(self) -> bool:
        return False

    def too_late(self) -> Exception:
        return too_slow(self._to, self._timeout)


class LocalCalls:
    """Calls of a process to itself: serialized like any other, with a slot in the pool and a deadline."""

    def __init__(self, server: Server, pool: Pool, transport: Transport) -> None:
        self._server = server
        self._pool = pool
        self._transport = transport
        self._pending = pending_calls()
        self._threads = Threads("neuraxis rpc local call")

    def call(self, request: Request) -> Reply:
        if request.is_control:
            frame = request.write(INBOX).joined()
            return _reply(self._server.control(frame, read_head(frame)))
        return call_and_wait(self.start, request)

    def start(self, request: Request, done: Done) -> None:
        frame = request.write(INBOX)
        frame.joined()  # later changes of the user's arrays must not affect it
        if request.is_control:
            done(_reply(self._server.control(frame.start, read_head(frame))), None)
            return
        # The request refers to the user's arguments, so nothing that lives longer may refer to it.
        to, number, timeout, content = request.to, request.number, request.timeout, frame.start
        call = _LocalCall(to, timeout, lambda: self._threads.run(lambda: self._run(number, timeout, content)))
        self._pending.add((to, number), call, timeout, done)
        call.send(timeout)

    def _run(self, number: int, timeout: float, frame: bytes) -> None:
        head = read_head(frame)
        if not self._pool.enter(timeout):
            self._transport.slot_released(False)  # another call may be queued behind this one
            self._server.discard(frame, head)
            if self._pool.closed:
                error = CallCancelled("this context was closed", head.sender.name)
                self._pending.fail((head.sender, number), error)
            return
        try:
            reply = self._answer(frame, head)
            if not self._pending.complete((head.sender, number), reply):
                self._server.discard(reply[1], reply[0])
        finally:
            self._pool.answered()

    def _answer(self, frame: bytes, head: Head) -> Reply:
        try:
            return _reply(self._server.answer(frame, head))
        finally:
            self._pool.leave()
            self._transport.slot_released(False)  # another call may wait for the slot

    def close(self) -> None:
        self._pending.close()
        self._threads.close(_CLOSE_S)


def _reply(answer: Frame) -> Reply:
    frame = answer.joined()
    return read_head(frame), frame


class RpcContext:
    """A process that makes and serves remote calls; a context manager.

    Parameters
    ----------
    backend : {"zenoh", "shm", "gloo", "mpi", "tensorpipe"}
        "zenoh" connects ranks, and nodes that join and leave, on one machine or many. "shm" is the fastest, for the
        ranks of one host. "tensorpipe" is torch.distributed.rpc. The default is not "tensorpipe" because that needs
        torch, a fixed number of ranks, and trust in all of them: it unpickles their messages before any check.
    init_method : str, optional
        The rendezvous. zenoh: None for peers on this machine, "tcp://host:port" for a router; use `topology` for TLS.
        Other backends: as in `DistributedContext`.
    world_size, rank : int
        Number of ranks, and the rank of this process; -1 reads the launcher's variables. Without any, this process is a
        node of an open world (zenoh only).
    timeout : float
        Default deadline of calls, and deadline of the rendezvous, in seconds.
    name : str, optional
        The name under which others call this process; by default "rank<r>", or one made of host and process id.
    threads : int
        Number of calls served at the same time.
    allow_pickle : bool
        Pickle values that are not plain data, arrays or tensors; both sides must allow it. Anyone who can call this
        process can then run code in it.
    mesh : str, optional
        zenoh only: the mesh, as in `neuraxis.mesh.Node`.
    topology : Topology, optional
        zenoh only: the way to reach the mesh.

    Raises
    ------
    InvalidArgument
        An argument is invalid.

    Examples
    --------
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("double", lambda x: 2 * x)
    ...     context.rpc_sync("rank0", "double", 21)
    42
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
        if backend != "zenoh" and (mesh is not None or topology is not None):
            raise InvalidArgument(f"mesh and topology are for the backend zenoh, not for {backend!r}")
        self.backend = backend
        self.timeout = check_timeout(timeout)
        self.threads = check_threads(threads)
        self.allow_pickle = allow_pickle
        self._world = find_world(rank, world_size, init_method)
        self._options = Options(self._world, init_method, self.timeout, name, threads, mesh, topology)
        self._registry = Registry(everywhere)
        self._objects = ObjectTable()
        self._references = References(self, self._objects)
        self._values = Values(allow_pickle, self._references)
        self._transport: Transport | None = None
        self._closing = ExitStack()
        self._done: set[Endpoint] = set()  # ranks that have no more calls to make
        self._ended = threading.Event()  # no more calls
        self._ending = threading.Lock()
        self._freed = threading.Event()

    def __repr__(self) -> str:
        if self._transport is None:
            return f"<RpcContext, backend {self.backend!r}, not initialized>"
        return f"<RpcContext {self._transport.me.name!r}, backend {self.backend!r}{', closed' * self._ended.is_set()}>"

    # --- lifetime ---------------------------------------------------------------------------------------------

    def initialize(self) -> RpcContext:
        """Connect, and start to serve calls. In a world of ranks it returns when all ranks are present.

        Returns
        -------
        RpcContext
            This context.

        Raises
        ------
        AlreadyInitialized
            It was called before.
        RendezvousTimeout
            Ranks are missing after `timeout` seconds.
        """
        if self._transport is not None:
            raise AlreadyInitialized("this RPC context is initialized already. Create a new one after close()")
        transport = open_transport(self.backend, self._options)
        self._pid = os.getpid()
        self._transport = transport
        try:
            self._assemble(transport)
            open_contexts.append(self)
            transport.serve(self._server, self._pool, self.threads)
            if not self._world.is_open:
                self._wait_for_ranks(transport)
        except BaseException:
            self.close(graceful=False)
            raise
        return self

    def _assemble(self, transport: Transport) -> None:
        """Create the parts; the first one is closed last."""
        self._closing.callback(self._objects.clear)
        callbacks = Threads("neuraxis rpc callback")
        self._closing.callback(callbacks.close, _END_S)
        self._closing.callback(transport.close)
        self._values.me, self._values.largest = transport.me, transport.largest
        self._pool = Pool(self.threads, transport.slot_released)
        self._server = Server(
            transport.me, self._registry, self._values, self._objects, self._references.created, self._done.add
        )
        local = LocalCalls(self._server, self._pool, transport)
        self._closing.callback(local.close)
        self._closing.callback(self._ended.set)
        housekeeping = Housekeeping([(self._objects, 0.0), (self._server.deduplication, _RETURN_S)], transport.is_gone)
        self._closing.callback(housekeeping.close, _END_S)
        self._closing.callback(self._pool.wait_until_empty, _END_S)
        self._closing.callback(self._pool.close)
        self._closing.callback(transport.refuse)
        self._calls = self._references.calls = Calls(
            transport, local, self._values, self._pool, self.timeout, housekeeping, callbacks
        )

    def _wait_for_ranks(self, transport: Transport) -> None:
        missing = transport.wait_for(range(self._world.size), self.timeout)
        if missing:
            ranks = tuple(rank for rank in missing if isinstance(rank, int))
            raise RendezvousTimeout(
                f"ranks {list(ranks)} have not connected within {self.timeout:g} s. Start them with one world_size, "
                "or give more time with timeout=",
                ranks,
            )

    def close(self, graceful: bool | None = None) -> None:
        """Leave the world or the mesh, and free everything. A second call does nothing.

        Running functions get two seconds to end; pending calls of this process raise CallCancelled.

        Parameters
        ----------
        graceful : bool, optional
            Keep serving until every rank has called `close` or is gone. By default True in a world of ranks, False on a
            mesh.
        """
        if self._transport is None or os.getpid() != self._pid:
            return
        if not self._ending.acquire(blocking=False):
            self._freed.wait(self.timeout)
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
                self._freed.set()

    def shutdown(self, graceful: bool | None = None) -> None:
        """Do the same as `close`.

        Parameters
        ----------
        graceful : bool, optional
            As for `close`.
        """
        self.close(graceful)

    def _wait_until_all_are_done(self, transport: Transport) -> None:
        others: dict[int, Endpoint] = {}
        for rank in range(self._world.size):
            if rank != self._world.rank:
                try:
                    others[rank] = transport.find(rank)
                    self._calls.control(others[rank], Operation.DONE, [])
                except (ConnectionError, TimeoutError, PermissionError):
                    pass  # it is gone
        deadline = time.monotonic() + self.timeout
        while any(endpoint not in self._done and not transport.is_gone(endpoint) for endpoint in others.values()):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)

    def serve_forever(self) -> None:
        """Block until another thread calls `close`, or Ctrl-C is pressed."""
        self._check()
        try:
            while not self._ended.wait(0.5):
                pass
        except KeyboardInterrupt:
            self.close(graceful=False)

    def __enter__(self) -> RpcContext:
        return self if self.is_initialized else self.initialize()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(graceful=None if kind is None else False)

    @property
    def is_initialized(self) -> bool:
        """True between `initialize` and `close`."""
        return self._transport is not None and not self._ended.is_set()

    # --- membership -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name under which others call this process."""
        return self._check().me.name

    @property
    def rank(self) -> int:
        """The rank of this process; -1 in an open world."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """The number of ranks; -1 in an open world."""
        return self._world.size

    def names(self) -> list[str]:
        """Return the names of all processes that can be called."""
        return self._check().names()

    def wait_for(self, names: int | str | Iterable[int | str], timeout: float | None = None) -> list[int | str]:
        """Wait until a rank or name, or each of several, is present.

        Parameters
        ----------
        names : int, str or iterable of them
            A rank or name, or several.
        timeout : float, optional
            Longest time to wait, in seconds; by default the timeout of the context.

        Returns
        -------
        list
            The ranks and names that are still missing.
        """
        wanted = [names] if isinstance(names, int | str) else names
        return self._check().wait_for(wanted, self.timeout if timeout is None else timeout)

    @property
    def objects_kept(self) -> int:
        """Number of objects of this process that have references."""
        return len(self._objects)

    # --- registration -----------------------------------------------------------------------------------------

    def register_function(self, name: str, func: Callable[..., Any]) -> None:
        """Let others call a function in this context.

        Parameters
        ----------
        name : str
            Name under which others call it.
        func : callable
            The function, or a class, which is registered as a factory of remote objects.
        """
        self._registry.add(name, func)

    def register_factory(self, name: str, factory: Callable[..., Any]) -> None:
        """Let others create objects that stay in this process: see `remote_object`.

        Parameters
        ----------
        name : str
            Name under which others call it.
        factory : callable
            Function that returns an object.
        """
        self._registry.add(name, factory, factory=True)

    # --- calls ------------------------------------------------------------------------------------------------

    def rpc_sync(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a registered function of another rank or node, and return its result.

        Parameters
        ----------
        dst : int or str
            The rank or name of the callee.
        name : str
            The name under which the function is registered there.

        Returns
        -------
        object
            Result of the function.

        Raises
        ------
        CalleeGone
            The callee is not present; the call has not run.
        CalleeDied
            The callee died or left during the call, which may or may not have run.
        CallTimeout
            The context's deadline has passed.
        UnknownFunction
            The callee has no function of that name.
        Exception
            The exception that the function raised, or RemoteError if its type does not exist here.
        """
        return self.call(dst, name, args, kwargs)

    def rpc_async(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RpcFuture:
        """Start a call and return its future.

        Parameters
        ----------
        dst : int or str
            Rank or name of the process that is called.
        name : str
            Name under which it has registered the function.
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        RpcFuture
            Future of the result; it raises what `rpc_sync` raises.

        Raises
        ------
        NotSerializable
            An argument cannot be serialized.
        """
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
        """Call a function like `rpc_sync`, with a deadline for this call.

        Parameters
        ----------
        dst : int or str
            Rank or name of the process that is called.
        name : str
            Name under which it has registered the function.
        args : sequence
            Positional arguments of the function.
        kwargs : dict, optional
            Keyword arguments of the function.
        timeout : float, optional
            Deadline of this call, in seconds; by default the timeout of the context.

        Returns
        -------
        object
            Result of the function.
        """
        to = self._find(dst)
        return self._calls.call(Invocation(to, Operation.CALL, name, args, kwargs, timeout))

    def call_async(
        self,
        dst: int | str,
        name: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> RpcFuture:
        """Start a call like `rpc_async`, with a deadline for this call.

        Parameters
        ----------
        dst : int or str
            Rank or name of the process that is called.
        name : str
            Name under which it has registered the function.
        args : sequence
            Positional arguments of the function.
        kwargs : dict, optional
            Keyword arguments of the function.
        timeout : float, optional
            Deadline of this call, in seconds; by default the timeout of the context.

        Returns
        -------
        RpcFuture
            Future of the result.
        """
        try:
            to = self._find(dst)
        except ConnectionError as error:
            return self._calls.failed(str(dst), name, error)
        return self._calls.start(Invocation(to, Operation.CALL, name, args, kwargs, timeout))

    def remote_object(self, dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RemoteObject:
        """Create an object in another process, with a class or factory that it has registered.

        Parameters
        ----------
        dst : int or str
            Rank or name of the process that creates the object.
        name : str
            Name under which it has registered the class or factory.
        *args, **kwargs
            Arguments of the class or factory.

        Returns
        -------
        RemoteObject
            Handle whose public methods call those of the object, which stays in that process.
        """
        to = self._find(dst)
        created = self._calls.call(Invocation(to, Operation.MAKE, name, args, kwargs))
        assert isinstance(created, RemoteObject)
        return created

    def _call_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._check()
        return self._calls.call(_method_call(of, name, args, kwargs))

    def _start_method(self, of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> RpcFuture:
        self._check()
        return self._calls.start(_method_call(of, name, args, kwargs), keep=of)

    def _find(self, dst: object) -> Endpoint:
        transport = self._check()
        if isinstance(dst, bool) or not isinstance(dst, int | str):
            raise InvalidArgument(f"dst={dst!r}: a rank or the name of a node is expected")
        return transport.find(dst)

    def _check(self) -> Transport:
        if self._transport is None:
            raise NotInitialized("this RPC context is not initialized. Use it in a `with`, or call initialize()")
        if self._ended.is_set():
            raise CommunicatorClosed("this RPC context is closed. Create a new RpcContext")
        if os.getpid() != self._pid:
            raise ForkedProcess("this RPC context belongs to the parent process. Create one in this process")
        return self._transport


def _method_call(of: RemoteObject, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Invocation:
    return Invocation(of._owner, Operation.METHOD, name, [of._number, *args], kwargs)


open_contexts: list[RpcContext] = []
"""The initialized contexts of this process, in the order of their initialization."""


@atexit.register
def _close_all() -> None:
    """Close contexts that a program has left open, so that others learn of it and the process can end."""
    for context in list(open_contexts):
        context.close(graceful=False)


def init_rpc(
    backend: str = "zenoh",
    init_method: str | None = None,
    world_size: int = -1,
    rank: int = -1,
    timeout: float = 1800.0,
    **options: Any,
) -> RpcContext:
    """Create and initialize an RPC context; see `RpcContext` for the parameters.

    Parameters
    ----------
    backend, init_method, world_size, rank, timeout, **options
        As for `RpcContext`.

    Returns
    -------
    RpcContext
        The context, connected and serving; `current_rpc_context` returns it until it is closed.

    Examples
    --------
    >>> context = init_rpc("shm", world_size=1, rank=0)
    >>> context.name
    'rank0'
    >>> context.close()
    """
    return RpcContext(backend, init_method, world_size, rank, timeout, **options).initialize()


def current_rpc_context() -> RpcContext:
    """Return the context that was initialized last in this process.

    Returns
    -------
    RpcContext
        The context.

    Raises
    ------
    NotInitialized
        There is none.

    Examples
    --------
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     current_rpc_context() is context
    True
    """
    if not open_contexts:
        raise NotInitialized(
            "there is no RPC context in this process. Call init_rpc() first, or use `with RpcContext():`"
        )
    return open_contexts[-1]


def rpc_sync(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a registered function of another rank or node through the current context; see `RpcContext.rpc_sync`.

    Parameters
    ----------
    dst : int or str
        Rank or name of the process that is called.
    name : str
        Name under which it has registered the function.
    *args, **kwargs
        Arguments of the function.

    Returns
    -------
    object
        Result of the function.

    Raises
    ------
    NotInitialized
        There is no current context.
    RpcError
        There is no result; the subclass gives the reason.
    Exception
        The exception that the function raised.

    Examples
    --------
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("double", lambda x: 2 * x)
    ...     rpc_sync("rank0", "double", 21)
    42
    """
    return current_rpc_context().rpc_sync(dst, name, *args, **kwargs)


def rpc_async(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RpcFuture:
    """Start a call through the current context and return its future; see `RpcContext.rpc_async`.

    Parameters
    ----------
    dst : int or str
        Rank or name of the process that is called.
    name : str
        Name under which it has registered the function.
    *args, **kwargs
        Arguments of the function.

    Returns
    -------
    RpcFuture
        Future of the result.

    Raises
    ------
    NotInitialized
        There is no current context.
    NotSerializable
        An argument cannot be serialized. All other errors are raised by the future.

    Examples
    --------
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("double", lambda x: 2 * x)
    ...     rpc_async("rank0", "double", 21).wait(timeout=10.0)
    42
    """
    return current_rpc_context().rpc_async(dst, name, *args, **kwargs)


def remote_object(dst: int | str, name: str, /, *args: Any, **kwargs: Any) -> RemoteObject:
    """Create an object in another process through the current context; see `RpcContext.remote_object`.

    Parameters
    ----------
    dst : int or str
        Rank or name of the process that creates the object.
    name : str
        Name under which it has registered the class or factory.
    *args, **kwargs
        Arguments of the class or factory.

    Returns
    -------
    RemoteObject
        Handle whose methods run in the process of the object.

    Raises
    ------
    NotInitialized
        There is no current context.
    RpcError
        The object was not created; the subclass gives the reason.
    Exception
        The exception that the class or factory raised.

    Examples
    --------
    >>> from collections import Counter
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("Counter", Counter)
    ...     counter = remote_object("rank0", "Counter", "banana")
    ...     counter.most_common(1)
    [('a', 3)]
    """
    return current_rpc_context().remote_object(dst, name, *args, **kwargs)
