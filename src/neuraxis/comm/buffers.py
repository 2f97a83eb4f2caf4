"""Users' arguments as backends need them: arrays as contiguous memory, roots as group ranks.

A NumPy array or torch tensor becomes a `Buffer` without a copy if its memory is contiguous and the backend can access
it. Otherwise the buffer holds a contiguous copy, and `write_back` copies the result into the user's array. torch is
never imported here: a caller that passes a tensor has imported it.

`Arguments` raises every argument error here, before anything is sent, so a wrong call does not damage the group.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from neuraxis import imports as optional
from neuraxis.comm.backends.shm.array_kernels import address_of_array, array_layout_is_known
from neuraxis.comm.reduction import ElementType, ReduceOp, element_type_of
from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["Arguments", "Buffer", "address_of", "buffer_of", "reduce_op_of"]

# NumPy dtypes that hold element types which NumPy lacks.
_CARRIERS = {ElementType.BFLOAT16: np.dtype(np.uint16), ElementType.COMPLEX32: np.dtype((np.uint16, 2)).base}


class Buffer(msgspec.Struct):
    """Contiguous memory of one array: an address, and `count` elements of type `element`.

    A msgspec struct because every call makes one for each argument, and those are fast to make.
    """

    address: int
    count: int
    item_bytes: int
    element: ElementType
    memory: Any  # owner of the memory: the user's array, or a contiguous copy of it
    origin: Any  # the user's array if `memory` is a copy, else None

    @property
    def nbytes(self) -> int:
        return self.count * self.item_bytes

    @property
    def on_cpu(self) -> bool:
        """True if the memory is not a GPU's."""
        return not getattr(self.memory, "is_cuda", False)

    def write_back(self) -> None:
        """Copy the content into the user's array, if this buffer is a copy of it."""
        if self.origin is None:
            return
        if isinstance(self.origin, np.ndarray):
            self.origin[...] = _as_numpy(self.memory).reshape(self.origin.shape)
        else:
            memory = self.memory
            if isinstance(memory, np.ndarray):
                memory = _torch().from_numpy(memory)
            with _torch().no_grad():
                self.origin.copy_(memory.view(self.origin.shape))

    def bytes(self) -> np.ndarray:
        """Return the memory as a flat array of bytes that shares it."""
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        memory.owner = self.memory  # type: ignore[attr-defined]  # alive while a library uses the array
        return np.frombuffer(memoryview(memory), np.uint8)

    def numpy(self) -> np.ndarray:
        """Return the memory as a flat NumPy array (bfloat16 as uint16, types that NumPy lacks as bytes)."""
        if self.element in (ElementType.OPAQUE, ElementType.COMPLEX32):
            return self.bytes()
        carrier = _CARRIERS.get(self.element) or np.dtype(self.element.label)
        return self.bytes().view(carrier)

    def torch(self) -> Any:
        """Return the memory as a flat torch tensor (types that torch lacks as bytes)."""
        torch = _torch()
        if isinstance(self.memory, torch.Tensor):
            # Not view(-1): a single element may keep a stride with which further views fail.
            return self.memory.detach().as_strided((self.count,), (1,))
        dtype = {
            ElementType.BFLOAT16: torch.bfloat16,
            ElementType.COMPLEX32: torch.complex32,
        }.get(self.element) or getattr(torch, self.element.label, torch.uint8)
        memory = self.bytes()
        flat = torch.empty(0, dtype=torch.uint8) if memory.size == 0 else torch.from_numpy(memory)
        return flat.view(dtype)


def _torch() -> Any:
    return optional.require("torch", extra="torch", purpose="a tensor")


def buffer_of(value: Any, what: str, *, writes: bool, device: str = "cpu") -> Buffer:
    """Return a buffer over an array.

    `what` names the argument in errors, `writes` is True if the call writes to it, and `device` is where the backend
    needs the memory: "cpu", or a torch device such as "cuda:0".
    """
    if type(value) is np.ndarray and device == "cpu":
        known = _PLAIN.get(value.dtype)
        if known is not None and (not writes or value.flags.writeable):
            address = address_of(value)
            if address:  # contiguous: no copy needed
                return Buffer(address, value.size, known[0], known[1], value, None)
    if isinstance(value, np.ndarray):
        return _buffer_of_numpy(value, what, writes, device)
    torch = optional.loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _buffer_of_tensor(torch, value, what, device)
    raise InvalidType(
        f"{what} must be a NumPy array or a torch tensor, not {type(value).__name__}"
        + (". Use the object collectives, such as all_gather_object" if not isinstance(value, list) else "")
    )


