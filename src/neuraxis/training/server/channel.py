"""Request/reply between a parameter server and its workers, over the mesh or over RPC.

`Channel` is the interface: named peers that call each other. Tensors that are too long for one message travel in
chunks: those of a request are sent ahead of it, those of a reply are fetched after it. In the message a placeholder
with the tokens of its chunks replaces the tensor.
"""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from neuraxis.deprecation import renamed_members
from neuraxis.errors import (
    CalleeDied,
    CalleeGone,
    CallTimeout,
    InvalidArgument,
    NodeGone,
    RequestTimeout,
    RouterLost,
    UnknownFunction,
)
from neuraxis.mesh import Node
from neuraxis.rpc import RpcContext
from neuraxis.wire.trees import map_leaves

__all__ = [
    "Channel",
    "ChunkStore",
    "ChunkedChannel",
    "Handler",
    "MeshChannel",
    "RpcChannel",
    "join_tensors",
    "split_tensors",
]

_CHUNKS = "@pieces"  # key of a placeholder
_KEPT_S = 300.0  # a peer that has not fetched a chunk by then is gone
_MOST_BYTES = 16 << 30
_CHUNK_BYTES = 8 << 20
_PUT, _GET = "training/put", "training/get"
_RETURN_S = 3.0  # a peer whose connection was lost for a moment is back within this time
_REGISTER_S = 10.0  # a peer may be called before it has registered its functions
_RETRY_S = 0.02

Handler = Callable[[dict[str, Any]], Any]


class Channel(Protocol):
    """Endpoint of one peer. Values are plain data and tensors; nothing is pickled."""

    name: str

    def serve(self, topic: str, handler: Handler, threads: int) -> None:
        """Answer requests for a topic, up to `threads` of them concurrently."""

    def announce(self) -> None:
        """Make this peer visible to others, after all its handlers are in place."""

    def call(self, to: str, topic: str, value: dict[str, Any], timeout: float) -> Any:
        """Send a request to another peer and return its reply. The handler runs at most once.

        Raises NodeGone if the peer is absent or disconnects permanently, RouterLost if this side does, RequestTimeout
        after `timeout` seconds, and RequestFailed or the original error if the handler raised. A short loss of the
        connection is not an error.
        """

    def is_present(self, name: str) -> bool:
        """Return True if a peer is present. A dead one is detected after about a second."""

    def wait_for(self, name: str, timeout: float) -> bool:
        """Wait until a peer is present, at most `timeout` seconds; return False if it is not.

        Raises RouterLost if this side is disconnected then.
        """

    def close(self) -> None:
        """Disconnect."""


