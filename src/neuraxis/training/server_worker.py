"""A worker of a parameter server: computes gradients, gives them away, and takes the parameters that come of them."""

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
from neuraxis.training.channel import Channel, MeshChannel
from neuraxis.training.flat_tensors import FlatTensors
from neuraxis.training.sameness import compare_models, describe_model
from neuraxis.training.weighting import batch_size_of

__all__ = ["ServerWorker", "StepResult"]

Weigh = Callable[[tuple[Any, ...], dict[str, Any]], float]

_WAIT_S = 0.5  # how long the server may keep one question
_LEAST_S = 5.0  # what an answer may take on a busy machine, however short the timeout is


class StepResult(msgspec.Struct, frozen=True):
    """What came of a gradient.

    Attributes:
        version: of the parameters that the module has now.
        dropped: whether the gradient came too late and was not used.
        missed: how many versions the parameters had gone on while it was computed.
        finished: whether the server has reached the version that it was to reach.
    """

    version: int
    dropped: bool
    missed: int
    finished: bool


class ServerWorker:
    """One worker. A context manager, which joins and takes the parameters on entering, and leaves at the end.

    Args:
        module: the same model as the server's; its values are replaced.
        server: the name of the server.
        name: the worker's own, by default one that nobody else has.
        channel: how they talk; by default a node of `mesh`.
        timeout: how long it waits for the server or for slower workers, in seconds, before RequestTimeout.
        weigh: how much a batch counts, from the arguments of the module's forward; by default its rows. A gradient
            counts by all forward passes before it that were made with gradients enabled.
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
            raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
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

    # --- life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> ServerWorker:
        try:
            self._join()
            self._hook = self._module.register_forward_pre_hook(self._note_batch, with_kwargs=True)
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
        """Leave. A second call does nothing."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._run is not None:
            self._run = None
            try:
                self._channel.call(self._server, "training/bye", {"worker": self.name}, min(self.timeout, 2.0))
            except MeshError:
                pass  # the server is gone, or sees by itself that we are
        self._channel.close()

    # --- a step -----------------------------------------------------------------------------------------------

    def pull(self) -> int:
        """Take the server's parameters, as soon as this worker may go on; their version."""
        deadline = time.monotonic() + self.timeout
        while True:
            left = deadline - time.monotonic()
            answer = self._ask("pull", {"patience_s": min(_WAIT_S, max(0.0, left))})
            if answer["ready"]:
                break
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"worker {self.name!r} could not go on within {self.timeout:g} s: the server {self._server!r} "
                    f"is at {answer['story']}"
                )
        self._state_layout.unpack(answer["state"], self._state)
        self.version = int(answer["version"])
        self._finished = bool(answer["finished"])
        return self.version

    def step(self, weight: float | None = None) -> StepResult:
        """Give the gradients away, wait until this worker may go on, and take the parameters.

        Afterwards every `.grad` is None. `weight` is how much the batch counts, if not what `weigh` said.
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
                f"no parameter server called {self._server!r} has come within {self.timeout:g} s", self._server
            )
        theirs = self._call("join", {"worker": self.name, "only_describe": True})["model"]
        self._compare([_described(entry) for entry in theirs])
        self._run = str(self._call("join", {"worker": self.name})["run"])

    def _compare(self, theirs: list[Any]) -> None:
        try:
            compare_models(theirs, describe_model(self._module), 1)
        except ModelMismatch as error:
            raise ModelMismatch(
                f"worker {self.name!r} (as rank 1) has another model than the server {self._server!r} (as rank 0): "
                f"{error}",
                parameter=error.parameter,
                mine=error.theirs,
                theirs=error.mine,
            ) from None

    def _ask(self, topic: str, question: dict[str, Any]) -> dict[str, Any]:
        if self._run is None:
            raise NotInitialized("this worker has not joined, or has left: use it in a `with`")
        return self._call(topic, {"worker": self.name, "run": self._run, **question})

    def _call(self, topic: str, question: dict[str, Any]) -> dict[str, Any]:
        limit_s = max(_LEAST_S, self.timeout)
        answer: dict[str, Any] = self._channel.call(self._server, f"training/{topic}", question, limit_s)
        return answer

    def _note_batch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # in eval() too: such a module can be trained
            self._weight = (self._weight or 0.0) + float(self._weigh(args, kwargs))


def _described(entry: Any) -> tuple[str, str, tuple[int, ...], str, bool]:
    """An entry of a model's description, as it was before it travelled."""
    kind, name, shape, dtype, trained = entry
    return str(kind), str(name), tuple(shape), str(dtype), bool(trained)
