"""Membership and staleness bound of a parameter server: which gradients count, and which worker may proceed.

A state machine: events in, decisions out; no threads, no network, and time is an argument. The *clock* of a worker is
the number of its accepted gradients; the *version* is the number of updates of the parameters.

Synchronous: round v ends when every member has sent its gradient of version v. Then all are applied as one update, and
the version is v + 1. A gradient of an older version is too late and is dropped.

Asynchronous: a gradient is applied when it arrives. A worker whose clock is more than `staleness` ahead of the slowest
member's waits, so during one step of a worker no other makes more than `staleness` + 1 steps beyond it. A suspended
worker (see below) may exceed that: then its gradient is dropped, and it resumes at the clock of the slowest.

The members wait for a slow one at most `straggler_timeout` seconds. Then it is *suspended*: no member waits for it
until it sends its next gradient.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from neuraxis.arguments import is_whole
from neuraxis.errors import InvalidArgument

__all__ = ["Membership", "Mode", "PushResult"]

Mode = Literal["sync", "async"]


class PushResult(msgspec.Struct, frozen=True):
    """Outcome of a gradient.

    Attributes
    ----------
    accepted : bool
        False if it was too old or a duplicate.
    missed : int
        Updates of the parameters since the version that it was computed from.
    """

    accepted: bool
    missed: int


class _Member:
    """State of one worker."""

    def __init__(self, clock: int) -> None:
        self.clock = clock
        self.suspended = False
        self.given = False  # has sent its gradient of the current round


class Membership:
    """Workers of one server; see `ParameterServer` for the parameters."""

    def __init__(
        self, mode: Mode = "sync", staleness: int = 0, workers: int | None = None, straggler_timeout: float = 10.0
    ) -> None:
        if mode not in ("sync", "async"):
            raise InvalidArgument(f"mode={mode!r} is neither 'sync' nor 'async'")
        if not is_whole(staleness) or staleness < 0:
            raise InvalidArgument(f"staleness={staleness!r} must be a number of steps, an integer of 0 or more")
        if mode == "sync" and staleness:
            raise InvalidArgument(f"staleness={staleness} has no effect with mode='sync'. Use mode='async'")
        if workers is not None and (not is_whole(workers) or workers < 1):
            raise InvalidArgument(f"workers={workers!r} must be an integer, 1 or more")
        if not straggler_timeout > 0:
            raise InvalidArgument(f"straggler_timeout={straggler_timeout!r} must be a number of seconds above 0")
        self.mode = mode
        self.staleness = staleness
        self.straggler_timeout = straggler_timeout
        self.version = 0
        self.dropped = 0
        self._needed = workers or 1
        self._started = False
        self._members: dict[str, _Member] = {}
        self._blocking_since: dict[str, float] = {}  # time since which each blocking member blocks another one

    # --- events -----------------------------------------------------------------------------------------------

    def join(self, name: str, now: float) -> int:
        """Add a worker and return its clock, which is that of the slowest member."""
        self._members[name] = _Member(self._slowest())
        self._started = self._started or len(self._members) >= self._needed
        self._update_blocking(now)
        return self._members[name].clock

    def leave(self, name: str, now: float) -> None:
        """Remove a worker. Its gradient of the current round still counts."""
        self._members.pop(name, None)
        self._update_blocking(now)

    def push(self, name: str, version: int, now: float) -> PushResult:
        """Decide about a gradient that a worker has computed from this version of the parameters.

        A worker that is no member any more (its connection was lost for a while) joins again. How many steps the others
        made meanwhile is unknown, so its gradient counts only if it is of the newest version.
        """
        if not 0 <= version <= self.version:
            raise InvalidArgument(f"version {version} of the parameters does not exist: they are at {self.version}")
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
        self._update_blocking(now)
        return PushResult(accepted, missed)

    def end_round(self, now: float) -> None:
        """End a round after its gradients were applied (sync)."""
        self.version += 1
        for member in self._members.values():
            member.given = False
        self._update_blocking(now)

    def suspend_stragglers(self, now: float) -> list[str]:
        """Suspend members that have blocked others for too long, and return their names."""
        self._update_blocking(now)
        slow = sorted(name for name, since in self._blocking_since.items() if now - since >= self.straggler_timeout)
        for name in slow:
            self._members[name].suspended = True
        self._update_blocking(now)
        return slow

    # --- decisions --------------------------------------------------------------------------------------------

    def clocks(self) -> dict[str, int]:
        """Return the number of accepted gradients of every member, including suspended ones."""
        return {name: member.clock for name, member in sorted(self._members.items())}

    def suspended(self) -> list[str]:
        return sorted(name for name, member in self._members.items() if member.suspended)

    def has_started(self) -> bool:
        """Return True once the required number of workers has been present at the same time."""
        return self._started

    def round_is_over(self, given: int) -> bool:
        """Return True if the `given` gradients of this round are to be applied (sync)."""
        return self.mode == "sync" and self._started and given > 0 and not self.blocking_members()

    def may_proceed(self, name: str) -> bool:
        """Return True if a worker may compute its next gradient from the current parameters."""
        member = self._members.get(name)
        if member is None or not self._started:
            return self._started
        if self.mode == "sync":
            return not member.given
        return member.clock - self._slowest() <= self.staleness

    def blocking_members(self) -> list[str]:
        """Return the members that block another one, or the round."""
        active = {name: member for name, member in self._members.items() if not member.suspended}
        if self.mode == "sync":
            return sorted(name for name, member in active.items() if not member.given)
        most = max((member.clock for member in active.values()), default=0)
        return sorted(name for name, member in active.items() if most - member.clock > self.staleness)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _slowest(self) -> int:
        """Return the clock of the slowest active member, or without any, of the fastest suspended one."""
        active = [member.clock for member in self._members.values() if not member.suspended]
        return min(active) if active else max((member.clock for member in self._members.values()), default=0)

    def _fastest(self) -> int:
        return max(member.clock for member in self._members.values())

    def _update_blocking(self, now: float) -> None:
        """Update since when each member blocks another one."""
        some_wait = self._started and any(
            not self.may_proceed(name) for name, member in self._members.items() if not member.suspended
        )
        names = self.blocking_members() if some_wait else []
        self._blocking_since = {name: self._blocking_since.get(name, now) for name in names}
