"""Values as messages: bytes, and the Zenoh encoding that says what they are.

| encoding | what travels |
|---|---|
| `application/msgpack` | the default: plain data, msgspec structs, and containers of those with arrays in them |
| `application/x-neuraxis-array`, `application/x-neuraxis-tensor` | one NumPy array or torch tensor |
| `application/protobuf;<full name>` | one Protobuf message |
| `application/json`, `zenoh/bytes` | what every Zenoh program can read |
| `application/python-serialized-object` | pickle, only where both sides allowed it by name |

An array or tensor is a frame: the length of its header (4 bytes, little endian), the header (msgpack of dtype, shape
and order, "C" or "F"), zeros up to a multiple of 64 bytes, the elements. So an array is read where it lies.

What comes from the network is never trusted: sizes are compared with what really came before anything is made of
them, element types come from a closed list, and whatever else goes wrong in a reader is an `Undecodable`.
"""

from __future__ import annotations

import math
import pickle
import sys
import typing
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from neuraxis.comm import objects
from neuraxis.errors import InvalidArgument, NeuraxisError, NotSerializable

__all__ = ["Undecodable", "decode", "encode"]

_BYTES = "zenoh/bytes"
_MSGPACK = "application/msgpack"
_JSON = "application/json"
_ARRAY = "application/x-neuraxis-array"
_TENSOR = "application/x-neuraxis-tensor"
_PROTOBUF = "application/protobuf"
_PICKLE = "application/python-serialized-object"

_ALIGNMENT = 64
_MOST_DIMENSIONS = 64  # NumPy's limit
_LARGE = 1 << 16  # bytes from which a saved copy is worth the detour

