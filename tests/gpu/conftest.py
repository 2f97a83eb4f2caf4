"""Fixtures of the tests on a GPU."""

from __future__ import annotations

import pytest

from tests.gpu.kernels import SCALE


@pytest.fixture(scope="session")
def cuda() -> None:
    """CuPy and a device, used once: what they open then stays open until the process ends."""
    pytest.importorskip("cupy", reason="gpu: CuPy is not installed here")
    import numpy as np
    import torch

    from neuraxis.gpu import CudaContext, gpu_to_tensor, tensor_to_gpu

    with CudaContext(enable_profiling=True) as context:
        array = tensor_to_gpu(torch.ones(4, device="cuda"))
        context.get_kernel("warm", SCALE, "scale")(array, np.int32(4), np.float32(2), block=4, grid=1)
        assert gpu_to_tensor(array).sum().item() == 8
        context.profile()
