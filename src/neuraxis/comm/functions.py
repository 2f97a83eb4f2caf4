"""Collectives and messages as functions: each calls the method of the same name of a `Communicator`.

The group is by default that of all ranks. As in `torch.distributed`, `src` and `dst` are world ranks, and `group_src`
and `group_dst` ranks within the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from neuraxis.comm import context as _context
from neuraxis.comm.backends.base import NonMember
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.docstrings import complete_docstring
from neuraxis.comm.operations import Work, seconds_of
from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import InvalidArgument

Group = Communicator | NonMember

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "irecv",
    "is_initialized",
    "is_main_process",
    "isend",
    "new_group",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
]


def _group(group: Group | None) -> Any:
    if group is not None:
        return group
    return _context.world or _context.current_context().world


# --- ranks and groups ---


def is_initialized() -> bool:
    """Return True if this process has a distributed context.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> dist.is_initialized()
    False
    """
    return _context._current is not None


def get_rank(group: Group | None = None) -> int:
    """Return the rank of this process in the world, or in a group.

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.

    Returns
    -------
    int
        The rank; -1 if this process is not in the group.

    Raises
    ------
    NotInitialized
        There is no distributed context.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_rank()
    0
    """
    return int(_group(group).rank)


def get_world_size(group: Group | None = None) -> int:
    """Return the number of ranks in the world, or in a group (-1 if this process is not in it).

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.

    Raises
    ------
    NotInitialized
        There is no distributed context.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_world_size()
    1
    """
    return int(_group(group).size)


def is_main_process() -> bool:
    """Return True on world rank 0.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.is_main_process()
    True
    """
    return get_rank() == 0


def get_backend(group: Group | None = None) -> str:
    """Return the name of the backend of a group, e.g. "shm".

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext():
    ...     dist.get_backend()
    'local'
    """
    return str(_group(group).backend_name)


def get_process_group_ranks(group: Group | None = None) -> list[int]:
    """Return the world ranks of a group, in group order.

    Parameters
    ----------
    group : Communicator, optional
        The group, by default all ranks.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_process_group_ranks()
    [0]
    """
    return list(_group(group).ranks)


def get_group_rank(group: Group, global_rank: int) -> int:
    """Return the rank within `group` of a world rank.

    Parameters
    ----------
    group : Communicator
    global_rank : int
        A world rank.

    Raises
    ------
    ValueError
        The rank is not in the group.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.get_group_rank(dist.new_group([0]), 0)
    0
    """
    return list(group.ranks).index(global_rank)


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: float | timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    *,
    check_calls: bool | None = None,
) -> Group:
    """Make a group of some ranks. Every rank of the world must make this call.

    Parameters
    ----------
    ranks : iterable of int, optional
        World ranks of the members, by default all.
    timeout : float or timedelta, optional
        Deadline of each call (float: seconds), by default the world's.
    backend : str, optional
        "shm", "gloo" or "nccl", by default the world's.
    pg_options, group_desc, device_id
        Ignored; accepted for compatibility with torch.
    use_local_synchronization : bool, default False
        Must be False: all ranks of the world take part.
    check_calls : bool, optional
        Compare each call between the ranks before making it (gloo, nccl and mpi; shm always does), by default as in the
        world.

    Returns
    -------
    Communicator or NonMember
        `NonMember` on ranks outside the group.

    Raises
    ------
    InvalidArgument
        A rank is unknown or named twice, or an option is not supported.
    CollectiveMismatch
        The ranks gave different arguments.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.new_group([0], timeout=30).size
    1
    """
    if use_local_synchronization:
        raise InvalidArgument(
            "new_group: use_local_synchronization=True is not supported, because every rank of the world takes part "
            "in making a group. Call new_group on all ranks without it"
        )
    context = _context.current_context()
    limit = None if timeout is None else seconds_of(timeout)
    return context.new_group(ranks, limit, check_calls, backend and backend.lower().rpartition(":")[2])


def destroy_group(group: Group) -> None:
    """Free the resources of a group; idempotent.

    Parameters
    ----------
    group : Communicator or NonMember

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     group = dist.new_group([0])
    ...     dist.destroy_group(group)
    """
    group.close()


# --- collectives ---


@complete_docstring(Communicator)
def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Copy `tensor` of rank `src` into `tensor` of every other rank.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     tensor = np.arange(3)
    ...     dist.broadcast(tensor, src=0)
    ...     tensor
    array([0, 1, 2])
    """
    return _group(group).broadcast(tensor, src, async_op, group_src)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce `tensor` over all ranks, in place on rank `dst` only; other ranks' tensors do not change.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     tensor = np.ones(2)
    ...     dist.reduce(tensor, dst=0, op=dist.ReduceOp.MAX)
    ...     tensor
    array([1., 1.])
    """
    return _group(group).reduce(tensor, dst, op, async_op, group_dst)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_reduce(
    tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Reduce `tensor` over all ranks, in place on every rank.

    The reduction runs in rank order with the shm backend, so every rank gets the same bits in every run.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     tensor = np.array([1.0, 2.0])
    ...     dist.all_reduce(tensor)
    ...     tensor
    array([1., 2.])
    """
    communicator = _context.world if group is None else group  # `_group` inlined: this is the hottest call
    return (communicator or _group(group)).all_reduce(tensor, op, async_op)


