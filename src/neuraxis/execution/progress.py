"""The line that tells how a simulation is coming along; drawn only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["ProgressLine"]


class ProgressLine:
    """A progress bar on standard error with a text of its own; nothing where that is no terminal."""

    def __init__(self, what: str, total: float, enabled: bool | None = None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        self._progress: Progress | None = None
        if shown:
            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                _Says(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(what, total=total, says="")

    def update(self, completed: float, says: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=completed, says=says)

    def advance(self, by: float, says: str = "") -> None:
        if self._progress is not None:
            self._progress.update(self._task, advance=by, says=says)

    def __enter__(self) -> ProgressLine:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class _Says(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("says", "")))
