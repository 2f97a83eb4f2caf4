"""Last messages of ranks, and the cause of a loss that a receiver derives from them."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.comm.backends.shm.backend import ShmBackend
from neuraxis.comm.failures import LAST_MESSAGE_BYTES, LastMessage, LastMessages, ProcessExit, error_to_leave_with
from neuraxis.errors import CollectiveTimeout, PeerLost


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("a mistake")


@given(st.text(st.characters()), st.integers(0, 2**62), st.integers(-1, 2**31))
def test_any_exception_round_trips(text: str, rounds: int, rank: int) -> None:
    message = LastMessage.because_of(RuntimeError(text), rank, rounds)
    packed = message.packed()
    assert packed.size == LAST_MESSAGE_BYTES
    assert LastMessage.unpacked(packed) == message
    packed[-1] = 0  # the last byte has not been written yet
    assert LastMessage.unpacked(packed) is None
    assert message.reason.startswith("raised RuntimeError")
    if text.isascii() and len(text) < 300:
        assert text in message.reason


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
def test_a_rank_reports_its_own_error(error: BaseException, reason: str, exit_code: int | None) -> None:
    message = LastMessage.because_of(error, 4, 0)
    assert (message.rank, message.reason, message.exit_code, message.failed) == (4, reason, exit_code, True)


def test_a_rank_that_lost_another_names_it() -> None:
    lost = PeerLost("rank 7 killed by SIGKILL; noticed in barrier", rank=7, signal=9, reason="killed by SIGKILL")
    wrapped = RuntimeError("the training has stopped")
    wrapped.__cause__ = lost
    for error in (lost, wrapped):
        message = LastMessage.because_of(error, 4, 0)
        assert (message.rank, message.reason, message.signal) == (7, "killed by SIGKILL", 9)
    assert LastMessage.because_of(CollectiveTimeout("not all ranks arrived"), 4, 0).rank == -1


def received(*messages: tuple[int, LastMessage]) -> LastMessages:
    """Return the messages received by rank 0 of a group of the world ranks 10, 11, 12 and 13."""
    messages_received = LastMessages(0, [10, 11, 12, 13])
    for sender, message in messages:
        messages_received.record(sender, message)
    return messages_received


LEFT = (1, LastMessage.because_of(None, 11, rounds=5))
RAISED = (2, LastMessage.because_of(KeyError("x"), 12, rounds=3))
SECOND_HAND = (3, LastMessage.because_of(PeerLost("", rank=12, reason="raised KeyError: 'x'"), 13, rounds=3))
AT_A_LOSS = (1, LastMessage.because_of(CollectiveTimeout("not all came"), 11, rounds=3))
BLAMES_ME = (1, LastMessage.because_of(PeerLost("", rank=10, reason="killed by SIGKILL"), 11, rounds=3))


@pytest.mark.parametrize(
    ("messages", "rank", "text"),
    [
        ([LEFT], 11, "rank 11 has left this group"),
        ([LEFT, RAISED], 12, "rank 12 raised KeyError: 'x'; noticed in barrier, operation 8"),
        ([SECOND_HAND], 12, "rank 12 raised KeyError: 'x'"),
        ([AT_A_LOSS, SECOND_HAND], 12, "rank 12 raised KeyError: 'x'"),
        ([AT_A_LOSS], 11, "rank 11 gave up on this group: not all came"),
        ([BLAMES_ME], 11, "rank 11 gave up on this group: killed by SIGKILL"),
    ],
)
def test_a_waiting_rank_names_the_cause(messages: list[tuple[int, LastMessage]], rank: int, text: str) -> None:
    cause = received(*messages).cause(rounds=5)
    assert cause is not None
    lost = cause.error("barrier", 8)
    assert (lost.rank, lost.operation, lost.sequence) == (rank, "barrier", 8)
    assert str(lost).startswith(text)


KILLED, EXITED, UNKNOWN, ENDED = ProcessExit(signal=9), ProcessExit(exit_code=1), ProcessExit(), ProcessExit(signal=15)
KILLED_LATER, EXITED_LATER = (
    ProcessExit(signal=9, noticed=KILLED.noticed + 1),
    ProcessExit(1, noticed=KILLED.noticed + 1),
)
# Rank 13's account of 12, which was killed; and an error of 13's own, raised when 12 was dead already.
BLAMES_THE_DEAD = (3, LastMessage.because_of(PeerLost("", rank=12, signal=9, reason="killed by SIGKILL"), 13, rounds=3))
RAISED_AFTER = (3, LastMessage.because_of(KeyError("x"), 13, rounds=3, after=12))
BLAMES_THE_ENDED = (
    3,
    LastMessage.because_of(PeerLost("", rank=12, signal=15, reason="killed by SIGTERM"), 13, rounds=3),
)
RAISED_BEFORE = (3, LastMessage.because_of(KeyError("x"), 13, rounds=3))


@pytest.mark.parametrize(
    ("messages", "exits", "rank", "reason"),
    [
        ([], {2: KILLED}, 12, "killed by SIGKILL"),
        ([], {1: EXITED, 2: KILLED, 3: UNKNOWN}, 12, "killed by SIGKILL"),
        ([BLAMES_THE_DEAD], {}, 12, "killed by SIGKILL"),  # 12 is not seen to be dead yet
        ([BLAMES_THE_DEAD], {2: UNKNOWN}, 12, "killed by SIGKILL"),  # 13 had looked before its parent did
        ([BLAMES_THE_DEAD], {3: EXITED}, 12, "killed by SIGKILL"),  # 13 ended because of it
        ([BLAMES_THE_DEAD], {3: KILLED}, 12, "killed by SIGKILL"),  # and was killed while it ended
        ([RAISED_AFTER], {2: KILLED}, 12, "killed by SIGKILL"),
        ([RAISED_BEFORE], {2: KILLED}, 13, "raised KeyError: 'x'"),  # the launcher ended 12 because of 13
        ([], {1: ENDED, 2: EXITED}, 12, "exited with code 1"),  # a launcher ends the others because of it
        ([], {1: ENDED, 2: UNKNOWN}, 12, "died"),
        ([], {1: ENDED}, 11, "killed by SIGTERM"),
        ([BLAMES_THE_ENDED], {1: EXITED}, 11, "exited with code 1"),
        ([], {1: KILLED_LATER, 2: KILLED}, 12, "killed by SIGKILL"),
        ([], {1: EXITED_LATER, 2: EXITED}, 12, "exited with code 1"),
        ([LEFT], {2: EXITED}, 12, "exited with code 1"),
        ([LEFT], {1: EXITED}, 11, "has left this group"),
    ],
)
def test_the_first_cause_of_several_losses(
    messages: list[tuple[int, LastMessage]], exits: dict[int, ProcessExit], rank: int, reason: str
) -> None:
    cause = received(*messages).cause(exits=exits)
    assert cause is not None
    assert (cause.rank, cause.reason[: len(reason)]) == (rank, reason)


def test_a_rank_that_left_after_its_last_exchange_is_no_loss() -> None:
    both = received(LEFT, RAISED)
    assert both.cause(rounds=2) is None  # both had finished that exchange
    assert both.cause(rounds=4).rank == 12  # type: ignore[union-attr]
    assert both.cause(senders=(3,)) is None
    assert both.cause(senders=(3,), exits={2: KILLED}) is None
    assert both.cause(senders=(1,)).rank == 11  # type: ignore[union-attr]
    assert both.cause(before=time.monotonic() - 60) is None
    assert not both.all_left()
    assert received(LEFT, RAISED, SECOND_HAND).all_left()


class Group:
    """The losses of a backend, which are all that `error_to_leave_with` looks at."""

    def __init__(self, failure: PeerLost | None = None, loss: PeerLost | None = None) -> None:
        self.failure, self.loss = failure, loss


def test_the_error_that_a_rank_leaves_with() -> None:
    own, one, other = KeyError("x"), PeerLost("one", rank=1), PeerLost("other", rank=2)
    chained = RuntimeError("the training has stopped")
    chained.__context__ = other
    cases: list[tuple[BaseException | None, list[Group], BaseException | None]] = [
        (None, [Group()], None),
        (own, [Group()], own),
        (own, [Group(), Group(failure=one, loss=one)], one),  # a group was lost before
        (own, [Group(loss=one)], own),  # a message was lost, and the program went on
        (None, [Group(), Group(loss=one)], one),
        (chained, [Group(failure=one)], chained),
    ]
    for error, groups, expected in cases:
        assert error_to_leave_with(error, groups) is expected  # type: ignore[arg-type]


def test_close_waits_for_the_thread_that_writes_the_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory stays mapped while a thread writes to it."""
    backend = ShmBackend(0, 1, lambda content: [content], 10.0)
    writing, resume = threading.Event(), threading.Event()
    write = backend._write_last_message

    def slowly(error: BaseException | None) -> None:
        writing.set()
        resume.wait(10)
        write(error)

    monkeypatch.setattr(backend, "_write_last_message", slowly)
    writer = threading.Thread(target=backend.poison, args=(KeyError("x"),))
    closer = threading.Thread(target=backend.close)
    writer.start()
    assert writing.wait(10)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    assert backend._segment.descriptor >= 0
    resume.set()
    for thread in (writer, closer):
        thread.join(10)
        assert not thread.is_alive()
    assert backend._segment.descriptor == -1
    backend.poison(KeyError("y"))  # after the end it does nothing
