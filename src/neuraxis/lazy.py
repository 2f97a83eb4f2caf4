"""Names of a package that load when they are used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["loads_lazily"]


def loads_lazily(
    package: str, homes: Mapping[str, str], require: Callable[[], None] = lambda: None
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        homes: by public name, the module of the package that has it.
        require: called before a module is loaded; raises where what the module needs is not installed.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        require()
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
