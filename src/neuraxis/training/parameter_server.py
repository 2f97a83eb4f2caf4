"""A parameter server: one process has the parameters and the optimizer, workers that come and go give it gradients.

    with ParameterServer(model, torch.optim.SGD(model.parameters(), 0.1), workers=2) as server:
        server.run()                                 # until the workers have left

    with ServerWorker(model) as worker:              # in other processes
        for x, y in batches:
            loss(model(x), y).backward()
            worker.step()

It answers at once, or within a second with "not yet": a worker that dies while it waits holds nothing up here. Whose
gradient counts and who waits for whom is decided by `staleness.Membership`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from neuraxis.errors import InvalidArgument, NeuraxisError, RequestTimeout
from neuraxis.training.channel import Channel, MeshChannel
from neuraxis.training.flat_tensors import FlatTensors
from neuraxis.training.sameness import describe_model
from neuraxis.training.staleness import Membership, Mode

__all__ = ["ParameterServer"]

_log = logging.getLogger("neuraxis.training")

_LOOK_S = 0.05  # how often it is looked for who has gone or is slow
_ARRIVAL_S = 2.0  # a worker may ask before its presence is known here
_ANSWER_S = 1.0  # a worker that must wait is told so after this time, and asks again
_FEW_THREADS, _LEAST_THREADS = 2, 8


class _Gradient:
    """What one worker gave."""

    def __init__(self, weight: float, flats: list[Tensor], used: list[bool], buffers: list[Tensor]) -> None:
        self.weight = weight
        self.flats = flats
        self.used = used
        self.buffers = buffers


class ParameterServer:
    """The parameters, the optimizer, and who takes part. A context manager: workers can join within it.

    Args:
        module: the model; its parameters are those that the workers begin with.
        optimizer: a torch optimizer of the module's parameters.
        mode: "sync": the gradients of all workers are averaged, weighted by their batches, as all-reduce does; "async":
            each is applied when it comes.
        staleness: by how many steps a worker may be ahead of the slowest one (async).
        workers: how many must have joined before the first step; None for one.
        patience_s: how long the others wait for a slow worker; then they go on without it until it gives a gradient.
        name: the name under which workers find it.
        channel: how they talk; by default a node of `mesh`. RpcChannel(context) takes remote calls, and their backends.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        mode: Mode = "sync",
        staleness: int = 0,
        workers: int | None = None,
        patience_s: float = 10.0,
        name: str = "server",
        channel: Channel | None = None,
        mesh: str = "default",
    ) -> None:
        self._membership = Membership(mode, staleness, workers, patience_s)
        self._module = module
        self._optimizer = optimizer
        self._description = describe_model(module)
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._state = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        self._gradient_layout = FlatTensors(self._parameters)
        self._state_layout = FlatTensors(self._state)
        self._buffers = list(module.buffers())
        self._buffer_layout = FlatTensors(self._buffers)
        self._round: dict[str, _Gradient] = {}
        self._snapshot: tuple[int, list[Tensor]] | None = None
        self._joined_at: dict[str, float] = {}
        self._seen: set[str] = set()
        self._had_workers = False
        self._until: int | None = None
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._run = secrets.token_hex(8)  # workers of an earlier server are told so
        self._closed = threading.Event()
        threads = max(_LEAST_THREADS, 2 * (workers or 0))
        self._channel: Channel = channel or MeshChannel(name, mesh)
        self._keeper = threading.Thread(target=self._keep_house, name=f"parameter server {name}", daemon=True)
        try:
            self._channel.serve("training/join", self._join, _FEW_THREADS)
            self._channel.serve("training/push", self._push, threads)
            self._channel.serve("training/pull", self._pull, threads)
            self._channel.serve("training/bye", self._bye, _FEW_THREADS)
            self._channel.announce()
            self._keeper.start()
        except BaseException:
            self._channel.close()
            raise

    # --- what its own process sees -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """How often the parameters have changed."""
        with self._changed:
            return self._membership.version

    @property
    def dropped(self) -> int:
        """How many gradients came too late to count."""
        with self._changed:
            return self._membership.dropped

    def members(self) -> dict[str, int]:
        """The workers that take part, and how many gradients of each have counted."""
        with self._changed:
            return self._membership.clocks()

    def run(self, until: int | None = None, timeout: float = 300.0) -> None:
        """Serve until the parameters have reached the version `until`, or all workers have left.

        Workers are told that it is over (`StepResult.finished`), and have `patience_s` to leave. Raises RequestTimeout
        if for `timeout` seconds nobody joined and nothing came, and whatever the optimizer raised.
        """
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until < 0):
            raise InvalidArgument(f"until={until!r}: a version, 0 or more, is expected")
        with self._changed:
            self._until = until
            self._changed.notify_all()
            last, quiet_since = self._progress(), time.monotonic()
            while not self._is_over():
                self._changed.wait(_LOOK_S)
                if self._progress() != last:
                    last, quiet_since = self._progress(), time.monotonic()
                elif time.monotonic() - quiet_since > timeout:
                    raise RequestTimeout(f"nothing has come for {timeout:g} s: {self._story()}")
            deadline = time.monotonic() + self._membership.patience_s
            while self._membership.clocks() and self._failure is None and time.monotonic() < deadline:
                self._changed.wait(_LOOK_S)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """End it: workers that go on get NodeGone. A second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            with self._changed:
                self._changed.notify_all()
            self._keeper.join()
            self._channel.close()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- what workers ask ----------------------------------------------------------------------------------------

    def _join(self, question: dict[str, Any]) -> dict[str, Any]:
        name = str(question["worker"])
        with self._changed:
            self._check_well()
            if question.get("only_describe"):
                return {"model": self._description}
            now = time.monotonic()
            self._joined_at[name] = now
            self._seen.discard(name)
            self._had_workers = True
            clock = self._membership.join(name, now)
            self._finish_round()
            self._changed.notify_all()
            _log.info("worker %s joined at version %d", name, self._membership.version)
            return {"run": self._run, "clock": clock}

    def _push(self, question: dict[str, Any]) -> dict[str, Any]:
        name, version = str(question["worker"]), int(question["version"])
        gradient = _Gradient(
            float(question["weight"]), question["gradients"], list(question["used"]), question["buffers"]
        )
        self._gradient_layout.views(gradient.flats)  # refuses what does not fit
        self._buffer_layout.views(gradient.buffers)
        if len(gradient.used) != len(self._parameters) or not 0 <= gradient.weight < float("inf"):
            raise InvalidArgument(
                f"weight={gradient.weight}, used={len(gradient.used)}: that is no gradient of this model"
            )
        with self._changed:
            self._check_well()
            self._check_run(question)
            now = time.monotonic()
            self._joined_at.setdefault(name, now)
            verdict = self._membership.push(name, version, now)
            if verdict.accepted:
                with self._failures_kept():
                    if self._membership.mode == "sync":
                        self._round[name] = gradient
                    else:
                        self._apply([gradient])
            self._finish_round()
            self._changed.notify_all()
            return {"accepted": verdict.accepted, "missed": verdict.missed, "dropped": self._membership.dropped}

    def _pull(self, question: dict[str, Any]) -> dict[str, Any]:
        """The parameters, when this worker may go on; else, after a while, who is waited for."""
        name = str(question["worker"])
        deadline = time.monotonic() + min(_ANSWER_S, float(question["patience_s"]))
        with self._changed:
            while True:
                self._check_well()
                self._check_run(question)
                if self._may_go_on(name):
                    version, state = self._packed_state()
                    return {"ready": True, "version": version, "state": state, "finished": self._is_finished()}
                left = deadline - time.monotonic()
                if left <= 0:
                    return {"ready": False, "story": self._story()}
                self._changed.wait(left)

    def _bye(self, question: dict[str, Any]) -> None:
        self._remove(str(question["worker"]), "left")

    # --- helpers; all of them with the lock held -----------------------------------------------------------------

    def _may_go_on(self, name: str) -> bool:
        return self._is_finished() or self._membership.may_go_on(name)

    def _is_finished(self) -> bool:
        return self._until is not None and self._membership.version >= self._until

    def _is_over(self) -> bool:
        nobody_left = self._had_workers and not self._membership.clocks()
        return self._is_finished() or nobody_left or self._failure is not None or self._closed.is_set()

    def _progress(self) -> tuple[Any, ...]:
        return self._membership.version, self._membership.dropped, *self._membership.clocks(), *self._round

    def _story(self) -> str:
        here = ", ".join(self._membership.clocks()) or "none"
        if not self._membership.has_begun():
            return f"version {self._membership.version}; not enough workers have joined yet (here: {here})"
        slow = ", ".join(self._membership.waited_for()) or "nobody"
        return f"version {self._membership.version}; waited for: {slow} (here: {here})"

    def _check_well(self) -> None:
        if self._failure is not None:
            raise NeuraxisError(f"the parameter server has failed: {self._failure!r}")

    def _check_run(self, question: dict[str, Any]) -> None:
        if question.get("run") != self._run:
            raise InvalidArgument("this worker has joined another server of that name, which is gone: join again")

    def _finish_round(self) -> None:
        if self._membership.round_is_over(len(self._round)):
            gradients = [self._round[name] for name in sorted(self._round)]
            self._round = {}
            with self._failures_kept():
                self._apply(gradients)
            self._membership.end_round(time.monotonic())

    def _apply(self, gradients: list[_Gradient]) -> None:
        """One step with the mean over all samples, added up in the order of names. Without samples there is none."""
        samples = sum(gradient.weight for gradient in gradients)
        counted = [gradient for gradient in gradients if gradient.weight > 0]
        self._snapshot = None
        if not counted:
            return
        total = counted[0].flats
        if len(counted) > 1:
            total = [flat * counted[0].weight for flat in total]
            for gradient in counted[1:]:
                for whole, flat in zip(total, gradient.flats, strict=True):
                    whole.add_(flat, alpha=gradient.weight)
            for whole in total:
                whole.div_(samples)
        views = self._gradient_layout.views(total)
        for place, (parameter, value) in enumerate(zip(self._parameters, views, strict=True)):
            used = any(gradient.used[place] for gradient in counted)
            parameter.grad = value.to(parameter.device) if used else None
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._buffers:
            self._buffer_layout.unpack(counted[0].buffers, self._buffers)

    def _packed_state(self) -> tuple[int, list[Tensor]]:
        """Parameters and buffers for who asks; packed once for all that ask for the same version."""
        version = self._membership.version
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = (version, self._state_layout.pack(self._state))
        return self._snapshot

    @contextlib.contextmanager
    def _failures_kept(self) -> Iterator[None]:
        """What the optimizer raises ends `run`, and reaches every worker."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            self._changed.notify_all()
            raise

    def _remove(self, name: str, why: str) -> None:
        with self._changed:
            if name in self._membership.clocks():
                _log.info("worker %s %s at version %d", name, why, self._membership.version)
            self._membership.leave(name, time.monotonic())
            self._joined_at.pop(name, None)
            self._seen.discard(name)
            if self._failure is None:
                self._finish_round()
            self._changed.notify_all()

    def _keep_house(self) -> None:
        """A thread: workers that have died are removed, and slow ones are no longer waited for."""
        while not self._closed.wait(_LOOK_S):
            try:
                self._look_around()
            except BaseException as error:
                if self._closed.is_set():
                    return
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
                return

    def _look_around(self) -> None:
        now = time.monotonic()
        with self._changed:
            joined = dict(self._joined_at)
        for name, since in joined.items():
            if self._channel.here(name):
                self._seen.add(name)
            elif name in self._seen or now - since > _ARRIVAL_S:
                self._remove(name, "is gone")
        with self._changed:
            slow = self._membership.pass_time(now)
            for name in slow:
                _log.warning("worker %s keeps the others waiting: they go on without it", name)
            if slow and self._failure is None:
                self._finish_round()
            if slow:
                self._changed.notify_all()
