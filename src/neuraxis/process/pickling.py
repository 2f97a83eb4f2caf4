"""Pickles for worker processes of this machine, and the objects of `__main__` in them.

Pickle stores functions and classes by reference: the worker imports them. If the program is a script, a worker can
import it as its `__main__`. A notebook, a prompt, `python -c` and standard input cannot be imported, so objects that
are defined there are stored by value, with cloudpickle, and so are the results that workers send back. Programs in
files never use cloudpickle.

These pickles travel over pipes and sockets between a process and the workers that it has started, never over a network.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neuraxis.imports import installed, require

__all__ = ["adopt", "by_value", "dumps", "follow_parent", "importable_main", "install", "main_objects", "serialize"]

_PURPOSE = "sending functions and classes of a notebook or prompt to worker processes"

_of_parent: bool | None = None  # in a worker: `by_value` of the process that has started it


def by_value() -> bool:
    """Return True if workers of this process cannot import the objects of `__main__`."""
    if _of_parent is not None:
        return _of_parent
    # `python -i script.py`: functions of the file could be imported, those of the prompt could not.
    return not _file_of_main() or (hasattr(sys, "ps1") and installed("cloudpickle"))


def follow_parent(parent_by_value: bool) -> None:
    """In a worker: pickle as the process that has started it."""
    global _of_parent
    _of_parent = parent_by_value


def importable_main() -> dict[str, Any]:
    """Return the data with which `multiprocessing.spawn.prepare` imports the parent's main module in a rank.

    Empty if workers cannot import it. (`get_preparation_data` is not used, because it fixes the parent's start method.)
    """
    return {} if by_value() else _file_of_main()


def _file_of_main() -> dict[str, Any]:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        return {"sys_argv": sys.argv, "init_main_from_name": name}
    if path is not None and os.path.exists(path):
        return {"sys_argv": sys.argv, "init_main_from_path": os.path.abspath(path)}
    return {}


def dumps(value: object) -> bytes:
    """Pickle a value for a worker, or a worker's value for its parent.

    Raises
    ------
    MissingDependency
        The value refers to objects of a notebook or prompt, and cloudpickle is not installed.
    """
    return serialize(lambda dump: dump(value, protocol=5))


def serialize(attempt: Callable[[Callable[..., bytes]], bytes]) -> bytes:
    """Return `attempt(pickle.dumps)`, or `attempt(cloudpickle.dumps)` where workers could not load the former."""
    try:
        data = attempt(pickle.dumps)
    except Exception:
        if not by_value() or not installed("cloudpickle"):
            raise
    else:
        if b"__main__" not in data or not by_value():
            return data
    return attempt(_cloudpickle().dumps)


def _cloudpickle() -> Any:
    return require("cloudpickle", extra="notebook", purpose=_PURPOSE)


# --- "__main__:name", by which brains refer to callables ---


def main_objects(references: Iterable[str]) -> dict[str, Any]:
    """Return the objects behind references "__main__:name", to be sent to workers that cannot import them, by name.

    Raises
    ------
    MissingDependency
        There are such objects, and cloudpickle is not installed.
    """
    if not by_value():
        return {}
    names = {one.removeprefix("__main__:").partition(".")[0] for one in references if one.startswith("__main__:")}
    defined = vars(sys.modules["__main__"])
    found = {name: defined[name] for name in sorted(names & defined.keys())}
    if found:
        _cloudpickle()
    return found


def install(objects: Mapping[str, Any]) -> None:
    """In a worker: make the result of `main_objects` available in `__main__`."""
    vars(sys.modules["__main__"]).update(objects)


def adopt(name: str, value: Any) -> None:
    """In a worker that got a function of a notebook by value: define in `__main__` what that function uses by name."""
    if _of_parent and "." not in name:
        vars(sys.modules["__main__"]).setdefault(name, value)
