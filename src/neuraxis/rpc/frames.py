"""A message before it is sent: a small header part, and large arrays that still lie in the user's memory.

A link that supports scatter/gather sends the `parts` from there; for others `joined` copies everything into one buffer.
A receiver on the same host can also read the arrays from shared memory (`share`).
"""

from __future__ import annotations

from typing import Any

from neuraxis.comm.backends.shm.zero_copy import SharedBuffer
from neuraxis.wire.arrays import ALIGNMENT

__all__ = ["ALIGNMENT", "Frame"]


class Frame:
    """The bytes of a message: the small part `start`, and `pieces` (offset, memory) that follow it.

    `shared` is the shared memory that holds the arrays instead, if there is one.
    """

    __slots__ = ("pieces", "shared", "size", "start")

    def __init__(self, start: bytes, arrays: list[Any] | None = None) -> None:
        self.start = start
        self.shared: SharedBuffer | None = None
        self.pieces: list[tuple[int, Any]] = []
        self.size = len(start)
        for array in arrays or ():
            offset = self.size + -self.size % ALIGNMENT
            self.pieces.append((offset, array))
            self.size = offset + len(array)

    def __len__(self) -> int:
        return self.size

    def copy_to(self, memory: bytearray) -> None:
        """Copy the frame to memory of its size. Padding between the parts is not written."""
        memory[: len(self.start)] = self.start
        for offset, piece in self.pieces:
            memory[offset : offset + len(piece)] = piece

    def parts(self) -> list[Any]:
        """Return the frame as consecutive buffers without a copy, none of them empty."""
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
        """Copy the frame into one buffer and return it. Later changes of the user's arrays do not affect it."""
        if self.pieces:
            self.start, self.pieces = b"".join(self.parts()), []
        return self.start

    def share(self, buffer: SharedBuffer) -> None:
        """Replace the arrays by shared memory from which the receiver reads them; only the small part is sent."""
        self.shared, self.pieces, self.size = buffer, [], len(self.start)
