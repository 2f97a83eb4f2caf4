"""Transfer of arrays and tensors between processes, to the device that the receiver wants.

A tensor on a GPU is sent as a CUDA IPC handle if possible: the receiver maps the same memory and copies it. Otherwise
it is copied through the host. The sender keeps a tensor alive that it sent as a handle, until it has sent 64 more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from neuraxis import imports as optional
from neuraxis.errors import InvalidType
from neuraxis.wire.objects import TUPLE, Serializer, Unreadable
from neuraxis.wire.trees import map_leaves

__all__ = ["HostTensor", "SharedTensor", "pack", "to_device", "to_sendable", "unpack"]

# Tensors that were sent as handles. The receiver has copied one by the time that 64 more were sent.
_SENT: deque[Any] = deque(maxlen=64)


@dataclass(frozen=True)
class HostTensor:
    """The values of a torch tensor on the host; `dtype` names an element type that NumPy lacks."""

    values: Any
    dtype: str = ""


@dataclass(frozen=True)
class SharedTensor:
    """The CUDA IPC handle of a tensor: the function and arguments that rebuild it, and its device."""

    rebuild: Any
    arguments: Any
    device: str


def to_sendable(value: Any, share: bool = False) -> Any:
    """Return an immutable copy of `value` that can be sent to another process.

    With `share`, tensors on a GPU become handles, for a process that may map the memory of that GPU.
    """
    return map_leaves(partial(_to_sendable, share), value, plain=True)


def to_device(value: Any, device: str) -> Any:
    """Return a received value with its tensors on `device`; arrays become tensors only on a GPU."""
    return map_leaves(partial(_to_device, device), value)


def pack(value: Any) -> bytes:
    """Serialize a value from `to_sendable` for files and other hosts; raise NotSerializable for GPU handles."""
    return _SERIALIZER.encode(value)


def unpack(content: Any) -> Any:
    """Return the value that `pack` serialized; raise Unreadable if it is malformed."""
    return _SERIALIZER.decode(content)


def _host_tensor(parts: Any) -> HostTensor:
    if len(parts) != 2 or not isinstance(parts[0], np.ndarray) or parts[1] not in ("", "bfloat16"):
        raise Unreadable("a tensor in packed data is not an array and the name of its type")
    return HostTensor(*parts)


class _PayloadSerializer(Serializer):
    """The serializer of values from `to_sendable`. They contain no tuples: a tuple stands for a HostTensor."""

    readers = Serializer.readers | {TUPLE: _host_tensor}

    def lower_other(self, value: Any, buffers: Any) -> Any:
        if isinstance(value, HostTensor):
            return msgspec.msgpack.Ext(TUPLE, self.encode([value.values, value.dtype]))
        return super().lower_other(value, buffers)


_SERIALIZER = _PayloadSerializer(writable=False)


def _to_sendable(share: bool, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic | HostTensor | SharedTensor):
        return value
    if isinstance(value, np.ndarray):
        return _read_only(value.copy())
    torch = optional.loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if share and tensor.is_cuda:
            reductions = optional.require("torch.multiprocessing.reductions", extra="torch", purpose="a tensor")
            torch.cuda.synchronize(tensor.device)
            tensor = tensor.contiguous()
            _SENT.append(tensor)
            rebuild, arguments = reductions.reduce_tensor(tensor)
            return SharedTensor(rebuild, arguments, str(tensor.device))
        if tensor.dtype == torch.bfloat16:
            return HostTensor(tensor.cpu().float().numpy().copy(), "bfloat16")
        return HostTensor(tensor.cpu().numpy().copy())
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # CuPy
        return _read_only(np.asarray(value.get()))
    raise InvalidType(
        f"data of type {type(value).__name__} cannot be sent. Use arrays, tensors, numbers, text, lists and dicts"
    )


def _to_device(device: str, value: Any) -> Any:
    if isinstance(value, SharedTensor):
        return value.rebuild(*value.arguments).to(device, copy=True)
    if isinstance(value, HostTensor):
        tensor = _torch(device).from_numpy(value.values.copy()).to(device)
        return tensor.bfloat16() if value.dtype else tensor
    if isinstance(value, np.ndarray) and device != "cpu":
        return _torch(device).from_numpy(value.copy()).to(device)
    return value


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _torch(device: str) -> Any:
    return optional.require("torch", extra="torch", purpose=f"a region with device={device!r} that receives a tensor")
