"""Signals that the launcher passes on, as readable events."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["ENDING_SIGNALS", "SignalRelay"]

_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


class SignalRelay:
    """While entered, forwarded signals are collected instead of acted on; the old handlers come back after.

    The C-level handler writes each signal's number into a pipe, so a signal that arrives just before a wait
    ends that wait. What nobody took is delivered again on leaving, to the old handlers. Only a main thread
    can do this: in another one, nothing is changed. Signals that are ignored (nohup) stay ignored.
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
            # None is a handler that C code installed; Python cannot put that one back.
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
        """The forwarded signals that arrived since the last call."""
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
