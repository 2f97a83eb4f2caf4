"""The serializer: Python values as msgpack with extensions, without pickle.

msgpack encodes numbers, text, bytes, lists and dictionaries; types that it lacks (tuples, sets, complex and large
numbers, NumPy arrays, torch tensors) are tagged extensions. Decoding them runs no code. All other types need pickle,
which runs code of the sender's choice: both sides must allow it.

Object collectives use `encode` and `decode`. Messages of the mesh and remote calls use serializers of their own, which
differ in what else they accept, and in where the elements of large arrays go.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from neuraxis.errors import NeuraxisError, NotSerializable
from neuraxis.wire import arrays
from neuraxis.wire.arrays import Take, Unreadable, is_plain_array, is_plain_tensor

__all__ = ["PAIRS", "TUPLE", "Serializer", "Unreadable", "decode", "encode"]

# The tags of the extensions. Those that other modules look for are public; tags above 100 are theirs.
TUPLE, _SET, _FROZENSET, _COMPLEX, _INTEGER, _ARRAY, _TENSOR, PAIRS, _SCALAR, _PICKLE = range(1, 11)
_ARRAY_OUT_OF_BAND, _TENSOR_OUT_OF_BAND = 11, 12
_TENSORS = frozenset({_TENSOR, _TENSOR_OUT_OF_BAND})
_INLINE = frozenset({_ARRAY, _TENSOR, _SCALAR})

_HAS_BUFFERS = b"\xc1"  # no msgpack begins with it; then the length of the msgpack, and after it the elements
_OUT_OF_BAND_BYTES = 16384  # smaller arrays are faster to copy than to describe
_TEXT = frozenset({str})
_NATIVE = frozenset({type(None), bool, int, float, str, bytes})  # types that msgpack preserves; an int may be too large
_ADVICE = (
    "Send its fields (dict, list, array, ...), or allow pickle on every rank with "
    "DistributedContext(allow_pickle=True), which lets anyone who can send to this process run code in it"
)

_READERS: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _COMPLEX: lambda parts: complex(*parts),
    _INTEGER: int,
    PAIRS: lambda pairs: {key: value for key, value in pairs},  # noqa: C416  (pairs are lists)
}

Ext = msgspec.msgpack.Ext


class Serializer:
    """Serializes values of one kind of traffic.

    Parameters
    ----------
    allow_pickle : bool
        Pickle values of other types, and unpickle them.
    structs : bool
        Encode msgspec structs as dictionaries. The receiver has to name the type that it wants.
    writable : bool
        Return writable arrays.
    advice : str
        Advice in error messages about values that cannot be serialized.

    Examples
    --------
    >>> serializer = Serializer(structs=True)
    >>> serializer.decode(serializer.encode([1, (2, {3})]))
    [1, (2, {3})]
    """

    readers = _READERS  # by tag, functions from the content of an extension to its value

    def __init__(
        self, allow_pickle: bool = False, *, structs: bool = False, writable: bool = True, advice: str = _ADVICE
    ) -> None:
        self.allow_pickle = allow_pickle
        self._structs = structs
        self._writable = writable
        self._advice = advice
        # In a struct, types that msgspec lacks (arrays, tensors, complex numbers) are encoded as elsewhere.
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._lower).encode
        self._decode = self.decoder().decode

    def encode(self, value: Any, buffers: list[Any] | None = None) -> bytes:
        """Serialize a value.

        Parameters
        ----------
        value : object
            The value.
        buffers : list, optional
            The elements of large arrays are appended to it, as buffers in order, instead of being copied.

        Raises
        ------
        NotSerializable
            The value contains an object of another type.
        """
        try:
            lowered = self._lower(value, buffers)
            try:
                return self._encode(lowered)
            except OverflowError:
                return self._encode(self._lower_integers(lowered))
        except RecursionError as error:
            raise NotSerializable("a value that is nested too deeply, or contains itself, cannot be sent") from error
        except UnicodeEncodeError as error:
            raise NotSerializable(f"text that is not valid Unicode cannot be sent: {error}") from error

    def decode(self, content: Any, take: Take | None = None) -> Any:
        """Return the value that `encode` serialized.

        Parameters
        ----------
        content : bytes-like
            The bytes, or an array of bytes.
        take : callable, optional
            Returns the next buffer of `buffers`, given its size in bytes, or raises Unreadable.

        Raises
        ------
        NotSerializable
            It contains a pickle, and that is not allowed.
        Unreadable
            It is malformed.
        """
        try:
            return self._decode(content) if take is None else self._decode_with_buffers(content, take)
        except NeuraxisError:
            raise
        except RecursionError as error:
            raise Unreadable("an object is nested too deeply") from error
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            raise Unreadable(f"an object cannot be read: {error!s:.300}") from error

    def decoder(self, type: Any = Any) -> msgspec.msgpack.Decoder[Any]:
        """Return a msgspec decoder of values of a type. It raises more types of errors than `decode`."""
        return msgspec.msgpack.Decoder(type, ext_hook=partial(self._read, None))

    def _decode_with_buffers(self, content: Any, take: Take) -> Any:
        return msgspec.msgpack.decode(content, ext_hook=partial(self._read, take))

    def lower_other(self, value: Any, buffers: list[Any] | None) -> Any:
        """Return an object of another type as plain data or an extension. Subclasses add types."""
        if self.allow_pickle:
            return Ext(_PICKLE, pickle.dumps(value))
        kind = type(value)
        raise NotSerializable(
            f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent as plain data. {self._advice}"
        )

    def read_other(self, code: int, data: memoryview) -> Any:
        """Return the value of an extension with another tag. Subclasses add tags."""
        raise Unreadable(f"it contains an unknown extension ({code}). Run the same version of neuraxis everywhere")

    def _lower(self, value: Any, buffers: list[Any] | None = None) -> Any:
        """Return a value for msgspec, with extensions for types that msgpack lacks, except integers over 64 bits."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if kind is list:
            if _NATIVE.issuperset(map(type, value)):
                return value
            return [item if type(item) in _NATIVE else self._lower(item, buffers) for item in value]
        if kind is dict:
            if not _TEXT.issuperset(map(type, value)):
                return self._nested(PAIRS, [[key, item] for key, item in value.items()], buffers)
            if _NATIVE.issuperset(map(type, value.values())):
                return value
            return {key: self._lower(item, buffers) for key, item in value.items()}
        if kind is tuple:
            return self._nested(TUPLE, list(value), buffers)
        if is_plain_array(value):
            if buffers is None or value.nbytes < _OUT_OF_BAND_BYTES:
                return Ext(_ARRAY, arrays.inline_array(value))
            return _put_out_of_band(_ARRAY_OUT_OF_BAND, arrays.describe_array(value), buffers)
        if self._structs and isinstance(value, msgspec.Struct):
            return value
        if kind is set or kind is frozenset:
            return self._nested(_SET if kind is set else _FROZENSET, list(value), buffers)
        if kind is complex:
            return self._nested(_COMPLEX, [value.real, value.imag], None)
        if isinstance(value, np.generic) and is_plain_array(array := np.asarray(value)):
            return Ext(_SCALAR, arrays.inline_array(array))
        if is_plain_tensor(value):
            if buffers is None or value.numel() * value.element_size() < _OUT_OF_BAND_BYTES:
                return Ext(_TENSOR, arrays.inline_tensor(value))
            return _put_out_of_band(_TENSOR_OUT_OF_BAND, arrays.describe_tensor(value), buffers)
        return self.lower_other(value, buffers)

    def _lower_integers(self, value: Any) -> Any:
        """Return what `_lower` returned, with extensions for integers that msgpack lacks."""
        kind = type(value)
        if kind is int:
            return value if -(2**63) <= value < 2**64 else self._nested(_INTEGER, _digits(value), None)
        if kind is list:
            return [self._lower_integers(item) for item in value]
        if kind is dict:
            return {key: self._lower_integers(item) for key, item in value.items()}
        return value

    def _nested(self, code: int, content: Any, buffers: list[Any] | None) -> msgspec.msgpack.Ext:
        return Ext(code, self.encode(content, buffers))

    def _read(self, take: Take | None, code: int, data: memoryview) -> Any:
        """Return the value of an extension."""
        if code in _INLINE:
            value = arrays.read_inline(data, tensor=code in _TENSORS, writable=self._writable)
            if code != _SCALAR:
                return value
            if value.shape:
                raise Unreadable("it contains a scalar that has a shape")
            return value[()]
        if (reader := self.readers.get(code)) is not None:
            return reader(self._decode(data) if take is None else self._decode_with_buffers(data, take))
        if code in (_ARRAY_OUT_OF_BAND, _TENSOR_OUT_OF_BAND):
            if take is None:
                raise Unreadable("the elements of an array are missing")
            return arrays.read_described(data, take, tensor=code in _TENSORS, writable=self._writable)
        if code != _PICKLE:
            return self.read_other(code, data)
        if not self.allow_pickle:
            raise NotSerializable("a pickled object was received, and pickle is not allowed here")
        return pickle.loads(data)