# Quantized and packed types are missing on purpose: made from bytes alone they crash torch when they are used.
_TENSOR_TYPES = frozenset(
    {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
    | {"float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"}
    | {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
)


class Undecodable(NeuraxisError, ValueError):
    """A message is not what its encoding says, or not what was asked for.

    Attributes:
        encoding: the encoding that it came with.
        reason: what is wrong with it; where a field is wrong, with the field's path.
    """

    def __init__(self, encoding: str, reason: str) -> None:
        self.encoding = encoding
        self.reason = reason
        super().__init__(f"a message of encoding {_short(encoding)!r} cannot be decoded: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return (Undecodable, (self.encoding, self.reason))


def encode(value: Any, codec: str | None = None, *, allow_pickle: bool = False) -> tuple[bytes, str]:
    """`value` as bytes, and their encoding.

    Without `codec` the value decides: bytes stay bytes; an array, a tensor and a Protobuf message have encodings of
    their own; everything else is msgpack. There tuples, sets and large numbers come back as what they were; within a
    struct, what its fields' types say. A CUDA tensor is copied to the host. Titles of a record's fields do not travel.

    Args:
        codec: "msgpack", "json", "array", "tensor", "protobuf", "bytes" or "pickle".
        allow_pickle: whether what is no plain data may be pickled. Who decodes must allow it too.

    Raises:
        NotSerializable: the value cannot travel in this way.
    """
    try:
        if codec is not None:
            return _codec(codec)(value, allow_pickle)
        return _codec_for(value)(value, allow_pickle)
    except (NeuraxisError, MemoryError):
        raise
    except RecursionError as error:
        raise NotSerializable("a value that is nested too deeply, or holds itself, cannot be sent") from error
    except Exception as error:
        raise NotSerializable(f"an object of type {_name(type(value))} cannot be sent: {error}") from error


def decode(payload: bytes | memoryview, encoding: str, *, type: Any = None, allow_pickle: bool = False) -> Any:
    """What `encode` was given, or what another Zenoh program sent.

    Arrays are read-only: views of `payload`, which they keep alive; copies only where its memory is not aligned for
    them or where they lie within msgpack. Tensors are copies and writable.

    Args:
        payload: the bytes. They must not change while an array that views them is in use.
        encoding: as Zenoh tells it, parameters included ("text/plain;utf-8").
        type: what the value must be: a msgspec struct or any other type that msgspec knows, a Protobuf class, an
            array or tensor class. `bytes` also takes what has an encoding that is not known here.
        allow_pickle: whether pickle is read. Whoever can send to this process can then run code in it.

    Raises:
        Undecodable: and nothing else, whatever the payload, the encoding and the type.
    """
    try:
        if payload.__class__ is not bytes:
            payload = _read_only(payload)
        wanted = None if type is Any else type
        reader = _READERS.get(encoding)
        if reader is not None:
            return reader(payload, "", wanted, allow_pickle)
        name, _, schema = encoding.partition(";")
        reader = _READERS.get(name.strip().lower())
        if reader is not None:
            return reader(payload, schema.strip(), wanted, allow_pickle)
        if wanted is bytes:
            return bytes(payload)
        raise ValueError("the encoding is not known here; with type=bytes its content comes as it is")
    except RecursionError as error:
        raise Undecodable(str(encoding), "it is nested too deeply") from error
    except Exception as error:
        # The readers below speak in ValueErrors; of what others raise, the name is half of what it says.
        source = "" if isinstance(error, (ValueError, msgspec.MsgspecError)) else f"{error.__class__.__qualname__}: "
        raise Undecodable(str(encoding), _short(f"{source}{error}", 500)) from error


# --- plain data -----------------------------------------------------------------------------------------


# What msgpack itself gives back as it was, and msgspec encodes without a walk in Python.
_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_TEXT = frozenset({str})
_PLAIN = _NATIVE | {dict, list, tuple, set, frozenset}  # asked first, to keep the way of small messages short
_BYTES_LIKE = frozenset({bytes, bytearray, memoryview})


def _encode_msgpack(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    encoder = _MSGPACK_ENCODERS[allow_pickle]
    if _is_native(value):
        try:
            return encoder.encode(value), _MSGPACK
        except OverflowError:
            pass  # a number of more than 64 bits
    return encoder.encode(_lower(value, allow_pickle)), _MSGPACK


def _is_native(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        if not _TEXT.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list:
        return kind in _NATIVE or isinstance(value, msgspec.Struct)
    return _NATIVE.issuperset(map(type, value)) or all(map(_is_native, value))


def _lower(value: Any, allow_pickle: bool) -> Any:
    """What msgspec is to encode: the same, with the extensions of comm.objects where msgpack lacks a type."""
    kind = type(value)
    if kind is list:
        return [_lower(item, allow_pickle) for item in value]
    if kind is dict and _TEXT.issuperset(map(type, value)):
        return {key: _lower(item, allow_pickle) for key, item in value.items()}
    if kind is tuple:
        return msgspec.msgpack.Ext(objects._TUPLE, _encode_msgpack(list(value), allow_pickle)[0])
    if kind is dict:
        pairs = [[key, item] for key, item in value.items()]
        return msgspec.msgpack.Ext(objects._PAIRS, _encode_msgpack(pairs, allow_pickle)[0])
    if isinstance(value, msgspec.Struct) or (kind in _NATIVE and kind is not int):
        return value
    return msgspec.Raw(_pack(value, allow_pickle))


def _pack(value: Any, allow_pickle: bool) -> bytes:
    try:
        return objects.encode(value, allow_pickle)
    except NotSerializable as error:
        raise NotSerializable(
            f"{str(error).partition('. ')[0]}. Send its fields (a dict, a msgspec.Struct, an array, ...), or allow "
            "pickle with allow_pickle=True where it is sent and where it is received: then whoever can send to the "
            "receiver can run code in it"
        ) from error


def _pack_raw(allow_pickle: bool, value: Any) -> msgspec.Raw:
    return msgspec.Raw(_pack(value, allow_pickle))


# Within a struct, what msgspec does not know (arrays, tensors, complex numbers) travels as it does outside one.
_MSGPACK_ENCODERS = {
    allowed: msgspec.msgpack.Encoder(enc_hook=partial(_pack_raw, allowed)) for allowed in (False, True)
}


def _decode_msgpack(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    if wanted is None:
        return _msgpack_decoder(None, allow_pickle).decode(payload)
    try:
        return _msgpack_decoder(wanted, allow_pickle).decode(payload)
    except msgspec.ValidationError:
        # A tuple or a set that was sent as one is an extension of msgpack, which no typed decoder takes for an array.
        return msgspec.convert(_msgpack_decoder(None, allow_pickle).decode(payload), wanted)


@lru_cache(maxsize=256)
def _msgpack_decoder(wanted: Any, allow_pickle: bool) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(Any if wanted is None else wanted, ext_hook=partial(_extension, allow_pickle))


def _extension(allow_pickle: bool, code: int, data: memoryview) -> Any:
    if code == objects._PICKLE:
        return _decode_pickle(data, "", None, allow_pickle)
    reader = _EXTENSIONS.get(code)
    if reader is None:
        raise ValueError(f"it holds an unknown extension ({code}): is another version of neuraxis at work?")
    return reader(_msgpack_decoder(None, allow_pickle).decode(data))


def _encode_json(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    return _JSON_ENCODER.encode(value), _JSON


def _not_in_json(value: Any) -> Any:
    raise NotSerializable(f"an object of type {_name(type(value))} has no form in JSON: send its tolist(), or msgpack")


_JSON_ENCODER = msgspec.json.Encoder(enc_hook=_not_in_json)


def _decode_json(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _json_decoder(wanted).decode(payload)


@lru_cache(maxsize=256)
def _json_decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Any if wanted is None else wanted)


# --- bytes and text -------------------------------------------------------------------------------------


def _encode_bytes(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise NotSerializable(f"an object of type {_name(type(value))} is not bytes")
    return bytes(value), _BYTES


def _decode_bytes(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(bytes(payload), wanted)


def _decode_text(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(str(payload, "utf-8"), wanted)


def _checked(value: Any, wanted: Any) -> Any:
    if wanted is None or isinstance(value, typing.get_origin(wanted) or wanted):
        return value
    raise ValueError(f"it holds {_name(type(value))}, not {getattr(wanted, '__qualname__', wanted)}")


# --- arrays and tensors ---------------------------------------------------------------------------------


def _is_plain_array(value: Any) -> bool:
    # Subclasses hold more than their data (a mask, units); elements of no size would let a header claim any number.
    return type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject and value.dtype.itemsize > 0


def _encode_array(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not _is_plain_array(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not an array of numbers, text or records")
    flags = value.flags
    order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    header = _array_header(value.dtype, value.shape, order)
    if value.nbytes < _LARGE or not (flags.c_contiguous or flags.f_contiguous):
        return header + value.tobytes(order), _ARRAY
    return b"".join((header, value.ravel("K").view(np.uint8))), _ARRAY


def _encode_tensor(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not _is_plain_tensor(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not a strided tensor of plain numbers")
    whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a single element may have kept another stride
    header = _frame_header(_type_name(value), tuple(value.shape), "C")
    elements = flat.view(sys.modules["torch"].uint8).numpy() if flat.numel() else b""
    return b"".join((header, elements)), _TENSOR


def _is_plain_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and _type_name(value) in _TENSOR_TYPES
    )


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@lru_cache(maxsize=256)
def _array_header(dtype: np.dtype[Any], shape: tuple[int, ...], order: str) -> bytes:
    return _frame_header(objects._describe(dtype), shape, order)


def _frame_header(description: Any, shape: tuple[int, ...], order: str) -> bytes:
    if len(shape) > _MOST_DIMENSIONS:
        raise NotSerializable(f"an array of {len(shape)} dimensions cannot be sent, {_MOST_DIMENSIONS} at most")
    header = msgspec.msgpack.encode([description, shape, order])
    start = len(header).to_bytes(4, "little") + header
    return start + bytes(-len(start) % _ALIGNMENT)


_Shape = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
_HEADER_DECODER = msgspec.msgpack.Decoder(tuple[Any, _Shape, Literal["C", "F"]])


def _frame(payload: Any) -> tuple[Any, tuple[int, ...], Literal["C", "F"], int]:
    """What a frame's header says, and where its elements begin."""
    end = 4 + int.from_bytes(payload[:4], "little")
    start = end + -end % _ALIGNMENT
    if len(payload) < start:
        raise ValueError(f"it has {len(payload)} bytes, and its header alone should have {start}")
    return *_HEADER_DECODER.decode(payload[4:end]), start


def _decode_array(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    description, shape, order, start = _frame(payload)
    return _checked(_array(description, shape, order, payload, start), wanted)


def _decode_tensor(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    name, shape, _, start = _frame(payload)
    return _checked(_tensor(name, shape, memoryview(payload)[start:]), wanted)


def _array(description: Any, shape: tuple[int, ...], order: Literal["C", "F"], content: Any, start: int) -> np.ndarray:
    dtype = np.dtype(description) if description.__class__ is str else objects._dtype(description)
    if dtype.hasobject or dtype.subdtype is not None or dtype.itemsize == 0:
        raise ValueError(f"it claims elements of type {_short(str(dtype))}, which do not travel")
    _check_size(shape, dtype.itemsize, len(content) - start)
    array: np.ndarray = np.ndarray(shape, dtype, content, start, None, order)
    if not array.flags.aligned:
        array = array.copy("K")
        array.flags.writeable = False
    return array


def _tensor(name: Any, shape: tuple[int, ...], content: Any) -> Any:
    dtype = _torch_types().get(name)
    if dtype is None:
        raise ValueError(f"it claims elements of type {_short(str(name))}, which do not travel or this torch lacks")
    _check_size(shape, dtype.itemsize, len(content))
    torch = sys.modules["torch"]
    if not len(content):  # which torch takes for no buffer
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)


@lru_cache(maxsize=1)
def _torch_types() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError("it is a tensor and torch is not installed here: pip install 'neuraxis[torch]'") from error
    return {name: getattr(torch, name) for name in _TENSOR_TYPES if hasattr(torch, name)}


def _check_size(shape: tuple[int, ...], item_bytes: int, present: int) -> None:
    # Python's integers do not overflow, whatever the product is.
    if len(shape) > _MOST_DIMENSIONS or math.prod(shape) * item_bytes != present:
        raise ValueError(f"it has {present} bytes of elements, and its header claims the shape {_short(str(shape))}")


# The same within msgpack, where comm.objects, which trusts the ranks of its own job, is less careful.
def _array_of(parts: Any) -> np.ndarray:
    description, shape, content = parts
    return _array(description, msgspec.convert(shape, _Shape), "C", msgspec.convert(content, bytes), 0)


def _scalar_of(parts: Any) -> Any:
    array = _array_of(parts)
    if array.shape:
        raise ValueError("it holds a single number that has a shape")
    return array[()]


def _tensor_of(parts: Any) -> Any:
    name, shape, content = parts
    return _tensor(name, msgspec.convert(shape, _Shape), msgspec.convert(content, bytes))


_EXTENSIONS: dict[int, Callable[[Any], Any]] = {
    **objects._READERS,
    objects._ARRAY: _array_of,
    objects._SCALAR: _scalar_of,
    objects._TENSOR: _tensor_of,
}


# --- Protobuf and pickle --------------------------------------------------------------------------------


def _is_protobuf(value: Any) -> bool:
    # Whoever has such a message has loaded Protobuf; nobody else should pay for it.
    protobuf = sys.modules.get("google.protobuf.message")
    return protobuf is not None and isinstance(value, protobuf.Message)


def _encode_protobuf(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not _is_protobuf(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not a Protobuf message")
    return value.SerializeToString(), f"{_PROTOBUF};{value.DESCRIPTOR.full_name}"


def _decode_protobuf(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    try:
        from google.protobuf import descriptor_pool, message, message_factory
    except ImportError as error:
        raise ValueError("Protobuf is not installed here: pip install 'neuraxis[protobuf]'") from error
    if wanted is None:
        if not schema:
            raise ValueError("it does not say which Protobuf message it is: give the class with type=")
        try:
            wanted = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(schema))
        except KeyError as error:
            raise ValueError(
                f"no Protobuf message {_short(schema)} is known here: import its module, or give the class with type="
            ) from error
    elif not issubclass(wanted, message.Message):
        raise ValueError(f"it is a Protobuf message, not {wanted.__qualname__}")
    elif schema and schema != wanted.DESCRIPTOR.full_name:
        raise ValueError(f"it is a Protobuf message {_short(schema)}, not {wanted.DESCRIPTOR.full_name}")
    return wanted.FromString(bytes(payload))


def _encode_pickle(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not allow_pickle:
        raise NotSerializable(
            "pickle is not allowed here: say allow_pickle=True where it is sent and where it is received; then whoever "
            "can send to the receiver can run code in it"
        )
    return pickle.dumps(value), _PICKLE


def _decode_pickle(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise ValueError("it is a pickled object, and whoever receives it has not said allow_pickle=True")
    return _checked(pickle.loads(payload), wanted)


# --- which is which -------------------------------------------------------------------------------------


_Codec = Callable[[Any, bool], tuple[bytes, str]]

_CODECS: dict[str, _Codec] = {
    "msgpack": _encode_msgpack,
    "json": _encode_json,
    "array": _encode_array,
    "tensor": _encode_tensor,
    "protobuf": _encode_protobuf,
    "bytes": _encode_bytes,
    "pickle": _encode_pickle,
}


def _codec(name: str) -> _Codec:
    if name not in _CODECS:
        raise InvalidArgument(f"codec {name!r} is not known; there are {', '.join(_CODECS)}")
    return _CODECS[name]


def _codec_for(value: Any) -> _Codec:
    kind = type(value)
    if kind in _BYTES_LIKE:
        return _encode_bytes
    if kind in _PLAIN:
        return _encode_msgpack
    if _is_plain_array(value):
        return _encode_array
    if _is_plain_tensor(value):
        return _encode_tensor
    if _is_protobuf(value):
        return _encode_protobuf
    return _encode_msgpack


_READERS: dict[str, Callable[[Any, str, Any, bool], Any]] = {
    _BYTES: _decode_bytes,
    "application/octet-stream": _decode_bytes,
    "zenoh/string": _decode_text,
    "text/plain": _decode_text,
    _MSGPACK: _decode_msgpack,
    _JSON: _decode_json,
    "text/json": _decode_json,
    _ARRAY: _decode_array,
    _TENSOR: _decode_tensor,
    _PROTOBUF: _decode_protobuf,
    _PICKLE: _decode_pickle,
}


def _read_only(payload: Any) -> Any:
    view = memoryview(payload)
    return view.cast("B").toreadonly() if view.nbytes else b""


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[:most] + "..."
