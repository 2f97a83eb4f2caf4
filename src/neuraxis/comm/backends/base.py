"""Interface of the backends: the collectives of one group, on contiguous buffers, between group ranks.

A backend does not deal with users' arrays, world ranks, asynchronous calls or other groups; `Communicator` does. Every
call blocks until this rank's part is complete, or raises by its deadline.

To add a backend, implement the abstract methods of `Backend` and add its name to `DistributedContext`. Two helpers
complete a transport that lacks something. `CallCheck` compares the calls of all ranks before each collective, because
gloo aborts the process, and MPI hangs or corrupts data, when ranks disagree; it costs one small all-gather. The
`*_by_gathering` functions reduce element types that the transport cannot.
"""

from __future__ import annotations

import enum
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from neuraxis.comm.backends.shm import kernels
from neuraxis.comm.buffers import Buffer, address_of, buffer_of
from neuraxis.comm.reduce_kernels import TILE_BYTES, fold_address
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.deprecation import renamed_members
from neuraxis.errors import CollectiveMismatch, CollectiveTimeout, NeuraxisError, PeerLost, ResourceExhausted

if TYPE_CHECKING:
    from neuraxis.comm.backends.shm.fast_path import FastPath

__all__ = [
    "Backend",
    "CallCheck",
    "Exchange",
    "MessageMemoryExhausted",
    "NonMember",
    "Operation",
    "Request",
    "all_reduce_by_gathering",
    "as_folded",
    "describe_call",
    "reduce_by_gathering",
    "reduce_scatter_by_gathering",
]


@renamed_members(destroy="close")
class NonMember:
    """Stand-in for a group, on a rank that is not in it: every operation is ignored with a warning.

    `new_group` returns it on ranks outside the group. It is falsy, and its `rank` and `size` are -1.

    Examples
    --------
    >>> NonMember((0,), 1, frozenset()).size
    -1

    On rank 1 of two::

        group = dist.new_group([0])
        if group:
            group.barrier()
    """

    def __init__(self, ranks: tuple[int, ...], me: int, operations: frozenset[str]) -> None:
        self.ranks = ranks
        self.rank = -1
        self.size = -1
        self.backend_name = "none"
        self.failed = False
        self._me = me
        self._operations = operations

    def __repr__(self) -> str:
        return f"<NonMember: rank {self._me} is outside the group of ranks {list(self.ranks)}>"

    def __bool__(self) -> bool:
        return False

    def new_group(
        self,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        check_calls: bool | None = None,
        engine: Any = None,
    ) -> NonMember:
        """Return a NonMember: this rank is in no subgroup of a group that it is not in.

        Parameters
        ----------
        ranks, timeout, check_calls, engine
            Ignored.

        Returns
        -------
        NonMember
            Stand-in for the subgroup.
        """
        return NonMember(tuple(sorted(self.ranks if ranks is None else ranks)), self._me, self._operations)

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_") or name not in self._operations:
            raise AttributeError(name)

        def skip(*arguments: Any, **options: Any) -> None:
            warnings.warn(
                f"{name}: rank {self._me} is not in the group of ranks {list(self.ranks)}; the call was ignored",
                stacklevel=3,
            )

        return skip


Exchange = Callable[[bytes], list[bytes]]
"""Takes this rank's bytes and returns those of all ranks in rank order; backends use it to set themselves up."""


class Operation(enum.IntEnum):
    """Collective operations, by their number on the wire."""

    BARRIER = 1
    BROADCAST = 2
    REDUCE = 3
    ALL_REDUCE = 4
    GATHER = 5
    ALL_GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    REDUCE_SCATTER = 9

    @property
    def label(self) -> str:
        return self.name.lower()


def describe_call(operation: Operation, element: ElementType, op: ReduceOp, root: int, count: int) -> str:
    """Return a call as errors show it, e.g. `broadcast(float32[4], root 0)`."""
    if operation is Operation.BARRIER:
        return "barrier()"
    parts = [f"{element.label}[{count}]"]
    if operation in (Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER):
        parts.append(op.name)
    if root >= 0:
        parts.append(f"root {root}")
    return f"{operation.label}({', '.join(parts)})"


class MessageMemoryExhausted(ResourceExhausted):
    """No memory is left for the messages of this rank to another.

    The other ranks cannot know, so this rank ends the group for all.
    """


class Request(ABC):
    """A point-to-point transfer in progress."""

    source: int = -1  # group rank of the sender, after a receive

    @abstractmethod
    def test(self) -> bool:
        """Return True if the transfer has completed, without waiting; raise its error if it failed."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Wait until the transfer has completed; raise CollectiveTimeout after `timeout` seconds, when it continues."""

    def cancel(self) -> None:
        """Cancel the transfer, if that is still possible."""


