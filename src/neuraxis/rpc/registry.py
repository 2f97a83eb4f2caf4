"""What may be called: functions and factories under names. Nothing else can be reached from another process."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from neuraxis.errors import InvalidArgument

__all__ = ["Registry", "everywhere", "remote"]

_Registered = TypeVar("_Registered", bound=Callable[..., Any])


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Any]
    makes_objects: bool


class Registry:
    """Names and what they stand for; what is not found here is looked for in `fallback`."""

    def __init__(self, fallback: Registry | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        self._fallback = fallback
        self._lock = threading.Lock()

    def add(self, name: str, function: Callable[..., Any], *, factory: bool = False) -> None:
        """Let others call `function` as `name`. A class or a `factory` makes objects that stay here."""
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"name={name!r}: a name that is not empty is expected")
        if not callable(function):
            raise InvalidArgument(f"{name}: {function!r} is not a function or a class")
        entry = _Entry(function, factory or inspect.isclass(function))
        with self._lock:
            known = self._entries.get(name)
            if known is not None and not _is_same(known, entry):
                raise InvalidArgument(
                    f"{name!r} is registered already, for {_place_of(known.function)}, and cannot stand for "
                    f"{_place_of(function)} as well: take another name"
                )
            self._entries[name] = entry

    def function(self, name: str) -> Callable[..., Any] | None:
        """The function of a name; None if there is none, or only a factory."""
        entry = self._find(name)
        return entry.function if entry is not None and not entry.makes_objects else None

    def factory(self, name: str) -> Callable[..., Any] | None:
        entry = self._find(name)
        return entry.function if entry is not None and entry.makes_objects else None

    def names(self) -> list[str]:
        """All names, in order."""
        fallback = [] if self._fallback is None else self._fallback.names()
        return sorted({*self._entries, *fallback})

    def _find(self, name: str) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is None and self._fallback is not None:
            return self._fallback._find(name)
        return entry


def _is_same(one: _Entry, other: _Entry) -> bool:
    """Whether it is the same one, perhaps loaded anew: a module can be imported twice, as a script and by name."""
    known, function = one.function, other.function
    if one.makes_objects != other.makes_objects:
        return False
    if known == function:
        return True
    if getattr(known, "__self__", None) is not None or getattr(function, "__self__", None) is not None:
        return False  # methods of two objects
    names = [getattr(one, "__qualname__", "") for one in (known, function)]
    if names[0] != names[1] or not names[0] or "<" in names[0]:
        return False
    return getattr(known, "__module__", None) == getattr(function, "__module__", "") or (
        _file_of(known) == _file_of(function) != ""
    )


def _file_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getfile(inspect.unwrap(function))
    except (TypeError, OSError, ValueError):  # of a built-in one, for example
        return ""


def _place_of(function: Callable[..., Any]) -> str:
    """What it is and where it is, for who reads an error."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    name = f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
    file = _file_of(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None else ""
    return f"{name} ({file}{line})" if file else name


everywhere = Registry()
"""What `@remote` has registered: callable in every context of this process."""


@overload
def remote(function: _Registered) -> _Registered: ...


@overload
def remote(*, name: str | None = None, factory: bool = False) -> Callable[[_Registered], _Registered]: ...


def remote(function: Any = None, *, name: str | None = None, factory: bool = False) -> Any:
    """Let other processes call this function, or make objects of this class, under its own name or `name`.

    `factory` marks a function whose result stays here, and is held from elsewhere as a `RemoteObject`.
    """

    def register(function: Any) -> Any:
        everywhere.add(name if name is not None else getattr(function, "__name__", ""), function, factory=factory)
        return function

    return register if function is None else register(function)
