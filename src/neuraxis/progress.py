"""The progress line of a simulation; drawn only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["ProgressLine", "run_text"]

_WIDEST_BAR = 24
_ROOM_FOR_TEXT = 76  # columns besides the bar, so that a line fits 80 columns


class ProgressLine:
    """A progress bar with a text on standard error; draws nothing if that is not a terminal."""

    def __init__(self, what: str, total: float, enabled: bool | None = None) -> None:
        shown = sys.stderr.isatty() if enabled is None else enabled
        self._progress: Progress | None = None
        if shown:
            console = Console(stderr=True)
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=min(_WIDEST_BAR, max(4, console.width - _ROOM_FOR_TEXT))),
                _TextColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task(what, total=total, text="")

    def update(self, completed: float, text: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=completed, text=text)

    def advance(self, by: float, text: str = "") -> None:
        if self._progress is not None:
            self._progress.update(self._task, advance=by, text=text)

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
    """Return the text of a running simulation: the model time reached, and its speed.

    `model_seconds` and `spikes` were simulated in `run_seconds`; "2 x real time" is twice as fast as real time.
    """
    text = f"{time_ms:,.1f} ms of model time"
    if run_seconds > 0:
        text += f", {_short(model_seconds / run_seconds)} x real time, {_short(spikes / run_seconds)} spikes/s"
    return text


def _short(value: float) -> str:
    """Format a number in few characters: 0.042, 1.2, 340, 12 k, 1.2 M."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:  # a value that would be rounded to 1000 gets the next letter
            return f"{_two_or_three_digits(value / size)}{letter}"
    return _two_or_three_digits(value)


def _two_or_three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


class _TextColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("text", "")))
