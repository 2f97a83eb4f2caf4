"""Arrays and tensors that cross the border between two processes, and arrive where the receiver wants them.

A tensor on a GPU goes as a handle (CUDA IPC) where it can: the receiver maps the same memory and copies it. Where it
cannot, it is copied through the host. The sender keeps a tensor that went as a
handle until the next ones have gone.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.comm.objects import decode, encode
from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["HostTensor", "SharedTensor", "lowered", "packed", "raised", "unpacked"]

# What was sent as a handle stays until so many more were sent: the receiver has copied it by then.
_KEPT: deque[Any] = deque(maxlen=64)


@dataclass(frozen=True)
class HostTensor:
    """The values of a torch tensor, for whoever has torch; `dtype` where NumPy has no such values."""

    values: Any
    dtype: str = ""


@dataclass(frozen=True)
class SharedTensor:
    """A handle of a tensor in the memory of a GPU: what rebuilds it, and on which device it is."""

    rebuild: Any
    arguments: Any
    device: str


def lowered(value: Any, share: bool = False) -> Any:
    """`value` as something that can be sent: a copy, that neither end can change any more.

    `share`: it goes to a process that may map this GPU's memory.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic | HostTensor | SharedTensor):
        return value
    if isinstance(value, np.ndarray):
        return _kept(value.copy())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if share and tensor.is_cuda:
            from torch.multiprocessing.reductions import reduce_tensor

            torch.cuda.synchronize(tensor.device)
            tensor = tensor.contiguous()
            _KEPT.append(tensor)
            rebuild, arguments = reduce_tensor(tensor)
            return SharedTensor(rebuild, arguments, str(tensor.device))
        if tensor.dtype == torch.bfloat16:
            return HostTensor(tensor.cpu().float().numpy().copy(), "bfloat16")
        return HostTensor(tensor.cpu().numpy().copy())
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # CuPy
        return _kept(np.asarray(value.get()))
    if isinstance(value, dict):
        return {str(key): lowered(one, share) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [lowered(one, share) for one in value]
    raise InvalidType(
        f"data of type {type(value).__name__}: arrays, tensors, numbers, text, lists and dicts can travel"
    )


def raised(value: Any, device: str) -> Any:
    """What was sent, with tensors on `device`; arrays become tensors only where a GPU is asked for."""
    if isinstance(value, SharedTensor):
        return value.rebuild(*value.arguments).to(device, copy=True)
    if isinstance(value, HostTensor):
        tensor = _torch(device).from_numpy(value.values.copy()).to(device)
        return tensor.bfloat16() if value.dtype else tensor
    if isinstance(value, np.ndarray) and device != "cpu":
        return _torch(device).from_numpy(value.copy()).to(device)
    if isinstance(value, dict):
        return {key: raised(one, device) for key, one in value.items()}
    if isinstance(value, list):
        return [raised(one, device) for one in value]
    return value


def packed(value: Any) -> bytes:
    """What `lowered` made, as bytes for files and other hosts; NotSerializable where it cannot be (GPU handles)."""
    return encode(_packable(value))


def unpacked(content: Any) -> Any:
    """What was packed."""
    return _unpackable(decode(content))


def _packable(value: Any) -> Any:
    if isinstance(value, HostTensor):
        return (value.values, value.dtype)  # nothing that was lowered is a tuple
    if isinstance(value, dict):
        return {key: _packable(one) for key, one in value.items()}
    return [_packable(one) for one in value] if isinstance(value, list) else value


def _unpackable(value: Any) -> Any:
    if isinstance(value, tuple):
        return HostTensor(*value)
    if isinstance(value, np.ndarray):
        return _kept(value)
    if isinstance(value, dict):
        return {key: _unpackable(one) for key, one in value.items()}
    return [_unpackable(one) for one in value] if isinstance(value, list) else value


def _kept(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise InvalidArgument(f"device={device!r}: tensors need PyTorch: pip install 'neuraxis[torch]'") from error
    return torch
