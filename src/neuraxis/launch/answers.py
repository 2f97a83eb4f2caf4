"""The way back from a rank of `run` to its caller."""

from __future__ import annotations

import os
import pickle
import tempfile

from neuraxis.launch.processes import POSIX
from neuraxis.launch.worker import LENGTH_BYTES, Answer

__all__ = ["AnswerChannel"]


class AnswerChannel:
    """Bytes of one answer, arriving bit by bit through a pipe.

    Windows can neither hand a descriptor to a child nor wait for a pipe: there a file is used, which is read
    when the rank has ended.

    Attributes:
        target: what the worker writes to: a descriptor or a path.
        read_end, write_end: the pipe, as long as it is open.
    """

    def __init__(self) -> None:
        self.target: int | str
        self.read_end: int | None = None
        self.write_end: int | None = None
        self._received = bytearray()
        if POSIX:
            self.read_end, self.write_end = os.pipe()
            os.set_blocking(self.read_end, False)
            self.target = self.write_end
        else:
            descriptor, self.target = tempfile.mkstemp(prefix="neuraxis-answer-")
            os.close(descriptor)

    def receive(self) -> bool:
        """Take what has arrived. False at the end of the stream."""
        while self.read_end is not None:
            try:
                data = os.read(self.read_end, 1024 * 1024)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._received += data
        return False

    def answer(self) -> Answer | None:
        """What was sent, or None if that is nothing or not all of it."""
        length = int.from_bytes(self._received[:LENGTH_BYTES], "little")
        if not LENGTH_BYTES < len(self._received) == LENGTH_BYTES + length:
            return None
        answer = pickle.loads(memoryview(self._received)[LENGTH_BYTES:])
        assert isinstance(answer, Answer)
        return answer

    def close_write_end(self) -> None:
        """The rank has it; while we have it too, the stream has no end."""
        if self.write_end is not None:
            os.close(self.write_end)
            self.write_end = None

    def close(self) -> None:
        self.close_write_end()
        if self.read_end is not None:
            os.close(self.read_end)
            self.read_end = None
        if isinstance(self.target, str) and os.path.exists(self.target):
            with open(self.target, "rb") as file:
                self._received += file.read()
            os.unlink(self.target)
