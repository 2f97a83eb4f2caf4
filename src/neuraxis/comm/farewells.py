"""What a rank says to the others of a group when it leaves, for transports in which nobody sees how a process ends.

Over shared memory the ranks watch each other's processes. Over MPI and gloo they may be on other hosts, and a process
that has raised may live on for a while. So whoever gives up on a group, or leaves it, says so: on whose account, and
how far it had come. It is said once and to everybody. A rank that leaves because it has lost another says whom, so
that all of them name the one that was the first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from neuraxis.errors import PeerLost

__all__ = ["FAREWELL_BYTES", "Farewell", "Farewells"]

FAREWELL_BYTES = 512  # of every farewell: a shorter one is filled up
_REASON_BYTES = 400  # a longer reason is cut
_PREFIX_BYTES = 2
_END = 1  # the last byte of a farewell that has come in full


class Farewell(msgspec.Struct, frozen=True, array_like=True):
    """What is said."""

    rounds: int  # exchanges of the group that the sender has finished: nobody misses it in these
    rank: int  # on whose account it leaves (in the world): its own, or one that it has lost; -1 if it does not know
    reason: str  # what became of that rank, to be read after its number
    failed: bool  # whether something went wrong
    exit_code: int | None = None
    signal: int | None = None

    @classmethod
    def because_of(cls, error: BaseException | None, me: int, rounds: int) -> Farewell:
        """The farewell of world rank `me`, which leaves because of `error`; in good order without one."""
        if error is None:
            return cls(rounds, me, "has left this group: its context was shut down, or its process ended", False)
        lost = _loss_behind(error)
        if lost is not None:
            return cls(rounds, lost.rank, _cut(lost.reason or str(lost)), True, lost.exit_code, lost.signal)
        if isinstance(error, SystemExit):
            code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            return cls(rounds, me, _cut(f"left by sys.exit({_text_of(error)})"), True, code)
        text = _text_of(error)
        return cls(rounds, me, _cut(f"raised {type(error).__name__}" + (f": {text}" if text else "")), True)

    def packed(self) -> np.ndarray:
        content = msgspec.msgpack.encode(self)
        filled = len(content).to_bytes(_PREFIX_BYTES) + content.ljust(FAREWELL_BYTES - _PREFIX_BYTES - 1, b"\0")
        return np.frombuffer(bytearray(filled + bytes([_END])), np.uint8)

    @classmethod
    def unpacked(cls, room: np.ndarray) -> Farewell | None:
        """None if there is none in `room`, or not yet all of it."""
        if room[-1] != _END:
            return None
        content = room.tobytes()
        length = int.from_bytes(content[:_PREFIX_BYTES])
        return msgspec.msgpack.decode(content[_PREFIX_BYTES : _PREFIX_BYTES + length], type=cls)


class Farewells:
    """The farewells that have come to one rank of a group, by the group ranks of their senders."""

    def __init__(self, rank: int, world_ranks: Sequence[int]) -> None:
        self._me = world_ranks[rank]
        self._world_ranks = world_ranks
        self._heard: dict[int, tuple[Farewell, float]] = {}

    def hear(self, sender: int, farewell: Farewell) -> None:
        self._heard.setdefault(sender, (farewell, time.monotonic()))

    def everybody_left(self) -> bool:
        return len(self._heard) == len(self._world_ranks) - 1

    def loss(
        self,
        what: str,
        sequence: int,
        senders: Collection[int] | None = None,
        rounds: int | None = None,
        before: float = float("inf"),
        certain: bool = False,
    ) -> PeerLost | None:
        """The error of one who waits in `what`, if the farewell of a rank that it needs is here.

        `senders` are the ranks that it needs (all of them by default). One that has finished more than `rounds`
        exchanges, or was heard after `before` (a time of time.monotonic), is not counted; with `certain`, nor is
        one that left in good order, or does not know on whose account.
        """
        unknown = (-1, self._me)  # this rank was not lost
        missing = [
            (sender, farewell)
            for sender, (farewell, came) in self._heard.copy().items()
            if (senders is None or sender in senders)
            and (rounds is None or farewell.rounds <= rounds)
            and came <= before
            and not (certain and (farewell.rank in unknown or not farewell.failed))
        ]
        if not missing:
            return None
        # Who knows on whose account comes before who does not, and a failure before a good end.
        sender, said = max(missing, key=lambda one: (one[1].rank not in unknown, one[1].failed))
        rank, reason = said.rank, said.reason
        if rank in unknown:
            rank, reason = self._world_ranks[sender], f"gave up on this group: {reason}"
        return PeerLost(
            f"rank {rank} {reason}; noticed in {what}, operation {sequence}. Shut this context down; a new one can be "
            "started with the ranks that are left",
            rank=rank,
            exit_code=said.exit_code,
            signal=said.signal,
            operation=what,
            sequence=sequence,
            reason=reason,
        )


def _loss_behind(error: BaseException) -> PeerLost | None:
    """The loss of a rank that has led to this error: a program may raise another one because of it."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, PeerLost):
            return error
        before = error.__cause__ or error.__context__
        if before is None:
            break
        error = before
    return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a mistake in somebody's exception must not keep this rank from leaving
        return ""


def _cut(reason: str) -> str:
    encoded = reason.encode(errors="replace")  # as it can be sent
    rest = " ..." if len(encoded) > _REASON_BYTES else ""
    return encoded[:_REASON_BYTES].decode(errors="ignore") + rest
