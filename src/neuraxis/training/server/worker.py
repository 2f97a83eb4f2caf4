"""Worker of a parameter server: computes gradients, sends them, and receives the updated parameters."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch import nn

from neuraxis.errors import InvalidArgument, MeshError, ModelMismatch, NodeGone, NotInitialized, RequestTimeout
from neuraxis.training.parallel.buckets import FlatTensors
from neuraxis.training.parallel.consistency import compare_models, describe_model
from neuraxis.training.parallel.weighting import batch_size_of
from neuraxis.training.server.channel import Channel, MeshChannel

__all__ = ["ServerWorker", "StepResult"]

Weigh = Callable[[tuple[Any, ...], dict[str, Any]], float]

_WAIT_S = 0.5  # time for which the server may delay one reply
_LEAST_S = 5.0  # minimum time for a reply on a busy machine, however short the timeout is


class StepResult(msgspec.Struct, frozen=True):
    """Outcome of `ServerWorker.step`.

    Attributes
    ----------
    version : int
        Version of the parameters that the module has.
    dropped : bool
        True if the gradient arrived too late and was not used.
    missed : int
        Updates of the parameters while the gradient was computed.
    finished : bool
        True if the server has reached the version at which it stops.
    """

    version: int
    dropped: bool
    missed: int
    finished: bool


class ServerWorker:
    """Worker of a `ParameterServer`.

    A context manager: it joins and receives the parameters on entering, and leaves at the end.

    Parameters
    ----------
    module : torch.nn.Module
        Same model as the server's; its values are replaced.
    server : str
        Name of the server.
    name : str, optional
        Name of this worker; unique by default.
    channel : Channel, optional
        Transport; by default a node of `mesh`.
    mesh : str
        Name of the mesh.
    timeout : float
        Seconds to wait for the server or for slower workers.
    weigh : callable, optional
        ``weigh(args, kwargs) -> float``: weight of a batch, from the arguments of forward. Default: the rows of the
        first tensor. The weight of a gradient is the sum over all forward passes before it with gradients enabled.

    Attributes
    ----------
    version : int
        Version of the parameters that the module has; -1 before joining.

    Raises
    ------
    InvalidArgument
        If `timeout` is not positive.
    NodeGone, RouterLost, ModelMismatch, RequestTimeout
        On entering: if there is no server, this worker has lost its connection to the router, the model of the server
        differs, or not enough workers join within `timeout`.

    Examples
    --------
    One step, with the server in a thread:

    >>> import torch
    >>> from threading import Thread
    >>> from neuraxis.training import ParameterServer
    >>> served, model = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(served.parameters(), 0.1)
    >>> with ParameterServer(served, optimizer, name="served") as server:
    ...     running = Thread(target=server.run)
    ...     running.start()
    ...     with ServerWorker(model, server="served") as worker:
    ...         model(torch.ones(2, 3)).sum().backward()
    ...         _ = worker.step()
    ...         worker.version
    ...     running.join()
    1

    In a loop::

        with ServerWorker(model) as worker:
            for x, y in batches:
                loss(model(x), y).backward()
                if worker.step().finished:
                    break
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        server: str = "server",
        name: str | None = None,
        channel: Channel | None = None,
        mesh: str = "default",
        timeout: float = 30.0,
        weigh: Weigh | None = None,
    ) -> None:
        if not timeout > 0:
            raise InvalidArgument(f"timeout={timeout!r} must be a number of seconds above 0")
        self.version = -1
        self._module = module
        self._server = server
        self.timeout = timeout
        self._weigh: Weigh = weigh or batch_size_of
        self._weight: float | None = None
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._state = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        self._buffers = list(module.buffers())
        self._gradient_layout = FlatTensors(self._parameters)
        self._state_layout = FlatTensors(self._state)
        self._buffer_layout = FlatTensors(self._buffers)
        self._run: str | None = None
        self._finished = False
        self._hook: Any = None
        self._channel: Channel = channel or MeshChannel(name or f"worker-{os.getpid()}-{secrets.token_hex(3)}", mesh)
        self.name = self._channel.name

    # --- joining and leaving ----------------------------------------------------------------------------------

    def __enter__(self) -> ServerWorker:
        try:
            self._join()
            self._hook = self._module.register_forward_pre_hook(self._count_batch, with_kwargs=True)
            self.pull()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the server. A second call does nothing."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._run is not None:
            self._run = None
            try:
                self._channel.call(self._server, "training/bye", {"worker": self.name}, min(self.timeout, 2.0))
            except MeshError:
                pass  # the server is gone, or detects the loss itself
        self._channel.close()

    # --- steps ------------------------------------------------------------------------------------------------

    def pull(self) -> int:
        """Receive the server's parameters as soon as this worker may proceed, and return their version.

        Returns
        -------
        int
            Version of the parameters.

        Raises
        ------
        RequestTimeout
            If that takes longer than `timeout` seconds.
        NodeGone, RouterLost
            If the server is gone, or this worker has lost its connection to the router.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            left = deadline - time.monotonic()
            answer = self._ask("pull", {"patience_s": min(_WAIT_S, max(0.0, left))})
            if answer["ready"]:
                break
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"worker {self.name!r} could not proceed within {self.timeout:g} s: the server {self._server!r} "
                    f"is at {answer['status']}"
                )
        self._state_layout.unpack(answer["state"], self._state)
        self.version = int(answer["version"])
        self._finished = bool(answer["finished"])
        return self.version

    def step(self, weight: float | None = None) -> StepResult:
        """Send the gradients, wait until this worker may proceed, and receive the parameters.

        Afterwards every `.grad` is None.

        Parameters
        ----------
        weight : float, optional
            Weight of the batch, instead of that from `weigh`.

        Returns
        -------
        StepResult
            Outcome of the gradient.

        Raises
        ------
        NotInitialized
            If the worker has not joined or has left.
        RequestTimeout, NodeGone, RouterLost, RequestFailed
            If other workers are too slow, the server is gone, this worker is cut off, or the server has failed.
        """
        if weight is None:
            weight = 1.0 if self._weight is None else self._weight
        gradients = [parameter.grad for parameter in self._parameters]
        answer = self._ask(
            "push",
            {
                "version": self.version,
                "weight": float(weight),
                "gradients": self._gradient_layout.pack(gradients),
                "used": [gradient is not None for gradient in gradients],
                "buffers": self._buffer_layout.pack(self._buffers),
            },
        )
        self._weight = None
        for parameter in self._parameters:
            parameter.grad = None
        version = self.pull()
        return StepResult(version, not answer["accepted"], int(answer["missed"]), self._finished)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._channel.announce()
        if not self._channel.wait_for(self._server, self.timeout):
            raise NodeGone(
                f"no parameter server called {self._server!r} appeared within {self.timeout:g} s. Start one on the "
                "same mesh",
                self._server,
            )
        theirs = self._call("join", {"worker": self.name, "only_describe": True})["model"]
        self._compare([_decode_entry(entry) for entry in theirs])
        self._run = str(self._call("join", {"worker": self.name})["run"])

    def _compare(self, theirs: list[Any]) -> None:
        try:
            compare_models(theirs, describe_model(self._module), 1)
        except ModelMismatch as error:
            raise ModelMismatch(
                f"the model of worker {self.name!r} (rank 1 below) differs from that of server {self._server!r} (rank "
                f"0): {error}",
                parameter=error.parameter,
                mine=error.theirs,
                theirs=error.mine,
            ) from None

    def _ask(self, topic: str, question: dict[str, Any]) -> dict[str, Any]:
        if self._run is None:
            raise NotInitialized("this worker has not joined, or has left. Use it in a `with` statement")
        return self._call(topic, {"worker": self.name, "run": self._run, **question})

    def _call(self, topic: str, question: dict[str, Any]) -> dict[str, Any]:
        limit_s = max(_LEAST_S, self.timeout)
        answer: dict[str, Any] = self._channel.call(self._server, f"training/{topic}", question, limit_s)
        return answer

    def _count_batch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # also in eval(), because such a module can be trained
            self._weight = (self._weight or 0.0) + float(self._weigh(args, kwargs))


def _decode_entry(entry: Any) -> tuple[str, str, tuple[int, ...], str, bool]:
    """Convert an entry of a model's description from its wire format."""
    kind, name, shape, dtype, trained = entry
    return str(kind), str(name), tuple(shape), str(dtype), bool(trained)
