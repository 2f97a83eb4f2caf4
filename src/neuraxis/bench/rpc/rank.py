"""The caller or the callee of one process group of `neuraxis bench rpc`.

Each method is used as its manual shows, with its fastest settings where there is a choice. The callee returns the data
that the caller sends. All connections stay on this host; sockets and files are in the benchmark's temporary folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from neuraxis import imports as optional
from neuraxis.bench.rank import ADDRESS, Reply, Request, no_garbage_collection, serve_rank
from neuraxis.bench.rpc.measure import MANY
from neuraxis.process.environment import detect_launch
from neuraxis.process.parent_death import die_with_parent
from neuraxis.rpc import RpcContext

__all__ = ["CALLER", "Calling", "Side", "measure_calls", "open_side"]

CALLER = 0
_CALLEE = "rank1"
_KEY = "bench/echo"
_RETRY_S = 0.02


class Calling(NamedTuple):
    """The functions of a caller.

    Attributes:
        pack, unpack: convert an array into the payload of a call, and a result into an array.
        call: call synchronously.
        start: call asynchronously and return a function that waits for the result; None without asynchronous calls.
    """

    pack: Callable[[np.ndarray], Any]
    unpack: Callable[[Any], np.ndarray]
    call: Callable[[Any], Any]
    start: Callable[[Any], Callable[[], Any]] | None


class Side(Protocol):
    """The caller or the callee."""

    rank: int

    def calling(self, method: str) -> Calling:
        """Return the functions of one of the group's methods; for the caller."""

    def close(self) -> None: ...


def open_side(name: str, timeout_s: float) -> Side:
    """Join a process group by its name, with the rank in the launcher's variables."""
    kinds: dict[str, Callable[[float], Side]] = {
        "raw-zenoh": _RawZenoh,
        "raw-zenoh-tcp": partial(_RawZenoh, shared_memory=False),
        "torch-rpc": _TorchRpc,
        "managers": _Managers,
    }
    return kinds[name](timeout_s) if name in kinds else _Ours(name, timeout_s)


def echo(payload: Any) -> Any:
    """Return the payload: the function that callers call."""
    return payload


def _same(array: Any) -> Any:
    return array


class _Ours:
    def __init__(self, backend: str, timeout_s: float) -> None:
        self._context = RpcContext(backend, timeout=timeout_s)
        self._context.register_function("echo", echo)
        self._context.initialize()
        self.rank = self._context.rank

    def calling(self, method: str) -> Calling:
        call, start = (partial(one, _CALLEE, "echo") for one in (self._context.rpc_sync, self._context.rpc_async))
        return Calling(_same, _same, call, lambda payload: start(payload).wait)

    def close(self) -> None:
        self._context.close()


class _TorchRpc:
    def __init__(self, timeout_s: float) -> None:
        torch = optional.require("torch", extra="torch", purpose="torch.distributed.rpc")
        rpc = optional.require("torch.distributed.rpc", extra="torch", purpose="torch.distributed.rpc")
        self._torch, self._rpc = torch, rpc
        self.rank = detect_launch().rank
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{_folder() / 'torch'}", rpc_timeout=timeout_s)
        rpc.init_rpc(f"rank{self.rank}", rank=self.rank, world_size=2, rpc_backend_options=options)

    def calling(self, method: str) -> Calling:
        rpc = self._rpc
        pack = self._torch.from_numpy if method == "torch-tensor" else _same
        return Calling(
            pack,
            np.asarray,
            lambda payload: rpc.rpc_sync(_CALLEE, echo, (payload,)),
            lambda payload: rpc.rpc_async(_CALLEE, echo, (payload,)).wait,
        )

    def close(self) -> None:
        self._rpc.shutdown()


