"""Calls through torch.distributed.rpc, for programs that use it already.

torch pickles the envelope of what it sends, and unpickles what comes before anybody is asked: whoever can reach this
process's agent can run code in it. Inside that envelope are our own bytes and nothing else, so what a call means, and
which functions can be called, is the same as everywhere. torch's threads only hand calls over: a function that waits
for another one must not take one of theirs.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed import rpc

from neuraxis.comm.environment import detect_launch
from neuraxis.comm.host import host_identity
from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch, identify_self
from neuraxis.comm.objects import Unreadable
from neuraxis.comm.rendezvous import Place, Rendezvous, place_of
from neuraxis.errors import AlreadyInitialized, CallCancelled, CalleeDied, CallTimeout, InvalidArgument
from neuraxis.rpc.failures import unreadable
from neuraxis.rpc.fixed_ranks import LIFE, FixedRanks
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import Head, Kind, pack_head, read_head
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Party, Reply, Request
from neuraxis.rpc.world import World

__all__ = ["TensorPipeTransport", "open_tensorpipe"]

_MOST_WAITING = 1000
_DEATH_S = 1.0  # a dying process closes its connections a moment before it counts as dead
_FAREWELL_S = 2.0
_START_S = 30.0  # between the agent's start and ours
_CLOSE_S = 0.5


class _Hello(msgspec.Struct):
    name: str
    host: str
    pid: int
    started: int
    meeting: str = ""


_current: TensorPipeTransport | None = None


class TensorPipeTransport(FixedRanks):
    """This rank's end. torch allows one in a process."""

    largest = 2**31 - 1

    def __init__(self, rank: int, hellos: list[_Hello]) -> None:
        here = hellos[rank].host
        watch = ProcessWatch(
            {r: ProcessIdentity(one.pid, one.started) for r, one in enumerate(hellos) if one.host == here and r != rank}
        )
        super().__init__([hello.name for hello in hellos], rank, watch)
        self._threads = Threads("neuraxis rpc")
        self._waiting: deque[tuple[Any, Head, Any]] = deque()
        self._ready = threading.Event()
        self._refuses = False
        self._closed = False

    # --- to answer --------------------------------------------------------------------------------------------

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        self._server = server
        self._pool = pool
        self._ready.set()

    def place_given_back(self, more: bool) -> None:
        if self._waiting:
            self._threads.run(self._run_waiting)

    def refuse(self) -> None:
        self._refuses = True

    def take(self, frame: Any, answer: Any) -> None:
        """What came: `answer` is torch's future for the reply."""
        head = read_head(frame)
        if head.kind == Kind.BYE:
            self._left.add(self._ranks.get(head.sender.name, -1))
            answer.set_result(torch.empty(0, dtype=torch.uint8))
            return
        if not self._ready.wait(_START_S):
            raise RuntimeError("this process does not begin to serve")
        if head.kind == Kind.CONTROL:
            answer.set_result(_tensor(self._server.control(frame, head)))
        elif self._refuses:
            answer.set_result(_tensor(self._server.refuse(head, "it is shutting down", frame)))
        elif len(self._waiting) >= _MOST_WAITING:
            answer.set_result(_tensor(self._server.refuse(head, f"{_MOST_WAITING:,} calls are waiting", frame)))
        else:
            self._waiting.append((frame, head, answer))
            self._threads.run(self._run_waiting)

    def _run_waiting(self) -> None:
        while self._waiting and self._pool.try_enter():
            try:
                frame, head, answer = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                self._pool.leave()
                self._pool.answered()
                return
            try:
                try:
                    reply = self._server.answer(frame, head)
                finally:
                    self._pool.leave()
                answer.set_result(_tensor(reply))
            finally:
                self._pool.answered()

    # --- to call ----------------------------------------------------------------------------------------------

    def call(self, request: Request) -> Reply:
        frame = _tensor(request.write(INBOX))
        try:
            return _reply(self._send(request, frame), request.to)
        except RuntimeError as error:
            raise self._translated(request, error) from None

    def start(self, request: Request, done: Done) -> None:
        frame = _tensor(request.write(INBOX))

        def tell(future: Any) -> None:
            try:
                reply = _reply(future, request.to)
            except CalleeDied as error:
                done(None, error)
            except RuntimeError as error:
                done(None, self._translated(request, error))
            else:
                done(reply, None)

        try:
            self._send(request, frame).add_done_callback(tell)
        except RuntimeError as error:
            done(None, self._translated(request, error))

    def _send(self, request: Request, frame: Any) -> Any:
        if self._closed:
            raise RuntimeError("this context was shut down")
        return rpc.rpc_async(request.to.name, _serve_here, args=(frame,), timeout=request.timeout)

    def _translated(self, request: Request, error: RuntimeError) -> Exception:
        """torch's errors are RuntimeErrors, told apart by their text."""
        name, text = request.to.name, str(error)
        if self._closed:
            return CallCancelled("this context was shut down during the call", name)
        if "timeout" in text.lower():
            return CallTimeout(f"{name!r} has not answered within {request.timeout:g} s", name)
        deadline = time.monotonic() + _DEATH_S
        while not self.is_gone(request.to) and time.monotonic() < deadline:
            time.sleep(0.01)
        first = text.splitlines()[0] if text else ""
        return CalleeDied(f"{name!r} died or left during the call: it may or may not have run ({first:.200})", name)

    # --- to end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        try:
            self._say_bye()
        finally:
            self._closed = True
            self._threads.close(_CLOSE_S)
            _end_agent(self)

    def _say_bye(self) -> None:
        bye = _tensor(Frame(pack_head(Kind.BYE, INBOX, 0, 0, LIFE, self.me, 0, 0)))
        others = [name for rank, name in enumerate(self._names) if rank != self._rank and not self._is_lost(rank)]
        told = []
        for name in others:
            with suppress(RuntimeError):  # it is gone, or torch's agent is
                told.append(rpc.rpc_async(name, _serve_here, args=(bye,), timeout=_FAREWELL_S))
        for future in told:
            with suppress(RuntimeError):
                future.wait()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def _serve_here(payload: Any) -> Any:
    """What torch calls in the callee's process."""
    answer: Any = torch.futures.Future()
    if _current is None:
        raise RuntimeError("this process has no RPC context (any more)")
    _current.take(payload.numpy(), answer)
    return answer


