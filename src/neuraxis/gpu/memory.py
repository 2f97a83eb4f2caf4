"""Memory on a device that belongs to one context.

Each context has a pool of its own, so that stopping one frees nothing of another, of CuPy's own arrays or of torch. An
array is freed when nothing uses it any more, neither it nor a tensor made of it: memory that went away under an array's
feet would end CUDA in this process. So stopping gives back all that nobody holds, and the rest follows by itself when
it is let go; until then its values can be read, and no kernel takes it.

Which context an array belongs to is found by its address, because views, and tensors that come back from torch, keep
nothing else of it.
"""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from typing import Any

import numpy as np

from neuraxis.devices import never_free
from neuraxis.errors import CudaContextClosed
from neuraxis.gpu.failures import cuda_calls

__all__ = ["DeviceMemory", "has_stopped_memory", "memory_of"]


class DeviceMemory:
    """What one context has allocated. `owner` says whose it is, in texts.

    Attributes:
        open: whether the context is running.
    """

    def __init__(self, cupy: Any, device_id: int, owner: str) -> None:
        self.open = True
        self.owner = owner
        self._cupy = cupy
        self._device_id = device_id
        self._pool: Any = cupy.cuda.MemoryPool()
        self._lock = threading.RLock()  # of the pool, and of what is added to the blocks
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array (cupy.ndarray) with whatever was there before in it; the caller has made the device current."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return self._cupy.ndarray(shape, dtype)
        with self._lock:
            if self._pool is None:
                raise CudaContextClosed(f"{self.owner} was stopped while memory was asked of it")
            block = Block(self._pool.malloc(size), size, self)
            self._blocks.add(block)
        _registry.add(block)
        memory = self._cupy.cuda.UnownedMemory(block.address, size, block, self._device_id)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    @property
    def used_bytes(self) -> int:
        """Of arrays that are in use; the pool keeps more, for the next ones."""
        with self._lock:
            return sum(block.size for block in self._blocks)

    def close(self, free: bool = True) -> None:
        """Give back what nobody uses; what somebody does goes back to the device when it is let go.

        `free=False`, for a device that a failed kernel has left unusable: freeing would fail, too, and the memory ends
        with the process.
        """
        with self._lock:
            _closed.add(weakref.ref(self, _closed.discard))
            self.open = False
            pool, self._pool = self._pool, None  # without its pool, memory that is let go is freed and not kept
        if pool is None:
            return
        if not free:
            never_free([pool])
            return
        with cuda_calls("freeing memory", self._device_id), self._cupy.cuda.Device(self._device_id):
            pool.free_all_blocks()


# Memory of stopped contexts of which somebody still holds a block: a block holds its memory, and nobody else does.
_closed: set[weakref.ref[DeviceMemory]] = set()


class Block:
    """The memory of one array; it lives as long as anything that uses it."""

    __slots__ = ("__weakref__", "_pointer", "address", "memory", "size")

    def __init__(self, pointer: Any, size: int, memory: DeviceMemory) -> None:
        self._pointer = pointer
        self.address = int(pointer.ptr)
        self.size = size
        self.memory = memory


def memory_of(address: int) -> DeviceMemory | None:
    """Whose memory is at the address: a context's, or None for memory that no context of ours has allocated."""
    block = _registry.find(address)
    return None if block is None else block.memory


def has_stopped_memory() -> bool:
    """Whether anybody holds an array of a context that was stopped. If not, no address needs to be looked up."""
    return bool(_closed)


class _Registry:
    """The blocks that are in use, by address.

    A block may die anywhere, within these methods as well (a collection of garbage): its death is put down, without a
    lock, and seen to later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._blocks: dict[int, weakref.ref[Block]] = {}
        self._dead: deque[tuple[int, weakref.ref[Block]]] = deque()

    def add(self, block: Block) -> None:
        address = block.address
        reference = weakref.ref(block, lambda dead: self._dead.append((address, dead)))
        with self._lock:
            self._bury()
            if address not in self._blocks:  # else one that died a moment ago was there
                insort(self._addresses, address)
            self._blocks[address] = reference

    def find(self, address: int) -> Block | None:
        with self._lock:
            self._bury()
            place = bisect_right(self._addresses, address) - 1
            if place < 0:
                return None
            block = self._blocks[self._addresses[place]]()
        return block if block is not None and address < block.address + block.size else None

    def _bury(self) -> None:
        while self._dead:
            address, reference = self._dead.popleft()
            if self._blocks.get(address) is reference:
                del self._blocks[address]
                self._addresses.pop(bisect_right(self._addresses, address) - 1)


_registry = _Registry()
