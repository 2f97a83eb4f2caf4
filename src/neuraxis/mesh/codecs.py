"""Values as messages: bytes, and the Zenoh encoding that says what they are.

| encoding | what travels |
|---|---|
| `application/msgpack` | the default: plain data, msgspec structs, and containers of those with arrays in them |
| `application/x-neuraxis-array`, `application/x-neuraxis-tensor` | one NumPy array or torch tensor (see `frames`) |
| `application/protobuf;<full name>` | one Protobuf message |
| `application/json`, `zenoh/bytes` | what every Zenoh program can read |
| `application/python-serialized-object` | pickle, only where both sides allowed it by name |

What comes from the network is never trusted: sizes are compared with what really came before anything is made of
them, element types come from a closed list, and whatever else goes wrong in a reader is an `Undecodable`.
"""

from __future__ import annotations

import pickle
import sys
import typing
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import msgspec

from neuraxis.comm import objects
from neuraxis.errors import InvalidArgument, NeuraxisError, NotSerializable
from neuraxis.mesh.frames import frame_array, frame_tensor, read_array, read_tensor

__all__ = ["Undecodable", "decode", "encode"]

_BYTES = "zenoh/bytes"
_MSGPACK = "application/msgpack"
_JSON = "application/json"
_ARRAY = "application/x-neuraxis-array"
_TENSOR = "application/x-neuraxis-tensor"
_PROTOBUF = "application/protobuf"
_PICKLE = "application/python-serialized-object"


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
        return msgspec.msgpack.Ext(objects.TUPLE, _encode_msgpack(list(value), allow_pickle)[0])
    if kind is dict:
        pairs = [[key, item] for key, item in value.items()]
        return msgspec.msgpack.Ext(objects.PAIRS, _encode_msgpack(pairs, allow_pickle)[0])
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
    if code == objects.PICKLE:
        return _decode_pickle(data, "", None, allow_pickle)
    return objects.read_extension(code, data, _msgpack_decoder(None, allow_pickle).decode, writable=False)


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


def _encode_array(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not objects.is_plain_array(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not an array of numbers, text or records")
    return frame_array(value), _ARRAY


def _decode_array(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(read_array(payload), wanted)


def _encode_tensor(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not objects.is_plain_tensor(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not a strided tensor of plain numbers")
    return frame_tensor(value), _TENSOR


def _decode_tensor(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(read_tensor(payload), wanted)


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
    if objects.is_plain_array(value):
        return _encode_array
    if objects.is_plain_tensor(value):
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
