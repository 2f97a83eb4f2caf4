"""What a region has said, kept for those who missed some of it, came later, or come back from an older state."""

from __future__ import annotations

import bisect
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Journal"]

_ANSWER_BYTES = 4 * 2**20
_ANSWER_WINDOWS = 1000  # so that who takes them in does so in a moment
_BESIDE = 100  # bytes that an entry takes beside its content


@dataclass
class Journal:
    """The last windows and data of a region, up to `room` bytes. Used by the loop and by those that answer."""

    room: int = 64 * 2**20
    _windows: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    _letters: list[tuple[int, int, Any]] = field(default_factory=list)  # (step, size, content), by step
    _bytes: int = 0
    _began: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_window(self, first: int, last: int, payload: bytes) -> None:
        with self._lock:
            self._windows.append((first, last, payload))
            self._bytes += len(payload) + _BESIDE
            self._make_room()

    def add_letter(self, step: int, content: Any, size: int) -> None:
        with self._lock:
            bisect.insort(self._letters, (step, size + _BESIDE, content), key=lambda letter: letter[0])
            self._bytes += size + _BESIDE
            self._make_room()

    def _make_room(self) -> None:
        """Forget the oldest windows, and the data that came with them."""
        while self._bytes > self.room and (len(self._windows) > 1 or len(self._letters) > 1):
            gone = self._letters[0][0] if self._letters else 0
            if len(self._windows) > 1:
                _, gone, payload = self._windows.popleft()
                self._bytes -= len(payload) + _BESIDE
            kept = bisect.bisect_right(self._letters, gone, key=lambda letter: letter[0])
            self._bytes -= sum(size for _, size, _ in self._letters[:kept])
            del self._letters[:kept]

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
        """What was said from a step on, as much as one answer holds.

        "oldest" and "last" are the steps between which all is kept, "began" the one before anything was said,
        "letters_to" the step up to which data are all here (None: to the last), "more" whether there is more to ask.
        """
        with self._lock:
            windows = [(end, payload) for _, end, payload in self._windows if end >= step]
            at = bisect.bisect_left(self._letters, step, key=lambda letter: letter[0])
            letters = self._letters[at:]
            oldest, began = self._windows[0][0] if self._windows else None, self._began
            last = self._windows[-1][1] if self._windows else began
        said: list[bytes] = []
        with_data: list[list[Any]] = []
        size, taken = 0, 0
        for end, payload in windows:
            due = taken
            while due < len(letters) and letters[due][0] <= end:
                due += 1
            cost = len(payload) + sum(one[1] for one in letters[taken:due])
            if said and (size + cost > _ANSWER_BYTES or len(said) >= _ANSWER_WINDOWS):
                break
            said.append(payload)
            with_data += [[at, content] for at, _, content in letters[taken:due]]
            size, taken = size + cost, due
        more = len(said) < len(windows)
        letters_to = windows[len(said) - 1][0] if more else None
        if not more:
            with_data += [[at, content] for at, _, content in letters[taken:]]
        return {
            "windows": said, "letters": with_data, "letters_to": letters_to, "more": more,
            "oldest": oldest, "began": began, "last": last,
        }  # fmt: skip
