"""A message before it is sent: a small part, and large arrays that are still where the user has them.

A line that can send pieces sends them from there; for the others `joined` makes bytes of all.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ALIGNMENT", "Frame"]

ALIGNMENT = 64  # bytes: where arrays begin in a frame


class Frame:
    """The bytes of a message. `pieces` are (where it lies, memory) of what follows the small part `start`."""

    __slots__ = ("pieces", "size", "start")

    def __init__(self, start: bytes, arrays: list[Any] | None = None) -> None:
        self.start = start
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

    def joined(self) -> bytes:
        """All of it, in one part from now on. What the user does with the arrays later does not change it."""
        if self.pieces:
            parts: list[Any] = [self.start]
            end = len(self.start)
            for offset, piece in self.pieces:
                parts += (bytes(offset - end), piece)
                end = offset + len(piece)
            self.start, self.pieces = b"".join(parts), []
        return self.start
