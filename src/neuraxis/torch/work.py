"""Work objects that a process group returns to `torch.distributed`.

Synchronous calls have completed when they return, so they give a `FinishedWork`, which is cheap to make. Asynchronous
ones give a `PendingWork` around the communicator's `Work`. Both make a `torch.futures.Future` only on request, e.g. of
DDP's reducer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import FunctionType
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
import torch.futures

from neuraxis.comm.operations import TransferWork, Work

__all__ = ["FinishedWork", "PendingWork", "WorkFuture", "excluded_from_graphs", "running_callbacks"]

_thread = threading.local()
_Class = TypeVar("_Class", bound=type)


def excluded_from_graphs(cls: _Class) -> _Class:
    """Make torch.compile run the methods of a class, and everything they call, uncompiled (a class decorator).

    C++ calls these methods while a compiled model runs (DDP broadcasts buffers in its forward pass), and the compiler
    would treat them as parts of the model. `torch.compiler.disable` does the same, but imports the compiler, which
    takes seconds.
    """
    frames = torch._C._dynamo.eval_frame
    for name, method in list(vars(cls).items()):
        if not isinstance(method, FunctionType):
            continue
        if hasattr(frames, "set_code_exec_strategy"):
            skip = frames._FrameAction.SKIP
            frames.set_code_exec_strategy(method.__code__, frames._FrameExecStrategy(skip, skip))
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
        else:  # before torch 2.8
            setattr(cls, name, torch.compiler.disable(method))
    return cls


def running_callbacks() -> bool:
    """Return True if this thread runs a callback of a future, at the end of an operation.

    A callback may call collectives and wait for them (DDP's PowerSGD hook does). It runs in the thread that runs queued
    collectives, so its own must not be queued.
    """
    return bool(getattr(_thread, "in_callback", False))


@excluded_from_graphs
class FinishedWork(dist.Work):  # type: ignore[misc]
    """An operation that has completed."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing: the operation has completed."""

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._tensors

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        callback()

    def get_future(self) -> Any:
        future = WorkFuture()
        future.set_result(self._tensors)
        return future


@excluded_from_graphs
class PendingWork(dist.Work):  # type: ignore[misc]
    """An asynchronous operation. Its tensors must not be used until it has completed."""

    def __init__(self, work: Work, tensors: Any) -> None:
        super().__init__()
        self._work = work
        self._tensors = tensors
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation has completed; raise its error. A timeout of zero, as from C++, means none."""
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

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self._work.add_done_callback(lambda _: callback())

    def get_future(self) -> Any:
        if self._future is None:
            self._future = WorkFuture()
            self._work.add_done_callback(self._fulfil)
        return self._future

    def _fulfil(self, work: Work) -> None:
        error = work.exception()
        _thread.in_callback = True
        try:
            if error is None:
                self._future.set_result(self._tensors)
            else:
                self._future.fail(error)
        finally:
            _thread.in_callback = False

    def source_rank(self) -> int:
        """Return the group rank of the sender, after a receive has completed."""
        assert isinstance(self._work, TransferWork)
        return self._work.request.source

    _source_rank = source_rank


@excluded_from_graphs
class WorkFuture(torch.futures.Future):  # type: ignore[misc]
    """A future that keeps the type of its error, in Python and for DDP's reducer in C++.

    torch turns an exception that a Python callback of `then` raises into a RuntimeError, and Python cannot put another
    exception into a C++ future. So callbacks run in Python here, and the value of a failed future raises the error as
    soon as it is used.
    """

    def then(self, callback: Callable[[Any], Any]) -> WorkFuture:
        following = WorkFuture()

        def run(_: Any) -> None:
            try:
                value = callback(self)
            except BaseException as error:
                following.fail(error)
            else:
                following.set_result(value)

        self.add_done_callback(run)
        return following

    def fail(self, error: BaseException) -> None:
        """Complete the future so that waiting for it, or using its value, raises `error`."""

        def raise_it(value: Any) -> NoReturn:
            raise error

        self._set_unwrap_func(raise_it)
        self.set_result(_FailedTensor(error))

    set_exception = fail


class _FailedTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor without data on which every operation raises the error of the call that should have filled it.

    DDP's reducer takes tensors out of a future's value and copies from them at the end of `backward()`. An error raised
    in this dispatch passes through C++ and autograd unchanged.
    """

    error: BaseException

    @staticmethod
    def __new__(cls, error: BaseException) -> _FailedTensor:
        tensor: _FailedTensor = torch.Tensor._make_wrapper_subclass(cls, (1,))
        tensor.error = error
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, _FailedTensor):
                raise value.error
        raise AssertionError(f"{func} was dispatched to {cls.__name__} without one among its arguments")

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self, **_: Any) -> str:
        return f"<result of a failed operation: {self.error}>"
