"""Memory on a device that belongs to one context.

Each context has its own pool, so that closing one frees nothing of another context, of CuPy or of torch. An array is
freed when nothing refers to it, neither the array nor a tensor that shares its memory: freeing memory in use would make
CUDA unusable in this process. So closing a context frees everything that is unreferenced, and the rest follows when its
last reference is gone; until then its values can be read, and no kernel accepts it.

The context of an array is found by address, because views, and tensors that come back from torch, keep nothing else.
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

__all__ = ["DeviceMemory", "has_closed_memory", "memory_of"]


class DeviceMemory:
    """Allocations of one context. `owner` describes it in messages; `open` is True while it runs."""

    def __init__(self, cupy: Any, device_id: int, owner: str) -> None:
        self.open = True
        self.owner = owner
        self._cupy = cupy
        self._device_id = device_id
        self._pool: Any = cupy.cuda.MemoryPool()
        self._lock = threading.RLock()  # for the pool and for adding blocks
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return an uninitialized array (cupy.ndarray); the caller has made the device current."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return self._cupy.ndarray(shape, dtype)
        with self._lock:
            if self._pool is None:
                raise CudaContextClosed(f"{self.owner} was closed during an allocation. Use a running context")
            block = Block(self._pool.malloc(size), size, self)
            self._blocks.add(block)
        _registry.add(block)
        memory = self._cupy.cuda.UnownedMemory(block.address, size, block, self._device_id)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    @property
    def used_bytes(self) -> int:
        """Bytes of arrays that are in use; the pool holds more for later ones."""
        with self._lock:
            return sum(block.size for block in self._blocks)

    def close(self, free: bool = True) -> None:
        """Free unreferenced memory; the rest is freed with its last reference.

        With `free=False`, for a device that a failed kernel has made unusable, nothing is freed before the process
        ends, because freeing would fail.
        """
        with self._lock:
            _closed.add(weakref.ref(self, _closed.discard))
            self.open = False
            pool, self._pool = self._pool, None  # without its pool, released memory is freed and not kept
        if pool is None:
            return
        if not free:
            never_free([pool])
            return
        with cuda_calls("freeing memory", self._device_id), self._cupy.cuda.Device(self._device_id):
            pool.free_all_blocks()


# Memory of closed contexts with a block that is still referenced; only the block refers to its memory.
_closed: set[weakref.ref[DeviceMemory]] = set()


class Block:
    """Memory of one array; it lives as long as anything that uses it."""

    __slots__ = ("__weakref__", "_pointer", "address", "memory", "size")

    def __init__(self, pointer: Any, size: int, memory: DeviceMemory) -> None:
        self._pointer = pointer
        self.address = int(pointer.ptr)
        self.size = size
        self.memory = memory


def memory_of(address: int) -> DeviceMemory | None:
    """Return the memory that contains an address, or None if no context allocated it."""
    block = _registry.find(address)
    return None if block is None else block.memory


def has_closed_memory() -> bool:
    """Return True if an array of a closed context is referenced. If not, no address needs to be looked up."""
    return bool(_closed)


class _Registry:
    """Blocks in use, by address.

    The garbage collector may free a block at any time, also within these methods. So a weak reference callback only
    appends it to a queue, without a lock, and later calls remove it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._blocks: dict[int, weakref.ref[Block]] = {}
        self._freed: deque[tuple[int, weakref.ref[Block]]] = deque()

    def add(self, block: Block) -> None:
        address = block.address
        reference = weakref.ref(block, lambda freed: self._freed.append((address, freed)))
        with self._lock:
            self._remove_freed()
            if address not in self._blocks:  # else the block there was freed a moment ago
                insort(self._addresses, address)
            self._blocks[address] = reference

    def find(self, address: int) -> Block | None:
        with self._lock:
            self._remove_freed()
            place = bisect_right(self._addresses, address) - 1
            if place < 0:
                return None
            block = self._blocks[self._addresses[place]]()
        return block if block is not None and address < block.address + block.size else None

    def _remove_freed(self) -> None:
        while self._freed:
            address, reference = self._freed.popleft()
            if self._blocks.get(address) is reference:
                del self._blocks[address]
                self._addresses.pop(bisect_right(self._addresses, address) - 1)


_registry = _Registry()
