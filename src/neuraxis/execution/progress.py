"""The line that tells how a simulation is coming along; drawn only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["ProgressLine", "run_text"]

_WIDEST_BAR = 24
_ROOM_FOR_TEXT = 76  # what a line takes besides its bar, so that it fits 80 columns


class ProgressLine:
    """A progress bar on standard error with a text of its own; nothing where that is no terminal."""

    def __init__(self, what: str, total: float, enabled: bool | None = None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        self._progress: Progress | None = None
        if shown:
            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=min(_WIDEST_BAR, max(4, console.width - _ROOM_FOR_TEXT))),
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


def run_text(time_ms: float, model_seconds: float, run_seconds: float, spikes: int) -> str:
    """What a run says of itself: the model time it has reached, and its speed.

    `model_seconds` and `spikes` were run in `run_seconds`; "2 x real time" is twice as fast as real time.
    """
    text = f"{time_ms:,.1f} ms of model time"
    if run_seconds > 0:
        text += f", {_short(model_seconds / run_seconds)} x real time, {_short(spikes / run_seconds)} spikes/s"
    return text


def _short(value: float) -> str:
    """A number in few characters: 0.042, 1.2, 340, 12 k, 1.2 M."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:  # what would be rounded to 1000 has the next letter
            return f"{_two_or_three_digits(value / size)}{letter}"
    return _two_or_three_digits(value)


def _two_or_three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


class _Says(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("says", "")))
