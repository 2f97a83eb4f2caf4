"""The distributed context: from a launched process to a rank among others, and back.

A process has at most one context at a time. `initialize` finds rank and world size, meets the others, agrees on a
backend and makes the world's communicator; `shutdown` frees everything and lets a new context be started.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import msgspec

from neuraxis.comm.backend import Backend
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.environment import Launch, detect_launch
from neuraxis.comm.host import gpu_of_rank, host_identity, may_have_gpu
from neuraxis.comm.local import LocalBackend
from neuraxis.comm.nonmember import NonMember
from neuraxis.comm.rendezvous import Place, Rendezvous, place_of
from neuraxis.errors import (
    AlreadyInitialized,
    BackendUnavailable,
    CommunicatorClosed,
    ForkedProcess,
    InvalidArgument,
    NotInitialized,
    RendezvousError,
)
from neuraxis.version import __version__

__all__ = ["BACKENDS", "DistributedContext", "current_context", "init_distributed"]

BackendName = Literal["auto", "local", "shm", "gloo", "nccl", "mpi"]
BACKENDS: tuple[str, ...] = ("auto", "local", "shm", "gloo", "nccl", "mpi")

_current: DistributedContext | None = None
world: Communicator | None = None  # the current context's, at hand for the flat functions
_forked_from: int | None = None  # the process that had a context when this one was forked from it


class _Introduction(msgspec.Struct):
    """What each rank tells the others before a backend is chosen."""

    backend: str
    version: str
    host: str
    may_have_gpu: bool


class DistributedContext:
    """A rank's membership in a world of ranks; a context manager.

    Args:
        backend: "auto" (nccl when each rank has a GPU of its own, shm when all ranks share a host, else gloo),
            "shm", "gloo", "nccl", "mpi" or "local". The default is not "nccl", as elsewhere: a program is to run as it
            is on machines without a GPU for every rank.
        init_method: where the ranks meet: "env://" (the default: what the launcher says), "tcp://host:port" or
            "file:///path".
        world_size: how many ranks; -1 asks the launcher's variables, and is 1 without any.
        rank: which one this is; -1 asks the launcher's variables.
        device_id: the CUDA device of this rank; its local rank by default.
        timeout: the deadline of every blocking call, the meeting included, in seconds.
        allow_pickle: let the object forms pickle what is not plain data. Whoever can send to this process can
            then run code in it.
        check_calls: compare each call between the ranks before making it (gloo, nccl and mpi; shm always does).
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
            raise InvalidArgument(f"timeout={timeout} must be a positive number of seconds")
        if world_size == 0 or world_size < -1 or rank < -1:
            raise InvalidArgument(f"world_size={world_size}, rank={rank}: give both, or -1 to detect them")
        self.requested_backend = backend
        self.init_method = init_method
        self.timeout = float(timeout)
        self.device_id = device_id
        self.allow_pickle = allow_pickle
        self.check_calls = check_calls
        self._requested = (rank, world_size)
        self._world: Communicator | None = None
        self._state: Literal["new", "open", "closed"] = "new"

    def __repr__(self) -> str:
        if self._world is None:
            return f"<DistributedContext {self._state}, backend {self.requested_backend!r}>"
        return f"<DistributedContext rank {self.rank} of {self.world_size}, backend {self.backend!r}>"

    # --- life -----------------------------------------------------------------------------------

    def initialize(self) -> DistributedContext:
        """Meet the other ranks and become the process's context."""
        global _current, world
        if _forked_from is not None:
            raise ForkedProcess(
                f"this process was forked from process {_forked_from}, which has a distributed context, and cannot "
                "have one of its own: start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )
        if self._state == "open":
            raise AlreadyInitialized("this context is initialized already")
        if self._state == "closed":
            raise CommunicatorClosed("this context was shut down; make a new DistributedContext")
        if _current is not None:
            raise AlreadyInitialized(
                f"this process has a context already ({_current!r}); call its shutdown() before starting another"
            )
        launch = self._launch()
        backend = self._connect(launch)
        self._world = Communicator(backend, range(backend.size), self.timeout, "world", allow_pickle=self.allow_pickle)
        self._state = "open"
        _current, world = self, self._world
        return self

    def shutdown(self) -> None:
        """Leave the world and free everything: groups, memory, sockets, threads. Can be called again."""
        self._end(lambda communicator: communicator.destroy())

    def abort(self, because: BaseException | None = None) -> None:
        """Shut down without waiting for asynchronous operations that are under way.

        The others are told `because` of what, where the backend can (gloo and mpi; over shm they see it).
        """
        if because is not None and self._state == "open" and self._world is not None:
            for communicator in list(self._world.family):  # all of them before the first is closed, which may take time
                communicator.say_farewell(because)
        self._end(lambda communicator: communicator.abort())

    def _end(self, end: Callable[[Communicator], None]) -> None:
        global _current, world
        if self._state != "open":
            return
        self._state = "closed"
        if _current is self:
            _current = world = None
        assert self._world is not None
        # The world last: what is under way in a group may need its messages.
        for communicator in sorted(self._world.family, key=lambda communicator: communicator is self._world):
            end(communicator)

    def __enter__(self) -> DistributedContext:
        return self if self._state == "open" else self.initialize()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.abort(error)  # an error must come out now, not when the others have come

    # --- what it knows --------------------------------------------------------------------------

    @property
    def is_initialized(self) -> bool:
        return self._state == "open"

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def world(self) -> Communicator:
        """The communicator of all ranks."""
        if self._world is None:
            raise NotInitialized("this context is not initialized: use it in a `with`, or call initialize()")
        return self._world

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def world_size(self) -> int:
        return self.world.size

    @property
    def backend(self) -> str:
        """The backend in use, which "auto" has chosen."""
        return self.world.backend_name

    def new_group(
        self, ranks: Any = None, timeout: float | None = None, check_calls: bool | None = None
    ) -> Communicator | NonMember:
        """A group of some ranks; every rank of the world makes this call (see Communicator.new_group)."""
        return self.world.new_group(ranks, timeout, check_calls)

    # --- how the ranks meet ---------------------------------------------------------------------

    def _launch(self) -> Launch:
        rank, world_size = self._requested
        launch = detect_launch()
        if rank < 0 and world_size < 0:
            return launch
        if world_size < 0 or (rank < 0 and world_size > 1):
            if launch.launcher == "none":
                raise InvalidArgument(
                    f"world_size={world_size} and rank={rank}: give both, or start the ranks with `neuraxis launch`"
                )
            rank = launch.rank if rank < 0 else rank
            world_size = launch.world_size if world_size < 0 else world_size
        rank = max(rank, 0)
        if rank >= world_size:
            raise InvalidArgument(f"rank={rank} is not below world_size={world_size}")
        local = world_size if launch.launcher == "none" else launch.local_world_size
        local_rank = rank if launch.launcher == "none" else launch.local_rank
        return replace(launch, rank=rank, world_size=world_size, local_rank=local_rank, local_world_size=local)

    def _connect(self, launch: Launch) -> Backend:
        backend = self.requested_backend
        if backend == "mpi":
            return self._connect_mpi(launch)
        if backend == "local" or (backend == "auto" and launch.world_size == 1):
            if launch.world_size != 1:
                raise InvalidArgument(f"backend 'local' is for one rank; the world has {launch.world_size}")
            return LocalBackend()
        _check_installed(backend)
        place = place_of(self.init_method, launch) if launch.world_size > 1 else Place("127.0.0.1", (0,), "")
        with Rendezvous(place, launch.rank, launch.world_size, self.timeout) as rendezvous:
            return self._agree_on_backend(launch, rendezvous)

    def _agree_on_backend(self, launch: Launch, rendezvous: Rendezvous) -> Backend:
        identity = host_identity()
        may_use_gpus = self.requested_backend == "auto" and may_have_gpu(self.device_id, launch.local_rank)
        mine = _Introduction(self.requested_backend, __version__, identity, may_use_gpus)
        ranks = [
            msgspec.msgpack.decode(answer, type=_Introduction)
            for answer in rendezvous.exchange(msgspec.msgpack.encode(mine))
        ]
        for rank, theirs in enumerate(ranks):
            for what in ("backend", "version"):
                if getattr(theirs, what) != getattr(mine, what):
                    raise RendezvousError(
                        f"rank {rank} has {what} {getattr(theirs, what)!r} and rank {launch.rank} "
                        f"{getattr(mine, what)!r}: all ranks need the same",
                        (rank,),
                    )
        one_host = len({theirs.host for theirs in ranks}) == 1
        backend = self.requested_backend
        if backend == "auto":
            backend = "shm" if one_host else "gloo"
            if all(theirs.may_have_gpu for theirs in ranks):  # worth the seconds that loading torch takes
                gpu = gpu_of_rank(self.device_id, launch.local_rank)
                gpus = set(rendezvous.exchange(gpu.encode())) - {b""}
                backend = "nccl" if len(gpus) == len(ranks) else backend
        if backend == "shm":
            if not one_host:
                hosts = ", ".join(f"rank {rank} on {r.host.split('/')[0]}" for rank, r in enumerate(ranks))
                raise BackendUnavailable(
                    "shm", f"the ranks are on several hosts ({hosts})", "Use backend='auto' or 'gloo'"
                )
            from neuraxis.comm.shm import ShmBackend

            return ShmBackend(launch.rank, launch.world_size, rendezvous.exchange, self.timeout)
        from neuraxis.comm.torch_backend import GlooBackend, NcclBackend, require_torch

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
        engine = NcclBackend if backend == "nccl" else GlooBackend
        return engine(
            launch.rank,
            launch.world_size,
            rendezvous.exchange,
            self.timeout,
            rendezvous.host,
            identity,
            check_calls=self.check_calls,
        )

    def _connect_mpi(self, launch: Launch) -> Backend:
        from neuraxis.comm.mpi import MpiBackend

        backend = MpiBackend(self.timeout, check_calls=self.check_calls)
        if launch.launcher in ("env", "none") and self._requested == (-1, -1) and launch.world_size == 1:
            return backend
        if (backend.rank, backend.size) != (launch.rank, launch.world_size):
            raise InvalidArgument(
                f"MPI says rank {backend.rank} of {backend.size}, but rank {launch.rank} of {launch.world_size} was "
                "asked for: start the ranks with mpirun, and leave rank and world_size out"
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
    """Start the process's distributed context and return it; see DistributedContext for the arguments."""
    return DistributedContext(backend, init_method, world_size, rank, device_id, timeout, **options).initialize()


def current_context() -> DistributedContext:
    """The process's context; NotInitialized if there is none."""
    if _current is None:
        if _forked_from is not None:
            raise ForkedProcess(
                f"this process was forked from process {_forked_from}, which has a distributed context; "
                "the context is that process's alone"
            )
        raise NotInitialized(
            "there is no distributed context in this process: call init_distributed() first, or use "
            "`with DistributedContext():`"
        )
    return _current


def _check_installed(backend: str) -> None:
    """Say what is missing before the others are kept waiting."""
    if backend in ("gloo", "nccl"):
        if importlib.util.find_spec("torch") is None:
            raise BackendUnavailable(backend, "torch is not installed", "pip install 'neuraxis[torch]'")
        from neuraxis.comm.torch_backend import require_torch

        require_torch(backend)


def _after_fork_in_child() -> None:
    global _current, world, _forked_from
    if _current is None:
        return
    _forked_from = os.getppid()
    context, _current, world = _current, None, None
    context._state = "closed"
    error = ForkedProcess(
        f"this process was forked from process {_forked_from}, whose group this is; only that process can use it"
    )
    for communicator in list(context._world.family) if context._world is not None else ():
        communicator.abandon(error)


def _at_exit() -> None:
    if _current is not None:
        # What Python has shown of its end, if it was an exception; of an interactive session it may be an old one.
        uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        _current.abort(uncaught)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
