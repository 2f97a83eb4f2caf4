"""Names of `torch.distributed` beyond the collectives: starting and ending process groups, and queries.

Together with `neuraxis.comm.functions` they let a program written for `torch.distributed` run with only its import
changed. A process group is a `Communicator`, and the default group is the world of the process's `DistributedContext`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from neuraxis import imports as optional
from neuraxis.arguments import plain
from neuraxis.comm import context as _context
from neuraxis.comm.backends.base import NonMember
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.device_mesh import DeviceMesh, init_device_mesh
from neuraxis.comm.functions import Group, _group, irecv, isend, new_group
from neuraxis.comm.operations import Work, seconds_of
from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import InvalidArgument, InvalidType, NotInitialized

__all__ = [
    "Backend",
    "DeviceMesh",
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "batch_isend_irecv",
    "default_pg_timeout",
    "destroy_process_group",
    "get_backend_config",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_node_local_rank",
    "get_pg_count",
    "group",
    "init_device_mesh",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "monitored_barrier",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "reduce_op",
    "supports_complex",
]

ProcessGroup = Communicator
reduce_op = ReduceOp  # torch's older name
default_pg_timeout = timedelta(minutes=30)
"""Deadline of every blocking call, by default."""


class Backend(str):
    """Names of the backends.

    `Backend(name)` checks a name and returns it in lower case, as a plain string, as torch does.

    Parameters
    ----------
    name : str
        A name in any case, with or without a device ("cpu:gloo").

    Raises
    ------
    InvalidArgument
        There is no such backend.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.Backend("GLOO")
    'gloo'
    """

    UNDEFINED = "auto"
    AUTO = "auto"
    LOCAL = "local"
    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"
    backend_list: ClassVar[list[str]] = list(_context.BACKENDS)

    def __new__(cls, name: str) -> str:  # type: ignore[misc]
        """Check a name and return it in lower case."""
        if not isinstance(name, str):
            raise InvalidType(f"backend must be a string, not {name!r}")
        value = name.lower()
        if "," in value:
            raise InvalidArgument(
                f"backend={name!r} names several backends, and a group has only one. Name one of "
                f"{', '.join(_context.BACKENDS)}"
            )
        value = value.rpartition(":")[2]
        if value not in _context.BACKENDS:
            raise InvalidArgument(f"backend {name!r} is not one of {', '.join(_context.BACKENDS)}")
        return value


class _NonGroupMember:
    """Compares equal to every group that this process is not in."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonMember | _NonGroupMember)

    __hash__ = object.__hash__


class _GroupNames(type):
    @property
    def WORLD(cls) -> Communicator | None:
        """The default group, or None before `init_process_group`."""
        return _context.world

    NON_GROUP_MEMBER = _NonGroupMember()


class group(metaclass=_GroupNames):
    """Namespace of the default group: `group.WORLD` is its communicator, or None before `init_process_group`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local") as context:
    ...     dist.group.WORLD is context.world
    True
    """


class GroupMember(metaclass=_GroupNames):
    """Namespace like `group`; `GroupMember.NON_GROUP_MEMBER` equals every group that this process is not in.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.new_group([0]) == dist.GroupMember.NON_GROUP_MEMBER
    False
    """


# --- starting and ending ---


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: float | timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    *,
    allow_pickle: bool = False,
) -> None:
    """Make this process a rank and start the default group, as `torch.distributed.init_process_group` does.

    Parameters
    ----------
    backend : str, optional
        "gloo", "nccl", "mpi", "shm" or "local", by default the fastest that the machine has (see `DistributedContext`).
    init_method : str, optional
        Where the ranks meet: "env://" (the default), "tcp://host:port" or "file:///path".
    timeout : float or timedelta, optional
        Deadline of every blocking call (float: seconds), by default 30 minutes.
    world_size, rank : int, default -1
        Number of ranks, and the rank of this process; -1 takes them from the launcher's variables.
    store
        Must be None: the ranks meet by `init_method`.
    group_name, pg_options
        Ignored; accepted for compatibility with torch.
    device_id : int or torch.device, optional
        CUDA device of this rank.
    allow_pickle : bool, default False
        Let the object collectives pickle objects that are not plain data.

    Raises
    ------
    AlreadyInitialized
        There is a default group.
    RendezvousError
        The ranks did not find each other, or disagree.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.init_process_group("local")
    >>> dist.get_world_size()
    1
    >>> dist.destroy_process_group()
    """
    if store is not None:
        raise InvalidArgument(
            "init_process_group: store is not supported. Leave it out, and give init_method='env://', "
            "'tcp://host:port' or 'file:///path'"
        )
    index = plain(getattr(device_id, "index", device_id))
    _context.init_distributed(
        Backend.AUTO if backend is None else Backend(backend),
        init_method,
        world_size,
        rank,
        index if isinstance(index, int) else None,
        seconds_of(default_pg_timeout if timeout is None else timeout),
        allow_pickle=allow_pickle,
    )


