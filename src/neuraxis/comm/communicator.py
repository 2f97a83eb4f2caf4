"""A group of ranks and what they can do together: the API that users meet.

Signatures are those of `torch.distributed`: in place, `src` and `dst` in world ranks (`group_src`, `group_dst`
in group ranks), `op`, `async_op`. Arrays are NumPy arrays or torch tensors. Here arguments are checked and turned
into buffers, calls are put in order, and failures are remembered; moving the data is the backend's affair.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from neuraxis.comm.backend import Backend
from neuraxis.comm.buffers import Buffer, buffer_of
from neuraxis.comm.objects import decode, encode
from neuraxis.comm.reduction import ReduceOp, check_reducible
from neuraxis.comm.work import OrderedRunner, TransferWork, Work
from neuraxis.errors import CommunicatorClosed, InvalidArgument, InvalidType, NeuraxisError

__all__ = ["Communicator", "NonMember"]

_T = TypeVar("_T")

_SETUP_TAG = 32767  # for the messages with which a group is set up: the largest tag that every MPI allows


class Communicator:
    """A group of ranks that move together.

    Attributes:
        rank: this process's rank within the group.
        size: how many ranks the group has.
        ranks: their ranks in the world, in group order.
        backend_name: which backend carries it ("shm", "gloo", "nccl", "mpi", "local").
        timeout: the deadline of each call, in seconds.
    """

    def __init__(
        self, backend: Backend, ranks: Sequence[int], timeout: float, name: str, allow_pickle: bool = False
    ) -> None:
        self.backend_name = backend.name
        self.rank = backend.rank
        self.size = backend.size
        self.ranks = tuple(ranks)
        self.timeout = timeout
        self.name = name
        self.allow_pickle = allow_pickle
        self._backend: Backend | None = backend
        self._group_rank = {world: group for group, world in enumerate(self.ranks)}
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._runner: OrderedRunner | None = None
        # The backend, while a small all-reduce may take the short way: nothing queued, nothing failed.
        self._short_way: Any = None
        self._restore_short_way()

    def __repr__(self) -> str:
        state = "closed" if self._backend is None else "failed" if self._error else "open"
        return f"<Communicator {self.name}: rank {self.rank} of {self.size} over {self.backend_name}, {state}>"

    # --- the patterns ---------------------------------------------------------------------------

    def all_reduce(self, tensor: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False) -> Work | None:
        """Reduce `tensor` over all ranks; every rank gets the result, in place."""
        # A small all-reduce takes about a microsecond, so it must not pass through the general machinery.
        if self._short_way is not None and type(tensor) is np.ndarray and not async_op and type(op) is ReduceOp:
            if self._all_reduce_the_short_way(tensor, op):
                return None
        op = _reduce_op(op)
        buffer = self._buffer(tensor, "tensor", writes=True)
        check_reducible(buffer.element, op, "all_reduce")
        return self._call(
            "all_reduce", lambda backend: backend.all_reduce(buffer, op), written=[buffer], async_op=async_op
        )

    def reduce(
        self,
        tensor: Any,
        dst: int | None = None,
        op: ReduceOp = ReduceOp.SUM,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Reduce over all ranks into `tensor` on rank `dst`; the other ranks' tensors stay as they are."""
        root = self._root("dst", dst, group_dst)
        op = _reduce_op(op)
        buffer = self._buffer(tensor, "tensor", writes=self.rank == root)
        check_reducible(buffer.element, op, "reduce")
        written = [buffer] if self.rank == root else []
        return self._call(
            "reduce", lambda backend: backend.reduce(buffer, op, root), written=written, async_op=async_op
        )

    def broadcast(
        self, tensor: Any, src: int | None = None, async_op: bool = False, group_src: int | None = None
    ) -> Work | None:
        """Every rank's `tensor` becomes that of rank `src`."""
        root = self._root("src", src, group_src)
        buffer = self._buffer(tensor, "tensor", writes=self.rank != root)
        written = [buffer] if self.rank != root else []
        return self._call(
            "broadcast", lambda backend: backend.broadcast(buffer, root), written=written, async_op=async_op
        )

    def barrier(self, async_op: bool = False) -> Work | None:
        """Wait until every rank of the group has come here."""
        return self._call("barrier", lambda backend: backend.barrier(), async_op=async_op)

    def gather(
        self,
        tensor: Any,
        gather_list: Sequence[Any] | None = None,
        dst: int | None = None,
        async_op: bool = False,
        group_dst: int | None = None,
    ) -> Work | None:
        """Collect every rank's `tensor` in `gather_list` on rank `dst`; the others give no list."""
        root = self._root("dst", dst, group_dst)
        buffer = self._buffer(tensor, "tensor", writes=False)
        outputs = self._root_list("gather_list", gather_list, root, buffer, writes=True)
        return self._call(
            "gather",
            lambda backend: backend.gather(buffer, outputs, root),
            written=outputs,
            async_op=async_op,
        )

    def all_gather(self, tensor_list: Sequence[Any], tensor: Any, async_op: bool = False) -> Work | None:
        """Collect every rank's `tensor` in `tensor_list` on every rank."""
        buffer = self._buffer(tensor, "tensor", writes=False)
        outputs = self._list("tensor_list", tensor_list, buffer, writes=True)
        return self._call(
            "all_gather",
            lambda backend: backend.all_gather(outputs, buffer),
            written=outputs,
            async_op=async_op,
        )

    def scatter(
        self,
        tensor: Any,
        scatter_list: Sequence[Any] | None = None,
        src: int | None = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:
        """Rank i gets the i-th of `scatter_list` from rank `src` into `tensor`; the others give no list."""
        root = self._root("src", src, group_src)
        buffer = self._buffer(tensor, "tensor", writes=True)
        inputs = self._root_list("scatter_list", scatter_list, root, buffer, writes=False)
        return self._call(
            "scatter",
            lambda backend: backend.scatter(buffer, inputs, root),
            written=[buffer],
            async_op=async_op,
        )

    def all_to_all(
        self, output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], async_op: bool = False
    ) -> Work | None:
        """Send the i-th input to rank i and receive its piece for us as the i-th output; lengths may differ."""
        inputs = self._list("input_tensor_list", input_tensor_list, None, writes=False)
        outputs = self._list("output_tensor_list", output_tensor_list, inputs[0], writes=True)
        self._list_dtypes("input_tensor_list", inputs, inputs[0])
        return self._call(
            "all_to_all",
            lambda backend: backend.all_to_all(outputs, inputs),
            written=outputs,
            async_op=async_op,
        )

    def reduce_scatter(
        self, output: Any, input_list: Sequence[Any], op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """Reduce the i-th inputs of all ranks over the ranks, for rank i, into its `output`."""
        op = _reduce_op(op)
        target = self._buffer(output, "output", writes=True)
        inputs = self._list("input_list", input_list, target, writes=False)
        check_reducible(target.element, op, "reduce_scatter")
        if inputs[self.rank].count != target.count:
            raise InvalidArgument(
                f"reduce_scatter: output has {target.count} elements, "
                f"but input_list[{self.rank}], which is reduced into it, has {inputs[self.rank].count}"
            )
        return self._call(
            "reduce_scatter",
            lambda backend: backend.reduce_scatter(target, inputs, op),
            written=[target],
            async_op=async_op,
        )

    # --- one tensor instead of a list -----------------------------------------------------------

    def all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, async_op: bool = False) -> Work | None:
        """all_gather into one tensor: every rank's input, one after the other."""
        whole = self._buffer(output_tensor, "output_tensor", writes=True)
        buffer = self._buffer(input_tensor, "input_tensor", writes=False)
        outputs = self._equal_parts("output_tensor", whole, buffer)
        return self._call(
            "all_gather",
            lambda backend: backend.all_gather(outputs, buffer),
            written=[whole],
            async_op=async_op,
        )

    def reduce_scatter_tensor(
        self, output: Any, input: Any, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
    ) -> Work | None:
        """reduce_scatter from one tensor, which is cut into equal parts."""
        op = _reduce_op(op)
        target = self._buffer(output, "output", writes=True)
        whole = self._buffer(input, "input", writes=False)
        inputs = self._equal_parts("input", whole, target)
        check_reducible(target.element, op, "reduce_scatter")
        return self._call(
            "reduce_scatter",
            lambda backend: backend.reduce_scatter(target, inputs, op),
            written=[target],
            async_op=async_op,
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """all_to_all from one tensor to one, cut along the first dimension (equally without split sizes)."""
        whole_output = self._buffer(output, "output", writes=True)
        whole_input = self._buffer(input, "input", writes=False)
        outputs = self._parts("output", whole_output, output, output_split_sizes)
        inputs = self._parts("input", whole_input, input, input_split_sizes)
        self._list_dtypes("output", outputs, inputs[0])
        return self._call(
            "all_to_all",
            lambda backend: backend.all_to_all(outputs, inputs),
            written=[whole_output],
            async_op=async_op,
        )

    # --- messages between two ranks -------------------------------------------------------------

    def isend(self, tensor: Any, dst: int | None = None, tag: int = 0, group_dst: int | None = None) -> Work:
        """Start to send `tensor` to rank `dst`."""
        return self._keep_going(self._start_send(tensor, dst, tag, group_dst))

    def irecv(self, tensor: Any, src: int | None = None, tag: int = 0, group_src: int | None = None) -> Work:
        """Start to receive `tensor` from rank `src`, or from any rank."""
        return self._keep_going(self._start_receive(tensor, src, tag, group_src))

    def send(self, tensor: Any, dst: int | None = None, tag: int = 0, group_dst: int | None = None) -> None:
        """Send `tensor` to rank `dst`."""
        self._start_send(tensor, dst, tag, group_dst).wait()

    def recv(self, tensor: Any, src: int | None = None, tag: int = 0, group_src: int | None = None) -> int:
        """Receive `tensor` from rank `src`, or from any rank; the world rank that it came from."""
        work = self._start_receive(tensor, src, tag, group_src)
        work.wait()
        return self.ranks[work.request.source]

    def _start_send(self, tensor: Any, dst: int | None, tag: int, group_dst: int | None) -> TransferWork:
        buffer = self._buffer(tensor, "tensor", writes=False)
        peer = self._peer("dst", dst, group_dst)
        request = self._usable_backend().isend(buffer, peer, tag)
        return TransferWork("send", request, self.timeout, lambda: None, keep=buffer)

    def _start_receive(self, tensor: Any, src: int | None, tag: int, group_src: int | None) -> TransferWork:
        buffer = self._buffer(tensor, "tensor", writes=True)
        peer = None if src is None and group_src is None else self._peer("src", src, group_src)
        request = self._usable_backend().ireceive(buffer, peer, tag)
        return TransferWork("recv", request, self.timeout, buffer.write_back, keep=buffer)

    def _keep_going(self, work: Work) -> Work:
        self._usable_backend().keep_going()
        return work

    # --- Python objects -------------------------------------------------------------------------

    def broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group_src: int | None = None
    ) -> None:
        """Every rank's `object_list` becomes that of rank `src`, element by element."""
        root = self._root("src", src, group_src)
        content = b""
        if self.rank == root:
            content = encode(list(object_list), self.allow_pickle)
        length = np.array([len(content), len(object_list)], np.int64)
        self.broadcast(length, group_src=root)
        if length[1] != len(object_list):
            raise InvalidArgument(
                f"broadcast_object_list: object_list has {len(object_list)} elements here "
                f"and {length[1]} on rank {self.ranks[root]}"
            )
        data = np.frombuffer(content, np.uint8).copy() if self.rank == root else np.empty(length[0], np.uint8)
        self.broadcast(data, group_src=root)
        if self.rank != root:
            object_list[:] = decode(data, self.allow_pickle)

    def all_gather_object(self, object_list: list[Any], obj: Any) -> None:
        """Collect every rank's `obj` in `object_list` on every rank."""
        self._check_length("object_list", object_list)
        padded, lengths = self._padded(encode(obj, self.allow_pickle))
        rows = np.empty((self.size, padded.size), np.uint8)
        self.all_gather(list(rows), padded)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            object_list[index] = decode(row[:length], self.allow_pickle)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
    ) -> None:
        """Collect every rank's `obj` in `object_gather_list` on rank `dst`."""
        root = self._root("dst", dst, group_dst)
        if self.rank == root:
            self._check_length("object_gather_list", object_gather_list)
        padded, lengths = self._padded(encode(obj, self.allow_pickle))
        rows = np.empty((self.size if self.rank == root else 0, padded.size), np.uint8)
        self.gather(padded, list(rows) if self.rank == root else None, group_dst=root)
        if self.rank == root:
            assert object_gather_list is not None
            for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                object_gather_list[index] = decode(row[:length], self.allow_pickle)

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group_src: int | None = None,
    ) -> None:
        """The first element of the output list becomes the i-th of rank `src`'s input list on rank i."""
        root = self._root("src", src, group_src)
        if not scatter_object_output_list:
            raise InvalidArgument("scatter_object_list: scatter_object_output_list needs at least one element")
        contents: list[bytes] = []
        if self.rank == root:
            self._check_length("scatter_object_input_list", scatter_object_input_list)
            contents = [encode(obj, self.allow_pickle) for obj in scatter_object_input_list or ()]
        lengths = np.array([len(content) for content in contents] or [0] * self.size, np.int64)
        self.broadcast(lengths, group_src=root)
        width = int(lengths.max())
        rows = [np.frombuffer(content.ljust(width, b"\0"), np.uint8) for content in contents]
        mine = np.empty(width, np.uint8)
        self.scatter(mine, rows or None, group_src=root)
        scatter_object_output_list[0] = decode(mine[: lengths[self.rank]], self.allow_pickle)

    # --- groups ---------------------------------------------------------------------------------

    def new_group(self, ranks: Iterable[int] | None = None, timeout: float | None = None) -> Communicator | NonMember:
        """A group of some of this group's ranks (given as world ranks; in ascending order).

        Every rank of this group makes this call with the same ranks; those outside get a `NonMember` and go on.
        """
        members = self._members(ranks)
        everybody: list[Any] = [None] * self.size
        self.all_gather_object(everybody, list(members))
        for rank, theirs in enumerate(everybody):
            if theirs != list(members):
                raise InvalidArgument(
                    f"new_group: rank {self.ranks[rank]} asked for ranks {theirs}, this rank for {list(members)}: "
                    "every rank must make the same call"
                )
        name = f"{self.name} > ranks {', '.join(map(str, members))}"
        if self.ranks[self.rank] not in members:
            return NonMember(members, self.ranks[self.rank])
        group_ranks = [self._group_rank[rank] for rank in members]
        backend = self._guarded(lambda backend: backend.split(group_ranks, self._exchange_among(group_ranks), members))
        return Communicator(backend, members, timeout or self.timeout, name, self.allow_pickle)

    def _members(self, ranks: Iterable[int] | None) -> tuple[int, ...]:
        members = sorted(ranks if ranks is not None else self.ranks)
        if not members:
            raise InvalidArgument("new_group: ranks is empty; a group needs at least one rank")
        for rank in members:
            if rank not in self._group_rank:
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
        """Free everything the group holds. Can be called again, and after a failure."""
        backend, self._backend, self._short_way = self._backend, None, None
        if backend is None:
            return
        if self._runner is not None:
            self._runner.stop()
        backend.close()

    def abort(self) -> None:
        """Destroy the group without waiting: operations under way or queued end with CommunicatorClosed."""
        error = CommunicatorClosed(f"{self.name} was aborted")
        if self._backend is not None:
            self._backend.interrupt(error)
        if self._runner is not None:
            self._runner.drop(error)
        self.destroy()

    def abandon(self, error: NeuraxisError) -> None:
        """Forget, in a forked child, what is the parent's; later calls raise `error`."""
        self._short_way = None
        self._error = error
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self._backend is not None:
            self._backend.abandon()

    @property
    def failed(self) -> bool:
        """Whether an operation has failed in a way that leaves the group unusable."""
        return self._error is not None

    # --- how a call is made ---------------------------------------------------------------------

    def _all_reduce_the_short_way(self, array: np.ndarray, op: ReduceOp) -> bool:
        """All-reduce a plain NumPy array at once; False if it has to go the long way."""
        if not self._lock.acquire(False):
            return False
        try:
            return bool(self._short_way.all_reduce_array(array, op))
        except InvalidType:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._lock.release()

    def _call(
        self,
        what: str,
        call: Callable[[Backend], None],
        *,
        written: Sequence[Buffer] = (),
        async_op: bool = False,
    ) -> Work | None:
        """Run a call now, or in the order of the queue if one is running or wanted."""

        def run() -> None:
            self._guarded(call)
            for buffer in written:
                buffer.write_back()

        runner = self._runner
        if not async_op and (runner is None or not runner.busy or runner.owns_this_thread()):
            run()
            return None
        self._usable_backend()
        if self._runner is None:
            self._runner = OrderedRunner(f"neuraxis-{self.name}", self._restore_short_way)
        self._short_way = None
        work = self._runner.submit(what, run)
        if async_op:
            return work
        work.wait()
        return None

    def _guarded(self, call: Callable[[Backend], _T]) -> _T:
        with self._lock:
            backend = self._usable_backend()
            try:
                return call(backend)
            except BaseException as error:
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._short_way = None
        if self._backend is not None:
            self._backend.poison(error)

    def _usable_backend(self) -> Backend:
        if self._backend is None:
            raise CommunicatorClosed(f"{self.name} is closed: it was destroyed, or its context was shut down")
        if self._error is None:
            return self._backend
        if isinstance(self._error, NeuraxisError):
            again = copy.copy(self._error)
            again.add_note(f"(raised again: {self.name} failed with this earlier, and can only be destroyed)")
            raise again from self._error
        raise CommunicatorClosed(
            f"{self.name} was interrupted in an operation ({type(self._error).__name__}) and can only be destroyed"
        ) from self._error

    def _restore_short_way(self) -> None:
        if self._error is None and self._backend is not None and hasattr(self._backend, "all_reduce_array"):
            self._short_way = self._backend

    # --- arguments ------------------------------------------------------------------------------

    def _buffer(self, value: Any, what: str, *, writes: bool) -> Buffer:
        device = "cpu" if self._backend is None else self._backend.device
        return buffer_of(value, what, writes=writes, device=device)

    def _root(self, what: str, world: int | None, group: int | None) -> int:
        """The root's group rank, from a world rank or a group rank; world rank 0 if neither is given."""
        if world is not None and group is not None:
            raise InvalidArgument(f"give {what} or group_{what}, not both")
        if group is not None:
            if not 0 <= group < self.size:
                raise InvalidArgument(f"group_{what}={group} is not a rank of this group of {self.size}")
            return int(group)
        rank = self._group_rank.get(0 if world is None else world)
        if rank is None:
            given = f"{what}={world}" if world is not None else f"{what}=0 (the default)"
            raise InvalidArgument(
                f"{given} is not a member of this group, whose ranks in the world are "
                f"{list(self.ranks)}; {what} is a world rank, group_{what} a rank within the group"
            )
        return rank

    def _peer(self, what: str, world: int | None, group: int | None) -> int:
        if world is None and group is None:
            raise InvalidArgument(f"{what} (a world rank) or group_{what} must be given")
        return self._root(what, world, group)

    def _check_length(self, what: str, values: Sequence[Any] | None) -> None:
        if values is None:
            raise InvalidArgument(f"{what} must be given on this rank")
        if not isinstance(values, (list, tuple)):
            raise InvalidType(f"{what} must be a list with one element for each rank, not {type(values).__name__}")
        if len(values) != self.size:
            raise InvalidArgument(f"{what} has {len(values)} elements; the group has {self.size} ranks")

    def _list(self, what: str, values: Sequence[Any], example: Buffer | None, *, writes: bool) -> list[Buffer]:
        self._check_length(what, values)
        buffers = [self._buffer(value, f"{what}[{index}]", writes=writes) for index, value in enumerate(values)]
        if example is not None:
            self._list_dtypes(what, buffers, example)
        return buffers

    def _root_list(
        self, what: str, values: Sequence[Any] | None, root: int, example: Buffer, *, writes: bool
    ) -> list[Buffer]:
        if self.rank == root:
            if values is None:
                raise InvalidArgument(f"{what} must be given on the root, rank {self.ranks[root]}")
            buffers = self._list(what, values, example, writes=writes)
            if buffers[root].count != example.count:
                raise InvalidArgument(
                    f"{what}[{root}] has {buffers[root].count} elements and this rank's tensor {example.count}"
                )
            return buffers
        if values:
            raise InvalidArgument(
                f"{what} is for the root, rank {self.ranks[root]}; this is rank {self.ranks[self.rank]}: give None"
            )
        return []

    def _list_dtypes(self, what: str, buffers: Sequence[Buffer], example: Buffer) -> None:
        for index, buffer in enumerate(buffers):
            if buffer.element is not example.element or buffer.item_bytes != example.item_bytes:
                raise InvalidType(
                    f"{what}[{index}] has dtype {buffer.element.label} and the other side {example.element.label}: "
                    "data is moved, not converted, so the dtypes must be the same"
                )

    def _equal_parts(self, what: str, whole: Buffer, part: Buffer) -> list[Buffer]:
        self._list_dtypes(what, [whole], part)
        if whole.count != part.count * self.size:
            raise InvalidArgument(
                f"{what} has {whole.count} elements; it needs {self.size} times the {part.count} of one rank"
            )
        return [_part(whole, index * part.count, part.count) for index in range(self.size)]

    def _parts(self, what: str, whole: Buffer, value: Any, splits: Sequence[int] | None) -> list[Buffer]:
        rows = int(value.shape[0]) if len(value.shape) else 1
        if splits is None or len(splits) == 0:
            if rows % self.size:
                raise InvalidArgument(f"{what} has {rows} rows, which {self.size} ranks cannot share equally")
            splits = [rows // self.size] * self.size
        self._check_length(f"{what}_split_sizes", list(splits))
        if sum(splits) != rows:
            raise InvalidArgument(f"{what}_split_sizes {list(splits)} add up to {sum(splits)}, not to {rows} rows")
        row_count = whole.count // rows if rows else 0
        starts = np.cumsum([0, *splits[:-1]])
        return [
            _part(whole, int(start) * row_count, int(length) * row_count)
            for start, length in zip(starts, splits, strict=True)
        ]

    def _padded(self, content: bytes) -> tuple[np.ndarray, np.ndarray]:
        """This rank's bytes, padded to the longest of all ranks, and everybody's lengths."""
        lengths = np.zeros(self.size, np.int64)
        self.all_gather([lengths[i : i + 1] for i in range(self.size)], np.array([len(content)], np.int64))
        return np.frombuffer(content.ljust(int(lengths.max()), b"\0"), np.uint8), lengths


class NonMember:
    """What `new_group` gives to a rank outside the group: every operation is passed over with a warning."""

    def __init__(self, ranks: tuple[int, ...], me: int) -> None:
        self.ranks = ranks
        self.rank = -1
        self.size = -1
        self.backend_name = "none"
        self.failed = False
        self._me = me

    def __repr__(self) -> str:
        return f"<NonMember: rank {self._me} is outside the group of ranks {list(self.ranks)}>"

    def __bool__(self) -> bool:
        return False

    def new_group(self, ranks: Iterable[int] | None = None, timeout: float | None = None) -> NonMember:
        """A group within a group that this rank is not in: it is not in that one either."""
        return NonMember(tuple(sorted(self.ranks if ranks is None else ranks)), self._me)

    def destroy(self) -> None:
        """There is nothing to free."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_") or not hasattr(Communicator, name):
            raise AttributeError(name)

        def passed_over(*arguments: Any, **options: Any) -> None:
            warnings.warn(
                f"{name}: rank {self._me} is not in the group of ranks {list(self.ranks)}; nothing was done",
                stacklevel=3,
            )

        return passed_over


def _part(whole: Buffer, start: int, count: int) -> Buffer:
    memory = whole.memory
    if not isinstance(memory, np.ndarray) and memory is not None:
        memory = memory.view(-1)[start : start + count]
    return Buffer(whole.address + start * whole.item_bytes, count, whole.item_bytes, whole.element, memory, None)


def _reduce_op(op: Any) -> ReduceOp:
    """Our ReduceOp, also from torch's, which has the same names."""
    if isinstance(op, ReduceOp):
        return op
    name = getattr(op, "name", None) or str(op).rpartition(".")[2]
    try:
        return ReduceOp[name]
    except KeyError:
        raise InvalidType(f"op must be a ReduceOp ({', '.join(o.name for o in ReduceOp)}), not {op!r}") from None
