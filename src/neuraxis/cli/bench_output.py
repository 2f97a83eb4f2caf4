"""What the benchmarks have in common on the command line: progress, results in four forms, an end in order."""

from __future__ import annotations

import json as json_module
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from neuraxis.errors import InvalidArgument

__all__ = ["check_form", "ended_by_sigterm", "print_results", "progress_line"]

_REDRAW_S = 0.5


def check_form(json: bool, markdown: bool) -> None:
    if json and markdown:
        raise InvalidArgument("--json and --markdown cannot both be printed: choose one")


def print_results(tables: ModuleType, results: Any, *, as_json: bool, markdown: bool) -> None:
    """Print results by the functions of the module that knows their tables."""
    console = Console()
    if as_json:
        print(json_module.dumps(tables.as_data(results), indent=1))
    elif markdown:
        print(tables.as_markdown(results))
    elif console.is_terminal:
        tables.print_tables(results, console)
    else:
        print(tables.as_text(results))


@contextmanager
def progress_line() -> Iterator[Callable[[int, int, str], None] | None]:
    """A line on standard error, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn rarely: it takes a core from the contenders for a moment each time.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("")
        drawn = -math.inf

        def show(done: int, total: int, what: str) -> None:
            nonlocal drawn
            progress.update(task, completed=done, total=total, description=what)
            if time.monotonic() - drawn > _REDRAW_S:
                progress.refresh()
                drawn = time.monotonic()

        yield show


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the contenders are ended on this way out as well."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
