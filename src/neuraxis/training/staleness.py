"""Who takes part in a parameter server's training, whose gradient counts, and who may go on.

A state machine: events in, decisions out, no threads, no network, and time is an argument. A *clock* is how many of
a worker's gradients were counted; the *version* is how often the parameters have changed.

Synchronous: round v is over when every member has given its gradient of version v; then all are applied as one, and
the version is v + 1. What was computed from an older version comes too late and is dropped.

Asynchronous: a gradient is applied when it comes. A worker whose clock is more than `staleness` ahead of the
slowest member's waits, so while one makes a step nobody makes more than `staleness` + 1 others beyond it. Who was
not waited for (see below) may come later than that: then its gradient is dropped, and it goes on from where the
slowest is.

Nobody waits for a slow one longer than `patience_s`: it is *suspended*, which means that nobody waits for it, until it
gives its next gradient.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from neuraxis.errors import InvalidArgument

__all__ = ["Membership", "Mode", "Verdict"]

Mode = Literal["sync", "async"]


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a gradient.

    Attributes:
        accepted: whether it counts; else it was too old, or is there already.
        missed: how many versions the parameters had gone on since it was computed.
    """

    accepted: bool
    missed: int


class _Member:
    """What is known of one worker."""

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.suspended = False
        self.given = False  # its gradient for the round that is under way


class Membership:
    """The workers of one server.

    Args:
        mode: "sync" or "async".
        staleness: by how many steps a worker may be ahead of the slowest one (async).
        workers: how many must have joined before the first may go on; None for one.
        patience_s: how long the others wait for a slow one.
    """

    def __init__(
        self, mode: Mode = "sync", staleness: int = 0, workers: int | None = None, patience_s: float = 10.0
    ) -> None:
        if mode not in ("sync", "async"):
            raise InvalidArgument(f"mode={mode!r}: 'sync' or 'async' is expected")
        if isinstance(staleness, bool) or not isinstance(staleness, int) or staleness < 0:
            raise InvalidArgument(f"staleness={staleness!r}: a number of steps, 0 or more, is expected")
        if mode == "sync" and staleness:
            raise InvalidArgument(f"staleness={staleness}: with mode='sync' every gradient is of the newest version")
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise InvalidArgument(f"workers={workers!r}: a number of workers, 1 or more, is expected")
        if not patience_s > 0:
            raise InvalidArgument(f"patience_s={patience_s!r}: a number of seconds is expected")
        self.mode = mode
        self.staleness = staleness
        self.patience_s = patience_s
        self.version = 0
        self.dropped = 0
        self._needed = workers or 1
        self._began = False
        self._members: dict[str, _Member] = {}
        self._holding: dict[str, float] = {}  # since when each of those that hold up another one does so

    # --- events -----------------------------------------------------------------------------------------------

    def join(self, name: str, now: float) -> int:
        """A worker comes, or comes back; its clock, which is that of the slowest member."""
        self._members[name] = _Member(self._slowest())
        self._began = self._began or len(self._members) >= self._needed
        self._look_at(now)
        return self._members[name].clock

    def leave(self, name: str, now: float) -> None:
        """A worker has gone, in good order or not. What it gave for the round that is under way still counts."""
        self._members.pop(name, None)
        self._look_at(now)

    def push(self, name: str, version: int, now: float) -> Verdict:
        """A worker gives a gradient that it has computed from this version of the parameters.

        One that is not a member any more (its connection was lost for a while) is one again. How many steps the others
        made meanwhile is not known, so its gradient counts only if it is of the newest version.
        """
        if not 0 <= version <= self.version:
            raise InvalidArgument(f"version {version} of the parameters is not known: they are at {self.version}")
        came_back = name not in self._members
        if came_back:
            self.join(name, now)
        member = self._members[name]
        missed = self.version - version
        if self.mode == "sync" or came_back:
            accepted = missed == 0 and not member.given
        else:
            accepted = self._fastest() - member.clock <= self.staleness + 1
        if accepted:
            member.clock += 1
            if self.mode == "sync":
                member.given = True
            else:
                self.version += 1
        else:
            self.dropped += 1
            if not member.given:
                member.clock = self._slowest()
        member.suspended = False
        self._look_at(now)
        return Verdict(accepted, missed)

    def end_round(self, now: float) -> None:
        """What was given in this round has been applied (sync)."""
        self.version += 1
        for member in self._members.values():
            member.given = False
        self._look_at(now)

    def pass_time(self, now: float) -> list[str]:
        """Suspend who has kept the others waiting too long; their names."""
        self._look_at(now)
        slow = sorted(name for name, since in self._holding.items() if now - since >= self.patience_s)
        for name in slow:
            self._members[name].suspended = True
        self._look_at(now)
        return slow

    # --- decisions --------------------------------------------------------------------------------------------

    def clocks(self) -> dict[str, int]:
        """Every member, suspended ones too, and how many of its gradients were counted."""
        return {name: member.clock for name, member in sorted(self._members.items())}

    def suspended(self) -> list[str]:
        return sorted(name for name, member in self._members.items() if member.suspended)

    def has_begun(self) -> bool:
        """Whether as many workers as were wanted have been here together."""
        return self._began

    def round_is_over(self, given: int) -> bool:
        """Whether the gradients that were given in this round, so many, are to be applied (sync)."""
        return self.mode == "sync" and self._began and given > 0 and not self.waited_for()

    def may_go_on(self, name: str) -> bool:
        """Whether a worker may compute its next gradient from the parameters as they are now."""
        member = self._members.get(name)
        if member is None or not self._began:
            return self._began
        if self.mode == "sync":
            return not member.given
        return member.clock - self._slowest() <= self.staleness

    def waited_for(self) -> list[str]:
        """The members that hold up another one, or the round."""
        active = {name: member for name, member in self._members.items() if not member.suspended}
        if self.mode == "sync":
            return sorted(name for name, member in active.items() if not member.given)
        most = max((member.clock for member in active.values()), default=0)
        return sorted(name for name, member in active.items() if most - member.clock > self.staleness)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _slowest(self) -> int:
        """The clock of the slowest member that is waited for; without any, of the fastest of the others."""
        active = [member.clock for member in self._members.values() if not member.suspended]
        return min(active) if active else max((member.clock for member in self._members.values()), default=0)

    def _fastest(self) -> int:
        return max(member.clock for member in self._members.values())

    def _look_at(self, now: float) -> None:
        """Note who holds up somebody, and since when."""
        somebody_waits = self._began and any(
            not self.may_go_on(name) for name, member in self._members.items() if not member.suspended
        )
        names = self.waited_for() if somebody_waits else []
        self._holding = {name: self._holding.get(name, now) for name in names}
