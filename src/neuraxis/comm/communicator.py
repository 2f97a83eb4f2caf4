"""The communicator: a group of ranks with collectives and point-to-point messages.

Signatures follow `torch.distributed`: results are written in place, `src` and `dst` are world ranks, `group_src` and
`group_dst` ranks within the group. Arrays are NumPy arrays or torch tensors.

A call takes three steps. The communicator checks the arguments and turns them into buffers (`buffers`), the dispatcher
runs the calls of a group one at a time and remembers a failure (`operations`), and the backend moves the data
(`backends`). Synchronous calls on plain NumPy arrays skip the first two steps where the backend has a fast path.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy import ndarray

from neuraxis.comm.backends.base import Backend, Exchange, NonMember, Request
from neuraxis.comm.buffers import Arguments, buffer_of, reduce_op_of
from neuraxis.comm.docstrings import complete_docstring
from neuraxis.comm.object_collectives import ObjectCollectives
from neuraxis.comm.operations import CallDispatcher, TransferWork, Work
from neuraxis.comm.reduction import ReduceOp, check_reducible
from neuraxis.deprecation import renamed_members
from neuraxis.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    InvalidArgument,
    MonitoredBarrierTimeout,
    NeuraxisError,
)
from neuraxis.wire.objects import decode, encode

__all__ = ["BackendFactory", "Communicator"]

BackendFactory = Callable[[int, Exchange, Sequence[int], float, bool | None], Backend]
"""Factory of a group's backend: (rank in the group, exchange between its ranks, their world ranks, timeout in seconds,
check_calls) -> backend."""

_BARRIER_TAG = 32766
_SETUP_TAG = 32767  # for the messages that set up a group; the largest tag that every MPI allows


@renamed_members(destroy="close", say_farewell="send_last_message")
class Communicator(ObjectCollectives):
    """A group of ranks that call the same collectives in the same order.

    `DistributedContext` makes the communicator of all ranks (`context.world`), and `new_group` those of some ranks.
    Every method that takes `async_op` returns None when it is False, after the operation has completed on this rank;
    when it is True it returns a `Work` at once, and the arrays must not be used until the work has completed.

    An operation raises `InvalidArgument` or `InvalidType`, before anything is sent, if its arguments are wrong;
    `PeerLost` if a rank that it needs has died or left; `CollectiveTimeout` if a rank did not arrive within `timeout`;
    and `CollectiveMismatch` if the ranks made different calls. A group in which a collective has failed in one of the
    last three ways can only be closed. Leaving the `with` block of a group closes it, or aborts it after an exception.

    Attributes
    ----------
    rank : int
        Rank of this process within the group.
    size : int
        Number of ranks in the group.
    ranks : tuple of int
        World ranks of the members, in group order.
    backend_name : str
        "shm", "gloo", "nccl", "mpi" or "local".
    timeout : float
        Deadline of each call, in seconds.
    name : str
        Name of the group in errors.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local") as context:
    ...     group = context.new_group([0])
    ...     values = np.array([1.0, 2.0])
    ...     group.all_reduce(values)
    ...     group
    <Communicator world > ranks 0: rank 0 of 1 over local, open>
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
        # The world and all groups made from it; shutting the context down closes them together.
        self.family: weakref.WeakSet[Communicator] = weakref.WeakSet() if family is None else family
        self.family.add(self)
        self.backend_name = backend.name
        self.rank = backend.rank
        self.size = backend.size
        self.ranks = tuple(ranks)
        self.timeout = timeout
        self.name = name
        self.allow_pickle = allow_pickle
        self._barrier_sends: list[Work] = []
        self._arguments = Arguments(backend.rank, self.ranks, backend.device)
        self._calls = CallDispatcher(backend, name)
        self._roots: dict[int | None, int] = {world: group for group, world in enumerate(self.ranks)}
        if 0 in self._roots:
            self._roots[None] = self._roots[0]  # the default root is world rank 0

    def __repr__(self) -> str:
        state = "closed" if self._calls.closed else "failed" if self.failed else "open"
        return f"<Communicator {self.name}: rank {self.rank} of {self.size} over {self.backend_name}, {state}>"

    # --- collectives ----------------------------------------------------------------------------

    @complete_docstring()
    def all_reduce(self, tensor: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False) -> Work | None:
        """Reduce `tensor` over all ranks, in place on every rank."""
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and type(op) is ReduceOp and not async_op:
            if fast.all_reduce(tensor, op):
                return None
        op = reduce_op_of(op)
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        check_reducible(buffer.element, op, "all_reduce")
        return self._calls.call("all_reduce", buffer, op, written=[buffer], async_op=async_op)

    @complete_docstring()
    def reduce(
        self,
        tensor: Any,
        dst: int | None = None,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Reduce `tensor` over all ranks, in place on rank `dst` only; other ranks' tensors do not change."""
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and type(op) is ReduceOp and not async_op:
            root = self._known_root(dst, group_dst)
            if root is not None and fast.reduce(tensor, op, root):
                return None
        root = self._arguments.root("dst", dst, group_dst)
        op = reduce_op_of(op)
        buffer = self._arguments.buffer(tensor, "tensor", writes=self.rank == root)
        check_reducible(buffer.element, op, "reduce")
        written = [buffer] if self.rank == root else []
        return self._calls.call("reduce", buffer, op, root, written=written, async_op=async_op)

    @complete_docstring()
    def broadcast(
        self, tensor: Any, src: int | None = None, async_op: bool = False, group_src: int | None = None
    ) -> Work | None:
        """Copy `tensor` of rank `src` into `tensor` of every other rank."""
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and not async_op:
            root = self._known_root(src, group_src)
            if root is not None and fast.broadcast(tensor, root):
                return None
        root = self._arguments.root("src", src, group_src)
        buffer = self._arguments.buffer(tensor, "tensor", writes=self.rank != root)
        written = [buffer] if self.rank != root else []
        return self._calls.call("broadcast", buffer, root, written=written, async_op=async_op)

    @complete_docstring()
    def barrier(self, async_op: bool = False) -> Work | None:
        """Wait until every rank of the group has called `barrier`."""
        fast = self._calls.fast_path
        if fast is not None and not async_op and fast.barrier():
            return None
        return self._calls.call("barrier", async_op=async_op)

    def monitored_barrier(self, timeout: float | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank of the group has called this; the error on the first rank names the missing ones.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds, by default the group's.
        wait_all_ranks : bool, default False
            Wait for all ranks until the deadline and name every missing one, instead of only the first.

        Raises
        ------
        MonitoredBarrierTimeout
            On the first rank: ranks are missing. On the others: the first rank did not release them in time.
        PeerLost
            A rank died.
        """
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        if self.rank == 0:
            self._lead_barrier(limit, deadline, wait_all_ranks)
            return
        first, me = self.ranks[0], self.ranks[self.rank]
        echoed: set[int] = set()
        try:
            while True:
                number = self._recv_at_barrier(0, deadline)
                if -number in echoed:
                    return
                if number > 0:
                    self._send_at_barrier(number, 0)
                    echoed.add(number)
        except CollectiveTimeout as error:
            raise MonitoredBarrierTimeout(
                f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank {first}. See the error of rank {first}, which names the missing ranks",
                rank=first,
                operation="monitored_barrier",
            ) from error

    @complete_docstring()
    def gather(
        self,
        tensor: Any,
        gather_list: Sequence[Any] | None = None,
        dst: int | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Collect every rank's `tensor` in `gather_list` on rank `dst`.

        Parameters
        ----------
        tensor : numpy.ndarray or torch.Tensor
            This rank's contribution; lengths may differ between ranks.
        gather_list : list of arrays, optional
            On the root: one array per rank, of the dtype and length of that rank's tensor. None on other ranks.
        """
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and not async_op:
            root = self._known_root(dst, group_dst)
            if root is not None and fast.gather(tensor, gather_list, root):
                return None
        root = self._arguments.root("dst", dst, group_dst)
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        outputs = self._arguments.root_list("gather_list", gather_list, root, buffer, writes=True)
        return self._calls.call("gather", buffer, outputs, root, written=outputs, async_op=async_op)

    @complete_docstring()
    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool = False) -> Work | None:
        """Collect every rank's `tensor` in `tensor_list` on every rank.

        Parameters
        ----------
        tensor_list : list of arrays
            One array per rank, of the dtype and length of that rank's tensor.
        tensor : numpy.ndarray or torch.Tensor
            This rank's contribution; lengths may differ between ranks.
        """
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and not async_op and fast.all_gather(tensor_list, tensor):
            return None
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        outputs = self._arguments.list("tensor_list", tensor_list, buffer, writes=True)
        return self._calls.call("all_gather", outputs, buffer, written=outputs, async_op=async_op)

    @complete_docstring()
    def scatter(
        self,
        tensor: Any,
        scatter_list: Sequence[Any] | None = None,
        src: int | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        """Send the i-th array of `scatter_list` on rank `src` to rank i, into its `tensor`.

        Parameters
        ----------
        tensor : numpy.ndarray or torch.Tensor
            Receives this rank's part; lengths may differ between ranks.
        scatter_list : list of arrays, optional
            On the root: one array per rank. None on other ranks.
        """
        fast = self._calls.fast_path
        if fast is not None and type(tensor) is ndarray and not async_op:
            root = self._known_root(src, group_src)
            if root is not None and fast.scatter(tensor, scatter_list, root):
                return None
        root = self._arguments.root("src", src, group_src)
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        inputs = self._arguments.root_list("scatter_list", scatter_list, root, buffer, writes=False)
        return self._calls.call("scatter", buffer, inputs, root, written=[buffer], async_op=async_op)

    @complete_docstring()
    def all_to_all(
        self, output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], async_op: bool = False
    ) -> Work | None:
        """Send the i-th input to rank i, and receive the i-th output from rank i.

        Parameters
        ----------
        output_tensor_list, input_tensor_list : list of arrays
            One array per rank, all of one dtype. Lengths may differ, but what rank i sends to rank j must be as long
            as what rank j expects from rank i.
        """
        fast = self._calls.fast_path
        if fast is not None and not async_op and fast.all_to_all(output_tensor_list, input_tensor_list):
            return None
        inputs = self._arguments.list("input_tensor_list", input_tensor_list, None, writes=False)
        outputs = self._arguments.list("output_tensor_list", output_tensor_list, inputs[0], writes=True)
        self._arguments.list_dtypes("input_tensor_list", inputs, inputs[0])
        return self._calls.call("all_to_all", outputs, inputs, written=outputs, async_op=async_op)

    @complete_docstring()
    def reduce_scatter(
        self, output: Any, input_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """Reduce the i-th inputs of all ranks and write the result to `output` on rank i.

        Parameters
        ----------
        output : numpy.ndarray or torch.Tensor
            As long as this rank's entry in `input_list`.
        input_list : list of arrays
            One array per rank; the i-th has the same length on every rank.
        """
        fast = self._calls.fast_path
        if fast is not None and type(output) is ndarray and type(op) is ReduceOp and not async_op:
            if fast.reduce_scatter(output, input_list, op):
                return None
        op = reduce_op_of(op)
        target = self._arguments.buffer(output, "output", writes=True)
        inputs = self._arguments.list("input_list", input_list, target, writes=False)
        check_reducible(target.element, op, "reduce_scatter")
        if inputs[self.rank].count != target.count:
            raise InvalidArgument(
                f"reduce_scatter: output has {target.count} elements, "
                f"but input_list[{self.rank}], which is reduced into it, has {inputs[self.rank].count}. "
                "Give both the same length"
            )
        return self._calls.call("reduce_scatter", target, inputs, op, written=[target], async_op=async_op)

    # --- one tensor instead of a list -----------------------------------------------------------

    @complete_docstring()
    def all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, async_op: bool = False) -> Work | None:
        """Concatenate every rank's `input_tensor` in `output_tensor`, which has `size` times its elements.

        Parameters
        ----------
        output_tensor : numpy.ndarray or torch.Tensor
            Has world size times the elements of `input_tensor`.
        input_tensor : numpy.ndarray or torch.Tensor
            Same dtype and number of elements on every rank.
        """
        fast = self._calls.fast_path
        if fast is not None and type(output_tensor) is type(input_tensor) is ndarray and not async_op:
            if fast.all_gather_into(output_tensor, input_tensor):
                return None
        whole = self._arguments.buffer(output_tensor, "output_tensor", writes=True)
        buffer = self._arguments.buffer(input_tensor, "input_tensor", writes=False)
        outputs = self._arguments.equal_parts("output_tensor", whole, buffer)
        return self._calls.call("all_gather", outputs, buffer, written=[whole], async_op=async_op)

    @complete_docstring()
    def reduce_scatter_tensor(
        self, output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """Reduce `input` over all ranks and write the i-th of its `size` equal parts to `output` on rank i.

        Parameters
        ----------
        output : numpy.ndarray or torch.Tensor
        input : numpy.ndarray or torch.Tensor
            Has world size times the elements of `output`.
        """
        fast = self._calls.fast_path
        if fast is not None and type(output) is type(input) is ndarray and type(op) is ReduceOp and not async_op:
            if fast.reduce_scatter_tensor(output, input, op):
                return None
        op = reduce_op_of(op)
        target = self._arguments.buffer(output, "output", writes=True)
        whole = self._arguments.buffer(input, "input", writes=False)
        inputs = self._arguments.equal_parts("input", whole, target)
        check_reducible(target.element, op, "reduce_scatter")
        return self._calls.call("reduce_scatter", target, inputs, op, written=[target], async_op=async_op)

    @complete_docstring()
    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Send parts of `input` to all ranks and concatenate the parts received in `output`.

        Parameters
        ----------
        output, input : numpy.ndarray or torch.Tensor
            Split along the first dimension, one part per rank.
        output_split_sizes, input_split_sizes : sequence of int, optional
            Rows of each part, by default equal.
        """
        fast = self._calls.fast_path
        if fast is not None and type(output) is type(input) is ndarray and not async_op:
            if not output_split_sizes and not input_split_sizes and fast.all_to_all_single(output, input):
                return None
        whole_output = self._arguments.buffer(output, "output", writes=True)
        whole_input = self._arguments.buffer(input, "input", writes=False)
        outputs = self._arguments.parts("output", whole_output, output, output_split_sizes)
        inputs = self._arguments.parts("input", whole_input, input, input_split_sizes)
        self._arguments.list_dtypes("output", outputs, inputs[0])
        return self._calls.call("all_to_all", outputs, inputs, written=[whole_output], async_op=async_op)

    # --- messages between two ranks -------------------------------------------------------------

    @complete_docstring()
    def isend(self, tensor: Any, dst: int | None = None, tag: int = 0, group_dst: int | None = None) -> Work:
        """Start to send `tensor` to world rank `dst`, or group rank `group_dst`; see `send`."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        peer = self._arguments.peer("dst", dst, group_dst)

        def start(backend: Backend) -> Request:
            request = backend.isend(buffer, peer, tag)
            backend.ensure_progress()
            return request

        request = self._calls.send(start)
        return TransferWork("send", request, self.timeout, lambda: None, keep=buffer)

    @complete_docstring()
    def irecv(self, tensor: Any, src: int | None = None, tag: int = 0, group_src: int | None = None) -> Work:
        """Start to receive `tensor` from a rank, by default from any; see `recv`."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        peer = None if src is None and group_src is None else self._arguments.peer("src", src, group_src)
        backend = self._calls.usable_backend()
        request = backend.ireceive(buffer, peer, tag)
        backend.ensure_progress()
        return TransferWork("recv", request, self.timeout, buffer.write_back, keep=buffer)

    @complete_docstring()
    def send(
        self,
        tensor: Any,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send `tensor` to another rank and wait until it may be changed again."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=False)
        peer = self._arguments.peer("dst", dst, group_dst)
        limit = self.timeout if timeout is None else timeout
        self._calls.send(lambda backend: backend.send(buffer, peer, tag, limit))

    @complete_docstring()
    def recv(
        self,
        tensor: Any,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Receive into `tensor`, of the same dtype and length as was sent, and return the sender's world rank."""
        buffer = self._arguments.buffer(tensor, "tensor", writes=True)
        peer = None if src is None and group_src is None else self._arguments.peer("src", src, group_src)
        limit = self.timeout if timeout is None else timeout
        source = self._calls.usable_backend().receive(buffer, peer, tag, limit)
        buffer.write_back()
        return self.ranks[source]

    def send_bytes(self, parts: Sequence[Any], group_dst: int, tag: int, timeout: float) -> None:
        """Send several pieces of memory as one message of bytes, for `receive_bytes`; shm only.

        Parameters
        ----------
        parts : sequence of buffer
            Pieces of memory.
        group_dst : int
            Rank of the receiver within the group.
        tag : int
            Tag of the message.
        timeout : float
            Deadline in seconds.

        Raises
        ------
        CollectiveTimeout
            The message was not sent in time. If part of it has been written by then, the backend sends the rest from a
            copy; otherwise it sends nothing.
        """
        buffers = [buffer_of(np.frombuffer(part, np.uint8), "parts", writes=False) for part in parts]
        self._calls.send(lambda backend: backend.send_bytes(buffers, group_dst, tag, timeout))

    def receive_bytes(
        self, group_src: int | None = None, tag: int = 0, timeout: float | None = None
    ) -> tuple[np.ndarray, int]:
        """Receive a message of any length; shm only.

        Parameters
        ----------
        group_src : int, optional
            Rank of the sender within the group, by default any.
        tag : int
            Tag of the message.
        timeout : float, optional
            Deadline in seconds, by default the group's.

        Returns
        -------
        message : array of uint8, shape (bytes,)
            The message.
        group_src : int
            Rank of the sender within the group.
        """
        limit = self.timeout if timeout is None else timeout
        return self._calls.usable_backend().receive_bytes(group_src, tag, limit)

    # --- groups ---------------------------------------------------------------------------------

    def new_group(
        self,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        check_calls: bool | None = None,
        engine: BackendFactory | None = None,
    ) -> Communicator | NonMember:
        """Make a group of some ranks of this group, in ascending order of their world ranks.

        Every rank of this group must make this call with the same arguments, also the ranks outside the new group.

        Parameters
        ----------
        ranks : iterable of int, optional
            World ranks of the members, by default all ranks of this group.
        timeout : float, optional
            Deadline of each call in seconds, by default that of this group.
        check_calls : bool, optional
            Compare each call between the ranks before making it (gloo, nccl and mpi; shm always does), by default as
            in this group.
        engine : callable, optional
            Factory of the backend, by default one of this group's kind.

        Returns
        -------
        Communicator or NonMember
            `NonMember` on ranks outside the new group.

        Raises
        ------
        InvalidArgument
            `ranks` is empty, names a rank twice, or one that is not in this group.
        CollectiveMismatch
            The ranks gave different arguments.
        """
        members = self._members(ranks)
        mine = f"new_group({list(members)}" + ("" if check_calls is None else f", check_calls={check_calls}") + ")"
        calls: list[Any] = [None] * self.size
        self.all_gather_object(calls, mine)
        for rank, theirs in enumerate(calls):
            if theirs != mine:
                raise CollectiveMismatch(
                    f"rank {self.ranks[rank]} called {theirs} while rank {self.ranks[self.rank]} called "
                    f"{mine}. Make the same call on every rank",
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
        if engine is None:
            backend = self._calls.guarded(
                lambda backend: backend.split(group_ranks, exchange, members, limit, check_calls)
            )
        else:
            backend = engine(group_ranks.index(self.rank), exchange, members, limit, check_calls)
        return Communicator(backend, members, limit, name, self.allow_pickle, self.family)

    # --- timeout and closing --------------------------------------------------------------------

    def set_timeout(self, timeout: float) -> None:
        """Set the deadline of every later call.

        Parameters
        ----------
        timeout : float
            Deadline in seconds; all ranks of the group should set the same one.
        """
        self.timeout = timeout
        self._calls.guarded(lambda backend: setattr(backend, "timeout", timeout))

    def close(self) -> None:
        """Complete queued operations, then free the group's resources; idempotent, also after a failure."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort(error)  # raise the error at once, without waiting for other ranks

    def abort(self, because: BaseException | None = None) -> None:
        """Close the group without waiting: pending and queued operations raise CommunicatorClosed.

        Parameters
        ----------
        because : BaseException, optional
            Error that the backend sends to the other ranks, if it can.
        """
        if because is not None:
            self._calls.send_last_message(because)
        self._calls.abort()

    def send_last_message(self, error: BaseException) -> None:
        """Send the other ranks the error because of which this rank leaves; call `abort` afterwards.

        Parameters
        ----------
        error : BaseException
            The error.
        """
        self._calls.send_last_message(error)

    def abandon(self, error: NeuraxisError) -> None:
        """Detach from the group in a forked child, without touching the parent's.

        Parameters
        ----------
        error : NeuraxisError
            What later calls raise.
        """
        self._calls.abandon(error)

    @property
    def backend(self) -> Backend | None:
        """The backend of the group; None once it is closed."""
        return self._calls.backend

    @property
    def failed(self) -> bool:
        """True after an operation has failed in a way that leaves the group unusable."""
        return self._calls.error is not None

    # --- helpers --------------------------------------------------------------------------------

    def _known_root(self, world: int | None, group: int | None) -> int | None:
        """Return the group rank of a valid world rank; None leaves checks and errors to the general path."""
        return self._roots.get(world) if group is None else None

    def _members(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        members = sorted(ranks if ranks is not None else self.ranks)
        if not members:
            raise InvalidArgument("new_group: ranks is empty. Give at least one rank")
        for rank in members:
            if rank not in self.ranks:
                raise InvalidArgument(f"new_group: rank {rank} is not among the ranks {list(self.ranks)}")
        if len(set(members)) != len(members):
            raise InvalidArgument(f"new_group: ranks {members} names a rank twice")
        return tuple(int(rank) for rank in members)

    def _exchange_among(self, members: Sequence[int]) -> Callable[[bytes], list[bytes]]:
        """Return an exchange between some ranks of this group: the first rank collects and distributes."""

        def exchange(content: bytes) -> list[bytes]:
            first, others = members[0], members[1:]
            if self.rank != first:
                self._send_bytes(content, first)
                collected: list[bytes] = decode(self._receive_bytes(first))
                return collected
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

    def _lead_barrier(self, limit: float, deadline: float, wait_all_ranks: bool) -> None:
        """Send every rank a random number, wait until each has echoed it, and release them with its negative.

        The number tells these messages from those that a failed earlier barrier has left behind.
        """
        missing: list[int] = []
        what = f"Rank {self.ranks[0]} timed out in monitoredBarrier"
        number = 1 + secrets.randbits(62)
        if limit <= 0:
            missing = list(self.ranks[1:])
        else:
            for rank in range(1, self.size):
                self._send_at_barrier(number, rank)
        for rank in range(1, self.size if not missing else 0):
            try:
                while self._recv_at_barrier(rank, deadline) != number:
                    pass
            except CollectiveTimeout:
                missing.append(self.ranks[rank])
                names = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, missing))}"
                what = f"{names} failed to pass monitoredBarrier"
                if not wait_all_ranks:
                    break
        if missing:
            error = MonitoredBarrierTimeout(
                f"{what} in {limit * 1000:g} ms. Find out what keeps those ranks from calling monitored_barrier",
                rank=missing[0],
                operation="monitored_barrier",
            )
            error.ranks = tuple(missing)
            raise error
        for rank in range(1, self.size):
            self._send_at_barrier(-number, rank)

    def _send_at_barrier(self, number: int, rank: int) -> None:
        # Not waited for: the other rank may never receive it.
        self._barrier_sends = [work for work in self._barrier_sends if not work.is_completed()]
        self._barrier_sends.append(self.isend(np.array([number], np.int64), group_dst=rank, tag=_BARRIER_TAG))

    def _recv_at_barrier(self, rank: int, deadline: float) -> int:
        number = np.zeros(1, np.int64)
        left = max(0.001, deadline - time.monotonic())
        self.recv(number, group_src=rank, tag=_BARRIER_TAG, timeout=left)
        return int(number[0])


_OPERATIONS = frozenset(name for name in dir(Communicator) if not name.startswith("_"))
