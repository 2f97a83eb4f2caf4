"""Without CuPy, a driver or a device: the error names what is missing, and the package can be imported."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis import devices
from neuraxis.errors import CudaContextClosed, DeviceUnavailable, InvalidArgument, InvalidType
from neuraxis.gpu import CudaContext, gpu_to_tensor, open_shared, share, tensor_to_gpu
from neuraxis.gpu.sharing import THIS_PROCESS, SharedHandle
from neuraxis.imports import install_command
from tests.gpu.kernels import SCALE


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_the_error_has_the_install_command() -> None:
    handle = SharedHandle(bytes(16), bytes(16), bytes(64), 8, 0, (1,), "<f8").packed()
    attempts: list[Any] = [
        lambda: CudaContext().start(),
        lambda: CudaContext().__enter__(),
        lambda: tensor_to_gpu(np.zeros(3)),
        lambda: open_shared(handle).__enter__(),
    ]
    for attempt in attempts:
        with pytest.raises(DeviceUnavailable) as caught:
            attempt()
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.reason == "CuPy is not installed"
        assert caught.value.remedy == install_command("cuda")
        command = install_command("cuda")
        assert str(caught.value) == f"CUDA cannot be used here: CuPy is not installed. {command}"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, copy.remedy, str(copy)) == (caught.value.reason, caught.value.remedy, str(caught.value))


FAKE = """
class runtime:
    @staticmethod
    def getDeviceCount():
        {body}
class cuda:
    runtime = runtime
"""


@pytest.mark.parametrize(
    ("body", "device_id", "words"),
    [
        (
            "raise RuntimeError('cudaErrorInsufficientDriver: too old')",
            0,
            "no driver or no device (cudaErrorInsufficient",
        ),
        ("return 0", 0, "there is no CUDA device. It needs an NVIDIA GPU and a driver"),
        ("return 1", 1, "device_id=1, and there is one, number 0"),
        ("return 4", 7, "device_id=7, and there are 4, 0 to 3"),
    ],
)
def test_with_cupy_and_no_such_device(tmp_path: Path, body: str, device_id: int, words: str) -> None:
    """A package that answers for CuPy, in a process of its own: this machine may have any GPUs or none."""
    (tmp_path / "cupy.py").write_text(FAKE.format(body=body))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from neuraxis.gpu import CudaContext\n"
        "from neuraxis.errors import DeviceUnavailable\n"
        "try:\n"
        f"    CudaContext({device_id}).start()\n"
        "except DeviceUnavailable as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert words in done.stdout, done.stdout + done.stderr


def test_cupy_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cupy.py").write_text(
        "raise ImportError('====\\nWhy.\\n\\nOriginal error: libcudart is missing\\n====')"
    )
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        DeviceUnavailable,
        match=r"CuPy is installed and cannot be loaded: Original error: libcudart is missing\. Keep one",
    ):
        devices.require_cupy()


def test_without_the_compiler() -> None:
    error = devices.compiler_missing(RuntimeError('Failure finding "libnvrtc.so.12": No such file\nmore'))
    assert "NVRTC, which compiles kernels, cannot be loaded" in str(error)
    assert "more" not in str(error)
    assert f"{install_command('cuda')} brings it" in str(error)


def test_arguments_are_checked_at_once() -> None:
    for bad in (-1, True):
        with pytest.raises(InvalidArgument, match=f"device_id={bad}"):
            CudaContext(bad)
    for worse in ("0", 0.5, None):
        with pytest.raises(InvalidType, match="device_id="):
            CudaContext(worse)  # type: ignore[arg-type]
    assert CudaContext(np.int64(3)).device_id == 3  # type: ignore[arg-type]


def test_a_context_that_is_not_started() -> None:
    context = CudaContext(enable_profiling=True)
    assert not context.is_running
    assert repr(context) == "<CudaContext of device 0, not running>"
    for call in (
        lambda: context.get_kernel("scale", SCALE, "scale"),
        lambda: context.allocate(3, np.float32),
        lambda: context.to_gpu(np.zeros(3)),
        lambda: context.from_gpu(np.zeros(3)),
        lambda: context.synchronize(),
        lambda: context.used_bytes,
    ):
        with pytest.raises(CudaContextClosed, match=r"is not started. Use it in a `with` statement, or call start\(\)"):
            call()
    context.close()  # nothing to close
    context.stop()  # the name of the seed
    assert context.profile() == {}
    with pytest.raises(InvalidArgument, match="enable_profiling=True"):
        CudaContext().profile()


def test_an_invalid_source_is_refused_first() -> None:
    for name, source, function, options in (
        ("", SCALE, "scale", ()),
        ("scale", " ", "scale", ()),
        ("scale", SCALE, None, ()),
        ("scale", SCALE, "scale", "-DA"),
        ("scale", SCALE, "scale", (1,)),
    ):
        with pytest.raises(InvalidType, match="get_kernel"):
            CudaContext().get_kernel(name, source, function, options=options)  # type: ignore[arg-type]


def test_host_arrays_are_refused() -> None:
    with pytest.raises(InvalidType, match="gpu_to_tensor takes an array on a GPU, not ndarray"):
        gpu_to_tensor(np.zeros(3))
    with pytest.raises(InvalidType, match="share takes an array on a GPU, not ndarray"), share(np.zeros(3)):
        pass
    mine = SharedHandle(THIS_PROCESS, bytes(16), bytes(64), 8, 0, (1,), "<f8").packed()
    with pytest.raises(InvalidArgument, match="this process has the array itself"), open_shared(mine):
        pass


def test_the_package_loads_nothing_heavy() -> None:
    modules = "neuraxis.gpu.context, neuraxis.gpu.sharing, neuraxis.gpu.tensors"
    code = f"import sys, {modules}\nprint(sorted({{'cupy', 'torch', 'numba'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
