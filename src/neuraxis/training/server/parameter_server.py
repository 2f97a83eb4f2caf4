"""Parameter server: one process holds the parameters and the optimizer, and workers that come and go send gradients.

The server replies at once, or within a second with "not yet", so a worker that dies while it waits blocks nothing.
`staleness.Membership` decides which gradients count and which worker waits.
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

from neuraxis.arguments import is_whole
from neuraxis.deprecation import renamed_arguments
from neuraxis.errors import InvalidArgument, NeuraxisError, RequestTimeout
from neuraxis.training.parallel.buckets import FlatTensors
from neuraxis.training.parallel.consistency import describe_model
from neuraxis.training.server.channel import Channel, MeshChannel
from neuraxis.training.server.staleness import Membership, Mode

__all__ = ["ParameterServer"]

_log = logging.getLogger("neuraxis.training")

_MONITOR_S = 0.05  # interval of looking for dead and slow workers
_ARRIVAL_S = 2.0  # a worker may send requests before discovery shows its presence
_REPLY_S = 1.0  # a waiting worker gets "not yet" after this time, and asks again
_CONTROL_THREADS, _MIN_THREADS = 2, 8


class _Gradient:
    """Gradients and buffers from one worker."""

    def __init__(self, weight: float, flats: list[Tensor], used: list[bool], buffers: list[Tensor]) -> None:
        self.weight = weight
        self.flats = flats
        self.used = used
        self.buffers = buffers


@renamed_arguments(patience_s="straggler_timeout")
class ParameterServer:
    """Server that holds the parameters and the optimizer of a model.

    Workers can join as soon as it exists. It is a context manager; leaving it calls `close`.

    Parameters
    ----------
    module : torch.nn.Module
        Model; workers start from its parameters.
    optimizer : torch.optim.Optimizer
        Optimizer of the module's parameters.
    mode : {"sync", "async"}
        "sync": average the gradients of all workers, weighted by their batches, as an all-reduce does. "async": apply
        each gradient when it arrives.
    staleness : int
        Staleness bound of "async": steps by which a worker may be ahead of the slowest one.
    workers : int, optional
        Number of workers that must have joined before the first step; 1 by default.
    straggler_timeout : float
        Seconds that the others wait for a slow worker. They continue without it until it sends a gradient.
    name : str
        Name under which workers find the server.
    channel : Channel, optional
        Transport; by default a node of `mesh`. `RpcChannel(context)` uses RPC.
    mesh : str
        Name of the mesh.

    Raises
    ------
    InvalidArgument
        If an option is out of range.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> with ParameterServer(model, torch.optim.SGD(model.parameters(), 0.1), name="example") as server:
    ...     server.members()
    {}

    A server calls ``run``, which returns when the workers have left::

        with ParameterServer(model, torch.optim.SGD(model.parameters(), 0.1), workers=2) as server:
            server.run()

    In the other processes::

        with ServerWorker(model) as worker:
            for x, y in batches:
                loss(model(x), y).backward()
                worker.step()
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        mode: Mode = "sync",
        staleness: int = 0,
        workers: int | None = None,
        straggler_timeout: float = 10.0,
        name: str = "server",
        channel: Channel | None = None,
        mesh: str = "default",
    ) -> None:
        self._membership = Membership(mode, staleness, workers, straggler_timeout)
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
        self._run = secrets.token_hex(8)  # identifies this server to workers of an earlier one
        self._closed = threading.Event()
        threads = max(_MIN_THREADS, 2 * (workers or 0))
        self._channel: Channel = channel or MeshChannel(name, mesh)
        self._monitor_thread = threading.Thread(target=self._monitor, name=f"parameter server {name}", daemon=True)
        try:
            self._channel.serve("training/join", self._join, _CONTROL_THREADS)
            self._channel.serve("training/push", self._push, threads)
            self._channel.serve("training/pull", self._pull, threads)
            self._channel.serve("training/bye", self._leave, _CONTROL_THREADS)
            self._channel.announce()
            self._monitor_thread.start()
        except BaseException:
            self._channel.close()
            raise

    # --- interface of the server's process ------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Number of updates of the parameters."""
        with self._changed:
            return self._membership.version

    @property
    def dropped(self) -> int:
        """Number of gradients that arrived too late and were dropped."""
        with self._changed:
            return self._membership.dropped

    def members(self) -> dict[str, int]:
        """Return the joined workers, and how many gradients of each were accepted."""
        with self._changed:
            return self._membership.clocks()

    def run(self, until: int | None = None, timeout: float = 300.0) -> None:
        """Serve until the parameters have reached version `until`, or all workers have left.

        Workers learn of the end from `StepResult.finished`, and have `straggler_timeout` seconds to leave.

        Parameters
        ----------
        until : int, optional
            Version at which to stop.
        timeout : float
            Seconds without any progress after which RequestTimeout is raised.

        Raises
        ------
        RequestTimeout
            If no worker joined and no gradient arrived for `timeout` seconds.
        Exception
            Whatever the optimizer raised.
        """
        if until is not None and (not is_whole(until) or until < 0):
            raise InvalidArgument(f"until={until!r} must be a version, an integer of 0 or more")
        with self._changed:
            self._until = until
            self._changed.notify_all()
            last, quiet_since = self._progress(), time.monotonic()
            while not self._is_over():
                self._changed.wait(_MONITOR_S)
                if self._progress() != last:
                    last, quiet_since = self._progress(), time.monotonic()
                elif time.monotonic() - quiet_since > timeout:
                    raise RequestTimeout(f"no worker made progress for {timeout:g} s: {self._status()}")
            deadline = time.monotonic() + self._membership.straggler_timeout
            while self._membership.clocks() and self._failure is None and time.monotonic() < deadline:
                self._changed.wait(_MONITOR_S)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Stop serving; workers get NodeGone. A second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            with self._changed:
                self._changed.notify_all()
            self._monitor_thread.join()
            self._channel.close()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- request handlers -----------------------------------------------------------------------------------------

    def _join(self, request: dict[str, Any]) -> dict[str, Any]:
        name = str(request["worker"])
        with self._changed:
            self._check_failure()
            if request.get("only_describe"):
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

    def _push(self, request: dict[str, Any]) -> dict[str, Any]:
        name, version = str(request["worker"]), int(request["version"])
        gradient = _Gradient(float(request["weight"]), request["gradients"], list(request["used"]), request["buffers"])
        self._gradient_layout.views(gradient.flats)  # raises for another layout
        self._buffer_layout.views(gradient.buffers)
        if len(gradient.used) != len(self._parameters) or not 0 <= gradient.weight < float("inf"):
            raise InvalidArgument(
                f"weight={gradient.weight}, used={len(gradient.used)}: not a gradient of this model. Use the same "
                "model as the server"
            )
        with self._changed:
            self._check_failure()
            self._check_run(request)
            now = time.monotonic()
            self._joined_at.setdefault(name, now)
            result = self._membership.push(name, version, now)
            if result.accepted:
                with self._failures_stored():
                    if self._membership.mode == "sync":
                        self._round[name] = gradient
                    else:
                        self._apply([gradient])
            self._finish_round()
            self._changed.notify_all()
            return {"accepted": result.accepted, "missed": result.missed, "dropped": self._membership.dropped}

    def _pull(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reply with the parameters when this worker may proceed, or after a while with the reason why not."""
        name = str(request["worker"])
        deadline = time.monotonic() + min(_REPLY_S, float(request["patience_s"]))
        with self._changed:
            while True:
                self._check_failure()
                self._check_run(request)
                if self._may_proceed(name):
                    version, state = self._packed_state()
                    return {"ready": True, "version": version, "state": state, "finished": self._is_finished()}
                left = deadline - time.monotonic()
                if left <= 0:
                    return {"ready": False, "status": self._status()}
                self._changed.wait(left)

    def _leave(self, request: dict[str, Any]) -> None:
        self._remove(str(request["worker"]), "left")

    # --- helpers; the caller holds the lock -----------------------------------------------------------------------

    def _may_proceed(self, name: str) -> bool:
        return self._is_finished() or self._membership.may_proceed(name)

    def _is_finished(self) -> bool:
        return self._until is not None and self._membership.version >= self._until

    def _is_over(self) -> bool:
        nobody_left = self._had_workers and not self._membership.clocks()
        return self._is_finished() or nobody_left or self._failure is not None or self._closed.is_set()

    def _progress(self) -> tuple[Any, ...]:
        return self._membership.version, self._membership.dropped, *self._membership.clocks(), *self._round

    def _status(self) -> str:
        here = ", ".join(self._membership.clocks()) or "none"
        if not self._membership.has_started():
            return f"version {self._membership.version}; not enough workers have joined yet (present: {here})"
        slow = ", ".join(self._membership.blocking_members()) or "none"
        return f"version {self._membership.version}; waiting for: {slow} (present: {here})"

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise NeuraxisError(f"the parameter server has failed: {self._failure!r}")

    def _check_run(self, request: dict[str, Any]) -> None:
        if request.get("run") != self._run:
            raise InvalidArgument(
                "this worker had joined an earlier server of the same name, which is gone: join again"
            )

    def _finish_round(self) -> None:
        if self._membership.round_is_over(len(self._round)):
            gradients = [self._round[name] for name in sorted(self._round)]
            self._round = {}
            with self._failures_stored():
                self._apply(gradients)
            self._membership.end_round(time.monotonic())

    def _apply(self, gradients: list[_Gradient]) -> None:
        """Make one step with the mean over all samples, added in the order of worker names; none without samples."""
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
        """Return parameters and buffers, packed once per version."""
        version = self._membership.version
        if self._snapshot is None or self._snapshot[0] != version:
            self._snapshot = (version, self._state_layout.pack(self._state))
        return self._snapshot

    @contextlib.contextmanager
    def _failures_stored(self) -> Iterator[None]:
        """Store an error of the optimizer, which ends `run` and is sent to every worker."""
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

    def _monitor(self) -> None:
        """Thread that removes dead workers and suspends slow ones."""
        while not self._closed.wait(_MONITOR_S):
            try:
                self._check_workers()
            except BaseException as error:
                if self._closed.is_set():
                    return
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
                return

    def _check_workers(self) -> None:
        now = time.monotonic()
        with self._changed:
            joined = dict(self._joined_at)
        for name, since in joined.items():
            if self._channel.is_present(name):
                self._seen.add(name)
            elif name in self._seen or now - since > _ARRIVAL_S:
                self._remove(name, "is gone")
        with self._changed:
            slow = self._membership.suspend_stragglers(now)
            for name in slow:
                _log.warning("worker %s is slow: the others continue without it", name)
            if slow and self._failure is None:
                self._finish_round()
            if slow:
                self._changed.notify_all()
