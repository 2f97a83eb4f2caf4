"""Signal handling: deferred Ctrl-C (`Interrupts`), and signals forwarded to ranks (`SignalRelay`).

Python raises KeyboardInterrupt between any two instructions of the main thread, also between a system call that read
bytes from a socket and the line that stores them, and the stream would be lost. `Interrupts` therefore replaces the
handler during transfers, remembers that Ctrl-C was pressed, and calls the old handler at the next wait, which can be
interrupted safely.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["ENDING_SIGNALS", "Interrupts", "SignalRelay"]


class Interrupts:
    """Context that defers SIGINT, except within `let_through`, and delivers it on exit at the latest.

    It has an effect only in the main thread and where SIGINT has a Python handler.
    """

    def __init__(self) -> None:
        self.let_through = _LetThrough(self)
        self._old: Callable[[int, FrameType | None], Any] | None = None  # previous handler, while ours is installed
        self._nested = 0
        self._open = False
        self._held = False

    def __enter__(self) -> None:
        if self._old is not None:
            self._nested += 1  # a handler of another signal interrupted a call of the same object
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


_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


class SignalRelay:
    """Context that collects signals to forward instead of handling them, and restores the old handlers on exit.

    The C-level handler writes each signal number to a pipe, so a signal that arrives just before a wait ends that wait.
    Signals that were not taken are raised again on exit. It has an effect only in the main thread. Ignored signals
    (nohup) stay ignored.
    """

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self._write_end: int | None = None
        self._old_wakeup = -1
        self._old: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._seen: list[int] = []

    def __enter__(self) -> SignalRelay:
        if threading.current_thread() is not threading.main_thread():
            return self
        if os.name == "posix":
            self.descriptor, self._write_end = os.pipe()
            os.set_blocking(self.descriptor, False)
            os.set_blocking(self._write_end, False)
            self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for name in _FORWARDED:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self.take()
        for number, handler in self._old.items():
            # None is a handler that C code installed; Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._old.clear()
        if self.descriptor is not None and self._write_end is not None:
            signal.set_wakeup_fd(self._old_wakeup)
            os.close(self.descriptor)
            os.close(self._write_end)
            self.descriptor = self._write_end = None
        for number in left:
            signal.raise_signal(number)

    def take(self) -> list[int]:
        """Return the signals that arrived since the last call."""
        if self.descriptor is not None:
            try:
                return [number for number in os.read(self.descriptor, 512) if number in self._old]
            except BlockingIOError:
                return []
        seen, self._seen = self._seen, []
        return seen

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.descriptor is None:
            self._seen.append(number)
