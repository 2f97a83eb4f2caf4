"""A message before it is sent: a small part, and large arrays that are still where the user has them.

A line that can send from several places sends the `parts` from there; for the others `joined` makes bytes of all.
Arrays can also be `lent` to a receiver on this host.
"""

from __future__ import annotations

from typing import Any

from neuraxis.comm.loans import Loan

__all__ = ["ALIGNMENT", "Frame"]

ALIGNMENT = 64  # bytes: where arrays begin in a frame


class Frame:
    """The bytes of a message. `pieces` are (where it lies, memory) of what follows the small part `start`.

    `loan` is where they are instead, if they were lent.
    """

    __slots__ = ("loan", "pieces", "size", "start")

    def __init__(self, start: bytes, arrays: list[Any] | None = None) -> None:
        self.start = start
        self.loan: Loan | None = None
        self.pieces: list[tuple[int, Any]] = []
        self.size = len(start)
        for array in arrays or ():
            offset = self.size + -self.size % ALIGNMENT
            self.pieces.append((offset, array))
            self.size = offset + len(array)

    def __len__(self) -> int:
        return self.size

    def copy_to(self, memory: bytearray) -> None:
        """Write all of it to memory of its size. What lies between the parts is left as it is."""
        memory[: len(self.start)] = self.start
        for offset, piece in self.pieces:
            memory[offset : offset + len(piece)] = piece

    def parts(self) -> list[Any]:
        """All of it, from where it lies: memory that follows one another, none of it empty."""
        parts: list[Any] = [self.start]
        end = len(self.start)
        for offset, piece in self.pieces:
            if offset > end:
                parts.append(bytes(offset - end))
            if len(piece):
                parts.append(piece)
            end = offset + len(piece)
        return parts

    def joined(self) -> bytes:
        """All of it, in one part from now on. What the user does with the arrays later does not change it."""
        if self.pieces:
            self.start, self.pieces = b"".join(self.parts()), []
        return self.start

    def lent(self, loan: Loan) -> None:
        """The arrays were copied to where the receiver reads them, and only the small part is sent."""
        self.loan, self.pieces, self.size = loan, [], len(self.start)
