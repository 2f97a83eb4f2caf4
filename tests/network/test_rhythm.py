"""Rhythms: the table of cosines, phases and values, and what is refused."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Network
from neuraxis.network.modulation import CELLS, Rhythm, cosine_table


def exact_cosines():
    """cos(2 pi i / CELLS) to 50 digits, without pi and without a series: halved angles, then sums of angles."""
    with localcontext() as context:
        context.prec = 60
        cosine, sine = Decimal(0), Decimal(1)  # of a quarter of a turn
        for _ in range(round(math.log2(CELLS)) - 2):
            cosine, sine = ((1 + cosine) / 2).sqrt(), ((1 - cosine) / 2).sqrt()
        found, c, s = [], Decimal(1), Decimal(0)
        for _ in range(CELLS):
            found.append(c)
            c, s = c * cosine - s * sine, s * cosine + c * sine
    return found


def test_every_cosine_of_the_table_is_the_float32_nearest_to_it():
    table = cosine_table()
    assert (table.dtype, table.shape) == (np.float32, (CELLS,))
    for value, exact in zip(table, exact_cosines(), strict=True):
        off = abs(Decimal(float(value)) - exact)
        for neighbour in (np.nextafter(value, np.float32(-2)), np.nextafter(value, np.float32(2))):
            assert off <= abs(Decimal(float(neighbour)) - exact)


def test_the_table_is_symmetric_and_cannot_be_changed():
    table = cosine_table()
    assert (table[0], table[CELLS // 4], table[CELLS // 2]) == (1.0, 0.0, -1.0)
    assert np.array_equal(table[1:], table[:0:-1])
    assert np.array_equal(table[: CELLS // 2], -np.roll(table, CELLS // 2)[: CELLS // 2])
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 2.0


@given(
    frequency_hz=st.floats(1e-3, 5000.0),
    phase=st.floats(-3.0, 3.0),
    floor=st.floats(-1.0, 0.99),
    step=st.integers(0, 2**31 - 2),
)
def test_phases_and_values_follow_the_formula(frequency_hz, phase, floor, step):
    rhythm = Rhythm("theta", frequency_hz, phase, floor)
    turns = (frequency_hz * 0.1e-3 * step + phase) % 1.0
    tolerance = 1e-15 * (1 + step)
    off = abs(rhythm.phase_at(step, 0.1) - turns)
    assert min(off, 1 - off) <= tolerance
    cosine = max(floor, math.cos(2 * math.pi * turns))
    assert abs(rhythm.value_at(step, 0.1) - cosine) <= 2 * math.pi * (tolerance + 1 / CELLS) + 1e-6


def test_a_phase_does_not_drift_however_long_it_runs():
    rhythm = Rhythm("tenth", 1000.0)  # a tenth of a turn in a step
    assert [round(rhythm.phase_at(step, 0.1), 9) for step in range(12)] == [
        0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.0, 0.1,
    ]  # fmt: skip
    assert rhythm.phase_at(2 * 10**9 + 3, 0.1) == pytest.approx(0.3, abs=1e-6)
    assert {Rhythm("half", 5000.0).value_at(step, 0.1) for step in range(0, 2 * 10**9, 10**8 + 1)} == {1.0, -1.0}


def test_the_phase_is_where_it_begins_and_the_floor_where_it_ends():
    assert [Rhythm("r", 10.0, phase).value_at(0, 0.1) for phase in (0.0, 0.25, 0.5, 0.75, 1.0, -0.5)] == [
        1.0, 0.0, -1.0, 0.0, 1.0, -1.0,
    ]  # fmt: skip
    floored = Rhythm("r", 250.0, floor=0.1)
    values = [floored.value_at(step, 0.1) for step in range(40)]
    assert min(values) == float(np.float32(0.1))
    assert max(values) == 1.0


def test_steps_may_be_numbers_of_numpy():
    rhythm = Rhythm("r", 411.7, 0.3)
    for step in (0, 3, 4000, 2**31 - 2):
        assert rhythm.value_at(np.int64(step), 0.1) == rhythm.value_at(step, 0.1)
        assert rhythm.phase_at(np.int32(step), 0.1) == rhythm.phase_at(step, 0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("", 8.0), InvalidArgument, "name"),
        ((3, 8.0), InvalidType, "name"),
        (("r", 0.0), InvalidArgument, "frequency_hz=0"),
        (("r", -8.0), InvalidArgument, "frequency_hz=-8"),
        (("r", math.nan), InvalidArgument, "frequency_hz"),
        (("r", "8"), InvalidType, "frequency_hz"),
        (("r", 8.0, math.inf), InvalidArgument, "phase"),
        (("r", 8.0, 0.0, -1.1), InvalidArgument, "floor=-1.1: must be from -1 to below 1"),
        (("r", 8.0, 0.0, 1.0), InvalidArgument, "floor=1"),
        (("r", 5000.1), InvalidArgument, "frequency_hz=5000.1: a cycle must take two steps of 0.1 ms or more"),
        (("theta", 8.0), InvalidArgument, "'theta': a rhythm of this name exists already"),
        (("dopamine", 8.0), InvalidArgument, "'dopamine': a neuromodulator of this name exists already"),
    ],
)
def test_rhythms_that_cannot_be(arguments, error, message):
    network = Network(dt_ms=0.1)
    network.rhythm("theta", 8.0)
    network.neuromodulator("dopamine")
    before = network.copy()
    with pytest.raises(error, match=message):
        network.rhythm(*arguments)
    assert network == before


def test_a_neuromodulator_cannot_have_the_name_of_a_rhythm():
    network = Network()
    network.rhythm("theta", 8.0)
    with pytest.raises(InvalidArgument, match="a rhythm of this name exists already"):
        network.neuromodulator("theta")


def test_rhythms_are_part_of_the_identity_of_a_network():
    one, other = Network(), Network()
    made = one.rhythm("theta", 8.0, 0.25)
    assert one.rhythms == (made,)
    assert one != other
    other.rhythm("theta", 8.0, 0.5)
    assert one != other
    assert pickle.loads(pickle.dumps(one)) == one
    assert [rhythm.index for rhythm in (made, one.rhythm("gamma", 40.0))] == [0, 1]
