"""What a process group returns: operations done or under way, as `torch.distributed` knows them.

Sync calls are over when they return, so they give a `FinishedWork`, which costs nothing but its allocation. Async
ones give a `PendingWork` around the communicator's own. Both make a `torch.futures.Future` only when asked for it,
as DDP's reducer does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
import torch.futures

from neuraxis.comm.work import TransferWork, Work

__all__ = ["FinishedWork", "PendingWork", "running_callbacks"]

_thread = threading.local()


def running_callbacks() -> bool:
    """Whether this thread is in a callback of a future, called at the end of an operation.

    A callback may call collectives and wait for them (DDP's PowerSGD hook does). It runs in the thread that would
    have to run them, so they must not be put in its queue.
    """
    return bool(getattr(_thread, "in_callback", False))


class FinishedWork(dist.Work):  # type: ignore[misc]
    """An operation that is over."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        """There is nothing left to wait for."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._tensors

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class PendingWork(dist.Work):  # type: ignore[misc]
    """An operation under way. Its tensors must be left alone until it is completed."""

    def __init__(self, work: Work, tensors: Any) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait; raises what the operation raised. torch's C++ says zero when it means no timeout."""
        return self._work.wait(timeout or None)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_completed() and self._work.exception() is None

    def exception(self) -> BaseException | None:
        return self._work.exception()

    def result(self) -> Any:
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        if self._future is None:
            self._future = torch.futures.Future()
            self._work.add_done_callback(self._fulfil)
        return self._future

    def _fulfil(self, work: Work) -> None:
        error = work.exception()
        _thread.in_callback = True
        try:
            if error is None:
                self._future.set_result(self._tensors)
            else:
                # What Python's Future does in set_exception, with a result that raises in C++ as well.
                self._future._set_unwrap_func(_Failure.raise_it)
                self._future.set_result(_Failure(error))
        finally:
            _thread.in_callback = False

    def source_rank(self) -> int:
        """For a receive that is over: the group rank that it came from."""
        assert isinstance(self._work, TransferWork)
        return self._work.request.source

    _source_rank = source_rank


class _Failure:
    """The value of a future whose operation failed.

    torch gives Python no way to put an error into a C++ future. Its reducer takes the tensors out of a future's
    value by pickling it, so a value that raises its error when pickled brings that error out of `backward()`.
    """

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def raise_it(self) -> NoReturn:
        raise self.error

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self.error

    __reduce__: Callable[..., NoReturn] = raise_it
