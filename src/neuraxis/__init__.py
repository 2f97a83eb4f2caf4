"""neuraxis: a distributed runtime for brains and neural networks.

Heavy parts load when they are first used: `import neuraxis` alone imports nothing but this file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from neuraxis.version import __version__

if TYPE_CHECKING:
    from neuraxis import comm, distributed, errors, launch

__all__ = ["__version__", "comm", "distributed", "errors", "launch"]

_LAZY_MODULES = frozenset({"comm", "distributed", "errors", "launch"})


def __getattr__(name: str) -> object:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"neuraxis.{name}")
    raise AttributeError(f"module 'neuraxis' has no attribute {name!r}")
