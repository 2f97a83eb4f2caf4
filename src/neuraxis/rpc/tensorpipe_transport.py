"""Calls through torch.distributed.rpc, for programs that use it already.

torch pickles its envelopes, and unpickles a received one before any check: anyone who can reach this process's agent
can run code in it. The envelope contains the same frames as with the other transports, so the meaning of a call and the
set of callable functions are the same. torch's threads only hand calls over: a function that waits for another call
must not occupy one of them.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed import rpc

from neuraxis.comm.failures import ProcessIdentity, ProcessWatch, identify_self
from neuraxis.comm.host import host_identity
from neuraxis.comm.rendezvous import Rendezvous, RendezvousAddress, rendezvous_address
from neuraxis.errors import AlreadyInitialized, CallCancelled, CalleeDied, InvalidArgument
from neuraxis.process.environment import detect_launch
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.message_transport import CallQueue, too_slow
from neuraxis.rpc.messages import Head, Kind, pack_head, read_head, unreadable
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import Server
from neuraxis.rpc.transport import INBOX, ONLY_INCARNATION, Done, Endpoint, FixedRanks, Reply, Request, World
from neuraxis.threads import Threads
from neuraxis.wire.objects import Unreadable

__all__ = ["TensorPipeTransport", "open_tensorpipe"]

_DEATH_S = 1.0  # a dying process closes its connections a moment before it counts as dead
_BYE_S = 2.0
_START_S = 30.0  # between the start of torch's agent and the start of serving
_CLOSE_S = 0.5


class _RankInfo(msgspec.Struct):
    name: str
    host: str
    pid: int
    started: int
    init_method: str = ""


_current: TensorPipeTransport | None = None


class TensorPipeTransport(FixedRanks):
    """The transport of a rank. torch allows one in a process."""

    largest = 2**31 - 1

    def __init__(self, rank: int, ranks: list[_RankInfo]) -> None:
        here = ranks[rank].host
        watch = ProcessWatch(
            {r: ProcessIdentity(one.pid, one.started) for r, one in enumerate(ranks) if one.host == here and r != rank}
        )
        super().__init__([one.name for one in ranks], rank, watch)
        self._threads = Threads("neuraxis rpc")
        self._queue: CallQueue[tuple[Any, Head, Any]] = CallQueue()
        self._ready = threading.Event()
        self._refuses = False
        self._closed = False

    # --- serving ----------------------------------------------------------------------------------------------

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        self._server = server
        self._pool = pool
        self._ready.set()

    def slot_released(self, more: bool) -> None:
        if self._queue.calls:
            self._threads.run(self._run_queued)

    def refuse(self) -> None:
        self._refuses = True

    def handle(self, frame: Any, answer: Any) -> None:
        """Handle a received frame; `answer` is torch's future for the reply."""
        head = read_head(frame)
        if head.kind == Kind.BYE:
            self._left.add(self._ranks.get(head.sender.name, -1))
            answer.set_result(torch.empty(0, dtype=torch.uint8))
            return
        if not self._ready.wait(_START_S):
            raise RuntimeError("this process has not started to serve")
        if head.kind == Kind.CONTROL:
            answer.set_result(_tensor(self._server.control(frame, head)))
        elif self._refuses:
            answer.set_result(_tensor(self._server.refuse(head, "it is shutting down", frame)))
        elif full := self._queue.add((frame, head, answer), len(frame)):
            answer.set_result(_tensor(self._server.refuse(head, full, frame)))
        else:
            self._threads.run(self._run_queued)

    def _run_queued(self) -> None:
        while self._queue.calls and self._pool.try_enter():
            call = self._queue.pop()
            if call is None:  # another thread was faster
                self._pool.leave()
                self._pool.answered()
                return
            frame, head, answer = call
            try:
                try:
                    reply = self._server.answer(frame, head)
                finally:
                    self._pool.leave()
                answer.set_result(_tensor(reply))
            finally:
                self._pool.answered()

    # --- calling ----------------------------------------------------------------------------------------------

    def call(self, request: Request) -> Reply:
        frame = _tensor(request.write(INBOX))
        try:
            return _reply(self._send(request, frame), request.to)
        except RuntimeError as error:
            raise self._translated(request, error) from None

    def start(self, request: Request, done: Done) -> None:
        frame = _tensor(request.write(INBOX))

        def finish(future: Any) -> None:
            try:
                reply = _reply(future, request.to)
            except CalleeDied as error:
                done(None, error)
            except RuntimeError as error:
                done(None, self._translated(request, error))
            else:
                done(reply, None)

        try:
            self._send(request, frame).add_done_callback(finish)
        except RuntimeError as error:
            done(None, self._translated(request, error))

    def _send(self, request: Request, frame: Any) -> Any:
        if self._closed:
            raise RuntimeError("this context was closed")
        return rpc.rpc_async(request.to.name, _serve_here, args=(frame,), timeout=request.timeout)

    def _translated(self, request: Request, error: RuntimeError) -> Exception:
        """Return our error for one of torch, which are all RuntimeErrors that differ in their text."""
        name, text = request.to.name, str(error)
        if self._closed:
            return CallCancelled("this context was closed during the call", name)
        if "timeout" in text.lower():
            return too_slow(request.to, request.timeout)
        deadline = time.monotonic() + _DEATH_S
        while not self.is_gone(request.to) and time.monotonic() < deadline:
            time.sleep(0.01)
        first = text.splitlines()[0] if text else ""
        return CalleeDied(f"{name!r} died or left during the call: it may or may not have run ({first:.200})", name)

    def close(self) -> None:
        try:
            self._send_bye()
        finally:
            self._closed = True
            self._threads.close(_CLOSE_S)
            _end_agent(self)

    def _send_bye(self) -> None:
        bye = _tensor(Frame(pack_head(Kind.BYE, INBOX, 0, 0, ONLY_INCARNATION, self.me)))
        others = [name for rank, name in enumerate(self._names) if rank != self._rank and not self._is_lost(rank)]
        sent = []
        for name in others:
            with suppress(RuntimeError):  # it is gone, or torch's agent is
                sent.append(rpc.rpc_async(name, _serve_here, args=(bye,), timeout=_BYE_S))
        for future in sent:
            with suppress(RuntimeError):
                future.wait()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _serve_here(payload: Any) -> Any:
    """Serve a frame; torch calls this in the callee's process."""
    answer: Any = torch.futures.Future()
    if _current is None:
        raise RuntimeError("this process has no open RPC context")
    _current.handle(payload.numpy(), answer)
    return answer


