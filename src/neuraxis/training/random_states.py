"""The random streams of a rank: what dropout, augmentation and the like draw from. As plain data, for a manifest."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuraxis.training.sampler import mixed_seed

__all__ = ["capture", "derive", "restore"]


def capture() -> dict[str, Any]:
    """Where torch's stream, that of this rank's GPU, NumPy's global one and Python's are."""
    version, words, next_gauss = random.getstate()
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": _text(torch.get_rng_state().numpy()),
        "numpy": [str(kind), _text(np.asarray(keys)), int(place), int(has_gauss), float(gauss)],
        "python": [version, _text(np.array(words, np.uint32)), next_gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _text(torch.cuda.get_rng_state().numpy())
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Let all streams go on where they were."""
    torch.set_rng_state(_tensor(state["torch"]))
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, _array(keys), place, has_gauss, gauss))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(_array(words).tolist()), next_gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(state["cuda"]))


def derive(*parts: object) -> None:
    """Begin new streams, different for different parts; for a rank that no saved stream belongs to."""
    seed = mixed_seed(*parts)
    torch.manual_seed(seed)  # the GPU's too
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _array(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint32)


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