class Backend(ABC):
    """The collectives of one group. `rank` and all roots are ranks within the group."""

    name: ClassVar[str]
    device: str = "cpu"  # where buffers must be
    rank: int
    size: int
    loss: PeerLost | None = None  # the first loss of a rank that this rank has noticed in the group
    failure: PeerLost | None = None  # the loss that has ended the group for this rank

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def broadcast(self, buffer: Buffer, root: int) -> None: ...

    @abstractmethod
    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        """Reduce in place on the root; other ranks' buffers do not change."""

    @abstractmethod
    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None: ...

    @abstractmethod
    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        """Gather on the root; `outputs` is empty on the other ranks."""

    @abstractmethod
    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None: ...

    @abstractmethod
    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        """Scatter from the root; `inputs` is empty on the other ranks."""

    @abstractmethod
    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None: ...

    @abstractmethod
    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None: ...

    @abstractmethod
    def isend(self, buffer: Buffer, to: int, tag: int) -> Request: ...

    @abstractmethod
    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        """Start to receive from a rank; `source` None is any rank."""

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float) -> None:
        """Send, and wait until the buffer may be reused."""
        _wait(self.isend(buffer, to, tag), timeout)

    def receive(self, buffer: Buffer, source: int | None, tag: int, timeout: float) -> int:
        """Receive and wait; return the group rank of the sender."""
        return _wait(self.ireceive(buffer, source, tag), timeout)

    def send_bytes(self, parts: Sequence[Buffer], to: int, tag: int, timeout: float) -> None:
        """Send several buffers as one message, for `receive_bytes`. Only shm supports it."""
        raise NotImplementedError

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        """Receive a message of any length; return its bytes and the sender's group rank. Only shm supports it."""
        raise NotImplementedError

    def ensure_progress(self) -> None:
        """Ensure that transfers make progress while no thread waits for them."""

    def fast_path(self, lock: threading.Lock, fail: Callable[[BaseException], None]) -> FastPath | None:
        """Return the fast path for plain NumPy arrays, or None. It holds `lock` in a call and reports to `fail`."""
        return None

    @abstractmethod
    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> Backend:
        """Return a backend for some ranks of this group. Exactly these ranks call it, and `exchange` is between them.

        `check_calls` tells it to compare calls before making them, where that is optional; None means as in this group.
        """

    @abstractmethod
    def close(self) -> None:
        """Free all resources. Never waits for other ranks and never raises because of them."""

    def interrupt(self, error: NeuraxisError) -> None:
        """Make a call that waits in another thread raise `error` soon, if the backend can."""

    def abandon(self) -> None:
        """Detach from the parent's resources in a forked child, without touching them."""

    def poison(self, error: BaseException) -> None:
        """Inform the other ranks of a failure of this rank in this group, if the backend can."""

    def send_last_message(self, error: BaseException) -> None:
        """Inform the other ranks that this rank leaves because of `error`, if they would not notice otherwise."""


def _wait(request: Request, timeout: float) -> int:
    try:
        request.wait(timeout)
    except CollectiveTimeout:
        request.cancel()
        raise
    return request.source


# --- call checks ---


_CALL_WORDS = 5  # operation, element, reduction, root, count
# Operations whose call is identical on every rank; in the others the lengths may differ by pair.
_UNIFORM = (Operation.BARRIER, Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)

AllGatherWords = Callable[[np.ndarray], np.ndarray]
"""Takes this rank's int64 words and returns those of all ranks, one row per rank."""


