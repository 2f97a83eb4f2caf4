"""What commands that run a brain have in common: who runs it, and where results go."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from neuraxis.errors import InvalidArgument
from neuraxis.machine import usable_cores

__all__ = ["brain_workers", "check_page", "tell_first_time", "tell_interrupt"]


def brain_workers(given: str | None, sequential: bool, default: int | str | None = None) -> int | str:
    """What `--workers` and `--sequential` mean; by default all cores."""
    if sequential:
        if given is not None and given != "1":
            raise InvalidArgument(f"--workers {given} and --sequential: one of them, please")
        return 1
    if given is None:
        return usable_cores() if default is None else default
    if given == "auto":
        return "auto"
    try:
        workers = int(given)
    except ValueError:
        raise InvalidArgument(f"--workers {given}: a number of processes, or auto, is expected") from None
    if workers < 1:
        raise InvalidArgument(f"--workers {given}: at least one process is needed")
    return workers


def tell_first_time() -> None:
    """Say why the first run on a machine takes longer to begin."""
    from neuraxis.engine.warm import is_compiled

    if not is_compiled():
        print("compiling for this machine, once: about half a minute", file=sys.stderr)


def check_page(path: Path, option: str = "--html") -> None:
    """Raise before anything runs if a file cannot be written afterwards."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK) or path.is_dir():
        raise InvalidArgument(f"{option} {path}: cannot be written")


def tell_interrupt(interrupted: bool, text: str) -> int:
    """The exit status; where Ctrl-C ended it early, a line that says how far it came."""
    if not interrupted:
        return 0
    print(f"interrupted {text}", file=sys.stderr)
    return 130
