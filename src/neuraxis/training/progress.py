"""What rank 0 shows of a training: a line that fills on a terminal, nothing elsewhere unless it is asked for."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from neuraxis.execution.progress import ProgressLine

__all__ = ["EpochProgress", "record_text"]


class EpochProgress:
    """The line of one epoch; a context manager.

    Args:
        shown: None on a terminal only; True also elsewhere, where it becomes one line of text for each epoch.
        steps: of the epoch; None if that is not known.
    """

    def __init__(self, epoch: int, epochs: int, steps: int | None, done: int, *, rank: int, shown: bool | None) -> None:
        self._what = f"epoch {epoch + 1} of {epochs}"
        terminal = sys.stderr.isatty()
        draws = rank == 0 and shown is not False and terminal
        self._tells = rank == 0 and shown is True and not terminal
        self._line = ProgressLine(self._what, float("inf") if steps is None else steps, enabled=draws)
        self._done = done
        self._samples = 0.0
        self._since = time.monotonic()

    def step(self, samples: float, loss: float) -> None:
        """One more step of so many samples on this rank, and the mean loss on this rank so far."""
        self._done += 1
        self._samples += samples
        seconds = time.monotonic() - self._since
        speed = f", {self._samples / seconds:,.0f} samples/s" if seconds > 0 else ""
        self._line.update(self._done, f"loss {loss:.4f}{speed}")

    def end(self, record: Mapping[str, float]) -> None:
        """What came out, averaged over all ranks."""
        if self._tells:
            print(f"{self._what}: {record_text(record)}", file=sys.stderr, flush=True)

    def __enter__(self) -> EpochProgress:
        self._line.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.__exit__(None, None, None)


def record_text(record: Mapping[str, float]) -> str:
    """The figures of an epoch in a line."""
    return ", ".join(f"{name} {value:.4f}" for name, value in record.items() if name not in ("epoch", "step"))