class CallCheck:
    """Comparison of the calls of all ranks, through `all_gather_words`; `world_ranks` name the ranks in errors."""

    def __init__(self, rank: int, world_ranks: Sequence[int], all_gather_words: AllGatherWords, enabled: bool) -> None:
        self._rank = rank
        self._world_ranks = world_ranks
        self._all_gather_words = all_gather_words
        self._enabled = enabled
        self.sequence = -1

    def check(
        self,
        operation: Operation,
        example: Buffer | None = None,
        op: ReduceOp = ReduceOp.SUM,
        root: int = -1,
        sends: Sequence[int] = (),
        receives: Sequence[int] = (),
    ) -> None:
        """Raise CollectiveMismatch unless every rank makes this call.

        `sends` and `receives` are the bytes to and from each rank. For a reduction, `sends` holds the bytes of each
        rank's piece, which must be the same on every rank.
        """
        self.sequence += 1
        size = len(self._world_ranks)
        if not self._enabled or size == 1:
            return
        words = np.zeros(_CALL_WORDS + 2 * size, np.int64)
        element, count = (0, 0) if example is None else (int(example.element), example.count)
        words[:_CALL_WORDS] = (int(operation), element, int(op), root, count)
        words[_CALL_WORDS : _CALL_WORDS + len(sends)] = sends
        words[_CALL_WORDS + size : _CALL_WORDS + size + len(receives)] = receives
        for rank, theirs in enumerate(self._all_gather_words(words)):
            if not self._agree(words, theirs, rank, operation in _UNIFORM):
                raise self._mismatch(rank, words, theirs)

    def _agree(self, mine: np.ndarray, theirs: np.ndarray, rank: int, uniform: bool) -> bool:
        size = len(self._world_ranks)
        if uniform:
            return bool((mine == theirs).all())
        if mine[0] == Operation.BROADCAST and mine[4] != theirs[4]:
            return False
        sends, receives = slice(_CALL_WORDS, _CALL_WORDS + size), slice(_CALL_WORDS + size, None)
        return bool(
            (mine[:4] == theirs[:4]).all()
            and mine[sends][rank] == theirs[receives][self._rank]
            and mine[receives][rank] == theirs[sends][self._rank]
        )

    def _mismatch(self, rank: int, mine: np.ndarray, theirs: np.ndarray) -> CollectiveMismatch:
        my_call, their_call = self._describe(mine), self._describe(theirs)
        other, me = self._world_ranks[rank], self._world_ranks[self._rank]
        detail = ""
        if my_call == their_call:
            sends = theirs[_CALL_WORDS + self._rank]
            expects = theirs[_CALL_WORDS + len(self._world_ranks) + self._rank]
            detail = f" (it sends this rank {sends} bytes and expects {expects} from it)"
        return CollectiveMismatch(
            f"rank {other} called {their_call}{detail} while rank {me} called {my_call}: operation {self.sequence}. "
            "All ranks of a group must make the same calls in the same order",
            rank=other,
            mine=my_call,
            theirs=their_call,
        )

    def _describe(self, words: np.ndarray) -> str:
        operation, element, op, root, count = (int(word) for word in words[:_CALL_WORDS])
        root = self._world_ranks[root] if root >= 0 else root
        return describe_call(Operation(operation), ElementType(element), ReduceOp(op), root, count)


# --- reductions as gather and fold, for types that a transport cannot reduce ---
#
# gloo has no 16-bit integers, MPI no half precision, and only NumPy has long doubles. Such arrays are gathered, and
# every rank that needs the result folds them, in rank order like all reductions.


def all_reduce_by_gathering(backend: Backend, buffer: Buffer, op: ReduceOp) -> None:
    rows = _rows(backend.size, buffer)
    backend.all_gather(rows, buffer)
    _fold(rows, buffer, op)


def reduce_by_gathering(backend: Backend, buffer: Buffer, op: ReduceOp, root: int) -> None:
    rows = _rows(backend.size, buffer) if backend.rank == root else []
    backend.gather(buffer, rows, root)
    if backend.rank == root:
        _fold(rows, buffer, op)


def reduce_scatter_by_gathering(backend: Backend, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
    rows = _rows(backend.size, output)
    backend.all_to_all(rows, inputs)
    _fold(rows, output, op)


def as_folded(buffer: Buffer) -> tuple[ElementType, int, int]:
    """Return element type, count and item bytes as the folds see them: complex32 is twice as many float16."""
    if buffer.element is ElementType.COMPLEX32:
        return ElementType.FLOAT16, buffer.count * 2, 2
    return buffer.element, buffer.count, buffer.item_bytes


def _rows(size: int, like: Buffer) -> list[Buffer]:
    """Allocate one buffer like `like` for each rank."""
    rows = []
    for _ in range(size):
        row = buffer_of(np.empty(like.nbytes, np.uint8), "row", writes=True)
        rows.append(Buffer(row.address, like.count, like.item_bytes, like.element, row.memory, None))
    return rows


def _fold(rows: Sequence[Buffer], out: Buffer, op: ReduceOp) -> None:
    if not out.on_cpu:  # folds work on CPU memory
        result = _rows(1, out)[0]
        _fold(rows, result, op)
        out.torch().view(-1).copy_(result.torch())
        return
    if out.element in (ElementType.LONGDOUBLE, ElementType.CLONGDOUBLE):
        out.numpy()[:] = _fold_by_numpy([row.numpy() for row in rows], op)
        return
    element, count, _ = as_folded(out)
    sources = np.array([row.address for row in rows], np.int64)
    scratch = np.empty(TILE_BYTES, np.uint8)
    kernels.fold_now(
        fold_address(element),
        out.address,
        address_of(sources),
        len(rows),
        count,
        int(op),
        address_of(scratch),
    )


def _fold_by_numpy(rows: Sequence[np.ndarray], op: ReduceOp) -> np.ndarray:
    combine = {
        ReduceOp.SUM: np.add,
        ReduceOp.AVG: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
    }[op]
    result = rows[0].copy()
    for row in rows[1:]:
        combine(result, row, out=result)
    if op is ReduceOp.AVG:
        result /= len(rows)
    return result
