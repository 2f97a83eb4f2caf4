"""What one process tells another to find an array on a GPU; data, checked when it is read."""

from __future__ import annotations

import math
import secrets

import msgspec
import numpy as np

from neuraxis.errors import InvalidArgument

__all__ = ["THIS_PROCESS", "SharedHandle"]

THIS_PROCESS = secrets.token_bytes(16)  # another one in each process, which a process id is not
_IPC_BYTES = 64
_MOST_DIMENSIONS = 32


class SharedHandle(msgspec.Struct, frozen=True, array_like=True, tag="neuraxis-gpu-1"):
    """An array in the memory of a GPU.

    Attributes:
        process: the one that has it (its `THIS_PROCESS`).
        device: the UUID of the GPU; numbers may differ between processes.
        memory: CUDA's own handle, of the allocation that the array lies in.
        size: of that allocation, in bytes.
        offset: of the array in it, in bytes.
        shape, dtype: of the array, which is contiguous.
    """

    process: bytes
    device: bytes
    memory: bytes
    size: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpacked(cls, content: bytes) -> SharedHandle:
        """What `packed` made; InvalidArgument for anything else, and for an array that is not within its allocation."""
        try:
            handle = msgspec.msgpack.decode(content, type=cls)
        except (msgspec.MsgspecError, TypeError) as error:
            raise InvalidArgument(f"this is no handle of a shared array: {error}") from error
        reason = handle._wrong()
        if reason:
            raise InvalidArgument(f"this handle of a shared array is damaged: {reason}")
        return handle

    def _wrong(self) -> str:
        try:
            dtype = np.dtype(self.dtype)
        except (TypeError, ValueError, SyntaxError):
            return f"{self.dtype!r} is no dtype"
        if dtype.kind not in "biufc":
            return f"{self.dtype!r} is no dtype of numbers"
        if len(self.process) != len(THIS_PROCESS) or len(self.device) != 16 or len(self.memory) != _IPC_BYTES:
            return "an identity in it has the wrong length"
        if len(self.shape) > _MOST_DIMENSIONS or any(length < 1 for length in self.shape):
            return f"the shape {self.shape}"
        if self.offset < 0 or self.offset % dtype.itemsize or self.offset + self.nbytes > self.size:
            return f"{self.nbytes} bytes at {self.offset} are not within {self.size}"
        return ""