def destroy_process_group(group: Group | None = None) -> None:
    """Free the resources of a group; without a group, shut down the default group and all others.

    Parameters
    ----------
    group : Communicator, optional

    Raises
    ------
    NotInitialized
        There is no default group.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.init_process_group("local")
    >>> dist.destroy_process_group()
    """
    if group is None or group is _context.world:
        _context.current_context().close()
    else:
        group.close()


# --- queries ---


def is_available() -> bool:
    """Return True: the package can be used.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_available()
    True
    """
    return True


def is_backend_available(backend: str) -> bool:
    """Return True if a backend can be used in this environment.

    Parameters
    ----------
    backend : str
        A name in any case.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_backend_available("shm")
    True
    """
    name = backend.lower()
    if name in ("gloo", "nccl"):
        if not optional.installed("torch"):
            return False
        torch_distributed = optional.require("torch.distributed", extra="torch", purpose=f"backend {name}")
        return bool(torch_distributed.is_available() and torch_distributed.is_backend_available(name))
    if name == "mpi":
        return optional.installed("mpi4py")
    return name in ("auto", "local", "shm")


def is_gloo_available() -> bool:
    """Return True if torch is installed with gloo.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> isinstance(dist.is_gloo_available(), bool)
    True
    """
    return is_backend_available("gloo")


def is_nccl_available() -> bool:
    """Return True if torch is installed with NCCL.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> isinstance(dist.is_nccl_available(), bool)
    True
    """
    return is_backend_available("nccl")


def is_mpi_available() -> bool:
    """Return True if mpi4py is installed.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> isinstance(dist.is_mpi_available(), bool)
    True
    """
    return is_backend_available("mpi")


def is_ucc_available() -> bool:
    """Return False: neuraxis has no UCC backend.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_ucc_available()
    False
    """
    return False


def is_xccl_available() -> bool:
    """Return False: neuraxis has no XCCL backend.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_xccl_available()
    False
    """
    return False


def is_torchelastic_launched() -> bool:
    """Return True if torchrun started this process.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_torchelastic_launched()
    False
    """
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def supports_complex(op: ReduceOp) -> bool:
    """Return True if a reduction is defined for complex numbers.

    Parameters
    ----------
    op : ReduceOp

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.supports_complex(dist.ReduceOp.MAX)
    False
    """
    return op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.AVG)


def get_default_backend_for_device(device: Any) -> str:
    """Return the backend to use for a device: "nccl" for a CUDA device, "auto" for the CPU.

    Parameters
    ----------
    device : str or torch.device

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.get_default_backend_for_device("cuda:0")
    'nccl'
    """
    return "nccl" if str(device).startswith("cuda") else "auto"


def get_backend_config(group: Group | None = None) -> str:
    """Return the device type and the backend of a group, e.g. "cpu:gloo".

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_backend_config()
    'cpu:local'
    """
    name = str(_group(group).backend_name)
    return f"{'cuda' if name == 'nccl' else 'cpu'}:{name}"


def get_global_rank(group: Group, group_rank: int) -> int:
    """Return the world rank of a rank within `group`.

    Parameters
    ----------
    group : Communicator
    group_rank : int
        Rank within the group.

    Raises
    ------
    InvalidArgument
        The group has no such rank (the error is a ValueError).

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_global_rank(dist.new_group([0]), 0)
    0
    """
    if not 0 <= group_rank < len(group.ranks):
        raise InvalidArgument(f"group rank {group_rank} is not in the group of ranks {list(group.ranks)}")
    return int(group.ranks[group_rank])


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return the rank of this process on its host, from the launcher's LOCAL_RANK.

    Parameters
    ----------
    fallback_rank : int, optional
        Returned if LOCAL_RANK is not set.

    Raises
    ------
    NotInitialized
        LOCAL_RANK is not set, and there is no `fallback_rank`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.get_node_local_rank(fallback_rank=0)
    0
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise NotInitialized("LOCAL_RANK is not set. Start the ranks with a launcher, or give fallback_rank")
    return int(fallback_rank)


def get_pg_count() -> int:
    """Return the number of groups of this process, the default one included.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_pg_count()
    1
    """
    return len(_context.world.family) if _context.world is not None else 0


# --- subgroups ---


