"""Agreement by quorum: one node proposes, the voters vote, and enough votes in favour accept the proposal.

    vote(node, "move", lambda proposal: safe(proposal.value))  # in every voter
    decision = propose(node, "move", {"x": 0.2}, voters="motor", share=0.67, timeout=0.5)
    if decision: ...

⌈N·share⌉ of N voters have to vote in favour (17 of 24 at 0.67); a missing vote does not count. By default N is the
number of live voters, so that a robot that has lost an arm can still move the other. After a network partition each
half could then decide differently; `of` fixes N, so that at most one half can reach the quorum.

A voter judges each proposal id once and repeats its vote when asked again. Detecting proposals that contradict each
other is up to the judges. Only the proposing node knows the decision, and has to pass it on.
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
from roles import Deduplicator, Outcome, check_timeout, request_in_background

from neuraxis.arguments import is_number, is_whole
from neuraxis.errors import InvalidArgument
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.services import Service
from neuraxis.threads import Empty, TimedQueue

__all__ = ["Decision", "Proposal", "needed_votes", "propose", "vote"]

_JUDGE_S = 60.0  # how long a repeated request waits for a judgement in progress


class Proposal(msgspec.Struct, frozen=True):
    """A proposal to vote on. `by` names the proposing node; voters refuse it from any other sender."""

    id: str
    by: str
    value: Any


@dataclass(frozen=True)
class Decision:
    """The result of a proposal; true if it was accepted.

    Attributes
    ----------
    needed : int
        The quorum: votes in favour that were needed.
    votes_for, votes_against : tuple of str
        The voters, up to the moment when the result was certain.
    missing : dict
        The reason, by name, for each voter that had not voted by then.
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
    """Ask all voters at the same time; return as soon as the result is certain or `timeout` seconds have passed.

    Parameters
    ----------
    voters : str or iterable of str
        A role, which this node may have as well, or names of nodes. Nodes declare their own roles; a router's access
        rules verify them (`neuraxis mesh acl`). Without a router, name the nodes.
    share : float
        Fraction of the voters that have to vote in favour, above 0 and at most 1.
    of : int, optional
        Number of voters, live or not; by default the live ones.
    id : str, optional
        The id of an earlier proposal, to propose it again.
    """
    deadline = time.monotonic() + check_timeout(timeout)
    here = _live(node, voters)
    needed = needed_votes(len(here) if of is None else of, share)
    if of is not None and len(here) > of:
        raise InvalidArgument(f"of={of}: there are more live voters ({', '.join(here)})")
    proposal = Proposal(id or uuid.uuid4().hex, node.name, value)
    outcomes: TimedQueue[Outcome] = TimedQueue()
    for name in here if len(here) >= needed else ():  # without a possible quorum no voter is asked
        request_in_background(node, name, topic, proposal, timeout, outcomes.put, type=bool)
    votes: dict[str, bool] = {}
    missing: dict[str, str] = {}
    while True:
        votes_for = sum(votes.values())
        pending = len(here) - len(votes) - len(missing)
        left = deadline - time.monotonic()
        if votes_for >= needed or votes_for + pending < needed or left <= 0:
            break
        try:
            outcome = outcomes.get(timeout=left)
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
    """Vote on proposals for a topic: `judge(proposal)` returns the vote; if it raises, no vote is cast."""
    votes = Deduplicator()
    judge = node.synchronous(judge)

    def answer(message: Message) -> bool:
        proposal: Proposal = message.value
        if proposal.by != message.node:
            raise InvalidArgument(f"the proposal names {proposal.by!r}, and {message.node!r} sent it")
        return bool(votes.call(proposal.id, lambda: bool(judge(proposal)), _JUDGE_S, owner=message.node))

    return node.serve(topic, answer, type=Proposal, threads=threads)


def needed_votes(voters: int, share: float | Fraction) -> int:
    """Return ⌈voters·share⌉, at least 1.

    The share is taken as its decimal notation: 0.07 of 100 is 7, although the nearest float is slightly larger.

    >>> needed_votes(24, 0.67)
    17
    """
    if not is_whole(voters) or voters < 0:
        raise InvalidArgument(f"of={voters!r}: a number of voters is expected")
    if not (is_number(share) or isinstance(share, Fraction)) or not 0 < share <= 1:
        raise InvalidArgument(f"share={share!r}: a share from above 0 to 1 is expected")
    exact = share if isinstance(share, Fraction) else Fraction(float(share))
    return max(1, math.ceil(int(voters) * exact.limit_denominator(1_000_000)))


def _live(node: Node, voters: str | Iterable[str]) -> list[str]:
    """Return the names of the live voters."""
    if isinstance(voters, str):
        own = [node.name] if node.me.has_role(voters) else []
        return own + [peer.name for peer in node.with_role(check_name(voters, "voters"))]
    names = dict.fromkeys(check_name(name, "voters") for name in voters)
    return [name for name in names if name == node.name or node.peer(name) is not None]