class _RawZenoh:
    """Zenoh's own get and queryable, without consolidation and express: otherwise Zenoh waits for more messages.

    By default Zenoh sends large messages through shared memory.
    """

    def __init__(self, timeout_s: float, shared_memory: bool = True) -> None:
        import zenoh

        self._zenoh = zenoh
        self._timeout_s = timeout_s
        launch = detect_launch()
        self.rank = launch.rank
        endpoint = f"tcp/127.0.0.1:{launch.master_port}"
        config = {
            "mode": "peer",
            "scouting": {"multicast": {"enabled": False}},
            "listen": {"endpoints": [] if self.rank == CALLER else [endpoint]},
            "connect": {"endpoints": [endpoint] if self.rank == CALLER else [], "timeout_ms": int(timeout_s * 1000)},
            "transport": {"shared_memory": {"enabled": shared_memory}},
        }
        self._session: Any = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
        if self.rank == CALLER:
            self._wait_for_callee()
        else:
            self._queryable = self._session.declare_queryable(_KEY, _answer, complete=True)

    def _wait_for_callee(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not any(reply.ok for reply in self._session.get(_KEY, payload=b"?", timeout=1.0)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the callee does not answer within {self._timeout_s:g} s")
            time.sleep(_RETRY_S)

    def calling(self, method: str) -> Calling:
        return Calling(
            np.ndarray.tobytes,
            partial(np.frombuffer, dtype=np.uint8),
            lambda payload: self._start(payload)(),
            self._start,
        )

    def _start(self, payload: bytes) -> Callable[[], bytes]:
        zenoh = self._zenoh
        replies = self._session.get(
            _KEY,
            payload=payload,
            timeout=self._timeout_s,
            consolidation=zenoh.ConsolidationMode.NONE,
            congestion_control=zenoh.CongestionControl.BLOCK,
            express=True,
        )
        return lambda: bytes(replies.recv().ok.payload)

    def close(self) -> None:
        self._session.close()


def _answer(query: Any) -> None:
    with query:
        query.reply(query.key_expr, bytes(query.payload), express=True)


class _Echo:
    def echo(self, payload: Any) -> Any:
        return payload


class _Manager(BaseManager):
    pass


class _Managers:
    """A server in the callee and a proxy of its object in the caller, over a Unix socket, which is the default."""

    def __init__(self, timeout_s: float) -> None:
        launch = detect_launch()
        self.rank = launch.rank
        self._server: Any = None
        _Manager.register("Echo", _Echo, exposed=("echo",))
        manager = _Manager(str(_folder() / "managers"), launch.job.encode())
        if self.rank == CALLER:
            self._proxy = _connected(manager, timeout_s)
        else:
            self._server = manager.get_server()
            threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def calling(self, method: str) -> Calling:
        return Calling(_same, _same, self._proxy.echo, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop_event.set()


def _connected(manager: Any, timeout_s: float) -> Any:
    """Return a proxy that is connected: its first use connects it, after which it does not need the path."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            manager.connect()
            break
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
    proxy = manager.Echo()
    proxy.echo(b"?")
    return proxy


def _folder() -> Path:
    return Path(os.environ[ADDRESS]).parent


def measure_calls(side: Side, request: Request) -> Reply:
    """Time calls; the pattern is method/one for sequential calls and method/many for concurrent ones.

    With `check`, the results are compared with the payload.
    """
    if side.rank != CALLER:
        return Reply()
    method, pattern = request.pattern.split("/")
    calling = side.calling(method)
    array = np.random.default_rng(request.size).integers(0, 256, request.size, np.uint8)
    if request.check and not _round_trips(calling, array):
        return Reply(problem=f"{request.pattern}: the result differs from the payload")
    payload = calling.pack(array)
    for _ in repeat(None, request.warmups):
        calling.call(payload)
    with no_garbage_collection():
        if pattern == "many":
            assert calling.start is not None
            return Reply(_many(calling.start, payload, request.iterations))
        times = _one_by_one(calling.call, payload, request.iterations)
    p50, p99 = np.percentile(times, [50, 99])
    return Reply(sum(times), facts={"p50_us": 1e6 * float(p50), "p99_us": 1e6 * float(p99)})


def _round_trips(calling: Calling, array: np.ndarray) -> bool:
    returned = [calling.unpack(calling.call(calling.pack(array)))]
    if calling.start is not None:
        returned.append(calling.unpack(calling.start(calling.pack(array))()))
    return all(one.dtype == np.uint8 and np.array_equal(one, array) for one in returned)


def _one_by_one(call: Callable[[Any], Any], payload: Any, calls: int) -> list[float]:
    clock, times = time.perf_counter, []
    for _ in repeat(None, calls):
        begun = clock()
        call(payload)
        times.append(clock() - begun)
    return times


def _many(start: Callable[[Any], Callable[[], Any]], payload: Any, calls: int) -> float:
    begun = time.perf_counter()
    pending = deque(start(payload) for _ in range(min(MANY, calls)))
    for _ in repeat(None, calls - len(pending)):
        pending.popleft()()
        pending.append(start(payload))
    for wait in pending:
        wait()
    return time.perf_counter() - begun


if __name__ == "__main__":
    die_with_parent(os.getppid())  # a paused process would not notice the end of the benchmark
    serve_rank(open_side, measure_calls)
