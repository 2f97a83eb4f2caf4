"""Arguments and results as frames: `wire.objects` serializes them, with the elements of large arrays out of band.

After the head (see `messages`) a frame has the value, and the elements of its large arrays in order, each aligned to
64 bytes. So an array is copied once, into the frame, and decoded without a copy. A malformed frame raises `Unreadable`,
or NotSerializable if it contains a pickle and that is not allowed.

The receiver of a handle gets its reference when the frame is complete, and not before. A receiver that does not decode
a frame has to discard it, which releases the references in it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from neuraxis.errors import NotSerializable
from neuraxis.rpc.frames import ALIGNMENT, Frame
from neuraxis.rpc.messages import Head, pack_head
from neuraxis.rpc.transport import Endpoint
from neuraxis.wire.arrays import Take, take_from
from neuraxis.wire.objects import PAIRS, TUPLE, Serializer, Unreadable

__all__ = ["HandleData", "ReferenceCounter", "TooLarge", "Values"]

_log = logging.getLogger("neuraxis.rpc")
_HANDLE = 101  # msgpack extension, in addition to those of wire.objects
_ADVICE = (
    "Send its fields (a dict, a list, an array, ...), keep the object in its process and refer to it with "
    "remote_object, or allow pickle on both sides with RpcContext(allow_pickle=True), which lets anyone who can call "
    "this process run code in it"
)


class HandleData(msgspec.Struct, array_like=True):
    """A serialized handle: the owner's name and incarnation, the number of the object, and its kind."""

    owner: str
    incarnation: int
    number: int
    kind: str


_HANDLE_DATA = msgspec.msgpack.Decoder(HandleData)


class ReferenceCounter(Protocol):
    """Reference counting of the objects that handles refer to."""

    handle_type: type

    def describe(self, handle: Any) -> HandleData:
        """Return a handle as plain data."""

    def retain_for(self, handles: Sequence[Any], endpoint: Endpoint) -> None:
        """Add a reference for an endpoint to all these objects, or to none."""

    def adopt(self, data: HandleData) -> Any:
        """Return a handle that takes over the reference that the sender has added for this process."""

    def detach(self, handle: Any) -> None:
        """Disable the finalizer of a handle, so that it releases no reference."""

    def release(self, data: HandleData) -> None:
        """Release the reference that the sender has added for this process."""


class TooLarge(ValueError):
    """A frame exceeds the maximum size of a message."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"{nbytes:,} bytes")


class _ThreadState(threading.local):
    adopted: list[Any]


class _Buffers(list[Any]):
    """The elements of large arrays of a value, and its handles."""

    handles: tuple[Any, ...] = ()


class _ValueSerializer(Serializer):
    """The serializer of one context; values may contain handles."""

    def __init__(self, allow_pickle: bool, handles: ReferenceCounter) -> None:
        super().__init__(allow_pickle, advice=_ADVICE)
        self._handles = handles
        self.thread_state = _ThreadState()

    def lower_other(self, value: Any, buffers: Any) -> Any:
        if not isinstance(value, self._handles.handle_type):
            return super().lower_other(value, buffers)
        buffers.handles += (value,)
        return msgspec.msgpack.Ext(_HANDLE, msgspec.msgpack.encode(self._handles.describe(value)))

    def read_other(self, code: int, data: memoryview) -> Any:
        if code != _HANDLE:
            return super().read_other(code, data)
        handle = self._handles.adopt(_HANDLE_DATA.decode(data))
        self.thread_state.adopted.append(handle)
        return handle


class Values:
    """Encodes and decodes frames for one context. `me` and `largest` are set during initialization."""

    def __init__(self, allow_pickle: bool, handles: ReferenceCounter) -> None:
        self.me = Endpoint("", 0)
        self.largest = 2**62  # maximum size of a frame in bytes
        self._handles = handles
        self._serializer = _ValueSerializer(allow_pickle, handles)
        self._handle_finder = msgspec.msgpack.Decoder(ext_hook=self._release_within)

    def encode(
        self,
        kind: int,
        channel: int,
        number: int,
        settled: int,
        value: Any,
        to: Endpoint,
        still_open: Sequence[int] = (),
    ) -> Frame:
        """Return a frame for an endpoint, and add a reference for it to each handle in the value.

        Raises NotSerializable or TooLarge. See `Head` for the other parameters.
        """
        buffers = _Buffers()
        body = self._serializer.encode(value, buffers)
        head = pack_head(kind, channel, number, settled, to.incarnation, self.me, len(body), still_open)
        frame = Frame(head + body, buffers)
        if frame.size > self.largest:
            raise TooLarge(frame.size)
        if buffers.handles:
            self._handles.retain_for(buffers.handles, to)
        return frame

    def decode(self, frame: Any, head: Head) -> Any:
        """Return the value of a frame without other users. Arrays and tensors are writable."""
        adopted = self._serializer.thread_state.adopted = []
        try:
            take = _taker(frame, head.end)
            return self._serializer.decode(_small_part(frame)[head.body : head.end], take)
        except BaseException as error:
            for handle in adopted:
                self._handles.detach(handle)
            self.discard(frame, head)  # some handles may not have been decoded: release each reference once
            if isinstance(error, NotSerializable | Unreadable) or not isinstance(error, Exception):
                raise
            raise Unreadable(f"the frame cannot be decoded: {error!s:.300}") from error
        finally:
            if adopted:
                self._serializer.thread_state.adopted = []  # otherwise they would live as long as this thread

    def discard(self, frame: Any, head: Head) -> None:
        """Release the references in a frame that is not decoded."""
        try:
            self._handle_finder.decode(_small_part(frame)[head.body : head.end])
        except Exception as error:
            _log.debug("rpc: a discarded frame cannot be decoded: %s", error)

    def _release_within(self, code: int, data: memoryview) -> None:
        if code == _HANDLE:
            self._handles.release(_HANDLE_DATA.decode(data))
        elif code in (TUPLE, PAIRS):
            self._handle_finder.decode(data)


def _small_part(frame: Any) -> memoryview:
    return memoryview(frame.start if frame.__class__ is Frame else frame)


def _taker(frame: Any, start: int) -> Take | None:
    """Return a function that returns the elements of the next array; None if the frame has none from `start` on."""
    if frame.__class__ is Frame:  # in shared memory
        pieces = iter([piece.data for _, piece in frame.pieces])

        def take(nbytes: int) -> Any:
            piece = next(pieces, None)
            if piece is None:
                raise Unreadable("the frame has fewer arrays than its value refers to")
            return piece

        return take
    if len(frame) <= start:
        return None
    return take_from(_writable(frame), start, ALIGNMENT)


class _Memory:
    """The memory of a bytes object as a writable array.

    Bytes are immutable because they may be shared; those of a received frame have no other user. Copying them would
    take a good part of the time of a call with a large array.
    """

    def __init__(self, owner: bytes) -> None:
        self._owner = owner  # keeps the memory alive for views of it
        address = id(owner) + bytes.__basicsize__ - 1
        self.__array_interface__ = {"data": (address, False), "shape": (len(owner),), "typestr": "|u1", "version": 3}


def _writable(frame: Any) -> memoryview:
    """Return the writable memory of a frame without other users."""
    array = np.asarray(_Memory(frame)) if frame.__class__ is bytes else np.asarray(frame)
    return array.data
