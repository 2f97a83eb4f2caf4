"""Work on one device, for as long as a context runs: launches, waiting for them, and how long they took."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from neuraxis.errors import CudaContextClosed, ForkedProcess
from neuraxis.gpu.failures import as_ours, cuda_calls, note_launch, waited_for
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
        self.limits = _limits(self.device.attributes)
        self._profile = profile
        self._check = check
        self._process = os.getpid()
        self._open = True
        self._launching = threading.RLock()  # held from the look whether it is open until the launch is under way
        self._lock = threading.Lock()  # of what is pending
        self._pending: list[tuple[str, Any, Any]] = []  # a kernel's name, and the events before and after it

    @property
    def device(self) -> Any:
        """For a `with`: a new one each time, because it keeps in itself which device to go back to, for all threads."""
        return self.cupy.cuda.Device(self.device_id)

    def require_open(self) -> None:
        self._require_this_process()
        self._require_not_closed()

    def _require_not_closed(self) -> None:
        if not self._open:
            raise CudaContextClosed(f"{self.owner} was stopped; what was got from it can be used no longer")

    def _require_this_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess(
                f"this process was forked from process {self._process}, which has {self.owner}: CUDA does not survive "
                "a fork; start processes with neuraxis.launch.run, or multiprocessing's 'spawn' method"
            )

    def launch(self, kernel: str, start: Callable[..., None], *arguments: Any) -> None:
        """Launch by `start(*arguments)`, on CuPy's current stream."""
        self._require_this_process()
        before = after = None
        try:
            with self._launching, self.device:
                self._require_not_closed()
                if self._profile is not None:
                    before = self._event()
                note_launch(self.device_id, kernel)
                start(*arguments)
                note_launch(self.device_id, kernel)
                if self._profile is not None:
                    after = self._event()
        except Exception as error:  # `cuda_calls`, at a quarter of its price
            ours = as_ours(f"launching kernel {kernel!r}", self.device_id, error)
            if ours is None:
                raise
            raise ours from error
        if before is not None:
            with self._lock:
                self._pending.append((kernel, before, after))
            if len(self._pending) > _MOST_PENDING:
                self.read_times(wait=False)
        if self._check:
            self._wait()

    def synchronize(self) -> None:
        """Wait until all work on the device has ended; KernelFailed if some of it ended badly."""
        self.require_open()
        self._wait()

    def _wait(self) -> None:
        with cuda_calls("synchronize", self.device_id), self.device, waited_for(self.device_id):
            self.device.synchronize()

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
        """From when it returns, nothing is launched any more."""
        if os.getpid() != self._process:  # a thread that is not here may have had the lock when this one was forked
            self._open = False
            return
        with self._launching:
            self._open = False

    def finish(self) -> None:
        """Wait for what was launched before `close`, and read its times."""
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
