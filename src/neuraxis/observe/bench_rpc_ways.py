"""The two sides of a call, in each way to make one: the callee gives back what it gets, the caller asks.

Each way is used as its own manual shows, with what makes it quick where there is a choice. All of them stay on this
host: where a path is needed it is in the folder of the benchmark, which goes when all have met.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from neuraxis.comm.environment import detect_launch
from neuraxis.observe.bench_rank import ADDRESS
from neuraxis.rpc import RpcContext

__all__ = ["CALLER", "Calling", "Crew", "open_crew"]

CALLER = 0
_CALLEE = "rank1"
_KEY = "bench/echo"
_RETRY_S = 0.02


class Calling(NamedTuple):
    """How a caller calls.

    Attributes:
        pack, unpack: what is sent instead of an array, and an array of what has come back.
        call: send, and wait for what comes back.
        start: send; it returns what waits for the answer. None where calls cannot be begun without waiting.
    """

    pack: Callable[[np.ndarray], Any]
    unpack: Callable[[Any], np.ndarray]
    call: Callable[[Any], Any]
    start: Callable[[Any], Callable[[], Any]] | None


class Crew(Protocol):
    """One of two processes: the caller, or the callee."""

    rank: int

    def calling(self, way: str) -> Calling:
        """How to call in one of this crew's ways; for the caller."""

    def close(self) -> None: ...


def open_crew(name: str, timeout_s: float) -> Crew:
    """Join a crew by its name, as the rank that the launcher's variables say."""
    kinds: dict[str, Callable[[float], Crew]] = {
        "raw-zenoh": _RawZenoh,
        "raw-zenoh-tcp": partial(_RawZenoh, shared_memory=False),
        "torch-rpc": _TorchRpc,
        "managers": _Managers,
    }
    return kinds[name](timeout_s) if name in kinds else _Ours(name, timeout_s)


def echo(payload: Any) -> Any:
    """What is called."""
    return payload


def _same(array: Any) -> Any:
    return array


class _Ours:
    def __init__(self, backend: str, timeout_s: float) -> None:
        self._context = RpcContext(backend, timeout=timeout_s)
        self._context.register_function("echo", echo)
        self._context.initialize()
        self.rank = self._context.rank

    def calling(self, way: str) -> Calling:
        call, start = (partial(one, _CALLEE, "echo") for one in (self._context.rpc_sync, self._context.rpc_async))
        return Calling(_same, _same, call, lambda payload: start(payload).wait)

    def close(self) -> None:
        self._context.shutdown()


class _TorchRpc:
    def __init__(self, timeout_s: float) -> None:
        import torch
        from torch.distributed import rpc

        self._torch, self._rpc = torch, rpc
        self.rank = detect_launch().rank
        os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{_folder() / 'torch'}", rpc_timeout=timeout_s)
        rpc.init_rpc(f"rank{self.rank}", rank=self.rank, world_size=2, rpc_backend_options=options)

    def calling(self, way: str) -> Calling:
        rpc = self._rpc
        pack = self._torch.from_numpy if way == "torch-tensor" else _same
        return Calling(
            pack,
            np.asarray,
            lambda payload: rpc.rpc_sync(_CALLEE, echo, (payload,)),
            lambda payload: rpc.rpc_async(_CALLEE, echo, (payload,)).wait,
        )

    def close(self) -> None:
        self._rpc.shutdown()


class _RawZenoh:
    """Questions and answers as Zenoh has them. Without consolidation, and express: it would wait for more otherwise.

    By itself Zenoh sends large messages through shared memory.
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
            self._wait_for_the_callee()
        else:
            self._queryable = self._session.declare_queryable(_KEY, _answer, complete=True)

    def _wait_for_the_callee(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not any(reply.ok for reply in self._session.get(_KEY, payload=b"?", timeout=1.0)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody answers within {self._timeout_s:g} s")
            time.sleep(_RETRY_S)

    def calling(self, way: str) -> Calling:
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
    """A server in the callee, and a proxy of its object in the caller. They meet at a Unix socket, as by default."""

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

    def calling(self, way: str) -> Calling:
        return Calling(_same, _same, self._proxy.echo, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.stop_event.set()


def _connected(manager: Any, timeout_s: float) -> Any:
    """The proxy. It has its connection when it has been used once, and needs the path no more."""
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
