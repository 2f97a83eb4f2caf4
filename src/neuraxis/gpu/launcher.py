"""Work on one device, for as long as a context runs: launches, waiting for them, and how long they took."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from neuraxis.errors import CudaContextClosed, ForkedProcess
from neuraxis.gpu.failures import cuda_calls, note_finished, note_launch
from neuraxis.gpu.geometry import Limits
from neuraxis.gpu.profile import Profile

__all__ = ["Launcher"]

_MOST_PENDING = 256  # launches whose times are not read yet


class Launcher:
    """Starts kernels on one device.

    Args:
        cupy: the module.
        device_id: which device.
        owner: whose it is, for texts.
        profile: where the times of launches go; None to take none.
        check: wait for each launch, so that one that fails is known by name.
    """

    def __init__(self, cupy: Any, device_id: int, owner: str, profile: Profile | None, check: bool) -> None:
        self.cupy = cupy
        self.device_id = device_id
        self.owner = owner
        self.device = cupy.cuda.Device(device_id)
        self.limits = _limits(self.device.attributes)
        self._profile = profile
        self._check = check
        self._process = os.getpid()
        self._open = True
        self._lock = threading.Lock()
        self._pending: list[tuple[str, Any, Any]] = []  # a kernel's name, and the events before and after it

    def require_open(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess(
                f"this process was forked from process {self._process}, which has {self.owner}: CUDA does not survive "
                "a fork; start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )
        if not self._open:
            raise CudaContextClosed(f"{self.owner} was stopped; what was got from it can be used no longer")

    def launch(self, kernel: str, start: Callable[[], None]) -> None:
        """Launch by `start`, on CuPy's current stream."""
        self.require_open()
        with cuda_calls(f"launching kernel {kernel!r}", self.device_id), self.device:
            before = self._event()
            note_launch(self.device_id, kernel)
            start()
            after = self._event()
        if before is not None:
            with self._lock:
                self._pending.append((kernel, before, after))
            if len(self._pending) > _MOST_PENDING:
                self.read_times(wait=False)
        if self._check:
            self.synchronize()

    def synchronize(self) -> None:
        """Wait until all work on the device has ended; KernelFailed if some of it ended badly."""
        self.require_open()
        with cuda_calls("synchronize", self.device_id), self.device:
            self.device.synchronize()
        note_finished(self.device_id)

    def read_times(self, wait: bool = True) -> None:
        """Put the times of launches into the profile; with `wait` those of all launches."""
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
        self._open = False

    def _event(self) -> Any:
        if self._profile is None:
            return None
        event = self.cupy.cuda.Event()
        event.record()
        return event


def _limits(attributes: dict[str, int]) -> Limits:
    block, grid = ((attributes[f"Max{what}Dim{axis}"] for axis in "XYZ") for what in ("Block", "Grid"))
    bx, by, bz = block
    gx, gy, gz = grid
    return Limits((bx, by, bz), (gx, gy, gz), attributes["MaxThreadsPerBlock"])
