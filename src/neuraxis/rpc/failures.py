"""Exceptions that cross processes: as their type's name and plain data, never as code.

A built-in exception and one of neuraxis become the same type again; anything else is a `RemoteError`. So is the failure
of a remote call that the called function made itself: it must not look like a failure of the caller's own call. Types
are looked for among those that exist here, none is imported for it.
"""

from __future__ import annotations

import builtins
import reprlib
import traceback
from typing import Any

import msgspec

from neuraxis.comm import objects
from neuraxis.comm.objects import Unreadable
from neuraxis.errors import CalleeDied, NeuraxisError, NotSerializable, RemoteError, RpcError

__all__ = ["from_data", "to_data", "unreadable"]

_LONGEST = 20_000  # characters of a text
_MOST = 50  # arguments, fields and notes
_LARGEST = 100_000  # bytes of an argument or a field
_LONG_TEXTS = (bytes, bytearray, list, tuple, dict, set, frozenset)  # whose texts grow with what they hold
_SHORT = reprlib.Repr()


class _Failure(msgspec.Struct):
    """An exception as plain data.

    Attributes:
        raised: whether the called function raised it, and not what calls functions.
        exact: whether it has all arguments as they were.
    """

    module: str
    name: str
    text: str
    args: list[Any]
    exact: bool
    fields: dict[str, Any]
    notes: list[str]
    traceback: str
    raised: bool


def to_data(error: BaseException, of_function: bool) -> dict[str, Any]:
    """An exception as plain data, of a size that can be sent whatever it holds."""
    try:
        failure = _described(error, of_function)
    except Exception as reason:
        text = f"{type(error).__qualname__}, which cannot be described: {type(reason).__qualname__}"
        failure = _described(RuntimeError(text), of_function)
    return msgspec.structs.asdict(failure)


def unreadable(callee: str, error: Unreadable) -> CalleeDied:
    """For when what came is no answer."""
    return CalleeDied(f"the answer of {callee!r} cannot be read: {error}", callee)


def from_data(data: Any, callee: str) -> Exception:
    """The exception of such data, with where it was raised: as `remote_traceback`, and in its notes."""
    try:
        failure = msgspec.convert(data, _Failure)
    except msgspec.ValidationError as reason:
        raise Unreadable(f"what came is not a failure: {reason}") from None
    same = _same_type(failure)
    if same is not None and not (failure.raised and isinstance(same, RpcError)):
        error: Any = same
    else:
        error = _as_remote_error(failure, callee)
        error.__cause__ = same
    error.remote_traceback = failure.traceback
    for note in failure.notes:
        error.add_note(note)
    if failure.traceback:
        error.add_note(f"\nIt was raised on {callee!r}:\n{failure.traceback.rstrip()}")
    found: Exception = error
    return found


def _described(error: BaseException, of_function: bool) -> _Failure:
    kind = type(error)
    arguments = _arguments_of(error)
    args = [_plain(value) for value in arguments[:_MOST]]
    fields = [(name, value) for name, value in vars(error).items() if name != "__notes__"]
    notes = getattr(error, "__notes__", ())
    return _Failure(
        module=kind.__module__,
        name=kind.__qualname__,
        text=_text_of(error),
        args=[value for value, _ in args],
        exact=len(arguments) <= _MOST and all(exact for _, exact in args),
        fields={name: _plain(value)[0] for name, value in fields[:_MOST]},
        notes=[_sendable(str(note), _LONGEST // 8) for note in notes[:_MOST]],
        traceback=_sendable("".join(traceback.format_exception(error))),
        raised=of_function,
    )


def _same_type(failure: _Failure) -> Exception | None:
    kind = _known_type(failure.module, failure.name)
    if kind is None:
        return None
    try:
        if failure.module == "builtins":
            error = kind(*failure.args)
        else:  # whose constructors take other arguments than they hand on
            error = kind.__new__(kind, *failure.args)
            error.args = tuple(failure.args)
        error.__dict__.update(failure.fields)
        return error if not failure.exact or _text_of(error) == failure.text else None
    except Exception:
        return None


def _known_type(module: str, name: str) -> type[Exception] | None:
    if module == "builtins":
        found = getattr(builtins, name, None)
        is_exception = isinstance(found, type) and issubclass(found, Exception)
        return found if is_exception else None
    if not module.startswith("neuraxis."):
        return None
    kinds: list[type[NeuraxisError]] = [NeuraxisError]
    while kinds:
        kind = kinds.pop()
        if (kind.__module__, kind.__qualname__) == (module, name):
            return kind
        kinds += kind.__subclasses__()
    return None


def _as_remote_error(failure: _Failure, callee: str) -> RemoteError:
    kind = failure.name if failure.module == "builtins" else f"{failure.module}.{failure.name}"
    text = f"{kind}: {failure.text}" if failure.text else kind
    return RemoteError(text, callee, kind, failure.traceback)


def _plain(value: Any) -> tuple[Any, bool]:
    """The value, if it can travel, else a text of it; and whether it is the value."""
    try:
        if len(objects.encode(value)) <= _LARGEST:
            return value, True
    except (NotSerializable, RecursionError):
        pass
    try:
        text = _SHORT.repr(value) if isinstance(value, _LONG_TEXTS) else str(value)
    except Exception as reason:
        text = f"(a {type(value).__name__}: {reason!r})"
    return _sendable(text), False


def _arguments_of(error: BaseException) -> list[Any]:
    """What its type makes it of; of an OSError that is more than its `args`."""
    return list(error.__reduce__()[1]) if type(error).__module__ == "builtins" else list(error.args)


def _text_of(error: BaseException) -> str:
    try:
        return _sendable(str(error))
    except Exception as reason:
        return f"(its text cannot be made: {reason!r})"


def _sendable(text: str, longest: int = _LONGEST) -> str:
    """A text that can be sent: what is too long lacks its middle."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}\n...\n{text[-longest // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
