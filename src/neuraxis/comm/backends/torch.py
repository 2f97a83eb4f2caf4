"""The gloo and nccl backends: torch's process groups, with checks and errors added.

The backend makes the process group itself, independent of the program's use of `torch.distributed`, over a store on a
socket that it binds (torch alone would listen on every address of the host). It adds what gloo lacks: an all-to-all,
reductions of further dtypes, a `reduce` that does not overwrite other ranks' buffers, a check that all ranks make the
same call, and errors that name the lost rank.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar

import msgspec
import numpy as np

from neuraxis import imports as optional
from neuraxis.comm.backends.base import (
    Backend,
    CallCheck,
    Exchange,
    Operation,
    Request,
    all_reduce_by_gathering,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.backends.gloo_status import GroupStatus, LastMessageChannel
from neuraxis.comm.backends.local import SelfMessages
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.failures import (
    Cause,
    Evidence,
    LastMessage,
    LastMessages,
    ProcessExit,
    ProcessIdentity,
    ProcessWatch,
    error_to_close_with,
    identify_self,
    register_open,
    unregister_open,
)
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import BackendUnavailable, CollectiveTimeout, NeuraxisError, PeerLost, ResourceExhausted
from neuraxis.machine import OUT_OF_FILES, out_of_files

__all__ = ["GlooBackend", "NcclBackend", "TorchBackend"]

_SEARCH_SECONDS = 5.0  # how long to search for the cause of a broken connection if every process can be watched
_REMOTE_SEARCH_SECONDS = 1.0  # the same if some processes are on other hosts
_NORMAL_EXIT_SECONDS = 0.3  # the same once a rank is known to have left normally, which may be the only cause
_POLL_SECONDS = 0.05  # between two checks for lost ranks
_LATE_DATA_SECONDS = 0.2  # data that a rank has sent before it left may still arrive
_ABORT_SECONDS = 2.0  # how long to wait until a call has ended after its connections were closed
_ABORT_TAG = 2**31 - 2  # of a message that is never sent; programs have no reason to use this tag


class _Problem(msgspec.Struct):
    """Reason why a rank cannot complete the setup of a group."""

    reason: str
    remedy: str

    @classmethod
    def of(cls, error: ResourceExhausted) -> _Problem:
        return cls(error.reason, error.remedy)

    def error(self, world_rank: int) -> ResourceExhausted:
        """Return the error that all ranks raise about the rank that has the problem."""
        return ResourceExhausted(f"{self.reason} (rank {world_rank})", self.remedy)


class _Hello(msgspec.Struct):
    """First message of each rank to all others when a group is set up."""

    host: str  # identity of the host: processes of the same host can watch each other
    pid: int
    started: int
    store_host: str = ""
    store_port: int = 0
    problem: _Problem | None = None


class _Connected(msgspec.Struct):
    """Last message of each rank to all others when a group is set up."""

    has_status: bool  # the rank has a GroupStatus, shared with the other ranks of its host
    problem: _Problem | None = None


class TorchBackend(Backend):
    """Collectives of one of torch's process groups. `address` is an address of this host that the others can reach."""

    # Element types that the process group reduces itself; others are gathered and folded.
    native: ClassVar[frozenset[ElementType]]
    native_average: ClassVar[bool] = False

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        timeout: float,
        address: str,
        host_identity: str,
        world_ranks: Sequence[int] | None = None,
        check_calls: bool = True,
    ) -> None:
        self._torch = require_torch(self.name)
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._address = address
        self._host_identity = host_identity
        self._world_ranks = list(world_ranks if world_ranks is not None else range(size))
        self._check_calls = check_calls
        self._self_messages = SelfMessages(rank)
        self._call_check = CallCheck(rank, self._world_ranks, self._all_gather_words, check_calls)
        self._rounds = 0  # exchanges between all ranks that this one has completed
        self._last_messages = LastMessages(rank, self._world_ranks)
        self._status: GroupStatus | None = None  # last messages of the ranks of this host
        self._channel: LastMessageChannel | None = None  # last messages of ranks on other hosts
        self._last_message_sent = False
        self._interruption: NeuraxisError | None = None
        self._waiters = _WaiterThreads()
        self._set_up(exchange)
        register_open(self)

    def _set_up(self, exchange: Exchange) -> None:
        """Connect to the other ranks. If a rank cannot, it reports the problem and all ranks raise the same error."""
        listener, hellos = self._exchange_hellos(exchange)
        self._local_ranks = [rank for rank, hello in enumerate(hellos) if hello.host == self._host_identity]
        self._watch = ProcessWatch(
            {
                rank: ProcessIdentity(hellos[rank].pid, hellos[rank].started)
                for rank in self._local_ranks
                if rank != self.rank
            }
        )
        self._watches_all = len(self._local_ranks) == self.size
        try:
            self._status = self._share_status(exchange)
            problem: _Problem | None = None
            failure: NeuraxisError | None = None
            try:
                self._store = self._open_store(hellos[0], listener)
                self._group = self._make_group()
            except ResourceExhausted as error:
                problem = _Problem.of(error)
            except NeuraxisError as error:
                failure = error
            if problem is not None or failure is not None:
                self._store = None  # ranks that wait for this one in the store fail at once
            # A rank that is ready first must not close while others still connect to it.
            mine = _Connected(self._status is not None, problem)
            try:
                contents = exchange(msgspec.msgpack.encode(mine))
            except NeuraxisError as error:
                raise failure or error from error
            answers = [msgspec.msgpack.decode(content, type=_Connected) for content in contents]
            self._raise_problem([answer.problem for answer in answers])
            if failure is not None:
                raise failure
            if not (self._watches_all and all(answer.has_status for answer in answers)):
                self._channel = self._make_channel()
            if self._status is not None:
                self._status.seal()
        except BaseException:
            self._watch.close()
            if self._status is not None:
                self._status.close()
            self._group = self._store = None
            raise

    def _exchange_hellos(self, exchange: Exchange) -> tuple[socket.socket | None, list[_Hello]]:
        me = identify_self()
        hello = _Hello(self._host_identity, me.pid, me.started)
        listener = None
        try:
            _check_descriptors(f"the {self.name} backend", self._descriptors())
            if self.rank == 0:
                listener = socket.create_server((self._address, 0), backlog=1024, family=_family(self._address))
                hello.store_host, hello.store_port = listener.getsockname()[:2]
        except ResourceExhausted as error:
            hello.problem = _Problem.of(error)
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            hello.problem = _Problem.of(out_of_files(f"the {self.name} backend"))
        try:
            hellos = [msgspec.msgpack.decode(one, type=_Hello) for one in exchange(msgspec.msgpack.encode(hello))]
            self._raise_problem([hello.problem for hello in hellos])
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        return listener, hellos

    def _raise_problem(self, problems: Sequence[_Problem | None]) -> None:
        for rank, problem in enumerate(problems):
            if problem is not None:
                raise problem.error(self._world_ranks[rank])

    def _share_status(self, exchange: Exchange) -> GroupStatus | None:
        """Share a GroupStatus with the other ranks of this host; return None if there is no memory for it."""
        first = self._local_ranks[0]
        status = GroupStatus.create(self.rank, self._local_ranks) if self.rank == first else None
        names = exchange(status.name.encode() if status is not None else b"")
        if self.rank != first:
            status = GroupStatus.attach(names[first].decode(), self.rank, self._local_ranks)
        return status

    def _descriptors(self) -> int:
        """Return the largest number of file descriptors that setting up a group takes."""
        # A connection and a pidfd for each rank; the server of the store has one more connection each.
        return 3 * self.size + 16 if self.rank == 0 else 2 * self.size + 8

    def _open_store(self, first: _Hello, listener: socket.socket | None) -> Any:
        limit = timedelta(seconds=self.timeout)
        # The store takes ownership of the descriptor.
        options = {"master_listen_fd": listener.detach()} if listener is not None else {}
        store = self._torch.distributed.TCPStore
        return self._translated(
            "set-up",
            lambda: store(
                first.store_host, first.store_port, self.size, self.rank == 0, limit, wait_for_workers=False, **options
            ),
        )

    def _make_channel(self) -> LastMessageChannel | None:
        return None

    def _make_group(self) -> Any:
        raise NotImplementedError

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self) -> None:
        self._call_check.check(Operation.BARRIER)
        self._finish(Operation.BARRIER, lambda: self._group.barrier())

    def broadcast(self, buffer: Buffer, root: int) -> None:
        sends = [buffer.nbytes if self.rank == root else 0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._call_check.check(Operation.BROADCAST, buffer, root=root, sends=sends, receives=receives)
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._finish(Operation.BROADCAST, lambda: self._group.broadcast([_bytes(buffer)], options))

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        self._call_check.check(Operation.ALL_REDUCE, buffer, op)
        if buffer.element not in self.native:
            all_reduce_by_gathering(self, buffer, op)
            return
        options = self._torch.distributed.AllreduceOptions()
        options.reduceOp = self._native_op(op)
        tensor = buffer.torch()
        self._finish(Operation.ALL_REDUCE, lambda: self._group.allreduce([tensor], options))
        self._finish_average(tensor, op)

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        self._call_check.check(Operation.REDUCE, buffer, op, root)
        if buffer.element not in self.native:
            reduce_by_gathering(self, buffer, op, root)
            return
        options = self._torch.distributed.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = self._native_op(op), root, 0
        # gloo uses the other ranks' tensors as its scratch space.
        tensor = buffer.torch() if self.rank == root else buffer.torch().clone()
        self._finish(Operation.REDUCE, lambda: self._group.reduce([tensor], options))
        if self.rank == root:
            self._finish_average(tensor, op)

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        sends = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        receives = [output.nbytes for output in outputs] or [0] * self.size
        self._call_check.check(Operation.GATHER, buffer, root=root, sends=sends, receives=receives)
        nothing = Buffer(0, 0, buffer.item_bytes, buffer.element, None, None)
        self._exchange(
            Operation.GATHER,
            outputs or [nothing] * self.size,
            [buffer if rank == root else nothing for rank in range(self.size)],
        )

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        sends, receives = [buffer.nbytes] * self.size, [output.nbytes for output in outputs]
        self._call_check.check(Operation.ALL_GATHER, buffer, sends=sends, receives=receives)
        self._exchange(Operation.ALL_GATHER, outputs, [buffer] * self.size)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        sends = [piece.nbytes for piece in inputs] or [0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._call_check.check(Operation.SCATTER, buffer, root=root, sends=sends, receives=receives)
        nothing = Buffer(0, 0, buffer.item_bytes, buffer.element, None, None)
        self._exchange(
            Operation.SCATTER,
            [buffer if rank == root else nothing for rank in range(self.size)],
            inputs or [nothing] * self.size,
        )

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        sends, receives = [piece.nbytes for piece in inputs], [piece.nbytes for piece in outputs]
        self._call_check.check(Operation.ALL_TO_ALL, inputs[0], sends=sends, receives=receives)
        self._exchange(Operation.ALL_TO_ALL, outputs, inputs)

    def _exchange(self, operation: Operation, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        """Move the bytes of each pair, of any lengths: gloo does that for a single tensor only, in alltoall_base."""
        torch = self._torch
        packed = torch.cat([_bytes(piece).to(self.device) for piece in inputs])
        received = torch.empty(sum(piece.nbytes for piece in outputs), dtype=torch.uint8, device=self.device)
        self._finish(
            operation,
            lambda: self._group.alltoall_base(
                received,
                packed,
                [piece.nbytes for piece in outputs],
                [piece.nbytes for piece in inputs],
                torch.distributed.AllToAllOptions(),
            ),
        )
        start = 0
        for piece in outputs:
            if piece.nbytes:
                _bytes(piece).copy_(received[start : start + piece.nbytes])
            start += piece.nbytes

    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
        self._call_check.check(Operation.REDUCE_SCATTER, inputs[0], op, sends=[piece.nbytes for piece in inputs])
        reduce_scatter_by_gathering(self, output, inputs, op)

    # --- messages -------------------------------------------------------------------------------

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        if to == self.rank:  # gloo has no connection to itself
            return self._self_messages.isend(buffer, tag)
        work = self._translated("send", lambda: self._group.send([_bytes(buffer)], to, tag), peer=to)
        return _TorchRequest(self, "send", work, to, buffer)

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        if source == self.rank:
            return self._self_messages.ireceive(buffer, tag)
        if source is None:
            work = self._translated("recv", lambda: self._group.recv_anysource([_bytes(buffer)], tag))
        else:
            work = self._translated("recv", lambda: self._group.recv([_bytes(buffer)], source, tag), peer=source)
        return _TorchRequest(self, "recv", work, source, buffer)

    # --- groups and closing ---------------------------------------------------------------------

    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> Backend:
        return type(self)(
            list(ranks).index(self.rank),
            len(ranks),
            exchange,
            timeout,
            self._address,
            self._host_identity,
            world_ranks,
            self._check_calls if check_calls is None else check_calls,
        )

    def close(self) -> None:
        self._send_last_message(error_to_close_with(self))
        unregister_open(self)
        self._waiters.close()
        if self._channel is not None:
            self._channel.close()
        self._watch.close()
        if self._status is not None:
            self._status.close()
        self._group = None
        self._store = None

    def poison(self, error: BaseException) -> None:
        self._send_last_message(error)

    def send_last_message(self, error: BaseException) -> None:
        self._send_last_message(error)

    def _send_last_message(self, error: BaseException | None) -> None:
        """Send every other rank the last message of this one; only the first call has an effect."""
        if self._last_message_sent:
            return
        self._last_message_sent = True
        dead = (
            [rank for rank in self._collect_evidence() if not self._last_messages.has_message_from(rank)]
            if error is not None
            else []
        )
        after = self._world_ranks[dead[0]] if dead else -1
        message = LastMessage.because_of(error, self._world_ranks[self.rank], self._rounds, after)
        if self._status is not None:
            self._status.write(message)
        if self._channel is not None:
            self._channel.send(message)

    # --- waiting and errors ---------------------------------------------------------------------

    def _finish(self, operation: Operation, start: Callable[[], Any]) -> None:
        self._exchange_round(operation.label, start)

    def _exchange_round(self, what: str, start: Callable[[], Any]) -> None:
        """Run this rank's part of an exchange between all ranks."""

        self._translated(what, lambda: self._await(start(), what, self._rounds), rounds=self._rounds)
        self._rounds += 1
        if self._status is not None:
            self._status.finish_round(self._rounds)

    def _await(self, work: Any, what: str, rounds: int) -> None:
        """Wait for this rank's part of exchange `rounds`."""
        work.wait(timedelta(seconds=self.timeout))

    def _translated(
        self, what: str, call: Callable[[], Any], peer: int | None = None, rounds: int | None = None
    ) -> Any:
        """Call torch for an operation that needs `peer`, or all ranks in exchange `rounds`; translate its errors."""
        try:
            return call()
        except NeuraxisError:
            raise
        except RuntimeError as error:  # torch's own errors are RuntimeErrors
            raise self._error(what, error, None if peer is None else (peer,), rounds) from error

    def _error(
        self, what: str, error: RuntimeError, needed: Collection[int] | None, rounds: int | None
    ) -> NeuraxisError:
        """Return the error for a RuntimeError of torch, which names the lost rank if there is one."""
        text = str(error)
        if "too many open files" in text.lower():
            return out_of_files(f"the {self.name} backend")
        sequence = self._call_check.sequence
        # The connections of a dying process close shortly before the process counts as dead, and the last message of a
        # rank that noticed it first arrives shortly after. So the search ends early only for evidence that explains
        # the loss by itself.
        started = time.monotonic()
        search_seconds = _SEARCH_SECONDS if self._watches_all else _REMOTE_SEARCH_SECONDS
        timed_out = any(word in text.lower() for word in ("timed out", "timeout"))
        while True:
            ended = self._collect_evidence()
            # gloo closes connections to healthy ranks, too, when it loses a third rank; then look at all ranks.
            cause = self._last_messages.cause(needed, rounds, exits=ended) or self._last_messages.cause(exits=ended)
            if (
                cause is not None
                and cause.weight >= Evidence.DIED
                and (self._channel is None or cause.weight > Evidence.EXITED)
            ):
                break
            if timed_out or time.monotonic() >= started + (search_seconds if cause is None else _NORMAL_EXIT_SECONDS):
                break
            time.sleep(0.005)
        if cause is None and timed_out:
            return CollectiveTimeout(
                f"not all ranks arrived within {self.timeout:g} s in {what}, operation {sequence}: {text}",
                operation=what,
                sequence=sequence,
            )
        if cause is not None:
            return self._lost(cause, what, f": {text.rstrip('.')}")
        lost = PeerLost(f"a rank was lost in {what}, operation {sequence}: {text}", operation=what, sequence=sequence)
        self.loss = self.loss or lost
        return lost

    def _lost(self, cause: Cause, what: str, detail: str = "") -> PeerLost:
        """Return the error for a loss, and publish that this rank has noticed it."""
        return self._record_loss(cause.error(what, self._call_check.sequence, detail=detail))

    def _record_loss(self, lost: PeerLost) -> PeerLost:
        if self.loss is None:
            self.loss = lost
            if self._status is not None:
                self._status.notice(LastMessage.because_of(lost, self._world_ranks[self.rank], self._rounds))
        return lost

    def _collect_evidence(self) -> dict[int, ProcessExit]:
        """Record the last messages received so far; return the exits of the processes that have ended."""
        ended = self._watch.ended()  # before the last messages: a process that has ended has written its message
        for sender, message in self._status.last_messages(ended) if self._status is not None else ():
            self._last_messages.record(sender, message)
        for sender, message in self._channel.received() if self._channel is not None else ():
            self._last_messages.record(sender, message)
        return ended

    def _gone(self, ended: Collection[int]) -> list[int]:
        """Return the ranks that have left this group or whose processes have ended."""
        others = (rank for rank in range(self.size) if rank != self.rank)
        return [rank for rank in others if rank in ended or self._last_messages.has_message_from(rank)]

    def _loss_of(self, what: str, peer: int | None) -> PeerLost | None:
        """Return the error for a message to or from `peer`, or from any rank (None), if no such rank is left."""
        ended = self._collect_evidence()
        gone = self._gone(ended)
        if peer is not None:
            if peer not in gone:
                return None
            gone = [peer]
        elif not gone or len(gone) < self.size - 1:
            return None
        cause = self._last_messages.cause(gone, exits=ended)
        return None if cause is None else cause.error(what, self._call_check.sequence)

    def _all_gather_words(self, words: np.ndarray) -> np.ndarray:
        torch = self._torch
        mine = torch.from_numpy(words).to(self.device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self._exchange_round("the call check", lambda: self._group.allgather([rows], [mine]))
        gathered: np.ndarray = torch.stack(rows).cpu().numpy()
        return gathered

    def _native_op(self, op: ReduceOp) -> Any:
        """Return torch's reduction; AVG may become SUM, which `_finish_average` divides."""
        if op is ReduceOp.AVG and not self.native_average:
            op = ReduceOp.SUM
        return getattr(self._torch.distributed.ReduceOp, op.name)

    def _finish_average(self, tensor: Any, op: ReduceOp) -> None:
        if op is ReduceOp.AVG and not self.native_average:
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.div_(self.size)
            else:
                tensor.copy_(self._torch.div(tensor, self.size, rounding_mode="trunc"))


class GlooBackend(TorchBackend):
    """Collectives over TCP by gloo, between any hosts."""

    name: ClassVar[str] = "gloo"
    native: ClassVar[frozenset[ElementType]] = frozenset(
        {
            ElementType.INT8,
            ElementType.UINT8,
            ElementType.INT32,
            ElementType.INT64,
            ElementType.FLOAT32,
            ElementType.FLOAT64,
        }
    )

    def _make_group(self) -> Any:
        group = self._torch.distributed.ProcessGroupGloo
        options = group._Options()
        options._timeout = timedelta(seconds=self.timeout)
        options._devices = [group.create_device(hostname=self._address)]
        return self._translated("set-up", lambda: group(self._store, self.rank, self.size, options))

    def _make_channel(self) -> LastMessageChannel:
        return LastMessageChannel(self._torch, self._group, self.rank, self.size)

    def interrupt(self, error: NeuraxisError) -> None:
        self._interruption = error

    def _await(self, work: Any, what: str, rounds: int) -> None:
        """Wait for a collective in slices, and check in between for lost ranks that it needs.

        gloo notices a loss only if a connection fails that the collective uses at that moment.
        """
        deadline = time.monotonic() + self.timeout
        missed_since = None
        while True:
            is_over = work.is_completed()  # before the wait, which then returns at once or raises the work's error
            try:
                work.wait(timedelta(seconds=_POLL_SECONDS))
                return
            except RuntimeError:
                if is_over or time.monotonic() >= deadline:
                    raise
            if work.is_completed():
                continue
            if self._interruption is not None:
                self._abort(work)
                raise self._interruption
            ended = self._collect_evidence()
            missing = [rank for rank in self._gone(ended) if self._is_needed(rank, rounds)]
            cause = self._last_messages.cause(missing, rounds, exits=ended) if missing else None
            now = time.monotonic()
            if cause is None:
                missed_since = None
            elif missed_since is None:
                missed_since = now
            elif now - missed_since >= _LATE_DATA_SECONDS:
                lost = self._lost(cause, what)
                # Before closing the connections, so that other ranks do not take that for the cause.
                self._send_last_message(lost)
                self._abort(work)
                raise lost

    def _is_needed(self, rank: int, rounds: int) -> bool:
        finished = self._status.rounds_of(rank) if self._status is not None else None
        return finished is None or finished <= rounds

    def _abort(self, work: Any) -> None:
        """End a running collective, so that it no longer writes to its buffers.

        gloo has no call for that, but closes all connections of a group when the wait for a message times out.
        """
        room = self._torch.empty(1, dtype=self._torch.uint8)
        for other in range(self.size):
            if other != self.rank:
                with suppress(RuntimeError):  # the timeout is the purpose
                    self._group.recv([room], other, _ABORT_TAG).wait(timedelta(milliseconds=1))
        deadline = time.monotonic() + _ABORT_SECONDS
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)


class NcclBackend(TorchBackend):
    """Collectives between GPUs by NCCL; each rank needs a GPU of its own."""

    name: ClassVar[str] = "nccl"
    native_average: ClassVar[bool] = True
    native: ClassVar[frozenset[ElementType]] = GlooBackend.native | {
        ElementType.FLOAT16,
        ElementType.BFLOAT16,
    }

    def _make_group(self) -> Any:
        torch = self._torch
        device = torch.device("cuda", torch.cuda.current_device())
        self.device = str(device)
        group = torch.distributed.ProcessGroupNCCL
        options = group.Options()
        options._timeout = timedelta(seconds=self.timeout)
        return group(self._store, self.rank, self.size, options)

    def close(self) -> None:
        if self._group is not None:
            self._group.abort()  # frees NCCL's threads and memory without waiting for other ranks
        super().close()

    def _finish(self, operation: Operation, start: Callable[[], Any]) -> None:
        super()._finish(operation, start)
        self._torch.cuda.synchronize()  # the caller may read the result from any stream or on the CPU


class _WaiterThreads:
    """Threads that wait in gloo on behalf of callers; idle ones are reused."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._lock = threading.Lock()
        self._closed = False

    def run(self, wait: Callable[[], None]) -> None:
        with self._lock:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue()
            threading.Thread(target=self._serve, args=(queue,), name="neuraxis-gloo", daemon=True).start()
        queue.put(wait)

    def _serve(self, queue: SimpleQueue[Callable[[], None] | None]) -> None:
        while (wait := queue.get()) is not None:
            wait()
            del wait  # frees its buffers
            with self._lock:
                if self._closed:
                    return
                self._idle.append(queue)

    def close(self) -> None:
        """End the idle threads, and the others when their waits end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for queue in idle:
            queue.put(None)


class _TorchRequest(Request):
    """A message that torch is sending or receiving."""

    def __init__(self, backend: TorchBackend, what: str, work: Any, peer: int | None, keep: Buffer) -> None:
        self._keep = keep  # torch uses this memory until the work has completed
        self._backend = backend
        self._what = what
        self._work = work
        self._peer = peer
        self._waiter_started = False
        self._was_lost = False  # at the last poll of `test`; data sent before may still arrive
        self._next_poll = 0.0
        self._error: NeuraxisError | None = None
        self._done = threading.Event()

    def test(self) -> bool:
        # A message of gloo makes progress, and completes, only while a thread waits for it.
        self._start_waiter()
        if self._error is not None:
            raise self._error
        if self._done.is_set():
            return True
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + _NORMAL_EXIT_SECONDS
            lost = self._backend._loss_of(self._what, self._peer)
            if lost is not None and self._was_lost:
                raise self._backend._record_loss(lost)
            self._was_lost = lost is not None
        return False

    def wait(self, timeout: float) -> None:
        # A wait in gloo that times out breaks the connection, and one for any rank continues after all ranks are gone.
        # So another thread waits in gloo, and this one checks for lost ranks.
        self._start_waiter()
        deadline = time.monotonic() + timeout
        while not self._done.wait(max(0.0, min(_POLL_SECONDS, deadline - time.monotonic()))):
            lost = self._backend._loss_of(self._what, self._peer)
            if lost is not None and not self._done.wait(_NORMAL_EXIT_SECONDS):  # data sent before may still arrive
                raise self._backend._record_loss(self._backend._loss_of(self._what, self._peer) or lost)
            if time.monotonic() >= deadline:
                raise CollectiveTimeout(
                    f"{self._what} did not complete within {timeout:g} s. Check that the other rank calls its part",
                    operation=self._what,
                )
        if self._error is not None:
            raise self._error

    def _start_waiter(self) -> None:
        if not self._waiter_started:
            self._waiter_started = True
            self._backend._waiters.run(partial(self._wait, self._backend.timeout))

    def _wait(self, timeout: float) -> None:
        try:
            limit = timedelta(seconds=timeout)
            self._backend._translated(self._what, lambda: self._work.wait(limit), peer=self._peer)
            self.source = self._work._source_rank() if self._peer is None else self._peer
        except NeuraxisError as error:
            self._error = error
        self._done.set()


def require_torch(backend: str) -> Any:
    """Import torch with what a backend needs of it; raise BackendUnavailable if something is missing."""
    torch = optional.require("torch", extra="torch", purpose=f"backend {backend!r}")
    optional.require("torch.distributed", extra="torch", purpose=f"backend {backend!r}")
    if not torch.distributed.is_available():
        raise BackendUnavailable(backend, "this torch was built without torch.distributed")
    if backend == "gloo" and not torch.distributed.is_gloo_available():
        raise BackendUnavailable(backend, "this torch was built without gloo")
    if backend == "nccl":
        if not torch.distributed.is_nccl_available():
            raise BackendUnavailable(
                backend,
                "this torch was built without NCCL",
                "Install a CUDA build of torch, or use backend='auto'",
            )
        if not torch.cuda.is_available():
            raise BackendUnavailable(backend, "there is no usable CUDA device", "Use backend='auto'")
    return torch


def _bytes(buffer: Buffer) -> Any:
    """Return a buffer's memory as a flat tensor of bytes, for operations that only copy."""
    torch = optional.require("torch", extra="torch", purpose="a tensor")
    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=getattr(buffer.memory, "device", "cpu"))
    return buffer.torch().view(torch.uint8)


def _check_descriptors(what: str, count: int) -> None:
    """Raise ResourceExhausted unless this process can open `count` more files."""
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        while len(opened) < count:
            opened.append(os.dup(opened[0]))
    except OSError as error:
        raise out_of_files(what) if error.errno in OUT_OF_FILES else error from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
