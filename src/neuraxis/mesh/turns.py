"""Several threads that answer what comes on one channel: who of them listens.

To wake a thread takes longer than a short answer does. So the thread that got something answers it and then listens
again, while the others sleep. Where answers take long, or one turns out to, another thread listens meanwhile.
"""

from __future__ import annotations

import threading
import time

__all__ = ["Turns"]

_LONG_S = 2e-3  # work that takes longer is not waited for: another thread listens
_QUICK_S = 3e-4  # where work takes longer than this as a rule, another thread listens at once
_REST_S = 0.1  # nothing came for so long: nobody looks at the clock


class Turns:
    """One thread at a time listens. Each calls `take` first, and `begin` and `end` around what it does with a thing.

    `quick_s`: where work takes longer as a rule, another thread listens at once. More than the usual is for listeners
    that keep the interpreter busy.
    """

    def __init__(self, quick_s: float = _QUICK_S) -> None:
        self._quick_s = quick_s
        self._lock = threading.Lock()  # taken by itself where nobody waits: that is quicker
        self._changed = threading.Condition(self._lock)
        self._listener = 0  # the thread that listens, or will when its work is done
        self._busy_since = 0.0  # when its work began; 0 where it listens
        self._last = 0.0  # when something came
        self._watched = False  # whether one of those that sleep looks at the clock now and then
        self._typical_s = 0.0

    def take(self) -> None:
        """Wait until nobody else listens."""
        with self._changed:
            while self._listener:
                if self._watched or time.monotonic() - self._last > _REST_S:
                    self._changed.wait()
                    continue
                self._watched = True
                self._changed.wait(_LONG_S)
                self._watched = False
                if self._busy_since and time.monotonic() - self._busy_since > _LONG_S:
                    break
            self._listener, self._busy_since = threading.get_ident(), 0.0

    def begin(self) -> float:
        """Something came; the time. Where such work takes long, others listen from now on."""
        now = time.monotonic()
        if self._typical_s > self._quick_s:
            self.leave()
        else:
            self._last = self._busy_since = now
            if not self._watched:
                with self._lock:
                    self._changed.notify()
        return now

    def end(self, began: float) -> None:
        """The work is done: listen again, when it is this thread's turn."""
        self._typical_s += (time.monotonic() - began - self._typical_s) / 8
        with self._lock:
            if self._listener == threading.get_ident():
                self._busy_since = 0.0
                return
        self.take()

    def leave(self) -> None:
        """Let another thread listen."""
        with self._lock:
            if self._listener == threading.get_ident():
                self._listener = 0
                self._changed.notify()
