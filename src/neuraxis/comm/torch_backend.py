"""The backends gloo and nccl: torch's own engines, made safe and complete.

The process group is made directly, beside whatever the program does with `torch.distributed` itself, over a store
on a socket that we bind (torch alone would listen on every address of the host). What gloo lacks is added: an
all-to-all, dtypes that it cannot reduce, buffers of other ranks left alone by `reduce`, a check that all ranks make
the same call, and errors that name the rank that was lost.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import numpy as np

from neuraxis.comm.agreement import Agreement
from neuraxis.comm.backend import Backend, Exchange, Operation, Request
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.farewells import Farewell, Farewells
from neuraxis.comm.gathering import (
    all_reduce_by_gathering,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.gloo_line import GlooLine
from neuraxis.comm.liveness import Ending, ProcessIdentity, ProcessWatch, identify_self
from neuraxis.comm.local import OwnMessages
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import BackendUnavailable, CollectiveTimeout, NeuraxisError, PeerLost

__all__ = ["GlooBackend", "NcclBackend", "TorchBackend"]


_DEATH_SECONDS = 0.3


class _Hello(msgspec.Struct):
    """What the ranks tell each other when a group is set up."""

    host: str  # which machine, to know whose processes can be watched from here
    pid: int
    started: int
    store_host: str = ""
    store_port: int = 0


class TorchBackend(Backend):
    """Collectives by one of torch's process groups. `address` is one of this host's that the others can reach."""

    # What the engine reduces itself; anything else is gathered and folded.
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
        self._store, hellos = self._open_store(exchange)
        self._watch = ProcessWatch(
            {
                other: ProcessIdentity(hello.pid, hello.started)
                for other, hello in enumerate(hellos)
                if other != rank and hello.host == host_identity
            }
        )
        self._own_messages = OwnMessages(rank)
        self._agreement = Agreement(rank, self._world_ranks, self._all_gather_words, check_calls)
        self._rounds = 0  # exchanges among all ranks that this one has finished
        self._farewells = Farewells(rank, self._world_ranks)
        self._line: GlooLine | None = None  # on which they come, where there is one
        self._has_said_farewell = False
        self._group = self._make_group()
        exchange(b"connected")  # whoever is through first must not close while others still connect to it

    def _open_store(self, exchange: Exchange) -> tuple[Any, list[_Hello]]:
        dist = self._torch.distributed
        me = identify_self()
        hello = _Hello(self._host_identity, me.pid, me.started)
        listener = None
        if self.rank == 0:
            listener = socket.create_server((self._address, 0), backlog=1024, family=_family(self._address))
            hello.store_host, hello.store_port = listener.getsockname()[:2]
        hellos = [msgspec.msgpack.decode(answer, type=_Hello) for answer in exchange(msgspec.msgpack.encode(hello))]
        limit = timedelta(seconds=self.timeout)
        host, port = hellos[0].store_host, hellos[0].store_port
        # The store owns the descriptor from here on.
        options = {"master_listen_fd": listener.detach()} if listener is not None else {}
        store = dist.TCPStore(host, port, self.size, self.rank == 0, limit, wait_for_workers=False, **options)
        return store, hellos

    def _make_group(self) -> Any:
        raise NotImplementedError

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self) -> None:
        self._agreement.check(Operation.BARRIER)
        self._finish(Operation.BARRIER, lambda: self._group.barrier())

    def broadcast(self, buffer: Buffer, root: int) -> None:
        sends = [buffer.nbytes if self.rank == root else 0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._agreement.check(Operation.BROADCAST, buffer, root=root, sends=sends, receives=receives)
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._finish(Operation.BROADCAST, lambda: self._group.broadcast([_bytes(buffer)], options))

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        self._agreement.check(Operation.ALL_REDUCE, buffer, op)
        if buffer.element not in self.native:
            all_reduce_by_gathering(self, buffer, op)
            return
        options = self._torch.distributed.AllreduceOptions()
        options.reduceOp = self._native_op(op)
        tensor = buffer.torch()
        self._finish(Operation.ALL_REDUCE, lambda: self._group.allreduce([tensor], options))
        self._divide(tensor, op)

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        self._agreement.check(Operation.REDUCE, buffer, op, root)
        if buffer.element not in self.native:
            reduce_by_gathering(self, buffer, op, root)
            return
        options = self._torch.distributed.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = self._native_op(op), root, 0
        # gloo uses the other ranks' tensors as its scratch space.
        tensor = buffer.torch() if self.rank == root else buffer.torch().clone()
        self._finish(Operation.REDUCE, lambda: self._group.reduce([tensor], options))
        if self.rank == root:
            self._divide(tensor, op)

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        sends = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        receives = [output.nbytes for output in outputs] or [0] * self.size
        self._agreement.check(Operation.GATHER, buffer, root=root, sends=sends, receives=receives)
        nothing = Buffer(0, 0, buffer.item_bytes, buffer.element, None, None)
        self._exchange(
            Operation.GATHER,
            outputs or [nothing] * self.size,
            [buffer if rank == root else nothing for rank in range(self.size)],
        )

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        sends, receives = [buffer.nbytes] * self.size, [output.nbytes for output in outputs]
        self._agreement.check(Operation.ALL_GATHER, buffer, sends=sends, receives=receives)
        self._exchange(Operation.ALL_GATHER, outputs, [buffer] * self.size)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        sends = [piece.nbytes for piece in inputs] or [0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._agreement.check(Operation.SCATTER, buffer, root=root, sends=sends, receives=receives)
        nothing = Buffer(0, 0, buffer.item_bytes, buffer.element, None, None)
        self._exchange(
            Operation.SCATTER,
            [buffer if rank == root else nothing for rank in range(self.size)],
            inputs or [nothing] * self.size,
        )

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        sends, receives = [piece.nbytes for piece in inputs], [piece.nbytes for piece in outputs]
        self._agreement.check(Operation.ALL_TO_ALL, inputs[0], sends=sends, receives=receives)
        self._exchange(Operation.ALL_TO_ALL, outputs, inputs)

    def _exchange(self, operation: Operation, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        """Move each pair's bytes, of any lengths: gloo has this for one tensor only, and nothing for uneven lists."""
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
        self._agreement.check(Operation.REDUCE_SCATTER, inputs[0], op, sends=[piece.nbytes for piece in inputs])
        reduce_scatter_by_gathering(self, output, inputs, op)

    # --- messages -------------------------------------------------------------------------------

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        if to == self.rank:  # gloo has no connection to itself
            return self._own_messages.isend(buffer, tag)
        work = self._translated("send", lambda: self._group.send([_bytes(buffer)], to, tag), peer=to)
        return _TorchRequest(self, "send", work, to, buffer)

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        if source == self.rank:
            return self._own_messages.ireceive(buffer, tag)
        if source is None:
            work = self._translated("recv", lambda: self._group.recv_anysource([_bytes(buffer)], tag))
        else:
            work = self._translated("recv", lambda: self._group.recv([_bytes(buffer)], source, tag), peer=source)
        return _TorchRequest(self, "recv", work, source, buffer)

    # --- groups and the end ---------------------------------------------------------------------

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
        self._say(None)
        if self._line is not None:
            self._line.close()
        self._watch.close()
        self._group = None
        self._store = None

    def poison(self, error: BaseException) -> None:
        self._say(error)

    def say_farewell(self, error: BaseException) -> None:
        self._say(error)

    def _say(self, error: BaseException | None) -> None:
        """Say farewell to every other rank; only the first one counts."""
        if self._line is not None and not self._has_said_farewell:
            self._has_said_farewell = True
            self._line.say(Farewell.because_of(error, self._world_ranks[self.rank], self._rounds))

    # --- waiting, and what can go wrong ---------------------------------------------------------

    def _finish(self, operation: Operation, start: Callable[[], Any]) -> None:
        self._exchange_round(operation.label, start)

    def _exchange_round(self, what: str, start: Callable[[], Any]) -> None:
        """Do this rank's part of an exchange among all ranks."""

        def run() -> None:
            work = start()
            work.wait(timedelta(seconds=self.timeout))

        self._translated(what, run, rounds=self._rounds)
        self._rounds += 1

    def _translated(
        self, what: str, call: Callable[[], Any], peer: int | None = None, rounds: int | None = None
    ) -> Any:
        """Make a call of torch's that needs `peer`, or all ranks in exchange `rounds`; its errors become ours."""
        try:
            return call()
        except NeuraxisError:
            raise
        except RuntimeError as error:  # torch's own errors are RuntimeErrors
            raise self._error(what, error, None if peer is None else (peer,), rounds) from error

    def _error(
        self, what: str, error: RuntimeError, needed: Collection[int] | None, rounds: int | None
    ) -> NeuraxisError:
        text = str(error)
        sequence = self._agreement.sequence
        # A dying process closes its connections a moment before it counts as dead.
        patience = time.monotonic() + _DEATH_SECONDS
        while True:
            self._listen()
            told = self._farewells.loss(what, sequence, needed, rounds, certain=True)
            ended = self._watch.ended()
            if told is not None or ended or time.monotonic() >= patience:
                break
            time.sleep(0.005)
        if told is not None:
            return told
        # Who notices a loss leaves, too: of several that have ended it is the one that ended worst.
        rank, ending = max(ended.items(), key=lambda one: one[1].severity, default=(-1, Ending()))
        if rank < 0 and any(word in text.lower() for word in ("timed out", "timeout")):
            return CollectiveTimeout(
                f"not all ranks arrived within {self.timeout:g} s in {what}, operation {sequence}: {text}",
                operation=what,
                sequence=sequence,
            )
        if rank < 0 or ending.severity < 2:
            told = self._farewells.loss(what, sequence, needed, rounds)
            if told is not None:
                return told
        if rank < 0:
            text = f"a rank was lost in {what}, operation {sequence}: {text}"
            return PeerLost(text, operation=what, sequence=sequence)
        world_rank = self._world_ranks[rank]
        return PeerLost(
            f"rank {world_rank} {ending}; noticed in {what}, operation {sequence}: {text}",
            rank=world_rank,
            exit_code=ending.exit_code,
            signal=ending.signal,
            operation=what,
            sequence=sequence,
            reason=str(ending),
        )

    def _listen(self) -> None:
        for sender, farewell in self._line.heard() if self._line is not None else ():
            self._farewells.hear(sender, farewell)

    def _all_gather_words(self, words: np.ndarray) -> np.ndarray:
        torch = self._torch
        mine = torch.from_numpy(words).to(self.device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self._exchange_round("the comparison of calls", lambda: self._group.allgather([rows], [mine]))
        everybody: np.ndarray = torch.stack(rows).cpu().numpy()
        return everybody

    def _native_op(self, op: ReduceOp) -> Any:
        if op is ReduceOp.AVG and not self.native_average:
            op = ReduceOp.SUM
        return getattr(self._torch.distributed.ReduceOp, op.name)

    def _divide(self, tensor: Any, op: ReduceOp) -> None:
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
        made = self._translated("set-up", lambda: group(self._store, self.rank, self.size, options))
        self._line = GlooLine(self._torch, made, self.rank, self.size)
        return made


class NcclBackend(TorchBackend):
    """Collectives between GPUs by NCCL; each rank needs one of its own."""

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
            self._group.abort()  # NCCL's threads and memory; it waits for nobody
        super().close()

    def _finish(self, operation: Operation, start: Callable[[], Any]) -> None:
        super()._finish(operation, start)
        self._torch.cuda.synchronize()  # the caller may read the result from any stream, or from the CPU


class _TorchRequest(Request):
    """A message under way in torch's hands."""

    def __init__(self, backend: TorchBackend, what: str, work: Any, peer: int | None, keep: Buffer) -> None:
        self._keep = keep  # torch reads and writes this memory until the work is done
        self._backend = backend
        self._what = what
        self._work = work
        self._peer = peer
        self._waiter: threading.Thread | None = None
        self._error: NeuraxisError | None = None
        self._done = threading.Event()

    def test(self) -> bool:
        # gloo's messages get on, and know that they are done, only while somebody waits for them.
        self._wait_in_a_thread()
        if self._error is not None:
            raise self._error
        return self._done.is_set()

    def wait(self, timeout: float) -> None:
        if self._waiter is None and timeout >= self._backend.timeout:
            self._wait(timeout)
        else:
            # A wait of gloo's that runs out breaks the connection, so a shorter one must not be gloo's.
            self._wait_in_a_thread()
            if not self._done.wait(timeout):
                raise CollectiveTimeout(f"{self._what} was not done within {timeout:g} s", operation=self._what)
        if self._error is not None:
            raise self._error

    def _wait_in_a_thread(self) -> None:
        if self._waiter is None and not self._done.is_set():
            arguments = (self._backend.timeout,)
            self._waiter = threading.Thread(target=self._wait, args=arguments, name="neuraxis-gloo", daemon=True)
            self._waiter.start()

    def _wait(self, timeout: float) -> None:
        try:
            limit = timedelta(seconds=timeout)
            self._backend._translated(self._what, lambda: self._work.wait(limit), peer=self._peer)
            self.source = self._work._source_rank() if self._peer is None else self._peer
        except NeuraxisError as error:
            self._error = error
        self._done.set()


def require_torch(backend: str) -> Any:
    """torch, or BackendUnavailable with the line that installs it."""
    if importlib.util.find_spec("torch") is None:
        raise BackendUnavailable(backend, "torch is not installed", "pip install 'neuraxis[torch]'")
    import torch
    import torch.distributed

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
            raise BackendUnavailable(backend, "no CUDA device can be used here", "Use backend='auto'")
    return torch


def _bytes(buffer: Buffer) -> Any:
    """A buffer's memory as a flat tensor of bytes: what is only moved needs no type."""
    import torch

    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=getattr(buffer.memory, "device", "cpu"))
    return buffer.torch().view(torch.uint8)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
