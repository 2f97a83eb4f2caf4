"""Arguments and results as bytes, without pickle and with large arrays beside the rest instead of within it.

After the head (see `messages`) a frame has a table of the arrays that lie beside, the value in msgpack, and the arrays'
bytes, each at a multiple of 64. So an array is copied once, into the frame, and is read where it lies. What msgpack
lacks travels as `comm.objects` writes it. Whatever is wrong with a frame that comes is an `Unreadable`, or a
NotSerializable where it holds a pickle and that is not allowed.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np

from neuraxis.comm import objects
from neuraxis.comm.objects import Shape, Unreadable
from neuraxis.errors import NotSerializable
from neuraxis.rpc.frames import ALIGNMENT, Frame
from neuraxis.rpc.messages import Head, pack_head
from neuraxis.rpc.transport import Party

__all__ = ["Values"]

_BESIDE_BYTES = 16384  # arrays from this size on lie beside: a smaller one is sooner copied than described
_BESIDE, _HANDLE = 101, 102  # extensions of msgpack, beyond those of comm.objects
_INDEX = struct.Struct("<I")

_NATIVE = frozenset({type(None), bool, float, str, bytes})


class _Array(msgspec.Struct, array_like=True):
    """An array beside the value: whether it is torch's, its element type, shape and bytes."""

    is_tensor: bool
    element: Any
    shape: Shape
    nbytes: Annotated[int, msgspec.Meta(ge=0)]


_TABLE = msgspec.msgpack.Decoder(list[_Array])


class Values:
    """Writes and reads frames for one context.

    Args:
        handle_type: the class of handles to remote objects.
        export: a handle as plain data, for the party that the frame is written to.
        adopt: the handle of such data.
    """

    def __init__(
        self,
        allow_pickle: bool,
        handle_type: type,
        export: Callable[[Any, Party], Any],
        adopt: Callable[[Any], Any],
    ) -> None:
        self.me = Party("", 0)  # set when it is known
        self.allow_pickle = allow_pickle
        self._handle_type = handle_type
        self._export = export
        self._adopt = adopt
        self._plain_decoder = msgspec.msgpack.Decoder(ext_hook=lambda code, data: self._extension(code, data, ()))

    # --- to write ---------------------------------------------------------------------------------------------

    def encode(self, kind: int, lane: int, number: int, settled: int, value: Any, to: Party) -> Frame:
        """A frame for a party; NotSerializable where the value cannot travel. The rest is explained at `Head`."""
        arrays: list[Any] = []
        try:
            body = msgspec.msgpack.encode(self._lower(value, to, arrays))
        except RecursionError as error:
            raise NotSerializable("a value that is nested too deeply, or holds itself, cannot be sent") from error
        except UnicodeEncodeError as error:
            raise NotSerializable(f"text that is not valid Unicode cannot be sent: {error}") from error
        if not arrays:
            return Frame(pack_head(kind, lane, number, settled, to.life, self.me, 0, len(body)) + body)
        table = msgspec.msgpack.encode([entry for entry, _ in arrays])
        head = pack_head(kind, lane, number, settled, to.life, self.me, len(table), len(body))
        return Frame(head + table + body, [content for _, content in arrays])

    def _lower(self, value: Any, to: Party, arrays: list[Any]) -> Any:
        """What msgspec is to encode; arrays that lie beside are added to `arrays`."""
        kind = type(value)
        if kind in _NATIVE or (kind is int and -(2**63) <= value < 2**64):
            return value
        if kind is list:
            return [self._lower(item, to, arrays) for item in value]
        if kind is dict:
            if all(type(key) is str for key in value):
                return {key: self._lower(item, to, arrays) for key, item in value.items()}
            return self._within(objects.PAIRS, [[key, item] for key, item in value.items()], to, arrays)
        if kind is tuple:
            return self._within(objects.TUPLE, list(value), to, arrays)
        if objects.is_plain_array(value) and value.nbytes >= _BESIDE_BYTES:
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            return _beside(_Array(False, objects.describe(value.dtype), value.shape, value.nbytes), content, arrays)
        if objects.is_plain_tensor(value) and value.numel() * value.element_size() >= _BESIDE_BYTES:
            content = memoryview(objects.tensor_elements(value))
            return _beside(_Array(True, objects.tensor_type(value), tuple(value.shape), len(content)), content, arrays)
        if isinstance(value, self._handle_type):
            return msgspec.msgpack.Ext(_HANDLE, msgspec.msgpack.encode(self._export(value, to)))
        try:
            return msgspec.Raw(objects.encode(value, self.allow_pickle))
        except NotSerializable as error:
            raise NotSerializable(
                f"{str(error).partition('. ')[0]}. Send its fields (a dict, a list, an array, ...), keep the object "
                "where it is and hold it with remote_object, or allow pickle on both sides with "
                "RpcContext(allow_pickle=True): then whoever can call this process can run code in it"
            ) from None

    def _within(self, code: int, items: list[Any], to: Party, arrays: list[Any]) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(self._lower(items, to, arrays)))

    # --- to read ----------------------------------------------------------------------------------------------

    def decode(self, frame: Any, head: Head) -> Any:
        """The value of a frame that nobody else uses. Arrays and tensors can be written."""
        try:
            view = memoryview(frame.start if frame.__class__ is Frame else frame)
            if head.table == head.body:
                return self._plain_decoder.decode(view[head.body : head.end])
            arrays = _read_arrays(frame, _TABLE.decode(view[head.table : head.body]), head.end)
            return self._decoder(arrays).decode(view[head.body : head.end])
        except (NotSerializable, Unreadable):
            raise
        except RecursionError as error:
            raise Unreadable("a frame is nested too deeply") from error
        except Exception as error:
            raise Unreadable(f"a frame cannot be read: {error!s:.300}") from error

    def _decoder(self, arrays: list[Any]) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(ext_hook=lambda code, data: self._extension(code, data, arrays))

    def _extension(self, code: int, data: memoryview, arrays: Any) -> Any:
        if code == _BESIDE:
            return arrays[_INDEX.unpack(data)[0]]
        if code == _HANDLE:
            return self._adopt(msgspec.msgpack.decode(data))
        if code == objects.PICKLE:
            if not self.allow_pickle:
                raise NotSerializable("a pickled object was received, and pickle is not allowed here")
            return pickle.loads(data)
        decoder = self._decoder(arrays) if arrays else self._plain_decoder
        return objects.read_extension(code, data, decoder.decode, writable=True)


