"""The flat functions: each is the method of the same name of a group, by default of all ranks.

`src`, `dst` are world ranks, as in `torch.distributed`; `group_src`, `group_dst` are ranks within the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neuraxis.comm import context as _context
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.nonmember import NonMember
from neuraxis.comm.reduction import ReduceOp
from neuraxis.comm.work import Work

Group = Communicator | NonMember

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
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
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
]


def _group(group: Group | None) -> Any:
    if group is not None:
        return group
    return _context.world or _context.current_context().world


# --- who and where ---


def is_initialized() -> bool:
    """Whether this process has a distributed context."""
    return _context._current is not None


def get_rank(group: Group | None = None) -> int:
    """This process's rank in the world, or in `group` (-1 if it is not in it)."""
    return int(_group(group).rank)


def get_world_size(group: Group | None = None) -> int:
    """How many ranks the world, or `group`, has."""
    return int(_group(group).size)


def is_main_process() -> bool:
    """Whether this is rank 0 of the world."""
    return get_rank() == 0


def get_backend(group: Group | None = None) -> str:
    """The name of the backend in use."""
    return str(_group(group).backend_name)


def get_process_group_ranks(group: Group | None = None) -> list[int]:
    """The world ranks of a group, in group order."""
    return list(_group(group).ranks)


def get_group_rank(group: Group, global_rank: int) -> int:
    """The rank within `group` of a world rank; ValueError if it is not in it."""
    return list(group.ranks).index(global_rank)


def new_group(
    ranks: Iterable[int] | None = None, timeout: float | None = None, check_calls: bool | None = None
) -> Group:
    """A group of some ranks. Every rank of the world must make this call; those outside get a NonMember."""
    return _context.current_context().new_group(ranks, timeout, check_calls)


def destroy_group(group: Group) -> None:
    """Free everything that a group holds."""
    group.destroy()


# --- the patterns ---


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Every rank's `tensor` becomes that of rank `src`."""
    return _group(group).broadcast(tensor, src, async_op, group_src)  # type: ignore[no-any-return]


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Reduce over all ranks into `tensor` on rank `dst`; the other ranks' tensors stay as they are."""
    return _group(group).reduce(tensor, dst, op, async_op, group_dst)  # type: ignore[no-any-return]


def all_reduce(
    tensor: Any, op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Reduce `tensor` over all ranks; every rank gets the result, in place."""
    communicator = _context.world if group is None else group  # written out: this call is the one to be quick
    return (communicator or _group(group)).all_reduce(tensor, op, async_op)


def barrier(group: Group | None = None, async_op: bool = False) -> Work | None:
    """Wait until every rank has come here."""
    return _group(group).barrier(async_op)  # type: ignore[no-any-return]


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Collect every rank's `tensor` in `gather_list` on rank `dst`; the others give no list."""
    return _group(group).gather(tensor, gather_list, dst, async_op, group_dst)  # type: ignore[no-any-return]


def all_gather(
    tensor_list: Sequence[Any], tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """Collect every rank's `tensor` in `tensor_list` on every rank."""
    return _group(group).all_gather(tensor_list, tensor, async_op)  # type: ignore[no-any-return]


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Rank i gets the i-th of rank `src`'s `scatter_list` into `tensor`; the others give no list."""
    return _group(group).scatter(tensor, scatter_list, src, async_op, group_src)  # type: ignore[no-any-return]


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th input to rank i and receive its piece for us as the i-th output; lengths may differ."""
    return _group(group).all_to_all(output_tensor_list, input_tensor_list, async_op)  # type: ignore[no-any-return]


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce the i-th inputs of all ranks, for rank i, into its `output`."""
    return _group(group).reduce_scatter(output, input_list, op, async_op)  # type: ignore[no-any-return]


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """all_gather into one tensor: every rank's input, one after the other."""
    return _group(group).all_gather_into_tensor(output_tensor, input_tensor, async_op)  # type: ignore[no-any-return]


def reduce_scatter_tensor(
    output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, group: Group | None = None, async_op: bool = False
) -> Work | None:
    """reduce_scatter from one tensor, which is cut into equal parts."""
    return _group(group).reduce_scatter_tensor(output, input, op, async_op)  # type: ignore[no-any-return]


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    async_op: bool = False,
) -> Work | None:
    """all_to_all from one tensor to one, cut along the first dimension."""
    return _group(group).all_to_all_single(  # type: ignore[no-any-return]
        output, input, output_split_sizes, input_split_sizes, async_op
    )


# --- messages between two ranks ---


def send(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send `tensor` to rank `dst`."""
    _group(group).send(tensor, dst, tag, group_dst)


def recv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive `tensor` from rank `src`, or from any rank; the world rank that it came from."""
    return _group(group).recv(tensor, src, tag, group_src)  # type: ignore[no-any-return]


def isend(
    tensor: Any,
    dst: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Start to send `tensor` to rank `dst`."""
    return _group(group).isend(tensor, dst, tag, group_dst)  # type: ignore[no-any-return]


def irecv(
    tensor: Any,
    src: int | None = None,
    group: Group | None = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Start to receive `tensor` from rank `src`, or from any rank."""
    return _group(group).irecv(tensor, src, tag, group_src)  # type: ignore[no-any-return]


# --- Python objects ---


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Group | None = None,
    device: Any = None,
    group_src: int | None = None,
) -> None:
    """Every rank's `object_list` becomes that of rank `src`. (`device` is torch's and has no meaning here.)"""
    _group(group).broadcast_object_list(object_list, src, group_src)


def all_gather_object(object_list: list[Any], obj: Any, group: Group | None = None) -> None:
    """Collect every rank's `obj` in `object_list` on every rank."""
    _group(group).all_gather_object(object_list, obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
) -> None:
    """Collect every rank's `obj` in `object_gather_list` on rank `dst`."""
    _group(group).gather_object(obj, object_gather_list, dst, group_dst)


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
) -> None:
    """The output list's first element becomes the i-th of rank `src`'s input list on rank i."""
    _group(group).scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group_src)
