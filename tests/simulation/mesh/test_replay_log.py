"""The replay log of a region: its content, the reported losses, and its bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.simulation.mesh import publisher as module
from neuraxis.simulation.mesh.publisher import ReplayLog


def name_of(first: int, last: int, size: int = 20) -> bytes:
    return f"{first}..{last}".encode().ljust(size)


def filled(room: int, *windows: tuple[int, int], size: int = 20) -> ReplayLog:
    journal = ReplayLog(room)
    for first, last in windows:
        journal.add_window(first, last, name_of(first, last, size))
    return journal


def names(answer: dict[str, Any]) -> list[str]:
    return [one.decode().strip() for one in answer["windows"]]


def test_an_empty_log() -> None:
    journal = ReplayLog()
    assert journal.oldest() is None
    nothing = {"windows": [], "letters": [], "oldest": None, "last": 0, "began": 0, "letters_to": None, "more": False}
    assert journal.since(1) == nothing


def test_windows_from_a_given_step() -> None:
    journal = filled(10_000, (1, 4), (5, 5), (6, 10))
    assert names(journal.since(1)) == ["1..4", "5..5", "6..10"]
    assert names(journal.since(4)) == ["1..4", "5..5", "6..10"]  # a window is not cut
    assert names(journal.since(5)) == ["5..5", "6..10"]
    assert names(journal.since(10)) == ["6..10"]
    assert names(journal.since(11)) == []
    assert names(journal.since(-(2**70))) == ["1..4", "5..5", "6..10"]
    assert names(journal.since(2**70)) == []
    assert all(journal.since(step)["oldest"] == 1 for step in (1, 11))
    assert not any(journal.since(step)["more"] for step in (1, 6, 11, 2**70))


def test_data_are_replayed_with_their_steps() -> None:
    journal = filled(10_000, (1, 4))
    journal.add_payload(3, {"a": 1}, 10)
    journal.add_payload(9, [1, 2], 10)
    assert journal.since(1)["letters"] == [[3, {"a": 1}], [9, [1, 2]]]
    assert journal.since(4)["letters"] == [[9, [1, 2]]]
    assert journal.since(10)["letters"] == []


def test_a_full_log_drops_the_oldest_and_reports_it() -> None:
    journal = filled(480, *((step, step) for step in range(1, 9)))  # room for four of 20 + 100 bytes
    assert journal.oldest() == 5
    answer = journal.since(2)
    assert names(answer) == ["5..5", "6..6", "7..7", "8..8"]
    assert (answer["oldest"], answer["began"]) == (5, 0)


def test_letters_of_steps_that_are_forgotten_are_forgotten_with_them() -> None:
    journal = ReplayLog(480)
    for step in range(1, 9):
        journal.add_payload(step, step, 20)
        journal.add_window(step, step, name_of(step, step))
    kept = journal.since(1)
    assert [at for at, _ in kept["letters"]] == [int(one.split("..")[0]) for one in names(kept)] == [7, 8]


def test_the_last_window_is_kept_however_large() -> None:
    journal = filled(100, (1, 1), (2, 2), size=5000)
    assert names(journal.since(1)) == ["2..2"]
    journal.add_window(3, 3, b"x")
    assert journal.oldest() == 3


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 400), st.booleans()), min_size=1, max_size=60), st.data())
def test_it_is_bounded_and_has_all_from_the_oldest_on(steps: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    journal, last, largest, windows = ReplayLog(1500), 0, 0, []
    for length, size, letter in steps:
        if letter:
            journal.add_payload(last + 1, "letter", size)
        journal.add_window(last + 1, last + length, b"x" * size)
        windows.append((last + 1, last + length, size))
        last += length
        largest = max(largest, size)
        held = sum(len(one) + 100 for one in journal.since(1)["windows"])
        assert held <= max(1500, largest + 100)
        assert journal._bytes <= max(1500, 2 * (largest + 100))
    asked = data.draw(st.integers(1, last + 1), label="asked")
    oldest = journal.oldest()
    assert oldest is not None
    expected = [size for first, end, size in windows if end >= asked and first >= oldest]
    assert [len(one) for one in journal.since(asked)["windows"]] == expected
    assert expected or asked > last


def test_a_long_replay_is_split_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPLY_BYTES", 50)
    journal = filled(10_000, *((step, step + 1) for step in range(1, 12, 2)))
    asked, found = 1, []
    for _ in range(20):
        answer = journal.since(asked)
        assert 1 <= len(answer["windows"]) <= 2
        found += names(answer)
        asked = int(found[-1].split("..")[1]) + 1
        if not answer["more"]:
            break
    assert found == [f"{step}..{step + 1}" for step in range(1, 12, 2)]
    assert not journal.since(13)["more"]
    alone = filled(10_000, (1, 1), (2, 2), size=500)  # larger than an answer should be: still one of them
    assert names(alone.since(1)) == ["1..1"]
    assert alone.since(1)["more"]


def test_data_are_split_with_their_windows_and_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPLY_BYTES", 500)
    journal = ReplayLog()
    for step in (3, 1, 2, 5, 9, 4):  # data may be for later steps, in any order
        journal.add_payload(step, f"data {step}", 100)
    for step in range(1, 8):
        journal.add_window(step, step, name_of(step, step))
    asked, found, parts = 1, [], 0
    while True:
        answer = journal.since(asked)
        parts += 1
        assert answer["windows"]
        asked = int(names(answer)[-1].split("..")[1]) + 1
        found += answer["letters"]
        if not answer["more"]:
            break
        assert answer["letters_to"] == asked - 1
        assert all(at < asked for at, _ in answer["letters"])
    assert answer["letters_to"] is None
    assert parts > 1
    assert found == [[step, f"data {step}"] for step in (1, 2, 3, 4, 5, 9)]


def test_a_restarted_log_is_empty() -> None:
    journal = filled(10_000, (1, 4), (5, 8))
    journal.add_payload(6, "old", 10)
    journal.begin_again(20)
    nothing = {"windows": [], "letters": [], "oldest": None, "last": 20, "began": 20, "letters_to": None, "more": False}
    assert journal.since(1) == nothing
    journal.add_window(21, 22, name_of(21, 22))
    answer = journal.since(3)
    assert (names(answer), answer["oldest"], answer["began"]) == (["21..22"], 21, 20)
    journal.begin_again(2)  # an older state was taken
    journal.add_window(3, 4, name_of(3, 4))
    assert names(journal.since(1)) == ["3..4"]
    assert journal._bytes == 120
