"""Tensors on a GPU cross the borders of processes and arrive on the device of the receiver."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neuraxis.brain import Brain, BrainBuilder, BrainSpec
from tests.brain.gpu_regions import Scaler, Summer

pytestmark = pytest.mark.gpu


def two_regions(first: str, second: str) -> BrainSpec:
    return (
        BrainBuilder("tensors")
        .sensor("eye", 8, groups=2)
        .region("thalamus", "thalamus", relay=8, groups=2)
        .python_region("scaler", Scaler, neurons=4, device=first)
        .python_region("summer", Summer, neurons=64, device=second)
        .pathway("eye", "thalamus", 2.0)
        .pathway("scaler", "summer", 3.0)
        .spec()
    )


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("devices", [("cuda:0", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:0")])
@pytest.mark.parametrize("given", ["cuda", "cpu"])
def test_tensors_arrive_where_the_region_wants_them(workers: int, devices: tuple[str, str], given: str) -> None:
    with Brain(two_regions(*devices), workers=workers, record=True, balance=False) as brain:
        brain.forward({"scaler": torch.arange(5, device=given)}, 20)
        brain.run(10.0)
        times_ms, ids = brain.spikes("summer")
        cells = ids < 64
        # Given before step 1 and received after it; the answer follows one step later, is received 3 ms after that, and
        # the last answer one step later still.
        assert ids[cells].tolist() == [20]
        np.testing.assert_allclose(times_ms[cells], [3.3])


def test_an_input_on_the_gpu_is_the_same_input() -> None:
    fingerprints = set()
    for device in ("cpu", "cuda"):
        with Brain(two_regions("cpu", "cpu")) as brain:
            brain.forward({"eye": torch.tensor([1.0, 0.0], device=device)}, 500)
            fingerprints.add(brain.fingerprint())
    assert len(fingerprints) == 1
