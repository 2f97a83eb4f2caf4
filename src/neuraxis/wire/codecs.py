"""Codecs of messages on the mesh: a value as bytes, with a Zenoh encoding that names their format.

| encoding | content |
|---|---|
| `application/msgpack` | the default: plain data, msgspec structs, and containers of those with arrays in them |
| `application/x-neuraxis-array`, `application/x-neuraxis-tensor` | one NumPy array or torch tensor (an array frame) |
| `application/protobuf;<full name>` | one Protobuf message |
| `application/json`, `zenoh/bytes` | formats for other Zenoh programs |
| `application/python-serialized-object` | pickle, if both sides allow it |

Received data are never trusted: decoders check sizes before they create anything, element types come from a closed
list, and every error of a decoder is an `Undecodable`. No message makes this process import a package: a tensor becomes
a NumPy array if the program has not imported torch.

`wire.arrays` has the format of array frames, and `wire.objects` the extensions of msgpack.
"""

from __future__ import annotations

import pickle
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from neuraxis import imports as optional
from neuraxis.errors import InvalidArgument, NeuraxisError, NotSerializable
from neuraxis.wire.arrays import frame_array, frame_tensor, is_plain_array, is_plain_tensor, read_frame
from neuraxis.wire.objects import Serializer

__all__ = ["Undecodable", "decode", "encode"]

_BYTES = "zenoh/bytes"
_MSGPACK = "application/msgpack"
_JSON = "application/json"
_ARRAY = "application/x-neuraxis-array"
_TENSOR = "application/x-neuraxis-tensor"
_PROTOBUF = "application/protobuf"
_PICKLE = "application/python-serialized-object"


