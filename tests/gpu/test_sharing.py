"""One array on a GPU, used by two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuraxis.errors import DeviceUnavailable, InvalidArgument
from neuraxis.gpu import CudaContext, open_shared, share
from neuraxis.gpu.sharing import SharedHandle
from tests.gpu.kernels import SCALE

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

ROOT = Path(__file__).resolve().parents[2]
OTHER = """
import sys
from neuraxis.gpu import CudaContext, open_shared
from tests.gpu.kernels import SCALE

def line(word):
    print(word, flush=True)
    assert sys.stdin.readline() == "go on\\n"

with CudaContext() as context:
    scale = context.get_kernel("scale", SCALE, "scale")
    with open_shared(bytes.fromhex(sys.stdin.readline())) as array:
        line(f"{array.shape} {array.dtype} {context.from_gpu(array).tolist()}")
        scale(array, array.size, 10.0, block=32, grid=1)
        context.synchronize()
        line("scaled")
        with open_shared(bytes.fromhex(sys.stdin.readline())) as again:
            same = again.data.ptr == array.data.ptr
            line(f"{same} {context.from_gpu(again).tolist()}")
    try:
        with open_shared(bytes.fromhex(sys.stdin.readline())) as after:
            print(context.from_gpu(after).tolist(), flush=True)
    finally:
        print("end", flush=True)
"""


class Other:
    """A process that opens the handles it receives, and prints the arrays."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *rest: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait(60)
            self._process.stdout.close()


@pytest.mark.parametrize("kind", ["context", "torch"])
def test_two_processes_use_the_same_memory(kind: str) -> None:
    with CudaContext() as context, Other() as other:
        whole: Any
        if kind == "context":
            whole = context.to_gpu(np.arange(12, dtype=np.float32).reshape(3, 4))
        else:
            whole = torch.arange(12.0, device="cuda").reshape(3, 4)
        array = whole[1:]  # not where the allocation begins
        with share(array) as handle:
            other.send(handle.hex())
            assert other.receive() == "(2, 4) float32 [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]"
            other.send("go on")
            assert other.receive() == "scaled"
            # The other process's values are here, and adjacent memory is unchanged.
            assert context.from_gpu(whole).tolist() == [[0, 1, 2, 3], [40, 50, 60, 70], [80, 90, 100, 110]]
            scale = context.get_kernel("scale", SCALE, "scale")
            scale(whole, whole.size if kind == "context" else whole.numel(), 0.5, block=32, grid=1)
            context.synchronize()
            other.send("go on")
            other.send(handle.hex())  # once more, while it is open
            assert other.receive() == "True [[20.0, 25.0, 30.0, 35.0], [40.0, 45.0, 50.0, 55.0]]"
            other.send("go on")
            other.send(handle.hex())  # and after it was closed
            assert other.receive() == "[[20.0, 25.0, 30.0, 35.0], [40.0, 45.0, 50.0, 55.0]]"
            assert other.receive() == "end"


def test_arrays_that_cannot_be_shared_or_opened() -> None:
    with CudaContext() as context:
        array = context.allocate((4, 4), np.float32)
        for bad in (array.T[1:], context.allocate(0, np.float32)):
            with pytest.raises(InvalidArgument, match="empty or not contiguous"), share(bad):
                pass
        with share(array) as handle:
            with pytest.raises(InvalidArgument, match="this process has the array itself"), open_shared(handle):
                pass
            known = SharedHandle.unpacked(handle)
        elsewhere = SharedHandle(
            os.urandom(16), os.urandom(16), known.memory, known.size, known.offset, known.shape, known.dtype
        )
        with pytest.raises(DeviceUnavailable, match="on a GPU that this process does not see"):
            open_shared(elsewhere.packed()).__enter__()


def test_an_array_stays_while_it_is_shared() -> None:
    with CudaContext() as context:
        array = context.to_gpu(np.arange(1000, dtype=np.float32))
        used = context.used_bytes
        with share(array):
            del array
            assert context.used_bytes == used
        assert context.used_bytes == 0
