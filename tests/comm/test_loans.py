"""Memory that one process lends to another: read once, used again, never another's, and gone with its lender."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.comm import loans
from neuraxis.comm.lent_memory import Note
from neuraxis.comm.loans import Borrower, Lender, Loan
from neuraxis.comm.objects import Unreadable

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing can be lent on this system")

MOST = 2**24


@pytest.fixture
def lender() -> Iterator[Lender]:
    lender = Lender()
    yield lender
    lender.close(0)


@pytest.fixture
def borrower() -> Iterator[Borrower]:
    borrower = Borrower(MOST)
    yield borrower
    borrower.close()


def lent_memory() -> set[int]:
    """What this process has open of lent memory."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "neuraxis-loan" in os.readlink(entry):
                found.add(entry.stat().st_ino)
        except FileNotFoundError:  # the folder's own
            continue
    return found


def borrow(borrower: Borrower, note: bytes | None) -> list[np.ndarray]:
    assert note is not None
    return borrower.borrow(Note.unpack(note))


def lend(lender: Lender, *parts: Any) -> Loan:
    loan = lender.lend("other", parts)
    assert loan is not None
    return loan


def forged(note: bytes, **changes: int) -> bytes:
    mark, pid, descriptor, token = struct.unpack_from("<4sIi16s", note)
    return (
        struct.pack("<4sIi16s", mark, changes.get("pid", pid), changes.get("descriptor", descriptor), token) + note[28:]
    )


def test_what_is_lent_is_read_in_its_parts_and_can_be_written(lender: Lender, borrower: Borrower) -> None:
    first, second = os.urandom(100_001), os.urandom(70_000)
    parts = borrow(borrower, lend(lender, first, memoryview(second)).note)
    assert [part.tobytes() for part in parts] == [first, second]
    parts[0][:] = 7


def test_memory_is_lent_again_when_it_was_read_and_not_before(lender: Lender, borrower: Borrower) -> None:
    one, two = lend(lender, b"a" * 1000), lend(lender, b"b" * 1000)
    assert len(lent_memory()) == 2
    assert borrow(borrower, one.note)[0].tobytes() == b"a" * 1000
    three = lend(lender, b"c" * 2000)
    assert len(lent_memory()) == 2
    assert borrow(borrower, two.note)[0].tobytes() == b"b" * 1000
    assert borrow(borrower, three.note)[0].tobytes() == b"c" * 2000


def test_a_note_that_comes_twice_does_not_find_what_was_lent_since(lender: Lender, borrower: Borrower) -> None:
    loan = lend(lender, b"a" * 1000)
    borrow(borrower, loan.note)
    later = lend(lender, b"secret" * 1000)
    with pytest.raises(Unreadable, match="read before, or the note is forged"):
        borrow(borrower, loan.note)
    assert not later.is_read
    assert borrow(borrower, later.note)[0].tobytes() == b"secret" * 1000


def test_forged_notes_are_refused_and_open_nothing(lender: Lender, borrower: Borrower, tmp_path: Path) -> None:
    note = lend(lender, b"a" * 1000).note
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(Unreadable, match="not a note"):
        borrow(borrower, note[:-3])
    with pytest.raises(Unreadable, match="not a note"):
        borrow(borrower, b"")
    with pytest.raises(Unreadable, match="is forged"):
        borrow(borrower, note[:12] + bytes(16) + note[28:])  # another token
    with pytest.raises(Unreadable, match="cannot be opened"):
        borrow(borrower, forged(note, pid=2**22 + 1))
    with pytest.raises(Unreadable, match="may have 16,777,216 at most"):
        borrow(borrower, note[:28] + struct.pack("<Q", 2**60))
    with pytest.raises(Unreadable, match="not what its note says"):
        borrow(borrower, note[:28] + struct.pack("<Q", 999))
    with pytest.raises(Unreadable, match="not what its note says"):
        borrow(borrower, note[:28] + struct.pack("<Q", 2**20))
    reader, writer = os.pipe()  # to open one would block
    try:
        with pytest.raises(Unreadable, match="no lent memory"):
            borrow(borrower, forged(note, descriptor=reader))
    finally:
        os.close(reader)
        os.close(writer)
    with (tmp_path / "neuraxis-loan").open("w+b") as file, pytest.raises(Unreadable, match="no lent memory"):
        borrow(borrower, forged(note, descriptor=file.fileno()))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert borrow(borrower, note)[0].tobytes() == b"a" * 1000