class Undecodable(NeuraxisError, ValueError):
    """A message does not match its encoding, or the requested type.

    Attributes
    ----------
    encoding : str
        The encoding of the message.
    reason : str
        The defect, with the path of the field if there is one.
    """

    def __init__(self, encoding: str, reason: str) -> None:
        self.encoding = encoding
        self.reason = reason
        super().__init__(f"a message of encoding {_short(encoding)!r} cannot be decoded: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return (Undecodable, (self.encoding, self.reason))


def encode(value: Any, codec: str | None = None, *, allow_pickle: bool = False) -> tuple[bytes, str]:
    """Serialize a value; return the bytes and their encoding.

    Without `codec` the type of the value decides: bytes stay bytes; an array, a tensor and a Protobuf message have
    encodings of their own; everything else is msgpack. There tuples, sets and large numbers keep their types; in a
    struct the types of its fields decide. A CUDA tensor is copied to the host. Titles of record fields are lost.

    Parameters
    ----------
    value : object
        The value.
    codec : {"msgpack", "json", "array", "tensor", "protobuf", "bytes", "pickle"}, optional
        The format.
    allow_pickle : bool
        Pickle values of other types. The receiver must allow it too.

    Raises
    ------
    NotSerializable
        The codec cannot encode the value.

    Examples
    --------
    >>> encode({"cup": 0.9})[1]
    'application/msgpack'
    >>> decode(*encode({"cup": 0.9}))
    {'cup': 0.9}
    """
    try:
        if codec is not None:
            return _codec(codec)(value, allow_pickle)
        return _codec_for(value)(value, allow_pickle)
    except (NeuraxisError, MemoryError):
        raise
    except RecursionError as error:
        raise NotSerializable("a value that is nested too deeply, or contains itself, cannot be sent") from error
    except Exception as error:
        raise NotSerializable(f"an object of type {_name(type(value))} cannot be sent: {error}") from error


def decode(payload: bytes | memoryview, encoding: str, *, type: Any = None, allow_pickle: bool = False) -> Any:
    """Return the value that `encode` serialized, or that another Zenoh program sent.

    Arrays are read-only views of `payload`, and keep it alive; copies if its memory is not aligned, or if they are part
    of msgpack data. Tensors are writable copies; if this program has not imported torch they are NumPy arrays, and
    types that only torch has (bfloat16, float8) cannot be decoded.

    Parameters
    ----------
    payload : bytes or memoryview
        The bytes. They must not change while an array that views them is in use.
    encoding : str
        The encoding of Zenoh, with parameters ("text/plain;utf-8").
    type : type, optional
        The required type: a msgspec struct or any other type that msgspec supports, a Protobuf class, an array or
        tensor class. `bytes` also accepts unknown encodings.
    allow_pickle : bool
        Unpickle. Anyone who can send to this process can then run code in it.

    Raises
    ------
    Undecodable
        The only exception, whatever the payload, the encoding and the type.
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
        raise ValueError("the encoding is unknown. Use type=bytes to receive its content unchanged")
    except RecursionError as error:
        raise Undecodable(str(encoding), "it is nested too deeply") from error
    except NotSerializable as error:
        raise Undecodable(str(encoding), f"{error}. The receiver must use allow_pickle=True") from error
    except Exception as error:
        # The decoders below raise ValueErrors; for other exceptions the name of the type matters.
        source = "" if isinstance(error, (ValueError, msgspec.MsgspecError)) else f"{error.__class__.__qualname__}: "
        raise Undecodable(str(encoding), _short(f"{source}{error}", 500)) from error


# --- plain data -----------------------------------------------------------------------------------------


_PLAIN = frozenset({type(None), bool, int, float, str, dict, list, tuple, set, frozenset})  # the fast path
_BYTES_LIKE = frozenset({bytes, bytearray, memoryview})
_ADVICE = (
    "Send its fields (a dict, a msgspec.Struct, an array, ...), or allow pickle with allow_pickle=True on both sides, "
    "which lets anyone who can send to the receiver run code in it"
)
_SERIALIZERS = {allowed: Serializer(allowed, structs=True, writable=False, advice=_ADVICE) for allowed in (False, True)}


def _encode_msgpack(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    return _SERIALIZERS[allow_pickle].encode(value), _MSGPACK


def _decode_msgpack(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    if wanted is None:
        return _msgpack_decoder(Any, allow_pickle).decode(payload)
    try:
        return _msgpack_decoder(wanted, allow_pickle).decode(payload)
    except msgspec.ValidationError:
        # A tuple or a set is an extension, which a typed decoder does not accept as an array.
        return msgspec.convert(_msgpack_decoder(Any, allow_pickle).decode(payload), wanted)


@lru_cache(maxsize=256)
def _msgpack_decoder(wanted: Any, allow_pickle: bool) -> msgspec.msgpack.Decoder[Any]:
    return _SERIALIZERS[allow_pickle].decoder(wanted)


def _encode_json(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    return _JSON_ENCODER.encode(value), _JSON


def _not_in_json(value: Any) -> Any:
    raise NotSerializable(f"an object of type {_name(type(value))} has no JSON form. Send its tolist(), or use msgpack")


_JSON_ENCODER = msgspec.json.Encoder(enc_hook=_not_in_json)


def _decode_json(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _json_decoder(wanted).decode(payload)


@lru_cache(maxsize=256)
def _json_decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Any if wanted is None else wanted)


# --- bytes and text -------------------------------------------------------------------------------------


def _encode_bytes(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise NotSerializable(f"an object of type {_name(type(value))} is not bytes. Convert it, or leave out codec=")
    return bytes(value), _BYTES


def _decode_bytes(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(bytes(payload), wanted)


def _decode_text(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(str(payload, "utf-8"), wanted)


def _checked(value: Any, wanted: Any) -> Any:
    if wanted is None or isinstance(value, typing.get_origin(wanted) or wanted):
        return value
    raise ValueError(f"it contains {_name(type(value))}, not {getattr(wanted, '__qualname__', wanted)}")


# --- arrays and tensors ---------------------------------------------------------------------------------


def _encode_array(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not is_plain_array(value):
        raise NotSerializable(
            f"an object of type {_name(type(value))} is not an array of numbers, text or records. Leave out codec="
        )
    return frame_array(value), _ARRAY


def _decode_array(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(read_frame(payload, tensor=False), wanted)


def _encode_tensor(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not is_plain_tensor(value):
        raise NotSerializable(
            f"an object of type {_name(type(value))} is not a strided tensor of plain numbers. Send its NumPy array"
        )
    return frame_tensor(value), _TENSOR


def _decode_tensor(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    return _checked(read_frame(payload, tensor=True), wanted)


# --- Protobuf and pickle --------------------------------------------------------------------------------


def _is_protobuf(value: Any) -> bool:
    # A program with such a message has imported Protobuf; others should not pay for the import.
    protobuf = optional.loaded("google.protobuf.message")
    return protobuf is not None and isinstance(value, protobuf.Message)


def _encode_protobuf(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not _is_protobuf(value):
        raise NotSerializable(f"an object of type {_name(type(value))} is not a Protobuf message. Leave out codec=")
    return value.SerializeToString(), f"{_PROTOBUF};{value.DESCRIPTOR.full_name}"


def _decode_protobuf(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    # A program with any message class has imported these; a message must not import them.
    message = optional.loaded("google.protobuf.message")
    pool = optional.loaded("google.protobuf.descriptor_pool")
    factory = optional.loaded("google.protobuf.message_factory")
    if message is None or pool is None or factory is None:
        raise ValueError(
            "this program has not imported Protobuf. Import the module of the message, or pass the class as type= "
            f"({optional.install_command('protobuf')} installs Protobuf)"
        )
    if wanted is None:
        if not schema:
            raise ValueError("it does not name its Protobuf message. Pass the class as type=")
        try:
            wanted = factory.GetMessageClass(pool.Default().FindMessageTypeByName(schema))
        except KeyError as error:
            raise ValueError(
                f"the Protobuf message {_short(schema)} is unknown. Import its module, or pass the class as type="
            ) from error
    elif not issubclass(wanted, message.Message):
        raise ValueError(f"it is a Protobuf message, not {wanted.__qualname__}")
    elif schema and schema != wanted.DESCRIPTOR.full_name:
        raise ValueError(f"it is a Protobuf message {_short(schema)}, not {wanted.DESCRIPTOR.full_name}")
    return wanted.FromString(bytes(payload))


def _encode_pickle(value: Any, allow_pickle: bool) -> tuple[bytes, str]:
    if not allow_pickle:
        raise NotSerializable(
            "pickle is not allowed. Use allow_pickle=True on both sides, which lets anyone who can send to the "
            "receiver run code in it"
        )
    return pickle.dumps(value), _PICKLE


def _decode_pickle(payload: Any, schema: str, wanted: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise ValueError("it is a pickled object, and the receiver does not use allow_pickle=True")
    return _checked(pickle.loads(payload), wanted)


# --- tables ---------------------------------------------------------------------------------------------


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
        raise InvalidArgument(f"codec {name!r} is unknown. Use one of {', '.join(_CODECS)}")
    return _CODECS[name]


def _codec_for(value: Any) -> _Codec:
    kind = type(value)
    if kind in _BYTES_LIKE:
        return _encode_bytes
    if kind in _PLAIN:
        return _encode_msgpack
    if is_plain_array(value):
        return _encode_array
    if is_plain_tensor(value):
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


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[:limit] + "..."