class ChunkedChannel(ABC):
    """Base class of channels with a maximum message size: tensors beyond `chunk_bytes` travel in chunks.

    Subclasses implement the transport in `_serve` and `_request`.
    """

    def __init__(self, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._request_chunks = ChunkStore()  # received ahead of their request
        self._reply_chunks = ChunkStore()  # to be fetched after their reply
        self._serves_chunks = False

    def serve(self, topic: str, handler: Handler, threads: int) -> None:
        """Serve requests for a topic.

        Parameters
        ----------
        topic : str
            Name of the topic.
        handler : callable
            Function of a message that returns the reply.
        threads : int
            Number of requests that are handled at the same time.
        """

        def reply(request: dict[str, Any]) -> Any:
            result = handler(join_tensors(request, self._request_chunks.take))
            return split_tensors(result, self._chunk_bytes, self._reply_chunks.keep)

        if not self._serves_chunks:
            self._serves_chunks = True
            self._serve(_PUT, lambda one: self._request_chunks.keep(one["token"], one["piece"]), 4)
            self._serve(_GET, lambda one: self._reply_chunks.take(one["token"]), 4)
        self._serve(topic, reply, threads)

    def call(self, to: str, topic: str, value: dict[str, Any], timeout: float) -> Any:
        """Send a request and return the reply; large tensors travel in chunks.

        Parameters
        ----------
        to : str
            Name of the process that serves.
        topic : str
            Name of the topic.
        value : dict
            The message.
        timeout : float
            Deadline in seconds.

        Returns
        -------
        object
            The reply.

        Raises
        ------
        NodeGone
            The process has left or is not there.
        RequestTimeout
            There was no reply in time.
        """
        request = split_tensors(
            value,
            self._chunk_bytes,
            lambda token, chunk: self._request(to, _PUT, {"token": token, "piece": chunk}, timeout),
        )
        reply = self._request(to, topic, request, timeout)
        return join_tensors(reply, lambda token: self._request(to, _GET, {"token": token}, timeout))

    def close(self) -> None:
        """Disconnect; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def _serve(self, topic: str, handler: Handler, threads: int) -> None: ...

    @abstractmethod
    def _request(self, to: str, topic: str, value: Any, timeout: float) -> Any: ...


class MeshChannel(ChunkedChannel):
    """Channel over a node of a mesh. A node that is passed in stays open when the channel is closed."""

    def __init__(
        self, name: str, mesh: str = "default", *, node: Node | None = None, chunk_bytes: int = _CHUNK_BYTES
    ) -> None:
        super().__init__(chunk_bytes)
        self._owns = node is None
        self._node = node or Node(name, role="training", mesh=mesh, announce=False)
        self.name = self._node.name

    def announce(self) -> None:
        self._node.announce()

    def is_present(self, name: str) -> bool:
        return self._node.peer(name) is not None

    def wait_for(self, name: str, timeout: float) -> bool:
        if self._node.wait_for([name], timeout):
            self._node.check_connected(f"waiting for {name!r}")
            return False
        return True

    def close(self) -> None:
        if self._owns:
            self._node.close()

    def _serve(self, topic: str, handler: Handler, threads: int) -> None:
        self._node.serve(topic, lambda message: handler(message.value), type=dict, threads=threads)

    def _request(self, to: str, topic: str, value: Any, timeout: float) -> Any:
        """Send a request, and repeat it when a lost peer is back; the peer deduplicates by the request number."""
        number = self._node.next_request_number()
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self._node.request(to, topic, value, max(left, 1e-3), again=number)
            except (NodeGone, RouterLost):
                if left <= 0 or self._node.wait_for([to], min(left, _RETURN_S)):
                    raise


@renamed_members(here="is_present")
class RpcChannel(ChunkedChannel):
    """Channel over an RPC context, for a `ParameterServer` or `ServerWorker`.

    The context stays open when the channel is closed. Its threads serve the requests: a server needs one for each
    worker, and one more.

    Parameters
    ----------
    context : RpcContext
        Initialized RPC context of this process.

    Examples
    --------
    >>> from neuraxis.rpc import RpcContext
    >>> with RpcContext("shm", world_size=1, rank=0) as context, RpcChannel(context) as channel:
    ...     channel.is_present("rank0")
    True

    In the process of the server, with a context of at least three processes::

        channel = RpcChannel(rpc_context)
        with ParameterServer(model, optimizer, channel=channel, workers=2) as server:
            server.run()
    """

    def __init__(self, context: RpcContext) -> None:
        super().__init__()
        self._context = context
        self.name = context.name

    def announce(self) -> None:
        """Do nothing: a context is visible since it was initialized."""

    def is_present(self, name: str) -> bool:
        """Return True if a process can be called.

        Parameters
        ----------
        name : str
            Name of a process.

        Returns
        -------
        bool
            True if it can.
        """
        return name in self._context.names()

    def wait_for(self, name: str, timeout: float) -> bool:
        """Wait until a process can be called.

        Parameters
        ----------
        name : str
            Name of a process.
        timeout : float
            Longest time to wait, in seconds.

        Returns
        -------
        bool
            True if it can.
        """
        return not self._context.wait_for([name], timeout)

    def _serve(self, topic: str, handler: Handler, threads: int) -> None:
        self._context.register_function(topic, handler)

    def _request(self, to: str, topic: str, value: Any, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        patient_until = min(deadline, time.monotonic() + _REGISTER_S)
        while True:
            try:
                left = max(1e-3, deadline - time.monotonic())
                return self._context.call(to, topic, [value], timeout=left)
            except UnknownFunction:
                if time.monotonic() > patient_until:
                    raise
                time.sleep(_RETRY_S)
            except (CalleeGone, CalleeDied) as error:
                raise NodeGone(str(error), to) from error
            except CallTimeout as error:
                raise RequestTimeout(str(error)) from error


class ChunkStore:
    """Chunks that wait to be fetched, or for their message. Each is taken once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Tensor]] = {}
        self._bytes = 0

    def keep(self, token: str, chunk: Tensor) -> None:
        now = time.monotonic()
        with self._lock:
            for old in [one for one, (since, _) in self._kept.items() if now - since > _KEPT_S]:
                self._drop(old)
            if self._bytes + chunk.nbytes > _MOST_BYTES:
                raise InvalidArgument(
                    f"{self._bytes:,} bytes of chunks are waiting already, and more are not accepted. Fetch replies "
                    "first"
                )
            self._drop(token)
            self._kept[token] = now, chunk
            self._bytes += chunk.nbytes

    def take(self, token: str) -> Tensor:
        with self._lock:
            if token not in self._kept:
                raise InvalidArgument(f"there is no chunk {token!r}: it was taken already, or has expired")
            return self._drop(token)

    def _drop(self, token: str) -> Any:
        _, chunk = self._kept.pop(token, (0.0, None))
        self._bytes -= 0 if chunk is None else chunk.nbytes
        return chunk


def split_tensors(value: Any, chunk_bytes: int, put: Callable[[str, Tensor], Any]) -> Any:
    """Replace each long tensor of a value by a placeholder, after `put(token, chunk)` for each of its chunks."""

    def split(tensor: Tensor) -> Any:
        if tensor.nbytes <= chunk_bytes:
            return tensor
        tokens = []
        for chunk in tensor.reshape(-1).split(max(1, chunk_bytes // tensor.element_size())):
            tokens.append(secrets.token_hex(8))
            put(tokens[-1], chunk)
        return {_CHUNKS: tokens, "shape": list(tensor.shape)}

    return map_leaves(split, value, Tensor)


def join_tensors(value: Any, get: Callable[[str], Tensor]) -> Any:
    """Undo `split_tensors`; `get(token)` returns the chunks."""
    if isinstance(value, dict) and _CHUNKS in value:
        return torch.cat([get(str(token)) for token in value[_CHUNKS]]).reshape(tuple(value["shape"]))
    if isinstance(value, dict):
        return {key: join_tensors(part, get) for key, part in value.items()}
    if isinstance(value, list):
        return [join_tensors(part, get) for part in value]
    return value
