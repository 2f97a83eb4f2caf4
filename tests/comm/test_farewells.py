"""What a farewell says, and whom the one who hears it takes to be lost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.comm.farewells import FAREWELL_BYTES, Farewell, Farewells
from neuraxis.errors import CollectiveTimeout, PeerLost


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("a mistake")


@given(st.text(st.characters()), st.integers(0, 2**62), st.integers(-1, 2**31))
def test_any_exception_can_be_told_of(text: str, rounds: int, rank: int) -> None:
    said = Farewell.because_of(RuntimeError(text), rank, rounds)
    packed = said.packed()
    assert packed.size == FAREWELL_BYTES
    assert Farewell.unpacked(packed) == said
    packed[-1] = 0  # as long as the last byte has not come
    assert Farewell.unpacked(packed) is None
    assert said.reason.startswith("raised RuntimeError")
    if text.isascii() and len(text) < 300:
        assert text in said.reason


@pytest.mark.parametrize(
    ("error", "reason", "exit_code"),
    [
        (KeyError("x"), "raised KeyError: 'x'", None),
        (KeyboardInterrupt(), "raised KeyboardInterrupt", None),
        (SystemExit(3), "left by sys.exit(3)", 3),
        (SystemExit("a reason"), "left by sys.exit(a reason)", 1),
        (SystemExit(), "left by sys.exit()", 0),
        (Mute(), "raised Mute", None),
    ],
)
def test_its_own_account(error: BaseException, reason: str, exit_code: int | None) -> None:
    said = Farewell.because_of(error, 4, 0)
    assert (said.rank, said.reason, said.exit_code, said.failed) == (4, reason, exit_code, True)


def test_who_has_lost_another_names_that_one() -> None:
    lost = PeerLost("rank 7 killed by SIGKILL; noticed in barrier", rank=7, signal=9, reason="killed by SIGKILL")
    wrapped = RuntimeError("the training has stopped")
    wrapped.__cause__ = lost
    for error in (lost, wrapped):
        said = Farewell.because_of(error, 4, 0)
        assert (said.rank, said.reason, said.signal) == (7, "killed by SIGKILL", 9)
    assert Farewell.because_of(CollectiveTimeout("not all ranks arrived"), 4, 0).rank == -1


def heard(*farewells: tuple[int, Farewell]) -> Farewells:
    """By rank 0 of a group of the world's ranks 10, 11, 12, 13."""
    farewells_heard = Farewells(0, [10, 11, 12, 13])
    for sender, farewell in farewells:
        farewells_heard.hear(sender, farewell)
    return farewells_heard


LEFT = (1, Farewell.because_of(None, 11, rounds=5))
RAISED = (2, Farewell.because_of(KeyError("x"), 12, rounds=3))
SECOND_HAND = (3, Farewell.because_of(PeerLost("", rank=12, reason="raised KeyError: 'x'"), 13, rounds=3))
AT_A_LOSS = (1, Farewell.because_of(CollectiveTimeout("not all came"), 11, rounds=3))
BLAMES_ME = (1, Farewell.because_of(PeerLost("", rank=10, reason="killed by SIGKILL"), 11, rounds=3))


@pytest.mark.parametrize(
    ("farewells", "rank", "text"),
    [
        ([LEFT], 11, "rank 11 has left this group"),
        ([LEFT, RAISED], 12, "rank 12 raised KeyError: 'x'; noticed in barrier, operation 8"),
        ([SECOND_HAND], 12, "rank 12 raised KeyError: 'x'"),
        ([AT_A_LOSS, SECOND_HAND], 12, "rank 12 raised KeyError: 'x'"),
        ([AT_A_LOSS], 11, "rank 11 gave up on this group: not all came"),
        ([BLAMES_ME], 11, "rank 11 gave up on this group: killed by SIGKILL"),
    ],
)
def test_whom_a_waiting_rank_takes_to_be_lost(farewells: list[tuple[int, Farewell]], rank: int, text: str) -> None:
    lost = heard(*farewells).loss("barrier", 8, rounds=5)
    assert lost is not None
    assert (lost.rank, lost.operation, lost.sequence) == (rank, "barrier", 8)
    assert str(lost).startswith(text)


def test_who_is_not_needed_is_not_missed() -> None:
    both = heard(LEFT, RAISED)
    assert both.loss("barrier", 8, rounds=2) is None  # both had finished that exchange
    assert both.loss("barrier", 8, rounds=4).rank == 12  # type: ignore[union-attr]
    assert both.loss("recv", 8, senders=(3,)) is None
    assert both.loss("recv", 8, senders=(1,)).rank == 11  # type: ignore[union-attr]
    assert heard(LEFT).loss("barrier", 8, certain=True) is None
    assert both.loss("barrier", 8, before=time.monotonic() - 60) is None
    assert not both.everybody_left()
    assert heard(LEFT, RAISED, SECOND_HAND).everybody_left()
