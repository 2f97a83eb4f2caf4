"""Arguments and results as bytes, without pickle and with large arrays beside the rest instead of within it.

After the head (see `messages`) a frame has a table of the arrays that lie beside, the value in msgpack, and the arrays'
bytes, each at a multiple of 64. So an array is copied once, into the frame, and is read where it lies. What msgpack
lacks travels as `comm.objects` writes it. Whatever is wrong with a frame that comes is an `Unreadable`, or a
NotSerializable where it holds a pickle and that is not allowed.

Whoever is sent a handle is counted as a holder when the frame is ready to be sent, and not before; who gets a frame and
does not read it discards it, and so lets go of what its handles stand for.
"""

from __future__ import annotations

import logging
import pickle
import struct
import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from neuraxis.comm import objects
from neuraxis.comm.objects import Shape, Unreadable
from neuraxis.errors import NotSerializable
from neuraxis.rpc.frames import ALIGNMENT, Frame
from neuraxis.rpc.messages import Head, pack_head
from neuraxis.rpc.transport import Party

__all__ = ["HandleData", "HandleKeeper", "TooLarge", "Values"]

_log = logging.getLogger("neuraxis.rpc")
_BESIDE_BYTES = 16384  # arrays from this size on lie beside: a smaller one is sooner copied than described
_BESIDE, _HANDLE = 101, 102  # extensions of msgpack, beyond those of comm.objects
_INDEX = struct.Struct("<I")

_encode = msgspec.msgpack.Encoder().encode

_NATIVE = frozenset({type(None), bool, float, str, bytes})


class _Array(msgspec.Struct, array_like=True):
    """An array beside the value: whether it is torch's, its element type, shape and bytes."""

    is_tensor: bool
    element: Any
    shape: Shape
    nbytes: Annotated[int, msgspec.Meta(ge=0)]


_TABLE = msgspec.msgpack.Decoder(list[_Array])


class HandleData(msgspec.Struct, array_like=True):
    """A handle on its way: whose object it stands for, by name and life, its number there, and what it is called."""

    owner: str
    life: int
    number: int
    kind: str


_HANDLE_DATA = msgspec.msgpack.Decoder(HandleData)


class HandleKeeper(Protocol):
    """Who knows about handles."""

    handle_type: type

    def describe(self, handle: Any) -> HandleData:
        """A handle as plain data."""

    def hold_for(self, handles: Sequence[Any], party: Party) -> None:
        """Count a party as a holder of all these, or of none."""

    def adopt(self, data: HandleData) -> Any:
        """The handle of such data, by which this process, which was counted before, holds the object."""

    def disown(self, handle: Any) -> None:
        """Such a handle holds nothing any more."""

    def let_go(self, data: HandleData) -> None:
        """This process was counted as a holder, and does not want to be one."""


