"""The backend of a world of one rank: it only copies within the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from neuraxis.comm.backends.base import Backend, Exchange, Request
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import CollectiveMismatch, CollectiveTimeout

__all__ = ["LocalBackend", "SelfMessages"]


class LocalBackend(Backend):
    """Collectives of a single rank."""

    name: ClassVar[str] = "local"

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self._messages = SelfMessages(0)

    def barrier(self) -> None:
        pass

    def broadcast(self, buffer: Buffer, root: int) -> None:
        pass

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        pass

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        pass

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        _copy("gather", outputs[0], buffer)

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        _copy("all_gather", outputs[0], buffer)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        _copy("scatter", buffer, inputs[0])

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        _copy("all_to_all", outputs[0], inputs[0])

    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
        _copy("reduce_scatter", output, inputs[0])

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        return self._messages.isend(buffer, tag)

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        return self._messages.ireceive(buffer, tag)

    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> LocalBackend:
        return LocalBackend()

    def close(self) -> None:
        pass


class SelfMessages:
    """Messages of a rank to itself."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sent: list[tuple[int, Buffer, bytes]] = []
        self._receives: list[_Receive] = []

    def isend(self, buffer: Buffer, tag: int) -> Request:
        self._sent.append((tag, buffer, buffer.bytes().tobytes()))
        self._match()
        return _Sent()

    def ireceive(self, buffer: Buffer, tag: int) -> Request:
        request = _Receive(buffer, tag)
        request.source = self._rank
        self._receives.append(request)
        self._match()
        return request

    def _match(self) -> None:
        for request in list(self._receives):
            for index, (tag, original, content) in enumerate(self._sent):
                if tag == request.tag:
                    del self._sent[index]
                    self._receives.remove(request)
                    request.deliver(original, content)
                    break


class _Sent(Request):
    def test(self) -> bool:
        return True

    def wait(self, timeout: float) -> None:
        pass


class _Receive(Request):
    def __init__(self, buffer: Buffer, tag: int) -> None:
        self._buffer = buffer
        self.tag = tag
        self._done = False
        self._error: CollectiveMismatch | None = None

    def deliver(self, original: Buffer, content: bytes) -> None:
        self._done = True
        if original.element is not self._buffer.element or original.count != self._buffer.count:
            self._error = _mismatch("receive", self._buffer, original)
        else:
            self._buffer.bytes()[:] = memoryview(content)

    def test(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._done

    def wait(self, timeout: float) -> None:
        if not self.test():
            raise CollectiveTimeout(
                "this rank waits for a message from itself that it has not sent. Send it first, with isend",
                rank=self.source,
                operation="recv",
            )


def _copy(what: str, target: Buffer, source: Buffer) -> None:
    if target.nbytes != source.nbytes:
        raise _mismatch(what, target, source)
    if target.address != source.address:
        target.bytes()[:] = source.bytes()


def _mismatch(what: str, target: Buffer, source: Buffer) -> CollectiveMismatch:
    mine = f"{target.element.label}[{target.count}]"
    theirs = f"{source.element.label}[{source.count}]"
    return CollectiveMismatch(
        f"{what}: {theirs} does not fit into {mine}. Give both the same dtype and length",
        rank=0,
        mine=mine,
        theirs=theirs,
    )
