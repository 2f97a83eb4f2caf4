"""Agreement by quorum: something is proposed, those concerned vote, and enough votes for it make it a decision.

    vote(node, "move", lambda proposal: safe(proposal.value))  # in every voter
    decision = propose(node, "move", {"x": 0.2}, voters="motor", share=0.67, timeout=0.5)
    if decision: ...

Of N voters ⌈N·share⌉ have to be for it (17 of 24 at 0.67). A vote that does not come counts as none. By default N is
the number of voters that are here when it is proposed, so that a robot that has lost an arm can still move the other:
but two halves of a mesh that has been cut in two can then each agree on something else. `of` fixes N, and only one half
can.

A voter judges a proposal once; asked again (the same id) it votes the same. Two proposals are two ids: whether they
contradict each other is for the judges to see. Who proposed knows the decision, and tells whoever has to act.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.asking import Outcome, ask_in_background
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.once import Once
from neuraxis.mesh.roles import check_timeout
from neuraxis.mesh.services import Service
from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["Decision", "Proposal", "needed_votes", "propose", "vote"]

_JUDGE_S = 60.0  # how long a voter waits for its own judgement when a proposal comes again


class Proposal(msgspec.Struct, frozen=True):
    """What is voted on. `by` is the node that proposed it, as it says."""

    id: str
    by: str
    value: Any


@dataclass(frozen=True)
class Decision:
    """What came of a proposal; it is true if it was accepted.

    Attributes:
        needed: how many votes for it were needed.
        votes_for, votes_against: who voted how, until it was certain.
        missing: who had not voted by then, and why, if that is known.
    """

    id: str
    accepted: bool
    needed: int
    votes_for: tuple[str, ...] = ()
    votes_against: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.accepted


def propose(
    node: Node,
    topic: str,
    value: Any,
    voters: str | Iterable[str],
    share: float | Fraction = 0.67,
    timeout: float = 1.0,
    *,
    of: int | None = None,
    id: str | None = None,
) -> Decision:
    """Ask all voters at the same time, and return as soon as it is certain what they decide, or the time is over.

    Args:
        voters: a role, which this node may have as well; or names of nodes.
        share: how many of the voters have to be for it, from above 0 to 1.
        of: how many voters there are, here or not; by default those that are here.
        id: to propose the same again.
    """
    deadline = time.monotonic() + check_timeout(timeout)
    here = _live(node, voters)
    needed = needed_votes(len(here) if of is None else of, share)
    if of is not None and len(here) > of:
        raise InvalidArgument(f"of={of}: there are more voters here ({', '.join(here)})")
    proposal = Proposal(id or uuid.uuid4().hex, node.name, value)
    news: TimedQueue[Outcome] = TimedQueue()
    for name in here if len(here) >= needed else ():  # what cannot be accepted is not asked
        ask_in_background(node, name, topic, proposal, timeout, news.put, type=bool)
    votes: dict[str, bool] = {}
    missing: dict[str, str] = {}
    while True:
        votes_for = sum(votes.values())
        pending = len(here) - len(votes) - len(missing)
        left = deadline - time.monotonic()
        if votes_for >= needed or votes_for + pending < needed or left <= 0:
            break
        try:
            outcome = news.get(timeout=left)
        except Empty:
            continue
        if outcome.error is None:
            votes[outcome.node] = outcome.answer
        else:
            missing[outcome.node] = str(outcome.error)
    return Decision(
        proposal.id,
        votes_for >= needed,
        needed,
        tuple(name for name in here if votes.get(name) is True),
        tuple(name for name in here if votes.get(name) is False),
        {name: missing.get(name, "it had not voted yet") for name in here if name not in votes},
    )


def vote(node: Node, topic: str, judge: Callable[[Proposal], bool], *, threads: int = 2) -> Service:
    """Vote on what is proposed: `judge(proposal)` says whether this node is for it; if it raises, no vote is cast."""
    once = Once()

    def answer(message: Message) -> bool:
        proposal: Proposal = message.value
        return bool(once.call(proposal.id, lambda: bool(judge(proposal)), _JUDGE_S))

    return node.serve(topic, answer, type=Proposal, threads=threads)


def needed_votes(voters: int, share: float | Fraction) -> int:
    """⌈voters·share⌉, 1 at least.

    A share is meant as it is written: 0.07 of 100 is 7, though the nearest binary fraction of 0.07 is a little more.
    """
    if isinstance(voters, bool) or not isinstance(voters, int) or voters < 0:
        raise InvalidArgument(f"of={voters!r}: a number of voters is expected")
    if isinstance(share, bool) or not isinstance(share, int | float | Fraction) or not 0 < share <= 1:
        raise InvalidArgument(f"share={share!r}: a share from above 0 to 1 is expected")
    return max(1, math.ceil(voters * Fraction(share).limit_denominator(1_000_000)))


def _live(node: Node, voters: str | Iterable[str]) -> list[str]:
    """The names of the voters that are here."""
    if isinstance(voters, str):
        own = [node.name] if node.me.has_role(voters) else []
        return own + [peer.name for peer in node.with_role(check_name(voters, "voters"))]
    names = dict.fromkeys(check_name(name, "voters") for name in voters)
    return [name for name in names if name == node.name or node.peer(name) is not None]
