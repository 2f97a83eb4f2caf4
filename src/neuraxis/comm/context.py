"""The distributed context: makes a launched process a rank among others, and back.

A process has at most one context at a time. `initialize` determines rank and world size, runs the rendezvous, agrees
with the other ranks on a backend and makes the communicator of all ranks; `close` frees everything, after which the
process may start a new context.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from neuraxis import imports as optional
from neuraxis.comm.backends.base import Backend, Exchange, NonMember
from neuraxis.comm.backends.local import LocalBackend
from neuraxis.comm.communicator import BackendFactory, Communicator
from neuraxis.comm.failures import error_to_leave_with
from neuraxis.comm.host import gpu_of_rank, host_identity, may_have_gpu
from neuraxis.comm.rendezvous import Rendezvous, RendezvousAddress, rendezvous_address
from neuraxis.errors import (
    AlreadyInitialized,
    BackendUnavailable,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
    RendezvousError,
)
from neuraxis.notebook import html_table
from neuraxis.process.environment import Launch, detect_launch
from neuraxis.version import __version__

__all__ = ["BACKENDS", "DistributedContext", "current_context", "init_distributed"]

BACKENDS: tuple[str, ...] = ("auto", "local", "shm", "gloo", "nccl", "mpi")
"""Names of the backends."""

_current: DistributedContext | None = None
world: Communicator | None = None  # of the current context; cached for the module-level functions
_forked_from: int | None = None  # pid of the parent, if it had a context when this process was forked


class _Handshake(msgspec.Struct):
    """First message of each rank to all others, from which they choose the backend."""

    backend: str
    version: str
    host: str
    may_have_gpu: bool


class DistributedContext:
    """Membership of this process in a world of ranks; a context manager.

    Leaving the `with` block closes the context; leaving it with an exception aborts it, and the other ranks raise
    `PeerLost` with that exception's type and text.

    Parameters
    ----------
    backend : str, default "auto"
        "auto", "shm", "gloo", "nccl", "mpi" or "local". "auto" chooses nccl if every rank has a GPU of its own, shm if
        all ranks share a host, and gloo otherwise; also gloo, with a warning, if /dev/shm is full. The default is not
        "nccl", which needs a GPU for each rank.
    init_method : str, optional
        Where the ranks meet: "env://" (the default: the launcher's variables), "tcp://host:port" or "file:///path".
    world_size, rank : int, default -1
        Number of ranks, and the rank of this process. -1 takes them from the launcher's variables; without a launcher
        the world has one rank.
    device_id : int, optional
        CUDA device of this rank, by default its local rank.
    timeout : float, default 1800
        Deadline of every blocking call, the rendezvous included, in seconds.
    allow_pickle : bool, default False
        Let the object collectives pickle objects that are not plain data. Every process that can send to this one can
        then run code in it.
    check_calls : bool, default True
        Compare each call between the ranks before making it (gloo, nccl and mpi; shm always does).

    Raises
    ------
    InvalidArgument
        An argument is not valid.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local") as context:
    ...     values = np.ones(3)
    ...     context.world.all_reduce(values)
    ...     context
    <DistributedContext rank 0 of 1, backend 'local'>

    Several ranks run the same program, started with `neuraxis launch -n 4 program.py`::

        with dist.DistributedContext() as context:
            print(context.rank, context.world_size)
    """

    def __init__(
        self,
        backend: str = "auto",
        init_method: str | None = None,
        world_size: int = -1,
        rank: int = -1,
        device_id: int | None = None,
        timeout: float = 1800.0,
        *,
        allow_pickle: bool = False,
        check_calls: bool = True,
    ) -> None:
        if backend not in BACKENDS:
            raise InvalidArgument(f"backend {backend!r} is not one of {', '.join(BACKENDS)}")
        if not timeout > 0:
            raise InvalidArgument(f"timeout={timeout} is not valid. Give a positive number of seconds")
        if world_size == 0 or world_size < -1 or rank < -1:
            raise InvalidArgument(f"world_size={world_size}, rank={rank} is not valid. Give both, or -1 to detect them")
        self.requested_backend = backend
        self.init_method = init_method
        self.timeout = float(timeout)
        self.device_id = device_id
        self.allow_pickle = allow_pickle
        self.check_calls = check_calls
        self._requested = (rank, world_size)
        self._world: Communicator | None = None
        self._world_backend: Backend | None = None
        self._state: Literal["new", "open", "closed"] = "new"

    def __repr__(self) -> str:
        if self._world is None:
            return f"<DistributedContext {self._state}, backend {self.requested_backend!r}>"
        closed = ", closed" if self._state == "closed" else ""
        return f"<DistributedContext rank {self.rank} of {self.world_size}, backend {self.backend!r}{closed}>"

    def _repr_html_(self) -> str:
        groups = [] if self._world is None else sorted(self._world.family, key=lambda group: (-group.size, group.name))
        rows = (
            (group.name, ", ".join(map(str, group.ranks)), group.rank, group.backend_name, f"{group.timeout:g}")
            for group in groups
        )
        header = ("group", "world ranks", "rank in it", "backend", "timeout (s)")
        return html_table(repr(self)[1:-1], header, rows)

    # --- life cycle -----------------------------------------------------------------------------

    def initialize(self) -> DistributedContext:
        """Connect to the other ranks and become the context of this process.

        Returns
        -------
        DistributedContext
            This context.

        Raises
        ------
        AlreadyInitialized
            This process has a context.
        RendezvousTimeout
            Ranks are missing after `timeout` seconds; the error names them.
        RendezvousError
            The ranks disagree about the world size, the backend or the version of neuraxis.
        BackendUnavailable
            The backend cannot be used here.
        """
        global _current, world
        if _forked_from is not None:
            raise ForkedProcess(
                f"this process was forked from process {_forked_from}, which has a distributed context, and cannot "
                "have one of its own. Start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )
        if self._state == "open":
            raise AlreadyInitialized("this context is initialized already. Use it, or make a new one after close()")
        if self._state == "closed":
            raise CommunicatorClosed("this context was closed. Make a new DistributedContext")
        if _current is not None:
            raise AlreadyInitialized(
                f"this process has a context already ({_current!r}). Call its close() before starting another"
            )
        launch = self._launch()
        backend = self._world_backend = self._connect(launch)
        self._world = Communicator(backend, range(backend.size), self.timeout, "world", allow_pickle=self.allow_pickle)
        self._state = "open"
        _current, world = self, self._world
        return self

    def close(self) -> None:
        """Leave the world and free all groups, memory, sockets and threads; idempotent.

        Ranks that still wait for this one raise `PeerLost`. It names the rank that this one has lost, if there is one,
        else the exception that is being handled here (`finally: context.close()`).
        """
        self._send_last_messages(None)
        self._end(lambda communicator: communicator.close())

    def shutdown(self) -> None:
        """Do the same as `close`."""
        self.close()

    def abort(self, because: BaseException | None = None) -> None:
        """Close without waiting for asynchronous operations.

        Ranks that still wait for this one raise `PeerLost` with the type and text of `because` (nccl: without them).

        Parameters
        ----------
        because : BaseException, optional
            The reason for leaving.
        """
        self._send_last_messages(because)
        self._end(lambda communicator: communicator.abort())

    def _send_last_messages(self, because: BaseException | None) -> None:
        """Send the last message of this rank in all groups before closing the first one, which may take time."""
        if self._state != "open" or self._world is None:
            return
        communicators = list(self._world.family)
        error = error_to_leave_with(because, [one.backend for one in communicators if one.backend is not None])
        if error is not None:
            for communicator in communicators:
                communicator.send_last_message(error)

    def _end(self, end: Callable[[Communicator], None]) -> None:
        global _current, world
        if self._state != "open":
            return
        self._state = "closed"
        if _current is self:
            _current = world = None
        assert self._world is not None
        # The world last: an operation in a smaller group may need its messages.
        for communicator in sorted(self._world.family, key=lambda communicator: communicator is self._world):
            end(communicator)

    def __enter__(self) -> DistributedContext:
        return self if self._state == "open" else self.initialize()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(error)  # raise the error at once, without waiting for other ranks

    # --- properties and groups ------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        """True between `initialize` and `close`."""
        return self._state == "open"

    @property
    def is_main_process(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    @property
    def world(self) -> Communicator:
        """The communicator of all ranks."""
        if self._world is None:
            raise NotInitialized("this context is not initialized. Use it in a `with` statement, or call initialize()")
        return self._world

    @property
    def rank(self) -> int:
        """Rank of this process in the world."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the world."""
        return self.world.size

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self.world.backend_name

    def new_group(
        self,
        ranks: Any = None,
        timeout: float | None = None,
        check_calls: bool | None = None,
        backend: str | None = None,
    ) -> Communicator | NonMember:
        """Make a group of some ranks; every rank of the world must make this call.

        Parameters
        ----------
        ranks, timeout, check_calls
            As in `Communicator.new_group`.
        backend : str, optional
            "shm", "gloo" or "nccl", by default the world's.

        Returns
        -------
        Communicator or NonMember
            `NonMember` on ranks outside the group.
        """
        if backend in (None, "auto", self.backend):
            return self.world.new_group(ranks, timeout, check_calls)
        if backend not in ("shm", "gloo", "nccl"):
            raise InvalidArgument(
                f"new_group: backend={backend!r} is not available in a world over {self.backend}. Use 'shm', 'gloo' or "
                "'nccl', or leave it out"
            )
        _check_installed(backend)
        return self.world.new_group(ranks, timeout, check_calls, self._backend_factory(backend))

    def _backend_factory(self, backend: str) -> BackendFactory:
        """Return the factory of the backend of a group whose backend differs from the world's."""

        def connect(
            rank: int, exchange: Exchange, world_ranks: Sequence[int], timeout: float, check_calls: bool | None
        ) -> Backend:
            identity = host_identity()
            hosts = [host.decode() for host in exchange(identity.encode())]
            address = "127.0.0.1" if len(set(hosts)) == 1 else getattr(self._world_backend, "_address", None)
            if address is None or (backend == "shm" and len(set(hosts)) > 1):
                where = ", ".join(f"rank {r} on {h.split('/')[0]}" for r, h in zip(world_ranks, hosts, strict=True))
                raise BackendUnavailable(
                    backend,
                    f"the ranks are on several hosts ({where})",
                    "Leave backend out",
                )
            if backend == "shm":
                from neuraxis.comm.backends.shm.backend import ShmBackend

                label = "group of ranks " + ", ".join(map(str, world_ranks))
                return ShmBackend(rank, len(world_ranks), exchange, timeout, world_ranks, label)
            from neuraxis.comm.backends.torch import GlooBackend, NcclBackend

            backend_class = NcclBackend if backend == "nccl" else GlooBackend
            checked = self.check_calls if check_calls is None else check_calls
            return backend_class(rank, len(world_ranks), exchange, timeout, address, identity, world_ranks, checked)

        return connect

    # --- connecting -----------------------------------------------------------------------------

    def _launch(self) -> Launch:
        rank, world_size = self._requested
        launch = detect_launch()
        if rank < 0 and world_size < 0:
            return launch
        if world_size < 0 or (rank < 0 and world_size > 1):
            if launch.launcher == "none":
                raise InvalidArgument(
                    f"world_size={world_size} and rank={rank}: one is missing. Give both, or start the ranks with "
                    "`neuraxis launch`"
                )
            rank = launch.rank if rank < 0 else rank
            world_size = launch.world_size if world_size < 0 else world_size
        rank = max(rank, 0)
        if rank >= world_size:
            raise InvalidArgument(f"rank={rank} is not below world_size={world_size}. Ranks are 0 to {world_size - 1}")
        local = world_size if launch.launcher == "none" else launch.local_world_size
        local_rank = rank if launch.launcher == "none" else launch.local_rank
        return replace(launch, rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local)

    def _connect(self, launch: Launch) -> Backend:
        backend = self.requested_backend
        if backend == "mpi":
            return self._connect_mpi(launch)
        if backend == "local" or (backend == "auto" and launch.world_size == 1):
            if launch.world_size != 1:
                raise InvalidArgument(
                    f"backend 'local' is for one rank, and the world has {launch.world_size}. Use backend='auto'"
                )
            return LocalBackend()
        _check_installed(backend)
        place = (
            rendezvous_address(self.init_method, launch)
            if launch.world_size > 1
            else RendezvousAddress("127.0.0.1", (0,), "")
        )
        with Rendezvous(place, launch.rank, launch.world_size, self.timeout) as rendezvous:
            return self._agree_on_backend(launch, rendezvous)

    def _agree_on_backend(self, launch: Launch, rendezvous: Rendezvous) -> Backend:
        identity = host_identity()
        may_use_gpus = self.requested_backend == "auto" and may_have_gpu(self.device_id, launch.local_rank)
        mine = _Handshake(self.requested_backend, __version__, identity, may_use_gpus)
        ranks = [
            msgspec.msgpack.decode(answer, type=_Handshake)
            for answer in rendezvous.exchange(msgspec.msgpack.encode(mine))
        ]
        for rank, theirs in enumerate(ranks):
            for what in ("backend", "version"):
                if getattr(theirs, what) != getattr(mine, what):
                    raise RendezvousError(
                        f"rank {rank} has {what} {getattr(theirs, what)!r} and rank {launch.rank} "
                        f"{getattr(mine, what)!r}. All ranks need the same",
                        (rank,),
                    )
        one_host = len({theirs.host for theirs in ranks}) == 1
        backend = self.requested_backend
        if backend == "auto":
            backend = "shm" if one_host else "gloo"
            if all(theirs.may_have_gpu for theirs in ranks):  # only then load torch, which takes seconds
                gpu = gpu_of_rank(self.device_id, launch.local_rank)
                gpus = set(rendezvous.exchange(gpu.encode())) - {b""}
                backend = "nccl" if len(gpus) == len(ranks) else backend
        if backend == "shm":
            if not one_host:
                hosts = ", ".join(f"rank {rank} on {r.host.split('/')[0]}" for rank, r in enumerate(ranks))
                raise BackendUnavailable(
                    "shm", f"the ranks are on several hosts ({hosts})", "Use backend='auto' or 'gloo'"
                )
            from neuraxis.comm.backends.shm.backend import ShmBackend

            fallback = self._gloo_instead if self.requested_backend == "auto" else None
            try:
                return ShmBackend(launch.rank, launch.world_size, rendezvous.exchange, self.timeout, fallback=fallback)
            except BackendUnavailable as error:  # raised on all ranks or on none
                if fallback is None:
                    raise
                return fallback(error, launch.rank, launch.world_size, rendezvous.exchange, self.timeout)
        from neuraxis.comm.backends.torch import GlooBackend, NcclBackend, require_torch

        if backend == "nccl":
            torch = require_torch("nccl")
            index = launch.local_rank if self.device_id is None else self.device_id
            if index >= torch.cuda.device_count():
                raise BackendUnavailable(
                    "nccl",
                    f"rank {launch.rank} needs CUDA device {index} and there are {torch.cuda.device_count()}",
                    "Start one rank for each GPU, or use backend='auto'",
                )
            torch.cuda.set_device(index)
        backend_class = NcclBackend if backend == "nccl" else GlooBackend
        return backend_class(
            launch.rank,
            launch.world_size,
            rendezvous.exchange,
            self.timeout,
            rendezvous.host,
            identity,
            check_calls=self.check_calls,
        )

    def _gloo_instead(
        self,
        reason: BackendUnavailable,
        rank: int,
        size: int,
        exchange: Exchange,
        timeout: float,
        world_ranks: Sequence[int] | None = None,
    ) -> Backend:
        """Make a gloo group on this host because shared memory is exhausted; the first rank warns once."""
        if not optional.installed("torch"):
            raise BackendUnavailable(
                "shm", reason.reason, f"{reason.remedy} (torch, which provides gloo, is not installed)"
            ) from reason
        from neuraxis.comm.backends.torch import GlooBackend

        if rank == 0:
            group = "these ranks" if world_ranks is None else f"the group of ranks {', '.join(map(str, world_ranks))}"
            warnings.warn(
                f"{reason.reason}; backend 'auto' uses gloo for {group}, which is slower. {reason.remedy}",
                RuntimeWarning,
                stacklevel=2,
            )
        return GlooBackend(
            rank,
            size,
            exchange,
            timeout,
            "127.0.0.1",
            host_identity(),
            world_ranks,
            check_calls=self.check_calls,
        )

    def _connect_mpi(self, launch: Launch) -> Backend:
        from neuraxis.comm.backends.mpi import MpiBackend

        backend = MpiBackend(self.timeout, check_calls=self.check_calls)
        if launch.launcher in ("env", "none") and self._requested == (-1, -1) and launch.world_size == 1:
            return backend
        if (backend.rank, backend.size) != (launch.rank, launch.world_size):
            raise InvalidArgument(
                f"this is rank {backend.rank} of {backend.size} in MPI, but rank {launch.rank} of {launch.world_size} "
                "was requested. Start the ranks with mpirun, and leave rank and world_size out"
            )
        return backend


def init_distributed(
    backend: str = "auto",
    init_method: str | None = None,
    world_size: int = -1,
    rank: int = -1,
    device_id: int | None = None,
    timeout: float = 1800.0,
    **options: Any,
) -> DistributedContext:
    """Make a `DistributedContext`, initialize it and return it.

    Parameters
    ----------
    backend, init_method, world_size, rank, device_id, timeout, **options
        As in `DistributedContext`.

    Returns
    -------
    DistributedContext
        The context.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> context = dist.init_distributed("local")
    >>> context.world_size
    1
    >>> context.close()
    """
    return DistributedContext(backend, init_method, world_size, rank, device_id, timeout, **options).initialize()


def current_context() -> DistributedContext:
    """Return the distributed context of this process.

    Raises
    ------
    NotInitialized
        There is none.
    ForkedProcess
        The context belongs to the process that this one was forked from.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local") as context:
    ...     dist.current_context() is context
    True
    """
    if _current is None:
        if _forked_from is not None:
            raise ForkedProcess(
                f"this process was forked from process {_forked_from}, and only that process can use its distributed "
                "context. Start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )
        raise NotInitialized(
            "this process has no distributed context. Call init_distributed() first, or use "
            "`with DistributedContext():`"
        )
    return _current


def _check_installed(backend: str) -> None:
    """Raise if a dependency is missing, before other ranks wait for this one."""
    if backend in ("gloo", "nccl"):
        from neuraxis.comm.backends.torch import require_torch

        require_torch(backend)


def _after_fork_in_child() -> None:
    global _current, world, _forked_from
    if _current is None:
        return
    _forked_from = os.getppid()
    context, _current, world = _current, None, None
    context._state = "closed"
    error = ForkedProcess(
        f"this process was forked from process {_forked_from}, and only that process can use this group"
    )
    for communicator in list(context._world.family) if context._world is not None else ():
        communicator.abandon(error)


def _at_exit() -> None:
    if _current is not None:
        # The exception that ended the program. In an interactive session last_value may be an older one.
        uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        _current.abort(uncaught)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
