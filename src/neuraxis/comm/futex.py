"""Sleep until a word of shared memory changes.

On Linux this is the futex system call: the kernel compares the word and puts the caller to sleep in one
step, so a change between looking and sleeping is never missed. Elsewhere the sleeper looks again after a short
pause. The call gives way to Ctrl-C either way.
"""

from __future__ import annotations

import ctypes
import sys
import time

from neuraxis.comm.atomics import FUTEX

__all__ = ["sleep_on_word"]

_FUTEX_WAIT = 0
_POLL_SECONDS = 0.0005


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


if FUTEX:
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.syscall.restype = ctypes.c_long

    def sleep_on_word(address: int, seen: int, seconds: float) -> None:
        """Sleep while the 32-bit word at `address` equals the low half of `seen`, for at most `seconds`."""
        limit = _TimeSpec(int(seconds), int(seconds % 1 * 1e9))
        _libc.syscall(
            ctypes.c_long(FUTEX),
            ctypes.c_void_p(address if sys.byteorder == "little" else address + 4),
            ctypes.c_long(_FUTEX_WAIT),
            ctypes.c_uint32(seen & 0xFFFFFFFF),
            ctypes.byref(limit),
            None,
            ctypes.c_long(0),
        )

else:

    def sleep_on_word(address: int, seen: int, seconds: float) -> None:
        """Sleep for a short while; the caller looks again."""
        time.sleep(min(seconds, _POLL_SECONDS))
