"""Votes: the quorum, the voters, and the decision when some do not vote."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction

import pytest
from agreement import Decision, Proposal, needed_votes, propose, vote
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.mesh import Node
from tests.mesh.role_node import killed_when_asked, role_node, warm

LONG_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.fixture
def mesh() -> str:
    return f"votes-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def speaker(stack: ExitStack, mesh: str) -> Node:
    return stack.enter_context(Node("speaker", mesh=mesh))


def add_voters(
    stack: ExitStack, speaker: Node, judges: dict[str, Callable[[Proposal], bool] | None], role: str = "motor"
) -> dict[str, Node]:
    """Nodes that vote; without a judge, one that is there and does not."""
    nodes = {name: stack.enter_context(Node(name, role, speaker.mesh)) for name in judges}
    for name, judge in judges.items():
        if judge is not None:
            vote(nodes[name], "move", judge)
    assert speaker.wait_for(list(judges), LONG_S) == []
    return nodes


# --- how many ---


@pytest.mark.parametrize(
    ("voters", "share", "expected"),
    [
        (24, 0.67, 17),
        (3, 0.67, 3),
        (3, 2 / 3, 2),
        (3, 1 - 1 / 3, 2),
        (3, Fraction(2, 3), 2),
        (100, 0.07, 7),  # 0.07 * 100 is 7.000000000000001
        (100, 0.29, 29),
        (10, 0.7, 7),
        (4, 0.5, 2),
        (4, 0.500001, 3),
        (7, 1.0, 7),
        (7, 1, 7),
        (5, 1e-9, 1),
        (0, 0.67, 1),
    ],
)
def test_needed_votes(voters: int, share: float | Fraction, expected: int):
    assert needed_votes(voters, share) == expected


@given(voters=st.integers(0, 10_000), hundredths=st.integers(1, 100))
def test_a_share_is_meant_as_it_is_written(voters: int, hundredths: int):
    assert needed_votes(voters, hundredths / 100) == max(1, -(-voters * hundredths // 100))


@given(voters=st.integers(1, 1000), share=st.floats(1e-3, 1))
def test_so_many_are_enough_and_one_less_is_not(voters: int, share: float):
    needed = needed_votes(voters, share)
    assert 1 <= needed <= voters
    assert needed >= voters * share - 0.01
    assert needed <= math.ceil(voters * share) + (voters * share > math.ceil(voters * share) - 0.01)


@pytest.mark.parametrize("share", [0, -0.5, 1.01, True, "0.5", float("nan")])
def test_a_share_is_above_0_and_at_most_1(share: object):
    with pytest.raises(InvalidArgument, match="share="):
        needed_votes(3, share)  # type: ignore[arg-type]


# --- votes ---


def test_all_for_it(stack: ExitStack, speaker: Node):
    seen: list[Proposal] = []
    add_voters(stack, speaker, {name: lambda one: bool(seen.append(one)) or True for name in ("m1", "m2", "m3")})
    decision = propose(speaker, "move", {"x": 0.5}, "motor", 1.0, LONG_S)
    assert decision == Decision(decision.id, True, 3, ("m1", "m2", "m3"))
    assert decision
    assert seen == [Proposal(decision.id, "speaker", {"x": 0.5})] * 3


def test_enough_against_it(stack: ExitStack, speaker: Node):
    judges = {f"m{n}": (lambda one, n=n: one.value > n) for n in range(5)}
    add_voters(stack, speaker, judges)
    assert propose(speaker, "move", 4, "motor", 0.8, LONG_S).accepted  # 0, 1, 2 and 3 are for it, and 4 are needed
    decision = propose(speaker, "move", 3, "motor", 0.8, LONG_S)
    assert not decision
    assert decision.needed == 4
    assert set(decision.votes_for) <= {"m0", "m1", "m2"}
    assert decision.votes_against == ("m3", "m4")


def test_24_motors_need_17(stack: ExitStack, speaker: Node):
    judges = {f"m{n:02}": (lambda one, n=n: n < one.value) for n in range(24)}
    add_voters(stack, speaker, judges)
    decision = propose(speaker, "move", 17, "motor", timeout=LONG_S)
    assert (decision.accepted, decision.needed) == (True, 17)
    assert decision.votes_for == tuple(f"m{n:02}" for n in range(17))
    decision = propose(speaker, "move", 16, "motor", timeout=LONG_S)
    assert (decision.accepted, decision.needed) == (False, 17)
    assert len(decision.votes_against) == 8


def test_all_are_asked_at_the_same_time(stack: ExitStack, speaker: Node):
    together = threading.Barrier(5)
    add_voters(stack, speaker, {f"m{n}": (lambda one: together.wait(LONG_S) >= 0) for n in range(5)})
    assert len(propose(speaker, "move", 1, "motor", 1.0, LONG_S).votes_for) == 5


def test_it_is_decided_as_soon_as_it_is_certain(stack: ExitStack, speaker: Node):
    release = threading.Event()
    judges: dict[str, Callable[[Proposal], bool] | None] = {f"m{n}": (lambda one: one.value) for n in range(3)}
    add_voters(stack, speaker, {**judges, "stuck": lambda one: release.wait(2 * LONG_S)})
    try:
        begun = time.monotonic()
        decision = propose(speaker, "move", True, "motor", 0.75, LONG_S)
        assert decision == Decision(decision.id, True, 3, ("m0", "m1", "m2"), missing={"stuck": "it had not voted yet"})
        assert not propose(speaker, "move", False, "motor", 0.75, LONG_S)
        assert time.monotonic() - begun < LONG_S
    finally:
        release.set()


def test_voters_without_a_vote_at_the_deadline_are_missing(stack: ExitStack, speaker: Node):
    release = threading.Event()
    add_voters(stack, speaker, {"m1": lambda one: True, "stuck": lambda one: release.wait(LONG_S)})
    try:
        decision = propose(speaker, "move", 1, "motor", 1.0, 0.3)
        assert (decision.accepted, decision.needed, decision.votes_for) == (False, 2, ("m1",))
        assert list(decision.missing) == ["stuck"]
    finally:
        release.set()


def test_a_voter_that_is_killed_while_it_judges_is_missing(stack: ExitStack, speaker: Node, mesh: str):
    add_voters(stack, speaker, {"m1": lambda one: True, "m2": lambda one: True})
    with role_node(mesh, "m3", "motor", "hangs") as process:
        assert speaker.wait_for(["m3"], LONG_S) == []
        with killed_when_asked(process):
            decision = propose(speaker, "move", 1, "motor", 1.0, LONG_S)
        assert not decision
        assert decision.votes_for == ("m1", "m2")
        assert "no longer, on the mesh" in decision.missing["m3"]
    # From then on it is no voter.
    decision = propose(speaker, "move", 1, "motor", 1.0, LONG_S)
    assert decision == Decision(decision.id, True, 2, ("m1", "m2"))


def test_a_fixed_electorate_counts_absent_voters(stack: ExitStack, speaker: Node):
    judged: list[Proposal] = []
    nodes = add_voters(stack, speaker, {f"m{n}": lambda one: judged.append(one) is None for n in range(3)})
    assert propose(speaker, "move", 1, "motor", 0.67, LONG_S, of=4).needed == 3
    nodes["m0"].close()
    decision = propose(speaker, "move", 1, "motor", 0.67, LONG_S, of=4)
    assert (decision.accepted, decision.needed, decision.votes_for) == (False, 3, ())
    assert decision.id not in {one.id for one in judged}  # the result is certain before a voter is asked
    assert propose(speaker, "move", 1, "motor", 0.67, LONG_S).needed == 2
    with pytest.raises(InvalidArgument, match="of=1: there are more live voters"):
        propose(speaker, "move", 1, "motor", 0.67, LONG_S, of=1)


def test_one_that_does_not_serve_the_topic_or_raises_has_not_voted(stack: ExitStack, speaker: Node):
    add_voters(stack, speaker, {"m1": lambda one: True, "silent": None, "failing": lambda one: 1 // 0 > 0})
    decision = propose(speaker, "move", 1, ["m1", "failing"], 1.0, LONG_S)
    assert not decision
    assert "ZeroDivisionError" in decision.missing["failing"]
    decision = propose(speaker, "move", 1, ["m1", "silent"], 1.0, LONG_S)
    assert "does not serve 'move'" in decision.missing["silent"]


def test_a_proposal_is_judged_once(stack: ExitStack, speaker: Node):
    judged: Counter[str] = Counter()

    def judge(proposal: Proposal) -> bool:
        judged[proposal.id] += 1
        return judged.total() == 1

    add_voters(stack, speaker, {"m1": judge})
    for _ in range(3):
        assert propose(speaker, "move", 1, "motor", 1.0, LONG_S, id="p1").accepted
    assert not propose(speaker, "move", 1, "motor", 1.0, LONG_S, id="p2").accepted
    assert judged == {"p1": 1, "p2": 1}


def test_the_proposer_votes_if_it_has_the_role(stack: ExitStack, speaker: Node):
    nodes = add_voters(stack, speaker, {"m1": lambda one: one.by == "m1", "m2": lambda one: True})
    assert nodes["m1"].wait_for(["m2"], LONG_S) == []
    decision = propose(nodes["m1"], "move", 1, "motor", 1.0, LONG_S)
    assert decision.votes_for == ("m1", "m2")


def test_voters_by_name(stack: ExitStack, speaker: Node):
    add_voters(stack, speaker, {name: lambda one: True for name in ("m1", "m2", "m3")}, role="")
    decision = propose(speaker, "move", 1, ["m3", "m1", "gone", "m3"], 1.0, LONG_S)
    assert decision == Decision(decision.id, True, 2, ("m3", "m1"))


def test_without_voters_nothing_is_decided(speaker: Node):
    decision = propose(speaker, "move", 1, "motor", id="p")
    assert decision == Decision("p", False, 1)