class TooLarge(ValueError):
    """A frame has more bytes than can be sent."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"{nbytes:,} bytes")


class _Mine(threading.local):
    adopted: list[Any]


class Values:
    """Writes and reads frames for one context. `me` and `largest` are set when they are known."""

    def __init__(self, allow_pickle: bool, handles: HandleKeeper) -> None:
        self.me = Party("", 0)
        self.largest = 2**62  # bytes that a frame can have
        self.allow_pickle = allow_pickle
        self._handles = handles
        self._mine = _Mine()
        self._plain_decoder = msgspec.msgpack.Decoder(ext_hook=partial(self._extension, ()))
        self._handle_finder = msgspec.msgpack.Decoder(ext_hook=self._let_go_within)

    # --- to write ---------------------------------------------------------------------------------------------

    def encode(
        self,
        kind: int,
        lane: int,
        number: int,
        settled: int,
        value: Any,
        to: Party,
        still_open: Sequence[int] = (),
    ) -> Frame:
        """A frame for a party, which holds from now on what the handles in it stand for.

        NotSerializable where the value cannot travel, TooLarge where there is too much of it. The rest is explained at
        `Head`.
        """
        arrays: list[Any] = []
        handles: list[Any] = []
        try:
            body = _encode(self._lower(value, arrays, handles))
        except RecursionError as error:
            raise NotSerializable("a value that is nested too deeply, or holds itself, cannot be sent") from error
        except UnicodeEncodeError as error:
            raise NotSerializable(f"text that is not valid Unicode cannot be sent: {error}") from error
        if not arrays:
            frame = Frame(pack_head(kind, lane, number, settled, to.life, self.me, 0, len(body), still_open) + body)
        else:
            table = msgspec.msgpack.encode([entry for entry, _ in arrays])
            head = pack_head(kind, lane, number, settled, to.life, self.me, len(table), len(body), still_open)
            frame = Frame(head + table + body, [content for _, content in arrays])
        if frame.size > self.largest:
            raise TooLarge(frame.size)
        if handles:
            self._handles.hold_for(handles, to)
        return frame

    def _lower(self, value: Any, arrays: list[Any], handles: list[Any]) -> Any:
        """What msgspec is to encode; arrays that lie beside, and handles, are added to these lists."""
        kind = type(value)
        if kind in _NATIVE or (kind is int and -(2**63) <= value < 2**64):
            return value
        if kind is list:
            return [item if type(item) in _NATIVE else self._lower(item, arrays, handles) for item in value]
        if kind is dict:
            if not value:
                return value
            if all(type(key) is str for key in value):
                return {key: self._lower(item, arrays, handles) for key, item in value.items()}
            return self._within(objects.PAIRS, [[key, item] for key, item in value.items()], arrays, handles)
        if kind is tuple:
            return self._within(objects.TUPLE, list(value), arrays, handles)
        if objects.is_plain_array(value):
            if value.nbytes < _BESIDE_BYTES:
                return objects.array_parts(value)
            content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            return _beside(_Array(False, objects.describe(value.dtype), value.shape, value.nbytes), content, arrays)
        if objects.is_plain_tensor(value) and value.numel() * value.element_size() >= _BESIDE_BYTES:
            content = memoryview(objects.tensor_elements(value))
            return _beside(_Array(True, objects.tensor_type(value), tuple(value.shape), len(content)), content, arrays)
        if isinstance(value, self._handles.handle_type):
            handles.append(value)
            return msgspec.msgpack.Ext(_HANDLE, msgspec.msgpack.encode(self._handles.describe(value)))
        try:
            return msgspec.Raw(objects.encode(value, self.allow_pickle))
        except NotSerializable as error:
            raise NotSerializable(
                f"{str(error).partition('. ')[0]}. Send its fields (a dict, a list, an array, ...), keep the object "
                "where it is and hold it with remote_object, or allow pickle on both sides with "
                "RpcContext(allow_pickle=True): then whoever can call this process can run code in it"
            ) from None

    def _within(self, code: int, items: list[Any], arrays: list[Any], handles: list[Any]) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(self._lower(items, arrays, handles)))

    # --- to read ----------------------------------------------------------------------------------------------

    def decode(self, frame: Any, head: Head) -> Any:
        """The value of a frame that nobody else uses. Arrays and tensors can be written."""
        adopted = self._mine.adopted = []
        try:
            small = _small_part(frame)
            if head.table == head.body:
                return self._plain_decoder.decode(small[head.body : head.end])
            arrays = _read_arrays(frame, _TABLE.decode(small[head.table : head.body]), head.end)
            return self._decoder(arrays).decode(small[head.body : head.end])
        except BaseException as error:
            # Not all of its handles may have been come upon: let go of each, and that once.
            for handle in adopted:
                self._handles.disown(handle)
            self.discard(frame, head)
            if isinstance(error, NotSerializable | Unreadable) or not isinstance(error, Exception):
                raise
            if isinstance(error, RecursionError):
                raise Unreadable("a frame is nested too deeply") from error
            raise Unreadable(f"a frame cannot be read: {error!s:.300}") from error
        finally:
            if adopted:
                self._mine.adopted = []  # which would hold them as long as this thread lives

    def discard(self, frame: Any, head: Head) -> None:
        """Let go of what the handles in a frame stand for, which is not read."""
        try:
            self._handle_finder.decode(_small_part(frame)[head.body : head.end])
        except Exception as error:
            _log.debug("rpc: a frame that is not wanted cannot be read: %s", error)

    def _let_go_within(self, code: int, data: memoryview) -> None:
        if code == _HANDLE:
            self._handles.let_go(_HANDLE_DATA.decode(data))
        elif code in (objects.TUPLE, objects.PAIRS):
            self._handle_finder.decode(data)

    def _decoder(self, arrays: list[Any]) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(ext_hook=partial(self._extension, arrays))

    def _extension(self, arrays: Any, code: int, data: memoryview) -> Any:
        if code == objects.ARRAY:
            return objects.read_array(data, writable=True)
        if code == _BESIDE:
            return arrays[_INDEX.unpack(data)[0]]
        if code == _HANDLE:
            handle = self._handles.adopt(_HANDLE_DATA.decode(data))
            self._mine.adopted.append(handle)
            return handle
        if code == objects.PICKLE:
            if not self.allow_pickle:
                raise NotSerializable("a pickled object was received, and pickle is not allowed here")
            return pickle.loads(data)
        decoder = self._decoder(arrays) if arrays else self._plain_decoder
        return objects.read_extension(code, data, decoder.decode, writable=True)


def _small_part(frame: Any) -> memoryview:
    return memoryview(frame.start if frame.__class__ is Frame else frame)


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