def _tensor(frame: Frame) -> Any:
    return torch.frombuffer(bytearray(frame.joined()), dtype=torch.uint8)


def _reply(future: Any, sender: Party) -> Reply:
    frame = future.wait().numpy()
    try:
        return read_head(frame), frame
    except Unreadable as error:
        raise unreadable(sender.name, error) from error


def open_tensorpipe(world: World, init_method: str | None, timeout: float, name: str | None) -> TensorPipeTransport:
    """Meet the other ranks, and start torch's agent."""
    global _current
    if _current is not None or rpc._is_current_rpc_agent_set():
        raise AlreadyInitialized("torch.distributed.rpc has been started in this process: it can be only once")
    rank, size = max(world.rank, 0), max(world.size, 1)
    launch = detect_launch()
    local = size if launch.launcher == "none" else launch.local_world_size
    launch = replace(launch, rank=rank, world_size=size, local_world_size=local)
    place = place_of(init_method, launch) if size > 1 else Place("127.0.0.1", (0,), "")
    me = identify_self()
    with (
        tempfile.TemporaryDirectory(prefix="neuraxis-rpc-") as folder,
        Rendezvous(place, rank, size, timeout) as meeting,
    ):
        hello = _Hello(name or f"rank{rank}", host_identity(), me.pid, me.started, f"file://{Path(folder) / 'store'}")
        hellos = [
            msgspec.msgpack.decode(answer, type=_Hello) for answer in meeting.exchange(msgspec.msgpack.encode(hello))
        ]
        if len({one.name for one in hellos}) != size:
            raise InvalidArgument(f"name: two ranks have the same: {', '.join(one.name for one in hellos)}")
        if len({one.host for one in hellos}) > 1:
            raise InvalidArgument("backend 'tensorpipe': the ranks are on several hosts; use 'zenoh' or 'gloo'")
        transport = _current = TensorPipeTransport(rank, hellos)
        try:
            _start_agent(transport.me.name, rank, size, hellos[0].meeting, timeout)
            meeting.exchange(b"started")  # the folder is rank 0's, and goes when it leaves
        except BaseException:
            _end_agent(transport)
            raise
    return transport


def _end_agent(transport: TensorPipeTransport) -> None:
    """End torch's agent, whatever state it is in; another can be started then."""
    global _current
    _current = None
    transport._watch.close()
    if rpc._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)


def _start_agent(name: str, rank: int, size: int, meeting: str, timeout: float) -> None:
    before = os.environ.get("TP_SOCKET_IFNAME")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")  # else it would listen at an address of the host's
    try:
        options = rpc.TensorPipeRpcBackendOptions(init_method=meeting, rpc_timeout=timeout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a part of torch about another part of torch
            rpc.init_rpc(name, rpc.BackendType.TENSORPIPE, rank, size, options)
    finally:
        if before is None:
            del os.environ["TP_SOCKET_IFNAME"]