def test_memory_that_others_could_write_is_refused(lender: Lender, borrower: Borrower) -> None:
    note = lend(lender, b"a" * 1000).note
    os.fchmod(struct.unpack_from("<4sIi", note)[2], 0o666)
    with pytest.raises(Unreadable, match="not this user's alone"):
        borrow(borrower, note)


def test_another_is_lent_to_when_it_has_read_a_trial(lender: Lender, borrower: Borrower) -> None:
    assert not lender.reaches("other")
    note = lender.trial("other")
    assert note is not None
    assert Note.unpack(note).lengths == ()
    assert lender.trial("other") is None  # one is under way
    assert not lender.reaches("other")
    assert borrow(borrower, note) == []
    assert lender.reaches("other")
    assert not lender.reaches("third")
    lender.drop("other")
    assert not lender.reaches("other")
    assert lender.trial("other") is not None


def test_a_trial_that_nobody_reads_is_given_up(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = lender.trial("other")
    assert note is not None
    monkeypatch.setattr(loans, "_HOLD_S", -1.0)
    assert not lender.reaches("other")
    assert lent_memory() == set()
    assert lender.trial("other") is None
    with pytest.raises(Unreadable):
        borrow(borrower, note)


def test_there_is_an_end_to_what_is_lent(lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loans, "_MOST_LOANS", 3)
    monkeypatch.setattr(loans, "_MOST_BYTES", 200_000)
    monkeypatch.setattr(loans, "_MOST_KEPT_BYTES", 100_000)
    assert lender.lend("other", [bytes(200_001)]) is None
    held = [lend(lender, bytes(3000)) for _ in range(3)]
    assert lender.lend("other", [bytes(10)]) is None
    for loan in held:
        borrow(borrower, loan.note)
    borrower.let_go()
    lend(lender, bytes(10))
    assert len(lent_memory()) == 1  # of those that were read one is used again, and no other is kept


def test_who_is_gone_holds_nothing(lender: Lender, borrower: Borrower) -> None:
    loan = lend(lender, bytes(1000))
    lender.drop("other")
    assert len(lent_memory()) == 1  # somebody here still has it
    del loan
    assert lent_memory() == set()


def test_nothing_is_left_when_it_is_closed(borrower: Borrower) -> None:
    lender = Lender()
    loan, read = lend(lender, bytes(1000)), lend(lender, bytes(1000))
    borrow(borrower, read.note)
    lender.trial("another")
    lender.close(0.01)
    borrower.close()
    assert lent_memory() == set()
    assert lender.lend("other", [b"x"]) is None
    assert lender.trial("third") is None
    with pytest.raises(Unreadable):
        borrow(borrower, loan.note)


def test_of_arrays_with_elements(lender: Lender, borrower: Borrower) -> None:
    array = np.arange(50_000, dtype=np.float64)
    (part,) = borrow(borrower, lend(lender, array.view(np.uint8).data).note)
    assert (part.view(np.float64) == array).all()


def test_some_memory_stays_open_and_no_more(
    lender: Lender, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loans, "_MOST_OPEN", 2)
    monkeypatch.setattr(loans, "_MOST_OPEN_BYTES", 100_000)
    held = [lend(lender, bytes([number]) * 2000) for number in range(4)]
    for number, loan in enumerate(held):
        assert set(borrow(borrower, loan.note)[0]) == {number}
    borrow(borrower, lend(lender, bytes(120_000)).note)
    lender.close(0)
    del held
    assert len(lent_memory()) == 2
    borrower.let_go()
    assert lent_memory() == set()


def test_memory_that_is_open_and_whose_number_has_become_anothers(lender: Lender, borrower: Borrower) -> None:
    loan = lend(lender, b"a" * 1000)
    borrow(borrower, loan.note)
    number = struct.unpack_from("<4sIi", loan.note)[2]
    lender.close(0)
    other = Lender()
    try:
        later = lend(other, b"b" * 1000)
        assert struct.unpack_from("<4sIi", later.note)[2] == number  # the lowest that is free
        assert borrow(borrower, later.note)[0].tobytes() == b"b" * 1000
    finally:
        other.close(0)
