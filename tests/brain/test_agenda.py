from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from neuraxis.brain.agenda import Agenda


def test_what_is_due_comes_in_the_order_of_steps_and_then_of_entry():
    agenda = Agenda()
    agenda.enter(20, "rest", "motor")
    agenda.enter(10, "release", "dopamine", 0.5)
    agenda.enter(20, "release", "dopamine", -0.5)
    agenda.enter(30, "rest", "eyes")
    assert agenda.next_step() == 10
    assert agenda.take_due(9) == []
    assert agenda.take_due(20) == [
        ("release", ["dopamine", 0.5]),
        ("rest", ["motor"]),
        ("release", ["dopamine", -0.5]),
    ]
    assert agenda.take_due(20) == []
    assert agenda.next_step() == 30


def test_an_empty_agenda_has_no_next_step():
    agenda = Agenda()
    assert agenda.next_step() is None
    assert agenda.take_due(2**40) == []
    assert agenda.as_json() == []


entries = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["rest", "release"]), st.integers(0, 9)).map(
        lambda entry: [entry[0], entry[1], [entry[2]]]
    ),
    max_size=20,
)


@given(entries=entries, until=st.integers(-1, 7))
def test_a_kept_agenda_goes_on_as_it_would_have(entries, until):
    agenda = Agenda(entries)
    done = agenda.take_due(until)
    # Sorting is stable, so this is the order of steps and then of entry.
    expected = sorted(entries, key=lambda entry: entry[0])
    assert done == [(what, arguments) for step, what, arguments in expected if step <= until]
    again = Agenda(json.loads(json.dumps(agenda.as_json())))
    assert again.as_json() == agenda.as_json() == [entry for entry in expected if entry[0] > until]
    assert again.next_step() == agenda.next_step()
    assert again.take_due(7) == agenda.take_due(7)


@given(entries=entries)
def test_what_is_removed_does_not_come_and_all_else_does(entries):
    agenda = Agenda(entries)
    agenda.remove("rest")
    expected = sorted((entry for entry in entries if entry[1] != "rest"), key=lambda entry: entry[0])
    assert agenda.next_step() == (expected[0][0] if expected else None)
    assert agenda.take_due(6) == [(what, arguments) for _, what, arguments in expected]