# The usual dtypes in native byte order: item bytes and element type.
_PLAIN: dict[np.dtype, tuple[int, ElementType]] = {
    np.dtype(element.label): (np.dtype(element.label).itemsize, element)
    for element in ElementType
    if element <= ElementType.COMPLEX128 and element is not ElementType.BFLOAT16
}


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's data; 0 if it is not C-contiguous."""
    if array_layout_is_known():
        return address_of_array(id(array))
    return int(array.ctypes.data) if array.flags.c_contiguous else 0


def _buffer_of_numpy(value: np.ndarray, what: str, writes: bool, device: str) -> Buffer:
    dtype = value.dtype
    if writes and not value.flags.writeable:
        raise InvalidArgument(
            f"{what} is read-only, and the result of this rank is written to it. Pass a writable array"
        )
    memory, origin = value, None
    if not (value.flags.c_contiguous and dtype.isnative):
        dtype = dtype.newbyteorder("=")
        memory, origin = np.ascontiguousarray(value, dtype=dtype), value
    element = element_type_of(dtype)
    if device != "cpu":
        torch = _torch()
        on_device = torch.from_numpy(memory if memory.flags.writeable else memory.copy()).to(device)
        return Buffer(
            on_device.data_ptr(),
            memory.size,
            dtype.itemsize,
            element,
            on_device,
            value if origin is None else origin,
        )
    return Buffer(address_of(memory), memory.size, dtype.itemsize, element, memory, origin)


def _buffer_of_tensor(torch: Any, value: Any, what: str, device: str) -> Buffer:
    if value.layout is not torch.strided:
        raise InvalidType(f"{what} must be a dense tensor, not one of layout {value.layout}. Use .to_dense()")
    reachable = value.is_cpu if device == "cpu" else value.device == torch.device(device)
    if reachable and value.is_contiguous() and not value.is_conj() and not value.is_neg():
        memory, origin = value, None
    else:
        memory, origin = value.detach().resolve_conj().resolve_neg().to(device).contiguous(), value
        if memory.data_ptr() == value.data_ptr() and memory.numel() > 0:  # nothing above made a copy
            memory = memory.clone(memory_format=torch.contiguous_format)
    element = _TORCH_ELEMENTS.get(value.dtype) or _torch_element(torch, value.dtype)
    return Buffer(memory.data_ptr(), memory.numel(), memory.element_size(), element, memory, origin)


_TORCH_ELEMENTS: dict[Any, ElementType] = {}


def _torch_element(torch: Any, dtype: Any) -> ElementType:
    if not _TORCH_ELEMENTS:
        for element in ElementType:
            torch_dtype = getattr(torch, element.label, None)
            if isinstance(torch_dtype, torch.dtype):
                _TORCH_ELEMENTS[torch_dtype] = element
    return _TORCH_ELEMENTS.get(dtype, ElementType.OPAQUE)


def _as_numpy(memory: Any) -> np.ndarray:
    if isinstance(memory, np.ndarray):
        return memory
    array: np.ndarray = memory.cpu().numpy()
    return array


Buffers = list[Buffer]  # `Arguments.list` hides the built-in within the class


