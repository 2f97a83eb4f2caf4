from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from neuraxis.brain.session import Schedule


def test_due_entries_are_ordered_by_step_then_by_insertion():
    schedule = Schedule()
    schedule.add(20, "rest", "motor")
    schedule.add(10, "release", "dopamine", 0.5)
    schedule.add(20, "release", "dopamine", -0.5)
    schedule.add(30, "rest", "eyes")
    assert schedule.next_step() == 10
    assert schedule.pop_due(9) == []
    assert schedule.pop_due(20) == [
        ("release", ["dopamine", 0.5]),
        ("rest", ["motor"]),
        ("release", ["dopamine", -0.5]),
    ]
    assert schedule.pop_due(20) == []
    assert schedule.next_step() == 30


def test_an_empty_schedule_has_no_next_step():
    schedule = Schedule()
    assert schedule.next_step() is None
    assert schedule.pop_due(2**40) == []
    assert schedule.as_json() == []


entries = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["rest", "release"]), st.integers(0, 9)).map(
        lambda entry: [entry[0], entry[1], [entry[2]]]
    ),
    max_size=20,
)


@given(entries=entries, until=st.integers(-1, 7))
def test_a_restored_schedule_continues_identically(entries, until):
    schedule = Schedule(entries)
    done = schedule.pop_due(until)
    # Sorting is stable, so this is the order of steps and then of entry.
    expected = sorted(entries, key=lambda entry: entry[0])
    assert done == [(what, arguments) for step, what, arguments in expected if step <= until]
    again = Schedule(json.loads(json.dumps(schedule.as_json())))
    assert again.as_json() == schedule.as_json() == [entry for entry in expected if entry[0] > until]
    assert again.next_step() == schedule.next_step()
    assert again.pop_due(7) == schedule.pop_due(7)


@given(entries=entries)
def test_removed_entries_do_not_fire_and_all_others_do(entries):
    schedule = Schedule(entries)
    schedule.remove("rest")
    expected = sorted((entry for entry in entries if entry[1] != "rest"), key=lambda entry: entry[0])
    assert schedule.next_step() == (expected[0][0] if expected else None)
    assert schedule.pop_due(6) == [(what, arguments) for _, what, arguments in expected]
