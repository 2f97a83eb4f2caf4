"""A group of ranks and what they can do together: the API that users meet.

Signatures are those of `torch.distributed`: in place, `src` and `dst` in world ranks (`group_src`, `group_dst`
in group ranks), `op`, `async_op`. Arrays are NumPy arrays or torch tensors. Here arguments are checked and turned
into buffers, calls are put in order, and failures are remembered; moving the data is the backend's affair.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from neuraxis.comm.arguments import Arguments, reduce_op_of
from neuraxis.comm.backend import Backend
from neuraxis.comm.buffers import buffer_of
from neuraxis.comm.calls import CallOrder
from neuraxis.comm.nonmember import NonMember
from neuraxis.comm.object_forms import ObjectForms
from neuraxis.comm.objects import decode, encode
from neuraxis.comm.reduction import ReduceOp, check_reducible
from neuraxis.comm.work import TransferWork, Work
from neuraxis.errors import CollectiveMismatch, InvalidArgument, NeuraxisError

__all__ = ["Communicator"]

_SETUP_TAG = 32767  # for the messages with which a group is set up: the largest tag that every MPI allows


class Communicator(ObjectForms):
    """A group of ranks that move together.

    Attributes:
        rank: this process's rank within the group.
        size: how many ranks the group has.
        ranks: their ranks in the world, in group order.
        backend_name: which backend carries it ("shm", "gloo", "nccl", "mpi", "local").
        timeout: the deadline of each call, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        ranks: Sequence[int],
        timeout: float,
        name: str,
        allow_pickle: bool = False,
        family: weakref.WeakSet[Communicator] | None = None,
    ) -> None:
        # A group and all that were made from it: they end together.
        self.family: weakref.WeakSet[Communicator] = weakref.WeakSet() if family is None else family
        self.family.add(self)
        self.backend_name = backend.name
        self.rank = backend.rank
        self.size = backend.size
        self.ranks = tuple(ranks)
        self.timeout = timeout
        self.name = name
        self.allow_pickle = allow_pickle
        self._arguments = Arguments(backend.rank, self.ranks, backend.device)
        self._calls = CallOrder(backend, name)
        self._roots: dict[int | None, int] = {world: group for group, world in enumerate(self.ranks)}
        if 0 in self._roots:
            self._roots[None] = self._roots[0]  # the default root is world rank 0

    def __repr__(self) -> str:
        state = "closed" if self._calls.closed else "failed" if self.failed else "open"
        return f"<Communicator {self.name}: rank {self.rank} of {self.size} over {self.backend_name}, {state}>"

    # --- the patterns ---------------------------------------------------------------------------

    def all_reduce(self, tensor: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False) -> Work | None:
        """Reduce `tensor` over all ranks; every rank gets the result, in place."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and type(op) is ReduceOp and not async_op:
            if ways.all_reduce(tensor, op):
                return None
        op = reduce_op_of(op)
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        check_reducible(buffer.element, op, "all_reduce")
        return self._calls.call("all_reduce", buffer, op, written=[buffer], async_op=async_op)

    def reduce(
        self,
        tensor: Any,
        dst: int | None = None,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Reduce over all ranks into `tensor` on rank `dst`; the other ranks' tensors stay as they are."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and type(op) is ReduceOp and not async_op:
            root = self._short_root(dst, group_dst)
            if root is not None and ways.reduce(tensor, op, root):
                return None
        root = self._arguments.root("dst", dst, group_dst)
        op = reduce_op_of(op)
        buffer = self._arguments.buffer(tensor, "tensor", writes=self.rank == root)
        check_reducible(buffer.element, op, "reduce")
        written = [buffer] if self.rank == root else []
        return self._calls.call("reduce", buffer, op, root, written=written, async_op=async_op)

    def broadcast(
        self, tensor: Any, src: int | None = None, async_op: bool = False, group_src: int | None = None
    ) -> Work | None:
        """Every rank's `tensor` becomes that of rank `src`."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and not async_op:
            root = self._short_root(src, group_src)
            if root is not None and ways.broadcast(tensor, root):
                return None
        root = self._arguments.root("src", src, group_src)
        buffer = self._arguments.buffer(tensor, "tensor", writes=self.rank != root)
        written = [buffer] if self.rank != root else []
        return self._calls.call("broadcast", buffer, root, written=written, async_op=async_op)

    def barrier(self, async_op: bool = False) -> Work | None:
        """Wait until every rank of the group has come here."""
        ways = self._calls.short_ways
        if ways is not None and not async_op and ways.barrier():
            return None
        return self._calls.call("barrier", async_op=async_op)

    def gather(
        self,
        tensor: Any,
        gather_list: Sequence[Any] | None = None,
        dst: int | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Collect every rank's `tensor` in `gather_list` on rank `dst`; the others give no list."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and not async_op:
            root = self._short_root(dst, group_dst)
            if root is not None and ways.gather(tensor, gather_list, root):
                return None
        root = self._arguments.root("dst", dst, group_dst)
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        outputs = self._arguments.root_list("gather_list", gather_list, root, buffer, writes=True)
        return self._calls.call("gather", buffer, outputs, root, written=outputs, async_op=async_op)

    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool = False) -> Work | None:
        """Collect every rank's `tensor` in `tensor_list` on every rank."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and not async_op and ways.all_gather(tensor_list, tensor):
            return None
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        outputs = self._arguments.list("tensor_list", tensor_list, buffer, writes=True)
        return self._calls.call("all_gather", outputs, buffer, written=outputs, async_op=async_op)

    def scatter(
        self,
        tensor: Any,
        scatter_list: Sequence[Any] | None = None,
        src: int | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        """Rank i gets the i-th of `scatter_list` from rank `src` into `tensor`; the others give no list."""
        ways = self._calls.short_ways
        if ways is not None and type(tensor) is ndarray and not async_op:
            root = self._short_root(src, group_src)
            if root is not None and ways.scatter(tensor, scatter_list, root):
                return None
        root = self._arguments.root("src", src, group_src)
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        inputs = self._arguments.root_list("scatter_list", scatter_list, root, buffer, writes=False)
        return self._calls.call("scatter", buffer, inputs, root, written=[buffer], async_op=async_op)

    def all_to_all(
        self, output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], async_op: bool = False
    ) -> Work | None:
        """Send the i-th input to rank i and receive its piece for us as the i-th output; lengths may differ."""
        ways = self._calls.short_ways
        if ways is not None and not async_op and ways.all_to_all(output_tensor_list, input_tensor_list):
            return None
        inputs = self._arguments.list("input_tensor_list", input_tensor_list, None, writes=False)
        outputs = self._arguments.list("output_tensor_list", output_tensor_list, inputs[0], writes=True)
        self._arguments.list_dtypes("input_tensor_list", inputs, inputs[0])
        return self._calls.call("all_to_all", outputs, inputs, written=outputs, async_op=async_op)

    def reduce_scatter(
        self, output: Any, input_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """Reduce the i-th inputs of all ranks over the ranks, for rank i, into its `output`."""
        ways = self._calls.short_ways
        if ways is not None and type(output) is ndarray and type(op) is ReduceOp and not async_op:
            if ways.reduce_scatter(output, input_list, op):
                return None
        op = reduce_op_of(op)
        target = self._arguments.buffer(output, "output", writes=True)
        inputs = self._arguments.list("input_list", input_list, target, writes=False)
        check_reducible(target.element, op, "reduce_scatter")
        if inputs[self.rank].count != target.count:
            raise InvalidArgument(
                f"reduce_scatter: output has {target.count} elements, "
                f"but input_list[{self.rank}], which is reduced into it, has {inputs[self.rank].count}"
            )
        return self._calls.call("reduce_scatter", target, inputs, op, written=[target], async_op=async_op)

    def _short_root(self, world: int | None, group: int | None) -> int | None:
        """The root's group rank where there is no question; None where the general way must look."""
        return self._roots.get(world) if group is None else None

    # --- one tensor instead of a list -----------------------------------------------------------

    def all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, async_op: bool = False) -> Work | None:
        """all_gather into one tensor: every rank's input, one after the other."""
        ways = self._calls.short_ways
        if ways is not None and type(output_tensor) is type(input_tensor) is ndarray and not async_op:
            if ways.all_gather_into(output_tensor, input_tensor):
                return None
        whole = self._arguments.buffer(output_tensor, "output_tensor", writes=True)
        buffer = self._arguments.buffer(input_tensor, "input_tensor", writes=False)
        outputs = self._arguments.equal_parts("output_tensor", whole, buffer)
        return self._calls.call("all_gather", outputs, buffer, written=[whole], async_op=async_op)

    def reduce_scatter_tensor(
        self, output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """reduce_scatter from one tensor, which is cut into equal parts."""
        ways = self._calls.short_ways
        if ways is not None and type(output) is type(input) is ndarray and type(op) is ReduceOp and not async_op:
            if ways.reduce_scatter_tensor(output, input, op):
                return None
        op = reduce_op_of(op)
        target = self._arguments.buffer(output, "output", writes=True)
        whole = self._arguments.buffer(input, "input", writes=False)
        inputs = self._arguments.equal_parts("input", whole, target)
        check_reducible(target.element, op, "reduce_scatter")
        return self._calls.call("reduce_scatter", target, inputs, op, written=[target], async_op=async_op)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """all_to_all from one tensor to one, cut along the first dimension (equally without split sizes)."""
        ways = self._calls.short_ways
        if ways is not None and type(output) is type(input) is ndarray and not async_op:
            if not output_split_sizes and not input_split_sizes and ways.all_to_all_single(output, input):
                return None
        whole_output = self._arguments.buffer(output, "output", writes=True)
        whole_input = self._arguments.buffer(input, "input", writes=False)
        outputs = self._arguments.parts("output", whole_output, output, output_split_sizes)
        inputs = self._arguments.parts("input", whole_input, input, input_split_sizes)
        self._arguments.list_dtypes("output", outputs, inputs[0])
        return self._calls.call("all_to_all", outputs, inputs, written=[whole_output], async_op=async_op)

    # --- messages between two ranks -------------------------------------------------------------

    def isend(self, tensor: Any, dst: int | None = None, tag: int = 0, group_dst: int | None = None) -> Work:
        """Start to send `tensor` to rank `dst`."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        peer = self._arguments.peer("dst", dst, group_dst)
        backend = self._calls.usable_backend()
        request = backend.isend(buffer, peer, tag)
        backend.keep_going()
        return TransferWork("send", request, self.timeout, lambda: None, keep=buffer)

    def irecv(self, tensor: Any, src: int | None = None, tag: int = 0, group_src: int | None = None) -> Work:
        """Start to receive `tensor` from rank `src`, or from any rank."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        peer = None if src is None and group_src is None else self._arguments.peer("src", src, group_src)
        backend = self._calls.usable_backend()
        request = backend.ireceive(buffer, peer, tag)
        backend.keep_going()
        return TransferWork("recv", request, self.timeout, buffer.write_back, keep=buffer)

    def send(
        self,
        tensor: Any,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send `tensor` to rank `dst`, within `timeout` seconds (by default, the group's)."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        peer = self._arguments.peer("dst", dst, group_dst)
        self._calls.usable_backend().send(buffer, peer, tag, self.timeout if timeout is None else timeout)

    def recv(
        self,
        tensor: Any,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Receive `tensor` from rank `src`, or from any rank; the world rank that it came from.

        After `timeout` seconds (by default, the group's) it raises CollectiveTimeout.
        """
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        peer = None if src is None and group_src is None else self._arguments.peer("src", src, group_src)
        limit = self.timeout if timeout is None else timeout
        source = self._calls.usable_backend().receive(buffer, peer, tag, limit)
        buffer.write_back()
        return self.ranks[source]

    def send_bytes(self, parts: Sequence[Any], group_dst: int, tag: int, timeout: float) -> None:
        """Send memory that lies in several places as one message, for `receive_bytes`; shm only.

        After `timeout` seconds it raises CollectiveTimeout: nothing is sent then, or the rest goes on, of a copy.
        """
        buffers = [buffer_of(np.frombuffer(part, np.uint8), "parts", writes=False) for part in parts]
        self._calls.usable_backend().send_bytes(buffers, group_dst, tag, timeout)

    def receive_bytes(
        self, group_src: int | None = None, tag: int = 0, timeout: float | None = None
    ) -> tuple[np.ndarray, int]:
        """A message of any length, from rank `group_src` or any, and the group rank it came from; shm only."""
        limit = self.timeout if timeout is None else timeout
        return self._calls.usable_backend().receive_bytes(group_src, tag, limit)

    # --- groups ---------------------------------------------------------------------------------

    def new_group(
        self, ranks: Iterable[int] | None = None, timeout: float | None = None, check_calls: bool | None = None
    ) -> Communicator | NonMember:
        """A group of some of this group's ranks (given as world ranks; in ascending order).

        Every rank of this group makes this call with the same ranks; those outside get a `NonMember` and go on.
        `check_calls` is whether calls are compared between the ranks before they are made (gloo, nccl and mpi; shm
        always does), by default as in this group.
        """
        members = self._members(ranks)
        mine = f"new_group({list(members)}" + ("" if check_calls is None else f", check_calls={check_calls}") + ")"
        everybody: list[Any] = [None] * self.size
        self.all_gather_object(everybody, mine)
        for rank, theirs in enumerate(everybody):
            if theirs != mine:
                raise CollectiveMismatch(
                    f"rank {self.ranks[rank]} called {theirs} while rank {self.ranks[self.rank]} called "
                    f"{mine}: every rank must make the same call",
                    rank=self.ranks[rank],
                    mine=mine,
                    theirs=theirs,
                )
        name = f"{self.name} > ranks {', '.join(map(str, members))}"
        if self.ranks[self.rank] not in members:
            return NonMember(members, self.ranks[self.rank], _OPERATIONS)
        group_ranks = [self.ranks.index(rank) for rank in members]
        limit = timeout or self.timeout
        exchange = self._exchange_among(group_ranks)
        backend = self._calls.guarded(lambda backend: backend.split(group_ranks, exchange, members, limit, check_calls))
        return Communicator(backend, members, limit, name, self.allow_pickle, self.family)

    def _members(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        members = sorted(ranks if ranks is not None else self.ranks)
        if not members:
            raise InvalidArgument("new_group: ranks is empty; a group needs at least one rank")
        for rank in members:
            if rank not in self.ranks:
                raise InvalidArgument(f"new_group: rank {rank} is not among the ranks {list(self.ranks)}")
        if len(set(members)) != len(members):
            raise InvalidArgument(f"new_group: ranks {members} names a rank twice")
        return tuple(int(rank) for rank in members)

    def _exchange_among(self, members: Sequence[int]) -> Callable[[bytes], list[bytes]]:
        """An exchange between some ranks of this group: the first collects and hands back."""

        def exchange(content: bytes) -> list[bytes]:
            first, others = members[0], members[1:]
            if self.rank != first:
                self._send_bytes(content, first)
                everything: list[bytes] = decode(self._receive_bytes(first))
                return everything
            contents = [content] + [self._receive_bytes(rank) for rank in others]
            for rank in others:
                self._send_bytes(encode(contents), rank)
            return contents

        return exchange

    def _send_bytes(self, content: bytes, to: int) -> None:
        self.send(np.array([len(content)], np.int64), group_dst=to, tag=_SETUP_TAG)
        self.send(np.frombuffer(content, np.uint8), group_dst=to, tag=_SETUP_TAG)

    def _receive_bytes(self, source: int) -> bytes:
        length = np.zeros(1, np.int64)
        self.recv(length, group_src=source, tag=_SETUP_TAG)
        content = np.empty(int(length[0]), np.uint8)
        self.recv(content, group_src=source, tag=_SETUP_TAG)
        return content.tobytes()

    # --- the end --------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Finish what is queued, then free everything the group holds. Can be called again, and after a failure."""
        self._calls.destroy()

    def abort(self, because: BaseException | None = None) -> None:
        """Destroy the group without waiting: operations under way or queued end with CommunicatorClosed.

        The others are told `because` of what, where the backend can.
        """
        if because is not None:
            self._calls.say_farewell(because)
        self._calls.abort()

    def say_farewell(self, error: BaseException) -> None:
        """Tell the others that this rank is about to leave because of `error`; `abort` is to follow."""
        self._calls.say_farewell(error)

    def abandon(self, error: NeuraxisError) -> None:
        """Forget, in a forked child, what is the parent's; later calls raise `error`."""
        self._calls.abandon(error)

    @property
    def failed(self) -> bool:
        """Whether an operation has failed in a way that leaves the group unusable."""
        return self._calls.error is not None


_OPERATIONS = frozenset(name for name in dir(Communicator) if not name.startswith("_"))
