"""Large arrays of a message, lent to a receiver on this host instead of sent: see `comm.loans`.

The small part of a message is sent as always, with the note of the loan attached. So a receiver that cannot read the
loan still knows what it was asked, and says so. The first large message to a party is sent whole, with a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from neuraxis.comm.lent_memory import Note
from neuraxis.comm.loans import Borrower, Lender
from neuraxis.comm.objects import Unreadable
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Party

__all__ = ["LentArrays"]

_LARGE_BYTES = 131072  # a smaller message is sooner sent
_CLOSE_S = 0.5


class LentArrays:
    """What one party lends and borrows. A message has `largest` bytes at most."""

    def __init__(self, largest: int) -> None:
        self._lender = Lender()
        self._borrower = Borrower(largest)

    def lend(self, to: Party, frame: Frame) -> bytes | None:
        """Lend the arrays of a frame, if it is large and the party can read them. The note that is to be attached."""
        if frame.loan is not None:
            return frame.loan.note
        if frame.size < _LARGE_BYTES:
            return None
        if not self._lender.reaches(to):
            return self._lender.trial(to)
        if not frame.pieces:
            return None
        loan = self._lender.lend(to, [piece for _, piece in frame.pieces])
        if loan is None:
            return None
        frame.lent(loan)
        return loan.note

    def detach(self, to: Party, frame: Frame) -> None:
        """Copy the arrays of a frame, to where they are lent if that can be."""
        if frame.size >= _LARGE_BYTES and self._lender.reaches(to):
            self.lend(to, frame)
        frame.joined()

    def received(self, content: bytes, attached: bytes) -> bytes | Frame:
        """A message that came with a note. Where what was lent cannot be read, its arrays are the reason for that."""
        arrays: Sequence[Any]
        try:
            note = Note.unpack(attached)
            if not note.lengths:
                self._try(note)
                return content
            arrays = self._borrower.borrow(note)
        except Unreadable as error:
            arrays = [_Missing(error)]
        frame = Frame(content)
        frame.pieces = [(0, array) for array in arrays]
        return frame

    def _try(self, trial: Note) -> None:
        """Read a trial, by which the sender knows that this party can; it does not matter here whether it can."""
        with suppress(Unreadable):
            self._borrower.borrow(trial)

    def drop(self, party: Party) -> None:
        """A party is out of sight."""
        self._lender.drop(party)
        self._borrower.let_go()

    def close(self) -> None:
        self._lender.close(_CLOSE_S)
        self._borrower.close()


class _Missing:
    """In place of arrays that cannot be read."""

    def __init__(self, error: Unreadable) -> None:
        self._error = error

    @property
    def data(self) -> memoryview:
        raise self._error
