"""Old names that keep working for one release, with a `DeprecationWarning` that names the new one.

A module's name is deprecated by `deprecated=` of `neuraxis.imports.lazy_names`, a keyword argument by
`renamed_arguments`, and an attribute, a method or a field of a class by `renamed_members`. Signatures and type checkers
show only the new names.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["REMOVED_IN", "renamed_arguments", "renamed_members", "warn_deprecated"]

REMOVED_IN = "0.3"  # the release that removes the names that are deprecated in this one

_Target = TypeVar("_Target", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def warn_deprecated(old: str, remedy: str, stacklevel: int = 2) -> None:
    """Emit the warning for a use of `old`; `remedy` is a sentence without its full stop.

    With `stacklevel` 2 the warning points at the caller of the function that calls this one.
    """
    text = f"{old} is deprecated and will be removed in release {REMOVED_IN}. {remedy}."
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


def renamed_arguments(**new_names: str) -> Callable[[_Target], _Target]:
    """Return a decorator that lets a function, or the constructor of a class, take arguments by their old names.

    Parameters
    ----------
    **new_names
        The new name of each old one.

    Examples
    --------
    >>> @renamed_arguments(timeout_s="timeout")
    ... def wait(timeout=1.0):
    ...     return timeout
    >>> wait(timeout=2.0)
    2.0
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     wait(timeout_s=3.0)
    3.0
    >>> print(caught[0].message)
    wait(timeout_s=) is deprecated and will be removed in release 0.3. Use timeout=.
    """

    def decorate(target: _Target) -> _Target:
        if isinstance(target, type):
            target.__init__ = wrap(target.__init__, target.__name__)  # type: ignore[misc]
            return target
        wrapped: _Target = wrap(target, target.__qualname__)
        return wrapped

    def wrap(function: Any, label: str) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            for old in options.keys() & new_names.keys():
                new = new_names[old]
                if new in options:
                    raise TypeError(f"{label}() got {new!r} and its old name {old!r}; give only {new!r}")
                warn_deprecated(f"{label}({old}=)", f"Use {new}=")
                options[new] = options.pop(old)
            return function(*args, **options)

        return call

    return decorate


def renamed_members(**new_names: str) -> Callable[[_Class], _Class]:
    """Return a decorator that gives a class attributes and methods under their old names.

    The fields of a dataclass are arguments of its constructor too, and get their old names there as well.

    Parameters
    ----------
    **new_names
        The new name of each old one.

    Examples
    --------
    >>> @renamed_members(destroy="close")
    ... class Group:
    ...     def close(self):
    ...         print("closed")
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     Group().destroy()
    closed
    >>> print(caught[0].message)
    Group.destroy is deprecated and will be removed in release 0.3. Use Group.close.
    """

    def decorate(owner: _Class) -> _Class:
        for old, new in new_names.items():
            setattr(owner, old, _OldMember(owner.__name__, old, new))
        fields = {old: new for old, new in new_names.items() if new in getattr(owner, "__dataclass_fields__", ())}
        if fields:
            renamed_arguments(**fields)(owner)
        return owner

    return decorate


class _OldMember:
    """Descriptor of an attribute under its old name."""

    def __init__(self, owner: str, old: str, new: str) -> None:
        self.old = f"{owner}.{old}"
        self.remedy = f"Use {owner}.{new}"
        self.new = new

    def __get__(self, instance: Any, owner: type) -> Any:
        warn_deprecated(self.old, self.remedy)
        return getattr(owner if instance is None else instance, self.new)

    def __set__(self, instance: Any, value: Any) -> None:
        warn_deprecated(self.old, self.remedy)
        setattr(instance, self.new, value)