def _beside(entry: _Array, content: Any, arrays: list[Any]) -> msgspec.msgpack.Ext:
    arrays.append((entry, content))
    return msgspec.msgpack.Ext(_BESIDE, _INDEX.pack(len(arrays) - 1))


def _read_arrays(frame: Any, table: list[_Array], start: int) -> list[Any]:
    """The arrays that lie beside, from `start` on, or came apart: views of what came."""
    apart = [piece.data for _, piece in frame.pieces] if frame.__class__ is Frame else []
    view = None if apart else _writable(frame)
    arrays = []
    for index, entry in enumerate(table):
        start += -start % ALIGNMENT
        end = start + entry.nbytes
        content = apart[index] if view is None else view[start:end]
        if entry.is_tensor:
            arrays.append(objects.tensor_of(entry.element, entry.shape, content))
        else:
            array = objects.array_of(entry.element, entry.shape, content)
            arrays.append(array if array.flags.aligned else array.copy())
        start = end
    return arrays


class _Memory:
    """The memory of bytes, as an array that can be written.

    Bytes are not to be changed because others may have them, too; nobody has those that were made for a frame. To copy
    them instead would take a good part of the time of a call with a large array.
    """

    def __init__(self, owner: bytes) -> None:
        self._owner = owner  # lives as long as a view of it
        address = id(owner) + bytes.__basicsize__ - 1
        self.__array_interface__ = {"data": (address, False), "shape": (len(owner),), "typestr": "|u1", "version": 3}


def _writable(frame: Any) -> memoryview:
    """The memory of a frame that nobody else uses, to be written."""
    array = np.asarray(_Memory(frame)) if frame.__class__ is bytes else np.asarray(frame)
    return array.data
