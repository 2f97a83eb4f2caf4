"""Kernels that fail, in separate processes: a failure ends CUDA for its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import numpy as np
from neuraxis.errors import KernelFailed
from neuraxis.gpu import CudaContext
from tests.gpu.kernels import OUT_OF_BOUNDS, SCALE

def launch(context, name, source, *arguments):
    context.get_kernel(name, source, name)(context.allocate(4, np.float32), *arguments, block=1, grid=1)
"""


def run(body: str) -> str:
    done = subprocess.run([sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_kernel_is_named_when_it_is_noticed() -> None:
    out = run("""
with CudaContext() as context:
    launch(context, "scale", SCALE, 4, 2.0)
    context.synchronize()
    launch(context, "out_of_bounds", OUT_OF_BOUNDS)
    try:
        context.synchronize()
    except KernelFailed as error:
        print(error.kernels, error.status)
        print(error)
    try:
        context.allocate(4, np.float32)
    except KernelFailed as error:
        print("again:", error.kernels)
print("left")
""")
    assert "('out_of_bounds',) 700\nkernel 'out_of_bounds' failed on device 0: illegal memory access" in out
    assert "again: ('out_of_bounds',)" in out
    assert out.endswith("left\n")


def test_of_several_launches_all_are_named_or_the_one_that_was_checked() -> None:
    both = """
with CudaContext({options}) as context:
    try:
        launch(context, "out_of_bounds", OUT_OF_BOUNDS)
        launch(context, "scale", SCALE, 4, 2.0)
        context.synchronize()
    except KernelFailed as error:
        print(sorted(error.kernels))
"""
    assert run(both.format(options="check_launches=True")) == "['out_of_bounds']\n"
    assert "out_of_bounds" in run(both.format(options=""))


def test_stop_raises_an_unreported_failure() -> None:
    out = run("""
try:
    with CudaContext(enable_profiling=True) as context:
        launch(context, "out_of_bounds", OUT_OF_BOUNDS)
except KernelFailed as error:
    print("reported:", error.kernels)
context.stop()
try:
    with CudaContext() as context:
        launch(context, "out_of_bounds", OUT_OF_BOUNDS)
        raise KeyError("mine")
except (KeyError, KernelFailed) as error:
    print(type(error).__name__)
""")
    assert "reported: ('out_of_bounds',)" in out


def test_an_error_of_the_block_is_not_hidden() -> None:
    out = run("""
try:
    with CudaContext() as context:
        launch(context, "out_of_bounds", OUT_OF_BOUNDS)
        raise KeyError("mine")
except KeyError:
    print("mine")
""")
    assert out == "mine\n"


def test_a_kernel_that_gives_up() -> None:
    out = run("""
with CudaContext() as context:
    try:
        launch(context, "sure", "__global__ void sure(float *x) { if (x[0] != 1.0f) __trap(); }")
        context.synchronize()
    except KernelFailed as error:
        print(error.kernels, error.status)
""")
    assert out.startswith("('sure',) 7")
