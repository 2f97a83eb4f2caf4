"""Exceptions that cross processes: as their type's name and plain data, never as code.

A built-in exception and one of neuraxis become the same type again; anything else is a `RemoteError`. Types are looked
for among those that exist here, none is imported for it.
"""

from __future__ import annotations

import builtins
import traceback
from typing import Any

from neuraxis.comm import objects
from neuraxis.errors import NeuraxisError, NotSerializable, RemoteError

__all__ = ["from_data", "to_data"]

_LONGEST = 20_000  # characters of a traceback


def to_data(error: BaseException) -> dict[str, Any]:
    """An exception as plain data."""
    kind = type(error)
    text = "".join(traceback.format_exception(error))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n...\n{text[-_LONGEST // 2 :]}"
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "text": _text_of(error),
        "args": _plain(_arguments_of(error)),
        "fields": _plain({name: value for name, value in vars(error).items() if name != "__notes__"}),
        "notes": [_sendable(str(note)) for note in getattr(error, "__notes__", [])],
        "traceback": _sendable(text),
    }


def from_data(data: dict[str, Any], callee: str) -> Exception:
    """The exception of such data, with where it was raised: as `remote_traceback`, and in its notes."""
    error = _same_type(data) or _as_remote_error(data, callee)
    error.remote_traceback = data["traceback"]  # type: ignore[attr-defined]
    for note in data["notes"]:
        error.add_note(note)
    if data["traceback"]:
        error.add_note(f"\nIt was raised on {callee!r}:\n{data['traceback'].rstrip()}")
    return error


def _same_type(data: dict[str, Any]) -> Exception | None:
    kind = _known_type(data["module"], data["name"])
    if kind is None or data["args"] is None:
        return None
    try:
        if data["module"] == "builtins":
            error = kind(*data["args"])
        else:  # whose constructors take other arguments than they hand on
            error = kind.__new__(kind, *data["args"])
            error.args = tuple(data["args"])
        error.__dict__.update(data["fields"] or {})
        return error if _text_of(error) == data["text"] else None
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


def _as_remote_error(data: dict[str, Any], callee: str) -> RemoteError:
    kind = data["name"] if data["module"] == "builtins" else f"{data['module']}.{data['name']}"
    text = f"{kind}: {data['text']}" if data["text"] else kind
    return RemoteError(text, callee, kind, data["traceback"])


def _plain(value: Any) -> Any:
    """The value, if it can travel; None if not."""
    try:
        objects.encode(value)
    except (NotSerializable, RecursionError):
        return None
    return value


def _arguments_of(error: BaseException) -> list[Any]:
    """What its type makes it of; of an OSError that is more than its `args`."""
    return list(error.__reduce__()[1]) if type(error).__module__ == "builtins" else list(error.args)


def _text_of(error: BaseException) -> str:
    try:
        return _sendable(str(error))
    except Exception as reason:
        return f"(its text cannot be made: {reason!r})"


def _sendable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
