"""Serialization of exceptions: the name of the type and plain data, never code.

A service of a node sends the type and the text (`Failure`), a remote call the whole exception: a built-in exception or
one of neuraxis gets the same type again; any other becomes a `RemoteError`. So does the failure of a remote call inside
the called function, which must not look like a failure of the caller's own call. Types are looked up among existing
ones; none is imported.
"""

from __future__ import annotations

import builtins
import reprlib
import traceback
from typing import Any

import msgspec

from neuraxis.errors import NeuraxisError, NotSerializable, RemoteError, RpcError
from neuraxis.wire import objects
from neuraxis.wire.objects import Unreadable

__all__ = ["Failure", "from_data", "summarize", "to_data"]

_LONGEST = 20_000  # characters of a text
_MAX_ITEMS = 50  # arguments, fields and notes
_LARGEST = 100_000  # bytes of an argument or a field
_CONTAINERS = (bytes, bytearray, list, tuple, dict, set, frozenset)  # whose repr grows with their content
_SHORT = reprlib.Repr()


class Failure(msgspec.Struct):
    """The type and the text of an exception, for a peer that gets neither its arguments nor its traceback."""

    module: str
    name: str
    text: str

    @property
    def kind(self) -> str:
        """The name of the type."""
        return self.name.rpartition(".")[2]


class _Failure(Failure):
    """An exception as plain data.

    `raised` is True if the called function raised it, `exact` if all arguments are unchanged.
    """

    args: list[Any]
    exact: bool
    fields: dict[str, Any]
    notes: list[str]
    traceback: str
    raised: bool


def summarize(error: BaseException) -> Failure:
    """Return the type and the text of an exception, of bounded size."""
    return Failure(type(error).__module__, type(error).__qualname__, _text_of(error))


def to_data(error: BaseException, of_function: bool) -> dict[str, Any]:
    """Return an exception as plain data of bounded size."""
    try:
        failure = _described(error, of_function)
    except Exception as reason:
        text = f"{type(error).__qualname__}, which cannot be described: {type(reason).__qualname__}"
        failure = _described(RuntimeError(text), of_function)
    return msgspec.structs.asdict(failure)


def from_data(data: Any, callee: str) -> Exception:
    """Return the exception that `to_data` serialized, with its traceback as `remote_traceback` and in its notes."""
    try:
        failure = msgspec.convert(data, _Failure)
    except msgspec.ValidationError as reason:
        raise Unreadable(f"the error data are malformed: {reason}") from None
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
        error.add_note(f"\nRaised on {callee!r}:\n{failure.traceback.rstrip()}")
    found: Exception = error
    return found


def _described(error: BaseException, of_function: bool) -> _Failure:
    kind = type(error)
    arguments = _arguments_of(error)
    args = [_plain(value) for value in arguments[:_MAX_ITEMS]]
    fields = [(name, value) for name, value in vars(error).items() if name != "__notes__"]
    notes = getattr(error, "__notes__", ())
    return _Failure(
        module=kind.__module__,
        name=kind.__qualname__,
        text=_text_of(error),
        args=[value for value, _ in args],
        exact=len(arguments) <= _MAX_ITEMS and all(exact for _, exact in args),
        fields={name: _plain(value)[0] for name, value in fields[:_MAX_ITEMS]},
        notes=[_sendable(str(note), _LONGEST // 8) for note in notes[:_MAX_ITEMS]],
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
        else:  # their constructors take other arguments than those in `args`
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
    """Return the value and True if it can be serialized, otherwise a text of it and False."""
    try:
        if len(objects.encode(value)) <= _LARGEST:
            return value, True
    except (NotSerializable, RecursionError):
        pass
    try:
        text = _SHORT.repr(value) if isinstance(value, _CONTAINERS) else str(value)
    except Exception as reason:
        text = f"(a {type(value).__name__}: {reason!r})"
    return _sendable(text), False


def _arguments_of(error: BaseException) -> list[Any]:
    """Return the constructor arguments; an OSError has more than its `args`."""
    return list(error.__reduce__()[1]) if type(error).__module__ == "builtins" else list(error.args)


def _text_of(error: BaseException) -> str:
    try:
        return _sendable(str(error))
    except Exception as reason:
        return f"(str() of the exception raised {reason!r})"


def _sendable(text: str, longest: int = _LONGEST) -> str:
    """Return a valid text of limited length; a longer one loses its middle."""
    if len(text) > longest:
        text = f"{text[: longest // 2]}\n...\n{text[-longest // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
