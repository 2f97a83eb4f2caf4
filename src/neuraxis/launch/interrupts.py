"""Ctrl-C, let through only where it breaks nothing.

Python raises KeyboardInterrupt between any two instructions of the main thread: also between a system call that took
bytes from a socket and the line that takes note of them, and the stream would be lost. So the handler is replaced
while something is transferred. It remembers that Ctrl-C was pressed and lets the old handler have it at the next wait,
which can be left at any time.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """While entered, SIGINT is held back, except within `let_through`, and delivered on leaving at the latest.

    Only a main thread has this to fear; in another one, and where Ctrl-C raises nothing, nothing is changed.
    """

    def __init__(self) -> None:
        self.let_through = _LetThrough(self)
        self._old: Callable[[int, FrameType | None], Any] | None = None  # the handler, while ours is in its place
        self._nested = 0
        self._open = False
        self._held = False

    def __enter__(self) -> None:
        if self._old is not None:
            self._nested += 1  # another signal's handler uses the team that it broke into
        elif threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._open = self._held = False
            self._old = signal.signal(signal.SIGINT, self._handle)  # type: ignore[assignment]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nested:
            self._nested -= 1
        elif self._old is not None:
            old, self._old = self._old, None
            signal.signal(signal.SIGINT, old)
            self._deliver(old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._held = True
        if self._open and self._old is not None:
            self._deliver(self._old)

    def _deliver(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        if self._held:
            self._held = False
            handler(signal.SIGINT, None)


class _LetThrough:
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> None:
        if self._interrupts._old is not None:
            self._interrupts._open = True
            try:
                self._interrupts._deliver(self._interrupts._old)
            except BaseException:
                self._interrupts._open = False
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts._open = False
