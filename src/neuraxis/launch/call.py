"""A function call, made ready for another process before anything is started."""

from __future__ import annotations

import multiprocessing as _multiprocessing  # noqa: F401 (gives `__main__` its second name, `__mp_main__`)
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from neuraxis.errors import InvalidArgument

__all__ = ["importable_main", "main_module", "pickle_call"]


def pickle_call(function: Callable[..., Any], arguments: tuple[object, ...]) -> bytes:
    """Pickle `(function, arguments)`; an error names the part that cannot be."""
    if not callable(function):
        raise InvalidArgument(f"function is {function!r}, which cannot be called")
    name = getattr(function, "__qualname__", repr(function))
    try:
        pickle.dumps(function)
    except Exception as error:
        raise InvalidArgument(
            f"function {name} cannot be sent to other processes: {error}. They import it by name, so it must "
            "be defined at the top level of a module, and not be a lambda or a function within a function"
        ) from error
    for index, argument in enumerate(arguments):
        try:
            pickle.dumps(argument)
        except Exception as error:
            raise InvalidArgument(
                f"argument {index} of {name}, a {type(argument).__qualname__}, cannot be pickled: {error}"
            ) from error
    call = pickle.dumps((function, arguments))
    if b"__main__" in call and not main_module(call):
        raise InvalidArgument(
            f"function {name} or one of its arguments is defined in an interactive session or in "
            "`python -c`, from where other processes cannot import it: put it in a file"
        )
    return call


def main_module(call: bytes) -> dict[str, Any]:
    """`importable_main()`, or nothing where the call does not need it: a whole script would run again for nothing."""
    return importable_main() if b"__main__" in call else {}


def importable_main() -> dict[str, Any]:
    """What `multiprocessing.spawn.prepare` takes to import the parent's main module in a rank.

    Empty where there is no such module to import. (The `get_preparation_data` that goes with it is not used,
    as it fixes the parent's start method for good.)
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        return {"sys_argv": sys.argv, "init_main_from_name": name}
    if path is not None and os.path.exists(path):
        return {"sys_argv": sys.argv, "init_main_from_path": os.path.abspath(path)}
    return {}
