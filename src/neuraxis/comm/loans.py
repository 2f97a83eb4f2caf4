"""Large messages between two processes of one host: one lends memory, the other reads it, and only a note travels.

A borrower reads only what begins with the token of the note; who has not seen a note can make nobody read memory of a
third. When it has been read, the lender uses the memory again, which is much quicker than to take new one. It does that
in no other case: a note that comes late, or twice, finds what it speaks of or is refused, and never finds what was lent
to somebody else.

Whether another can read what is lent here (it may be on another host, in another container, or of another user) is
tried before: the first note is of a loan of nothing.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from neuraxis.comm.lent_memory import TOKEN_BYTES, Memory, Note
from neuraxis.comm.objects import Unreadable

__all__ = ["Borrower", "Lender", "Loan"]

_MOST_PARTS = 100
_MOST_LOANS = 64
_MOST_BYTES = 128 * 2**20  # that are lent, or kept to be lent again
_MOST_KEPT_BYTES = 32 * 2**20
_MOST_OPEN = 32  # of others, that stay open
_MOST_OPEN_BYTES = 2 * 2**20  # of each
_HOLD_S = 10.0  # how long a loan is held for who has not read it, when nobody else holds it
_LOOK_S = 1e-3


class Loan:
    """Memory that was lent. `note` is for the borrower. The memory goes with the last user of this."""

    def __init__(self, memory: Memory, lengths: Sequence[int]) -> None:
        self._memory: Memory | None = memory
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._in_use = threading.Lock()
        self.room = memory.room
        self.note = Note(os.getpid(), memory.number, self._token, tuple(lengths)).pack()

    @property
    def is_read(self) -> bool:
        """Whether the borrower has read it, and will not again."""
        with self._in_use:
            return self._memory is not None and self._memory.was_read(self._token)

    def fill(self, parts: Sequence[Any]) -> bool:
        """Write what is lent; False where it was closed before."""
        with self._in_use:
            if self._memory is None:
                return False
            self._memory.write(self._token, parts)
        return True

    def release(self) -> Memory | None:
        """Its memory, which is another's from now on."""
        with self._in_use:
            memory, self._memory = self._memory, None
        return memory

    def close(self) -> None:
        memory = self.release()
        if memory is not None:
            memory.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


