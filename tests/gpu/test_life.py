"""Life cycle of a context with several threads, on a fake CuPy."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from neuraxis.errors import CudaContextClosed, DeviceOutOfMemory, InvalidArgument, InvalidType
from neuraxis.gpu import CudaContext, context, tensor_to_gpu
from neuraxis.gpu.launcher import current_context
from neuraxis.gpu.memory import has_closed_memory
from tests.gpu.kernels import SCALE
from tests.gpu.stand_in import OutOfMemoryError, stand_in

LIMIT_S = 30


class Here(NamedTuple):
    calls: list[str]
    during: dict[str, Callable[[], None]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    module, calls, during = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield Here(calls, during)
    assert current_context() is None


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Call a function in another thread; return its value or raise its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT_S)
    (answer,) = found
    if isinstance(answer, Exception):
        raise answer
    return answer


def launch(running: CudaContext, **how: Any) -> None:
    kernel = running.get_kernel("scale", SCALE, "scale")
    kernel(running.allocate(4, np.float32), 4, 2.0, **{"block": 4, "grid": 1, **how})


# --- which context a thread works in ---


@pytest.mark.usefixtures("here")
def test_a_thread_that_enters_a_running_context_works_in_it() -> None:
    running = CudaContext().start()

    def work() -> list[Any]:
        found = [current_context()]
        with running:
            found.append(current_context())
            with running:
                found.append(current_context())
            found.append(current_context())
        return [*found, current_context()]

    assert in_a_thread(work) == [None, running, running, running, None]
    assert not running.is_running
    assert current_context() is None
    # What this thread had entered is of the past when another one starts it again.
    with running:
        assert current_context() is running
    in_a_thread(running.start)
    assert current_context() is None
    running.stop()


# --- stopping while others work ---


def test_nothing_is_launched_once_a_context_waits_for_its_end(here: Here) -> None:
    running = CudaContext().start()
    stopping = threading.Thread(target=running.stop)

    def stop_meanwhile() -> None:
        stopping.start()
        while running.is_running:
            time.sleep(0.001)
        time.sleep(0.05)  # for a stop that does not wait to be wrong in

    here.during["launch"] = stop_meanwhile
    launch(running)
    stopping.join(LIMIT_S)
    assert here.calls == ["launch", "synchronize", "free"]
    with pytest.raises(CudaContextClosed, match="was closed"):
        launch(running)


def test_a_kernel_is_not_compiled_for_a_context_that_is_stopped_meanwhile(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = CudaContext().start()
    with monkeypatch.context() as patched:
        key = context.cache_key
        patched.setattr(context, "cache_key", lambda *parts: (running.stop(), key(*parts))[1])
        with pytest.raises(CudaContextClosed, match="was closed"):
            running.get_kernel("scale", SCALE, "scale")
    with running:
        launch(running)  # with nothing of its former life
    assert here.calls[-3:] == ["launch", "synchronize", "free"]


@pytest.mark.usefixtures("here")
def test_memory_is_refused_by_a_context_that_is_stopped_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    running = CudaContext().start()
    with monkeypatch.context() as patched:
        checked = context._dtype
        patched.setattr(context, "_dtype", lambda dtype: (running.stop(), checked(dtype))[1])
        with pytest.raises(CudaContextClosed, match="was closed during an allocation"):
            running.allocate(3, np.float32)
    assert not has_closed_memory()
    array = running.start().allocate(3, np.float32)
    running.stop()
    assert has_closed_memory()
    with (
        CudaContext() as another,
        pytest.raises(CudaContextClosed, match=r"argument 0: the array belongs to .* closed"),
    ):
        another.get_kernel("scale", SCALE, "scale")(array, 3, 2.0, block=4, grid=1)
    del array
    assert not has_closed_memory()


def test_threads_restore_their_own_current_device(here: Here) -> None:
    with CudaContext() as running:
        here.during["synchronize"] = lambda: in_a_thread(lambda: launch(running))
        running.synchronize()
        here.during.clear()
    assert here.calls == ["launch", "synchronize", "synchronize", "free"]


@pytest.mark.usefixtures("here")
def test_memory_in_use_is_counted_while_it_changes() -> None:
    with CudaContext() as running:
        resume = True

        def allocate() -> None:
            while resume:
                held = [running.allocate(1, np.float32) for _ in range(20)]
                del held

        thread = threading.Thread(target=allocate)
        thread.start()
        try:
            for _ in range(2000):
                assert 0 <= running.used_bytes <= 80
        finally:
            resume = False
            thread.join(LIMIT_S)


# --- launches ---


@pytest.mark.usefixtures("here")
def test_shared_memory_only_grows() -> None:
    with CudaContext() as running:
        function = running.get_kernel("scale", SCALE, "scale")._compiled.function
        for size, allowed in ((0, 48), (64, 64), (96, 96), (64, 96)):
            launch(running, shared_mem=size * 1024)
            assert function.max_dynamic_shared_size_bytes == allowed * 1024


def test_the_cache_of_validated_launches_compares_types(here: Here) -> None:
    with CudaContext() as running:
        for _ in range(2):
            launch(running, block=1, grid=(1, 1))
        for block, grid in ((True, (1, 1)), (1.0, (1, 1)), (1, (1, True)), (1, (1.0, 1))):
            with pytest.raises(InvalidType):
                launch(running, block=block, grid=grid)
        launch(running, block=np.int64(1), grid=[1, 1])
        for grid in range(1, 600):  # more than are remembered
            launch(running, block=1, grid=grid)
        with pytest.raises(InvalidArgument, match="this device takes 1024"):
            launch(running, block=1, grid=1025)
        assert here.calls.count("launch") == 602


# --- without a context ---


def test_too_little_memory_is_the_same_error_without_a_context(here: Here) -> None:
    def full() -> None:
        raise OutOfMemoryError("Out of memory allocating 12 bytes")

    here.during["asarray"] = full
    with pytest.raises(DeviceOutOfMemory, match="tensor_to_gpu: device 0 has not enough memory free: Out of memory"):
        tensor_to_gpu(np.zeros(3, np.float32))
    del here.during["asarray"]
    assert tensor_to_gpu(np.zeros(3, np.float32)).shape == (3,)
