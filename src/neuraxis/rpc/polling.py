"""Looking for a message again and again for a moment, before sleeping until it comes.

To wake a thread takes about as long as a quick answer does. Where there are many cores, one that looks takes none from
those that bring the message; where there are few, it does, and sleeping is quicker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from neuraxis.machine import usable_cores

__all__ = ["look_for", "poll_seconds"]

_MANY_CORES = 8
_POLL_S = 2e-4


def poll_seconds() -> float:
    """How long to look on this machine; 0 where it does not pay."""
    return _POLL_S if usable_cores() >= _MANY_CORES else 0.0


def look_for(try_receive: Callable[[], Any], seconds: float) -> Any:
    """What comes within a time; None if nothing does. Other threads of this process run meanwhile."""
    monotonic, sleep = time.monotonic, time.sleep
    sample = try_receive()
    end = monotonic() + seconds
    while sample is None and monotonic() < end:
        sleep(0)  # which lets other threads have the interpreter; to yield the core alone does not
        sample = try_receive()
    return sample
