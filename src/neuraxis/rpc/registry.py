"""The registry of functions and factories that other processes may call. Nothing else can be called."""

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
    """Functions and factories by name, with a `fallback` registry for other names."""

    def __init__(self, fallback: Registry | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        self._fallback = fallback
        self._lock = threading.Lock()

    def add(self, name: str, function: Callable[..., Any], *, factory: bool = False) -> None:
        """Register a function as `name`. A class or a `factory` creates objects that stay in this process."""
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"name={name!r}: a non-empty name is expected")
        if not callable(function):
            raise InvalidArgument(f"{name}: {function!r} is not a function or a class")
        entry = _Entry(function, factory or inspect.isclass(function))
        with self._lock:
            known = self._entries.get(name)
            if known is not None and not _is_same(known, entry):
                raise InvalidArgument(
                    f"{name!r} is registered already, for {_place_of(known.function)}, and cannot be registered for "
                    f"{_place_of(function)} as well. Use another name"
                )
            self._entries[name] = entry

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function of a name; None if there is none, or it is a factory."""
        entry = self._find(name)
        return entry.function if entry is not None and not entry.makes_objects else None

    def factory(self, name: str) -> Callable[..., Any] | None:
        entry = self._find(name)
        return entry.function if entry is not None and entry.makes_objects else None

    def names(self) -> list[str]:
        """Return all names, sorted."""
        fallback = [] if self._fallback is None else self._fallback.names()
        return sorted({*self._entries, *fallback})

    def _find(self, name: str) -> _Entry | None:
        entry = self._entries.get(name)
        if entry is None and self._fallback is not None:
            return self._fallback._find(name)
        return entry


def _is_same(one: _Entry, other: _Entry) -> bool:
    """Return True for the same function, perhaps loaded twice: a module can be a script and imported by name."""
    known, function = one.function, other.function
    if one.makes_objects != other.makes_objects:
        return False
    if known == function:
        return True
    if getattr(known, "__self__", None) is not None or getattr(function, "__self__", None) is not None:
        return False  # methods of different objects
    names = [getattr(one, "__qualname__", "") for one in (known, function)]
    if names[0] != names[1] or not names[0] or "<" in names[0]:
        return False
    return getattr(known, "__module__", None) == getattr(function, "__module__", "") or (
        _file_of(known) == _file_of(function) != ""
    )


def _file_of(function: Callable[..., Any]) -> str:
    try:
        return inspect.getfile(inspect.unwrap(function))
    except (TypeError, OSError, ValueError):  # a built-in function, for example
        return ""


def _place_of(function: Callable[..., Any]) -> str:
    """Return the name and the place of a function, for an error message."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function)
    name = f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
    file = _file_of(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None else ""
    return f"{name} ({file}{line})" if file else name


everywhere = Registry()
"""The functions that `@remote` has registered: callable in every context of this process."""


@overload
def remote(function: _Registered) -> _Registered: ...


@overload
def remote(*, name: str | None = None, factory: bool = False) -> Callable[[_Registered], _Registered]: ...


def remote(function: Any = None, *, name: str | None = None, factory: bool = False) -> Any:
    """Register a function or class, as a decorator, in every RPC context of this process.

    Parameters
    ----------
    name : str, optional
        The registered name; by default the function's own.
    factory : bool
        The result of the function stays in this process, and callers get a `RemoteObject`. Always so for a class.

    Returns
    -------
    callable
        The function or class, unchanged.

    Raises
    ------
    InvalidArgument
        Another function is registered under that name.

    Examples
    --------
    >>> @remote(name="doctest double")
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """

    def register(function: Any) -> Any:
        everywhere.add(name if name is not None else getattr(function, "__name__", ""), function, factory=factory)
        return function

    return register if function is None else register(function)
