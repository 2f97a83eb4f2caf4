"""Kernel launches, synchronization and timing on one device, and the current context of a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from neuraxis.errors import CudaContextClosed, ForkedProcess
from neuraxis.gpu.arguments import Limits
from neuraxis.gpu.failures import cuda_calls, record_launch, synchronizing, translated_error

__all__ = ["KernelTimes", "Launcher", "Profile", "current_context", "pop_context", "push_context", "remove_context"]


class _Context(Protocol):
    @property
    def is_running(self) -> bool: ...

    def to_gpu(self, array: Any) -> Any: ...


class _Entered(threading.local):
    def __init__(self) -> None:
        self.contexts: list[_Context] = []


_entered = _Entered()


def push_context(context: _Context) -> None:
    _entered.contexts.append(context)


def pop_context(context: _Context) -> None:
    """Undo the last `push_context` of this context; does nothing if another thread entered it."""
    contexts = _entered.contexts
    for place in reversed(range(len(contexts))):
        if contexts[place] is context:
            del contexts[place]
            return


def remove_context(context: _Context) -> None:
    """Remove a closed context from this thread's list; other threads skip it in `current_context`."""
    _entered.contexts[:] = [one for one in _entered.contexts if one is not context]


def current_context() -> _Context | None:
    contexts = _entered.contexts
    while contexts and not contexts[-1].is_running:  # another thread closed it
        contexts.pop()
    return contexts[-1] if contexts else None


@dataclass(frozen=True)
class KernelTimes:
    """Times of the launches of one kernel, measured on the device.

    Attributes
    ----------
    count : int
        Number of launches.
    total_ms, min_ms, max_ms : float
        Total, shortest and longest time in milliseconds.

    Examples
    --------
    >>> from neuraxis.gpu import KernelTimes
    >>> KernelTimes(count=2, total_ms=3.0, min_ms=1.0, max_ms=2.0).mean_ms
    1.5
    """

    count: int
    total_ms: float
    min_ms: float
    max_ms: float

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.count

    def with_launch(self, time_ms: float) -> KernelTimes:
        """Return the times with another launch.

        Parameters
        ----------
        time_ms : float
            Time of the launch, in ms.

        Returns
        -------
        KernelTimes
            The times.
        """
        return KernelTimes(
            self.count + 1, self.total_ms + time_ms, min(self.min_ms, time_ms), max(self.max_ms, time_ms)
        )


class Profile:
    """Times of all kernels of a context. Thread-safe."""

    def __init__(self) -> None:
        self._times: dict[str, KernelTimes] = {}
        self._lock = threading.Lock()

    def add(self, kernel: str, time_ms: float) -> None:
        with self._lock:
            known = self._times.get(kernel)
            self._times[kernel] = known.with_launch(time_ms) if known else KernelTimes(1, time_ms, time_ms, time_ms)

    def times(self) -> dict[str, KernelTimes]:
        """Return the times by kernel name, the largest total first."""
        with self._lock:
            return dict(sorted(self._times.items(), key=lambda item: -item[1].total_ms))


_MOST_PENDING = 256  # launches with unread times


class Launcher:
    """Launches kernels on one device.

    `owner` describes the context in messages. `profile` receives the times of launches, if not None. With `check`, each
    launch is waited for, so that a failed one is known by name.
    """

    def __init__(self, cupy: Any, device_id: int, owner: str, profile: Profile | None, check: bool) -> None:
        self.cupy = cupy
        self.device_id = device_id
        self.owner = owner
        self.limits = _limits(self.device.attributes)
        self._profile = profile
        self._check = check
        self._process = os.getpid()
        self._open = True
        self._launching = threading.RLock()  # held from the check for open until the launch was made
        self._lock = threading.Lock()  # for the pending launches
        self._pending: list[tuple[str, Any, Any]] = []  # kernel name, events before and after the launch

    @property
    def device(self) -> Any:
        """New context manager of the device. CuPy stores the previous device in it, so threads cannot share one."""
        return self.cupy.cuda.Device(self.device_id)

    def require_open(self) -> None:
        self._require_this_process()
        self._require_not_closed()

    def _require_not_closed(self) -> None:
        if not self._open:
            raise CudaContextClosed(f"{self.owner} was closed. Call start() and get kernels and arrays again")

    def _require_this_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess(
                f"this process was forked from process {self._process}, which has {self.owner}: CUDA does not survive "
                "a fork. Start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )

    def launch(self, kernel: str, start: Callable[..., None], *arguments: Any) -> None:
        """Launch with `start(*arguments)` on CuPy's current stream."""
        self._require_this_process()
        before = after = None
        try:
            with self._launching, self.device:
                self._require_not_closed()
                if self._profile is not None:
                    before = self._event()
                record_launch(self.device_id, kernel)
                start(*arguments)
                record_launch(self.device_id, kernel)
                if self._profile is not None:
                    after = self._event()
        except Exception as error:  # same as `cuda_calls`, at a quarter of its cost
            translated = translated_error(f"launching kernel {kernel!r}", self.device_id, error)
            if translated is None:
                raise
            raise translated from error
        if before is not None:
            with self._lock:
                self._pending.append((kernel, before, after))
            if len(self._pending) > _MOST_PENDING:
                self.read_times(wait=False)
        if self._check:
            self._wait()

    def synchronize(self) -> None:
        """Wait for all work on the device; KernelFailed if a kernel has failed."""
        self.require_open()
        self._wait()

    def _wait(self) -> None:
        with cuda_calls("synchronize", self.device_id), self.device, synchronizing(self.device_id):
            self.device.synchronize()

    def read_times(self, wait: bool = True) -> None:
        """Move times of finished launches into the profile; with `wait` those of all launches."""
        with self._lock:
            pending, self._pending = self._pending, []
        if self._profile is None:
            return
        for place, (kernel, before, after) in enumerate(pending):
            with cuda_calls("reading the times of kernels", self.device_id), self.device:
                if wait:
                    after.synchronize()
                elif not after.done:
                    with self._lock:
                        self._pending = pending[place:] + self._pending
                    return
                self._profile.add(kernel, float(self.cupy.cuda.get_elapsed_time(before, after)))

    def close(self) -> None:
        """Prevent further launches."""
        if os.getpid() != self._process:  # another thread may have held the lock when this process was forked
            self._open = False
            return
        with self._launching:
            self._open = False

    def finish(self) -> None:
        """Wait for launches before `close`, and read their times."""
        self._require_this_process()
        self._wait()
        self.read_times()

    def _event(self) -> Any:
        event = self.cupy.cuda.Event()
        event.record()
        return event


def _limits(attributes: dict[str, int]) -> Limits:
    block, grid = ((attributes[f"Max{what}Dim{axis}"] for axis in "XYZ") for what in ("Block", "Grid"))
    bx, by, bz = block
    gx, gy, gz = grid
    return Limits((bx, by, bz), (gx, gy, gz), attributes["MaxThreadsPerBlock"])