@complete_docstring(Communicator)
def barrier(group: Group | None = None, async_op: bool = False, device_ids: Any = None) -> Work | None:
    """Wait until every rank has called `barrier`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.barrier()
    """
    return _group(group).barrier(async_op)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in `gather_list` on rank `dst`.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     collected = [np.zeros(2)]
    ...     dist.gather(np.ones(2), collected, dst=0)
    ...     collected
    [array([1., 1.])]
    """
    return _group(group).gather(tensor, gather_list, dst, async_op, group_dst)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Collect every rank's `tensor` in `tensor_list` on every rank.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     collected = [np.zeros(2)]
    ...     dist.all_gather(collected, np.ones(2))
    ...     collected
    [array([1., 1.])]
    """
    return _group(group).all_gather(tensor_list, tensor, async_op)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Send the i-th array of `scatter_list` on rank `src` to rank i, into its `tensor`.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     part = np.zeros(2)
    ...     dist.scatter(part, [np.ones(2)], src=0)
    ...     part
    array([1., 1.])
    """
    return _group(group).scatter(tensor, scatter_list, src, async_op, group_src)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th input to rank i, and receive the i-th output from rank i.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     outputs = [np.zeros(2)]
    ...     dist.all_to_all(outputs, [np.ones(2)])
    ...     outputs
    [array([1., 1.])]
    """
    return _group(group).all_to_all(output_tensor_list, input_tensor_list, async_op)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the i-th inputs of all ranks and write the result to `output` on rank i.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     output = np.zeros(2)
    ...     dist.reduce_scatter(output, [np.ones(2)])
    ...     output
    array([1., 1.])
    """
    return _group(group).reduce_scatter(output, input_list, op, async_op)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Concatenate every rank's `input_tensor` in `output_tensor` on every rank.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     output = np.zeros(2)
    ...     dist.all_gather_into_tensor(output, np.ones(2))
    ...     output
    array([1., 1.])
    """
    return _group(group).all_gather_into_tensor(output_tensor, input_tensor, async_op)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_reduce_coalesced(
    tensors: Sequence[Any], op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Call `all_reduce` on each of several tensors.

    Parameters
    ----------
    tensors : sequence of arrays
    async_op : bool, default False
        Return a `Work` that completes with the last tensor.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     tensors = [np.ones(2), np.arange(2)]
    ...     dist.all_reduce_coalesced(tensors)
    """
    works = [_group(group).all_reduce(tensor, op, async_op) for tensor in tensors]
    return works[-1] if works else None  # calls run in order, and a failure fails all later ones


@complete_docstring(Communicator)
def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Any]],
    input_tensor_list: Sequence[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Call `all_gather` on each of several tensors.

    Parameters
    ----------
    output_tensor_lists : sequence of sequences of arrays
        `output_tensor_lists[rank][i]` receives the i-th input of that rank.
    input_tensor_list : sequence of arrays
    async_op : bool, default False
        Return a `Work` that completes with the last tensor.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     outputs = [[np.zeros(2), np.zeros(1)]]
    ...     dist.all_gather_coalesced(outputs, [np.ones(2), np.ones(1)])
    ...     outputs
    [[array([1., 1.]), array([1.])]]
    """
    works = [
        _group(group).all_gather([outputs[index] for outputs in output_tensor_lists], tensor, async_op)
        for index, tensor in enumerate(input_tensor_list)
    ]
    return works[-1] if works else None


@complete_docstring(Communicator)
def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Reduce `input` over all ranks and write the i-th of its equal parts to `output` on rank i.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     output = np.zeros(2)
    ...     dist.reduce_scatter_tensor(output, np.ones(2))
    ...     output
    array([1., 1.])
    """
    return _group(group).reduce_scatter_tensor(output, input, op, async_op)  # type: ignore[no-any-return]


# Their names since torch 2.13.
all_gather_single = all_gather_into_tensor
reduce_scatter_single = reduce_scatter_tensor


@complete_docstring(Communicator)
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send parts of `input` to all ranks and concatenate the parts received in `output`.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     output = np.zeros(2)
    ...     dist.all_to_all_single(output, np.ones(2))
    ...     output
    array([1., 1.])
    """
    return _group(group).all_to_all_single(  # type: ignore[no-any-return]
        output, input, output_split_sizes, input_split_sizes, async_op
    )


# --- messages between two ranks ---


@complete_docstring(Communicator)
def send(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to another rank and wait until it may be changed again.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.send(np.ones(2), dst=0)
    ...     received = np.zeros(2)
    ...     dist.recv(received)
    0
    """
    _group(group).send(tensor, dst, tag, group_dst)


@complete_docstring(Communicator)
def recv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a message into `tensor` and wait for it.

    Parameters
    ----------
    tensor : numpy.ndarray or torch.Tensor
        Of the dtype and length that were sent.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     received = np.zeros(2)
    ...     work = dist.isend(np.ones(2), dst=0)
    ...     sender = dist.recv(received, src=0)
    ...     received
    array([1., 1.])
    """
    return _group(group).recv(tensor, src, tag, group_src)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def isend(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Start to send `tensor` to another rank.

    Parameters
    ----------
    tensor : numpy.ndarray or torch.Tensor
        Must not be changed until the work has completed.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     received = np.zeros(2)
    ...     work = dist.isend(np.ones(2), dst=0)
    ...     sender = dist.recv(received, src=0)
    ...     received
    array([1., 1.])
    """
    return _group(group).isend(tensor, dst, tag, group_dst)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def irecv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Start to receive a message into `tensor`.

    Parameters
    ----------
    tensor : numpy.ndarray or torch.Tensor
        Of the dtype and length that were sent; must not be used until the work has completed.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     received = np.zeros(2)
    ...     work = dist.irecv(received, src=0)
    ...     dist.send(np.ones(2), dst=0)
    ...     done = work.wait()
    ...     received
    array([1., 1.])
    """
    return _group(group).irecv(tensor, src, tag, group_src)  # type: ignore[no-any-return]


# --- Python objects ---


@complete_docstring(Communicator)
def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Replace the elements of `object_list` with those of rank `src`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     objects = [{"rate_hz": 12.5}, "exc"]
    ...     dist.broadcast_object_list(objects, src=0)
    """
    _group(group).broadcast_object_list(object_list, src, group_src)


@complete_docstring(Communicator)
def send_object_list(
    object_list: list[Any],
    dst: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_dst: int | None = None,
    use_batch: bool = False,
) -> None:
    """Send objects to another rank, which calls `recv_object_list`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.send_object_list(["a", 1], dst=0)
    ...     objects = [None, None]
    ...     sender = dist.recv_object_list(objects)
    ...     objects
    ['a', 1]
    """
    _group(group).send_object_list(object_list, dst, group_dst)


@complete_docstring(Communicator)
def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> int:
    """Receive objects into `object_list` from another rank.

    Parameters
    ----------
    object_list : list
        As long as the list that was sent; its elements are replaced.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     dist.send_object_list(["a", 1], dst=0)
    ...     objects = [None, None]
    ...     dist.recv_object_list(objects)
    0
    """
    return _group(group).recv_object_list(object_list, src, group_src)  # type: ignore[no-any-return]


@complete_docstring(Communicator)
def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Collect every rank's `obj` in `object_list` on every rank.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     objects = [None]
    ...     dist.all_gather_object(objects, {"spikes": 3})
    ...     objects
    [{'spikes': 3}]
    """
    _group(group).all_gather_object(object_list, obj)


@complete_docstring(Communicator)
def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
) -> None:
    """Collect every rank's `obj` in `object_gather_list` on rank `dst`.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     objects = [None]
    ...     dist.gather_object((1, 2), objects, dst=0)
    ...     objects
    [(1, 2)]
    """
    _group(group).gather_object(obj, object_gather_list, dst, group_dst)


@complete_docstring(Communicator)
def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
) -> None:
    """Send the i-th object of the input list on rank `src` to rank i.

    Examples
    --------
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     mine = [None]
    ...     dist.scatter_object_list(mine, ["task"], src=0)
    ...     mine
    ['task']
    """
    _group(group).scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group_src)
