"""What a region has said, kept for those who missed some of it, came later, or come back from an older state."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Journal", "Letters"]

_ANSWER_BYTES = 4 * 2**20

Letters = list[tuple[int, Any]]  # (step, content)


@dataclass
class Journal:
    """The last windows and data of a region, up to `room` bytes. Used by the loop and by those that answer."""

    room: int = 64 * 2**20
    _windows: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    _letters: deque[tuple[int, Any, int]] = field(default_factory=deque)
    _bytes: int = 0
    _began: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_window(self, first: int, last: int, payload: bytes) -> None:
        with self._lock:
            self._windows.append((first, last, payload))
            self._bytes += len(payload) + 100
            while self._bytes > self.room and len(self._windows) > 1:
                _, gone, old = self._windows.popleft()
                self._bytes -= len(old) + 100
                while self._letters and self._letters[0][0] <= gone:
                    self._bytes -= self._letters.popleft()[2]

    def add_letter(self, step: int, content: Any, size: int) -> None:
        with self._lock:
            self._letters.append((step, content, size + 100))
            self._bytes += size + 100

    def begin_again(self, step: int) -> None:
        """Forget all: what comes next goes on after `step`, and before it there was nothing."""
        with self._lock:
            self._began = step
            self._windows.clear()
            self._letters.clear()
            self._bytes = 0

    def oldest(self) -> int | None:
        """The first step that is still known; None where nothing was said yet."""
        with self._lock:
            return self._windows[0][0] if self._windows else None

    def since(self, step: int) -> dict[str, Any]:
        """What was said from a step on, as much as one answer holds; the oldest step kept, and where it began."""
        windows: list[bytes] = []
        size, last = 0, step - 1
        with self._lock:
            began = self._began
            oldest = self._windows[0][0] if self._windows else None
            for _, end, payload in self._windows:
                if end < step:
                    continue
                if size and size + len(payload) > _ANSWER_BYTES:
                    break
                windows.append(payload)
                size += len(payload)
                last = end
            letters = [[at, content] for at, content, _ in self._letters if at >= step]
            more = bool(self._windows) and last < self._windows[-1][1]
        return {"windows": windows, "letters": letters, "oldest": oldest, "began": began, "more": more}