class Lender:
    """What one process lends to others, each of which it knows by some key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loans: weakref.WeakSet[Loan] = weakref.WeakSet()
        self._held: deque[tuple[float, Hashable, Loan]] = deque()  # since when, to whom; the oldest first
        self._kept: list[Memory] = []  # that nobody uses, the newest last
        self._trials: dict[Hashable, tuple[float, Loan] | None] = {}  # since when; None where it has ended
        self._readers: set[Hashable] = set()
        self._closed = not Memory.can_be_made()

    def reaches(self, borrower: Hashable) -> bool:
        """Whether a borrower has shown that it can read what is lent here."""
        if borrower in self._readers:
            return True
        trial = self._trials.get(borrower)
        if trial is None:
            return False
        since, loan = trial
        can_read = loan.is_read
        if can_read or since + _HOLD_S < time.monotonic():
            with self._lock:
                if self._trials.get(borrower) is trial:
                    self._trials[borrower] = None
                    if can_read:
                        self._readers.add(borrower)
        return can_read

    def trial(self, borrower: Hashable) -> bytes | None:
        """The note of a loan of nothing, by which a borrower shows that it can read; None if it was made before."""
        if borrower in self._trials:
            return None
        loan = self._lend([])
        if loan is None:
            return None
        trial = time.monotonic(), loan
        with self._lock:
            return loan.note if self._trials.setdefault(borrower, trial) is trial else None

    def lend(self, borrower: Hashable, parts: Sequence[Any]) -> Loan | None:
        """Lend a copy of these parts; None where that cannot be done now, and they have to travel by themselves."""
        loan = self._lend(parts)
        if loan is not None:
            with self._lock:
                self._held.append((time.monotonic(), borrower, loan))
        return loan

    def _lend(self, parts: Sequence[Any]) -> Loan | None:
        lengths = [len(part) for part in parts]
        if len(parts) > _MOST_PARTS:
            return None
        with self._lock:
            self._collect()
            memory = self._memory(sum(lengths))
            if memory is None:
                return None
            loan = Loan(memory, lengths)
            self._loans.add(loan)
        return loan if loan.fill(parts) else None

    def _memory(self, nbytes: int) -> Memory | None:
        """Memory with room for as many bytes; None where there is too much of it, or none."""
        if self._closed:
            return None
        # What was used last is likely to be in a cache still, and to be open at the borrower.
        fitting = [memory for memory in reversed(self._kept) if 0 < nbytes <= memory.room <= 2 * nbytes + 2**20]
        if fitting:
            memory = min(fitting, key=lambda memory: memory.room)
            self._kept.remove(memory)
            return memory
        rooms = [loan.room for loan in self._loans]
        if len(rooms) >= _MOST_LOANS or sum(rooms) + nbytes > _MOST_BYTES:
            return None
        while self._kept and len(rooms) + len(self._kept) >= _MOST_LOANS:
            self._kept.pop(0).close()
        try:
            return Memory.make(nbytes)
        except OSError:  # no descriptor, or no memory
            return None

    def _collect(self) -> None:
        """Keep memory that was read, and hold no longer what was not for long."""
        old = time.monotonic() - _HOLD_S
        still_held: deque[tuple[float, Hashable, Loan]] = deque()
        for one in self._held:
            since, _, loan = one
            if loan.is_read:
                memory = loan.release()
                if memory is not None:
                    self._kept.append(memory)
                self._loans.discard(loan)
            elif since > old:
                still_held.append(one)
        self._held = still_held
        while self._kept and sum(memory.room for memory in self._kept) > _MOST_KEPT_BYTES:
            self._kept.pop(0).close()

    def drop(self, borrower: Hashable) -> None:
        """A borrower is gone, or out of sight: it is tried anew, and only others hold what is lent to it."""
        with self._lock:
            self._readers.discard(borrower)
            self._trials.pop(borrower, None)
            self._held = deque(one for one in self._held if one[1] != borrower)

    def close(self, patience_s: float) -> None:
        """Lend nothing more, and let go of all memory; what was lent just now is given some time to be read."""
        self._closed = True
        deadline = time.monotonic() + patience_s
        with self._lock:
            held = [loan for _, _, loan in self._held]
        while time.monotonic() < deadline and not all(loan.is_read for loan in held):
            time.sleep(_LOOK_S)
        with self._lock:
            for loan in list(self._loans):
                loan.close()
            for memory in self._kept:
                memory.close()
            self._kept.clear()
            self._held.clear()
            self._trials.clear()


class Borrower:
    """Reads what others have lent to this process, `most_bytes` at a time.

    Memory is likely to be lent again, so some of it stays open. Whether it is what a note speaks of, the token tells.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._open: OrderedDict[tuple[int, int], Memory] = OrderedDict()  # what nobody uses now, the newest last
        self._closed = False

    def borrow(self, note: Note) -> list[np.ndarray]:
        """Copies of the parts that a note speaks of, as bytes; Unreadable where they cannot be read."""
        if sum(note.lengths) > self._most_bytes:
            raise Unreadable(f"lent memory has {sum(note.lengths):,} bytes, and may have {self._most_bytes:,} at most")
        memory = self._open.pop((note.pid, note.number), None)
        parts = self._read(memory, note) if memory is not None else None
        if memory is None or parts is None:
            memory = Memory.open(note.pid, note.number)
            parts = self._read(memory, note)
        if parts is None:
            raise Unreadable("lent memory is not what its note says: it was read before, or the note is forged")
        if note.lengths and memory.room <= _MOST_OPEN_BYTES:
            self._keep((note.pid, note.number), memory)
        else:
            memory.close()
        return parts

    def _read(self, memory: Memory, note: Note) -> list[np.ndarray] | None:
        """What is lent; where that is not in this memory, or cannot be read, it is closed."""
        parts = None
        try:
            parts = memory.read(note.token, note.lengths)
        finally:
            if parts is None:
                memory.close()
        return parts

    def _keep(self, key: tuple[int, int], memory: Memory) -> None:
        before = self._open.pop(key, None)
        if before is not None:
            before.close()
        self._open[key] = memory
        if len(self._open) > _MOST_OPEN or self._closed:
            self._let_go_of_one()

    def _let_go_of_one(self) -> bool:
        try:
            _, memory = self._open.popitem(last=False)
        except KeyError:
            return False
        memory.close()
        return True

    def let_go(self) -> None:
        """Keep no memory open: somebody who has lent some may be gone."""
        while self._let_go_of_one():
            pass

    def close(self) -> None:
        self._closed = True
        self.let_go()
