"""Whether workers have the neuraxis that this program has; for clusters that others have started.

A function of a module travels as its name. A worker that cannot import the module loses its connection to the scheduler
over it, and ends; the scheduler gives the task to the next one, and when all are gone a client waits for ever. So what
is here travels as code, which is what becomes of a function that is made within another one: any worker can be sent it,
and it says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuraxis.version import __version__

__all__ = ["as_code", "unlike", "version_there"]


def as_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function of neuraxis as one that any worker can be sent.

    There it raises an ImportError, which names the worker's host, where neuraxis is missing or another one.
    """
    module, name, wanted = function.__module__, function.__qualname__, __version__

    def call(*args: Any, **kwargs: Any) -> Any:
        import importlib
        import socket

        where = f"the worker on {socket.gethostname()}"
        try:
            found = importlib.import_module("neuraxis.version").__version__
            loaded = getattr(importlib.import_module(module), name) if found == wanted else None
        except ImportError as error:
            raise ImportError(f"{where} cannot import neuraxis ({error})") from None
        if loaded is None:
            raise ImportError(f"{where} has neuraxis {found}, and this program {wanted}: results would differ")
        return loaded(*args, **kwargs)

    return call


def version_there() -> Callable[[], str | None]:
    """A function to be run on a worker: the version of neuraxis that it has; None if it has none."""

    def version() -> str | None:
        import importlib

        try:
            return str(importlib.import_module("neuraxis.version").__version__)
        except ImportError:
            return None

    return version


def unlike(found: Mapping[str, Any]) -> str:
    """What is wrong with workers, as text; "" if nothing is. `found`: by address, what `version_there` said."""
    wrong = []
    for worker, version in found.items():
        if version is None:
            wrong.append(f"{worker} has no neuraxis")
        elif isinstance(version, BaseException):  # it cannot even run what it is sent: another Python, most likely
            wrong.append(f"{worker} cannot be asked ({type(version).__name__}: {version})")
        elif version != __version__:
            wrong.append(f"{worker} has neuraxis {version}")
    return "; ".join(wrong)