def _tensor(frame: Frame) -> Any:
    return torch.frombuffer(bytearray(frame.joined()), dtype=torch.uint8)


def _reply(future: Any, sender: Endpoint) -> Reply:
    frame = future.wait().numpy()
    try:
        return read_head(frame), frame
    except Unreadable as error:
        raise unreadable(sender.name, error) from error


def open_tensorpipe(world: World, init_method: str | None, timeout: float, name: str | None) -> TensorPipeTransport:
    """Rendezvous with the other ranks, and start torch's agent."""
    global _current
    if _current is not None or rpc._is_current_rpc_agent_set():
        raise AlreadyInitialized(
            "torch.distributed.rpc is running in this process, and only one agent is possible. Shut it down first"
        )
    rank, size = max(world.rank, 0), max(world.size, 1)
    launch = detect_launch()
    local = size if launch.launcher == "none" else launch.local_world_size
    launch = replace(launch, rank=rank, world_size=size, local_world_size=local)
    place = rendezvous_address(init_method, launch) if size > 1 else RendezvousAddress("127.0.0.1", (0,), "")
    me = identify_self()
    with (
        tempfile.TemporaryDirectory(prefix="neuraxis-rpc-") as folder,
        Rendezvous(place, rank, size, timeout) as rendezvous,
    ):
        mine = _RankInfo(name or f"rank{rank}", host_identity(), me.pid, me.started, f"file://{Path(folder) / 'store'}")
        ranks = [
            msgspec.msgpack.decode(answer, type=_RankInfo)
            for answer in rendezvous.exchange(msgspec.msgpack.encode(mine))
        ]
        if len({one.name for one in ranks}) != size:
            names = ", ".join(one.name for one in ranks)
            raise InvalidArgument(f"name: two ranks have the same name: {names}. Use different names")
        if len({one.host for one in ranks}) > 1:
            raise InvalidArgument("backend 'tensorpipe': the ranks are on several hosts. Use 'zenoh' or 'gloo'")
        transport = _current = TensorPipeTransport(rank, ranks)
        try:
            _start_agent(transport.me.name, rank, size, ranks[0].init_method, timeout)
            rendezvous.exchange(b"started")  # rank 0 removes its folder after this
        except BaseException:
            _end_agent(transport)
            raise
    return transport


def _end_agent(transport: TensorPipeTransport) -> None:
    """End torch's agent, whatever its state, so that another can be started."""
    global _current
    _current = None
    transport._watch.close()
    if rpc._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def _start_agent(name: str, rank: int, size: int, init_method: str, timeout: float) -> None:
    before = os.environ.get("TP_SOCKET_IFNAME")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # otherwise it would listen on an external address
    try:
        options = rpc.TensorPipeRpcBackendOptions(init_method=init_method, rpc_timeout=timeout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a warning of torch about itself
            rpc.init_rpc(name, rpc.BackendType.TENSORPIPE, rank, size, options)
    finally:
        if before is None:
            del os.environ["TP_SOCKET_IFNAME"]