class Arguments:
    """Argument checks for one rank of one group; `device` is where its backend needs arrays to be."""

    def __init__(self, rank: int, ranks: Sequence[int], device: str) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = tuple(ranks)
        self.device = device
        self._group_rank = {world: group for group, world in enumerate(ranks)}

    def buffer(self, value: Any, what: str, *, writes: bool) -> Buffer:
        """Return a buffer over an array argument; `what` names it in errors."""
        return buffer_of(value, what, writes=writes, device=self.device)

    def root(self, what: str, world: int | None, group: int | None) -> int:
        """Return the group rank of the root, given as a world rank or a group rank (default: world rank 0)."""
        if world is not None and group is not None:
            raise InvalidArgument(f"{what} and group_{what} are both given. Give only one")
        if group is not None:
            if not 0 <= group < self.size:
                raise InvalidArgument(f"group_{what}={group} is not a rank of this group of {self.size}")
            return int(group)
        rank = self._group_rank.get(0 if world is None else world)
        if rank is None:
            given = f"{what}={world}" if world is not None else f"{what}=0 (the default)"
            raise InvalidArgument(
                f"{given} is not a member of this group, whose world ranks are {list(self.ranks)}. Give one of them, "
                f"or group_{what}, a rank within the group"
            )
        return rank

    def peer(self, what: str, world: int | None, group: int | None) -> int:
        """Return the group rank of the other side, given as a world rank or a group rank."""
        if world is None and group is None:
            raise InvalidArgument(f"{what} (a world rank) or group_{what} must be given")
        return self.root(what, world, group)

    def check_length(self, what: str, values: Sequence[Any] | None) -> None:
        """Raise unless a list has one element per rank."""
        if values is None:
            raise InvalidArgument(f"{what} must be given on this rank")
        if not isinstance(values, (list, tuple)):
            raise InvalidType(f"{what} must be a list with one element per rank, not {type(values).__name__}")
        if len(values) != self.size:
            raise InvalidArgument(f"{what} has {len(values)} elements; the group has {self.size} ranks")

    def list(self, what: str, values: Sequence[Any], example: Buffer | None, *, writes: bool) -> Buffers:
        """Return buffers over a list with one array per rank, of the dtype of `example`."""
        self.check_length(what, values)
        buffers = []
        for value in values:
            try:
                buffers.append(buffer_of(value, "", writes=writes, device=self.device))
            except (InvalidArgument, InvalidType):
                buffer_of(value, f"{what}[{len(buffers)}]", writes=writes, device=self.device)  # raises with the name
                raise
        if example is not None:
            self.list_dtypes(what, buffers, example)
        return buffers

    def root_list(
        self, what: str, values: Sequence[Any] | None, root: int, example: Buffer, *, writes: bool
    ) -> Buffers:
        """Return buffers over a list that only the root gives; an empty list on the others."""
        if self.rank == root:
            if values is None:
                raise InvalidArgument(f"{what} must be given on the root, rank {self.ranks[root]}")
            buffers = self.list(what, values, example, writes=writes)
            if buffers[root].count != example.count:
                raise InvalidArgument(
                    f"{what}[{root}] has {buffers[root].count} elements and this rank's tensor {example.count}"
                )
            return buffers
        if values:
            raise InvalidArgument(
                f"{what} is for the root, rank {self.ranks[root]}, and this is rank {self.ranks[self.rank]}. Give None"
            )
        return []

    def list_dtypes(self, what: str, buffers: Sequence[Buffer], example: Buffer) -> None:
        """Raise unless all buffers have the dtype of `example`."""
        for index, buffer in enumerate(buffers):
            if buffer.element is not example.element or buffer.item_bytes != example.item_bytes:
                raise InvalidType(
                    f"{what}[{index}] has dtype {buffer.element.label} and the other side {example.element.label}. "
                    "Convert one of them: the dtypes must be the same"
                )

    def equal_parts(self, what: str, whole: Buffer, part: Buffer) -> Buffers:
        """Split one array into one part per rank, each like `part`."""
        self.list_dtypes(what, [whole], part)
        if whole.count != part.count * self.size:
            raise InvalidArgument(
                f"{what} has {whole.count} elements; it needs {self.size} times the {part.count} of one rank"
            )
        return [_part(whole, index * part.count, part.count) for index in range(self.size)]

    def parts(self, what: str, whole: Buffer, value: Any, splits: Sequence[int] | None) -> Buffers:
        """Split one array along its first dimension into one part per rank."""
        rows = int(value.shape[0]) if len(value.shape) else 1
        if splits is None or len(splits) == 0:
            if rows % self.size:
                raise InvalidArgument(
                    f"{what} has {rows} rows, which {self.size} ranks cannot share equally. Give split sizes"
                )
            length = whole.count // self.size
            return [_part(whole, index * length, length) for index in range(self.size)]
        splits = [int(length) for length in splits]
        self.check_length(f"{what}_split_sizes", splits)
        if sum(splits) != rows or min(splits) < 0:
            raise InvalidArgument(f"{what}_split_sizes {splits} do not add up to {rows} rows")
        row_count = whole.count // rows if rows else 0
        parts, start = [], 0
        for length in splits:
            parts.append(_part(whole, start, length * row_count))
            start += length * row_count
        return parts


def _part(whole: Buffer, start: int, count: int) -> Buffer:
    memory = whole.memory
    if not isinstance(memory, np.ndarray) and memory is not None:
        memory = whole.torch()[start : start + count]
    return Buffer(whole.address + start * whole.item_bytes, count, whole.item_bytes, whole.element, memory, None)


def reduce_op_of(op: Any) -> ReduceOp:
    """Return a ReduceOp as it is, or the one that has the name of torch's."""
    if isinstance(op, ReduceOp):
        return op
    name = getattr(op, "name", None) or str(op).rpartition(".")[2]
    try:
        return ReduceOp[name]
    except KeyError:
        raise InvalidType(f"op must be a ReduceOp ({', '.join(o.name for o in ReduceOp)}), not {op!r}") from None