def encode(value: Any, allow_pickle: bool = False) -> bytes:
    """Serialize a value for other ranks.

    Parameters
    ----------
    value : object
        Plain data, NumPy arrays and torch tensors, nested in containers.
    allow_pickle : bool
        Pickle values of other types.

    Raises
    ------
    NotSerializable
        The value contains an object of another type.

    Examples
    --------
    >>> decode(encode({"shape": (2, 3), "sum": 1 + 2j}))
    {'shape': (2, 3), 'sum': (1+2j)}
    """
    buffers: list[Any] = []
    content = _SERIALIZERS[allow_pickle].encode(value, buffers)
    return b"".join((_HAS_BUFFERS, len(content).to_bytes(8, "little"), content, *buffers)) if buffers else content


def decode(content: Any, allow_pickle: bool = False) -> Any:
    """Return the value that `encode` serialized. Arrays are writable. See `Serializer.decode` for the errors."""
    view = memoryview(content).toreadonly()
    if view[:1] != _HAS_BUFFERS:
        return _SERIALIZERS[allow_pickle].decode(view)
    end = 9 + int.from_bytes(view[1:9], "little")
    return _SERIALIZERS[allow_pickle].decode(view[9:end], arrays.take_from(view, end))


_SERIALIZERS = {allowed: Serializer(allowed) for allowed in (False, True)}


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError as error:
        raise NotSerializable(f"an integer cannot be sent: {error}") from error


def _put_out_of_band(code: int, described: tuple[bytes, memoryview], buffers: list[Any]) -> msgspec.msgpack.Ext:
    description, elements = described
    buffers.append(elements)
    return Ext(code, description)