def new_subgroups(
    group_size: int | None = None,
    group: Group | None = None,
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Group, list[Group]]:
    """Divide the world into groups of consecutive ranks. Every rank must make this call.

    Parameters
    ----------
    group_size : int, optional
        Ranks per group, by default the number of ranks on a host (the launcher's LOCAL_WORLD_SIZE).
    group : Communicator, optional
        Must be the world.
    timeout : float or timedelta, optional
        Deadline of each call (float: seconds), by default the world's.
    backend : str, optional
        As in `new_group`.
    pg_options, group_desc
        Ignored; accepted for compatibility with torch.

    Returns
    -------
    tuple
        The group of this rank, and the list of all groups.

    Raises
    ------
    InvalidArgument
        The world cannot be divided into groups of this size.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     mine, groups = dist.new_subgroups(1)
    ...     mine.ranks
    (0,)
    """
    if group is not None and group is not _context.world:
        raise InvalidArgument("new_subgroups: group must be the world. Use new_subgroups_by_enumeration for others")
    size = _group(None).size
    group_size = int(os.environ.get("LOCAL_WORLD_SIZE", size)) if group_size is None else group_size
    if group_size <= 0 or size % group_size:
        raise InvalidArgument(f"new_subgroups: {size} ranks cannot be divided into groups of {group_size}")
    parts = [list(range(start, start + group_size)) for start in range(0, size, group_size)]
    mine, groups = new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)
    assert mine is not None
    return mine, groups


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Group | None, list[Group]]:
    """Make one group for each list of world ranks. Every rank must make this call.

    Parameters
    ----------
    ranks_per_subgroup_list : sequence of sequences of int
        World ranks of each group; no rank may be in two.
    timeout, backend, pg_options, group_desc
        As in `new_subgroups`.

    Returns
    -------
    tuple
        The group of this rank (None if it is in none), and the list of all groups.

    Raises
    ------
    InvalidArgument
        A rank is named twice, or none is named.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     mine, groups = dist.new_subgroups_by_enumeration([[0]])
    ...     len(groups)
    1
    """
    named = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
    if not named or len(set(named)) != len(named):
        raise InvalidArgument(f"new_subgroups_by_enumeration: {ranks_per_subgroup_list} must name each rank once")
    groups = [new_group(ranks, timeout, backend, pg_options) for ranks in ranks_per_subgroup_list]
    return next((made for made in groups if isinstance(made, Communicator)), None), groups


def monitored_barrier(
    group: Group | None = None, timeout: float | timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every rank has called this; the error on the first rank names the missing ones.

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.
    timeout : float or timedelta, optional
        Deadline (float: seconds), by default the group's.
    wait_all_ranks : bool, default False
        Name every missing rank instead of only the first.

    Raises
    ------
    MonitoredBarrierTimeout
        Ranks are missing.
    PeerLost
        A rank died.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.monitored_barrier(timeout=5)
    """
    _group(group).monitored_barrier(None if timeout is None else seconds_of(timeout), wait_all_ranks)


# --- batches of messages ---


class P2POp:
    """A message to send or to receive, for `batch_isend_irecv`.

    Parameters
    ----------
    op : callable
        `isend` or `irecv`.
    tensor : numpy.ndarray or torch.Tensor
        Array to send, or to receive into.
    peer : int, optional
        World rank of the other side.
    group : Communicator, optional
        The group, by default all ranks.
    tag : int, default 0
        Send and receive must have the same tag.
    group_peer : int, optional
        Rank of the other side within the group, instead of `peer`.

    Raises
    ------
    InvalidArgument
        `op` is another function, or not exactly one of `peer` and `group_peer` is given.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> dist.P2POp(dist.isend, np.ones(2), peer=0)
    P2POp(isend, peer 0, tag 0)
    """

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: Any,
        peer: int | None = None,
        group: Group | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise InvalidArgument("P2POp: op must be neuraxis.distributed.isend or neuraxis.distributed.irecv")
        if (peer is None) == (group_peer is None):
            raise InvalidArgument("P2POp: give either peer (a world rank) or group_peer (a rank within the group)")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer

    def __repr__(self) -> str:
        peer = self.peer if self.group_peer is None else f"{self.group_peer} of the group"
        return f"P2POp({self.op.__name__}, peer {peer}, tag {self.tag})"


def batch_isend_irecv(p2p_op_list: Iterable[P2POp]) -> list[Work]:
    """Start all messages of a list.

    Parameters
    ----------
    p2p_op_list : iterable of P2POp

    Returns
    -------
    list of Work
        One per message; wait for each of them.

    Raises
    ------
    InvalidArgument
        The list is empty, or has something else than `P2POp` in it.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     sent, received = np.arange(3), np.zeros(3, int)
    ...     ops = [dist.P2POp(dist.isend, sent, 0), dist.P2POp(dist.irecv, received, 0)]
    ...     done = [work.wait() for work in dist.batch_isend_irecv(ops)]
    >>> received
    array([0, 1, 2])
    """
    ops = list(p2p_op_list)
    if not ops or not all(isinstance(op, P2POp) for op in ops):
        raise InvalidArgument("batch_isend_irecv: p2p_op_list must be a list of P2POp, with at least one")
    works = []
    for op in ops:
        side = "dst" if op.op is isend else "src"
        peer = {side: op.peer} if op.group_peer is None else {f"group_{side}": op.group_peer}
        work = op.op(op.tensor, group=op.group, tag=op.tag, **peer)
        if work is not None:
            works.append(work)
    return works
