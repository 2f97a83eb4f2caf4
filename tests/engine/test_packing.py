"""Packing of spikes into two arrays and back into spike buffers; invalid arrays are detected."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import SpikeBuffers, clear_steps, pack_steps, spikes_are_valid, unpack_steps
from neuraxis.network import AllToAll, Network
from neuraxis.network.models import lif_delta

SIZES = (3, 1, 7, 4)
FIRST_IDS = np.concatenate(([0], np.cumsum(SIZES))).astype(np.int64)
PLACEMENT = ((Slice(0, 0, 3), Slice(2, 2, 5)), (Slice(1, 0, 1), Slice(2, 0, 2), Slice(2, 5, 7), Slice(3, 0, 4)))

Spikes = dict[int, list[int]]  # by step, the ids that spiked, in order


def held_by(shard: int) -> np.ndarray:
    """The rows (first id, last id + 1) of a shard's slices."""
    rows = [[FIRST_IDS[s.population] + s.first, FIRST_IDS[s.population] + s.last] for s in PLACEMENT[shard]]
    return np.array(rows, np.int64)


def ids_of(shard: int) -> list[int]:
    return [neuron for first, last in held_by(shard) for neuron in range(first, last)]


def buffers(lag: int = 4) -> SpikeBuffers:
    network = Network()
    populations = [network.population(f"p{i}", n, lif_delta) for i, n in enumerate(SIZES)]
    network.connect(populations[0], populations[1], AllToAll(), 1.0)
    lags = np.full((2, 2), lag, np.int64)
    return SpikeBuffers.private(network, PLACEMENT, lags)


def write(box: SpikeBuffers, shard: int, step: int, ids: list[int]) -> None:
    """Write spikes as a shard's kernel does: the start and number of spikes of each population, and the ids."""
    slot = box.slot(shard, step)
    slot[: len(FIRST_IDS)] = np.searchsorted(ids, FIRST_IDS)
    slot[len(SIZES)] = len(ids)
    slot[len(FIRST_IDS) : len(FIRST_IDS) + len(ids)] = ids


def read(box: SpikeBuffers, shard: int, step: int) -> list[int]:
    """Read the spikes by population, as a delivery does."""
    slot = box.slot(shard, step)
    offsets = slot[: len(FIRST_IDS)].tolist()
    ids = slot[len(FIRST_IDS) :].tolist()
    found = []
    for population, (begin, end) in enumerate(pairwise(offsets)):
        of_it = ids[begin:end]
        assert all(FIRST_IDS[population] <= one < FIRST_IDS[population + 1] for one in of_it)
        found += of_it
    return found


def plain_soundness(after: list[int], ids: list[int], steps: int, held: list[int]) -> bool:
    """Return True if each step and neuron has at most one spike, in order, of neurons that the shard holds."""
    pairs = list(zip(after, ids, strict=True))
    return pairs == sorted(set(pairs)) and all(0 <= step < steps for step in after) and all(one in held for one in ids)


@st.composite
def some_spikes(draw: st.DrawFn, shard: int, first: int, last: int) -> Spikes:
    mine = ids_of(shard)
    return {step: sorted(draw(st.sets(st.sampled_from(mine)))) for step in range(first, last + 1)}


@settings(max_examples=60)
@given(st.data(), st.integers(0, 1), st.integers(1, 40), st.integers(1, 9))
def test_packed_spikes_unpack_equal_at_any_position_of_the_ring(
    data: st.DataObject, shard: int, first: int, length: int
) -> None:
    here, there = buffers(), buffers()
    length = min(length, here.slots)
    last = first + length - 1
    spikes = data.draw(some_spikes(shard, first, last))
    for step in range(max(0, first - here.slots), first):  # what lay there before must not shine through
        write(here, shard, step, ids_of(shard))
        write(there, shard, step, ids_of(shard))
    for step, ids in spikes.items():
        write(here, shard, step, ids)
    after, ids = pack_steps(here, shard, len(SIZES), first, last)
    assert [(first + int(a), int(i)) for a, i in zip(after, ids, strict=True)] == [
        (step, one) for step, some in spikes.items() for one in some
    ]
    assert spikes_are_valid(after, ids, length, held_by(shard))
    earliest = data.draw(st.integers(first - 2, last + 2), label="earliest")
    before = {step: read(there, shard, step) for step in range(first, last + 1)}
    unpack_steps(there, shard, FIRST_IDS, first, last, after, ids, earliest)
    for step in range(first, last + 1):
        assert read(there, shard, step) == (spikes[step] if step >= earliest else before[step])


def test_other_shards_and_other_steps_are_left_alone() -> None:
    box = buffers()
    for shard in (0, 1):
        for step in range(box.slots):
            write(box, shard, step, ids_of(shard)[:2])
    unpack_steps(box, 1, FIRST_IDS, 3, 4, np.array([1], np.uint16), np.array([14], np.int32), 1)
    assert read(box, 1, 3) == []
    assert read(box, 1, 4) == [14]
    for step in range(box.slots):
        assert read(box, 0, step) == ids_of(0)[:2]
        if step not in (3, 4):
            assert read(box, 1, step) == ids_of(1)[:2]


def test_every_neuron_may_spike_in_every_step() -> None:
    box, there = buffers(), buffers()
    for step in range(1, box.slots + 1):
        write(box, 1, step, ids_of(1))
    after, ids = pack_steps(box, 1, len(SIZES), 1, box.slots)
    assert len(ids) == box.slots * len(ids_of(1))
    unpack_steps(there, 1, FIRST_IDS, 1, box.slots, after, ids, 1)
    assert all(read(there, 1, step) == ids_of(1) for step in range(1, box.slots + 1))
    assert all(read(there, 0, step) == [] for step in range(1, box.slots + 1))


def test_windows_that_came_by_the_network_cannot_be_written_to() -> None:
    box = buffers()
    after = np.frombuffer(np.array([0, 2], np.uint16).tobytes(), np.uint16)
    ids = np.frombuffer(np.array([0, 6], np.int32).tobytes(), np.int32)
    assert spikes_are_valid(after, ids, 3, held_by(0))
    unpack_steps(box, 0, FIRST_IDS, 5, 7, after, ids, 5)
    assert [read(box, 0, step) for step in (5, 6, 7)] == [[0], [], [6]]


@pytest.mark.parametrize(("first", "last"), [(1, 3), (7, 12), (11, 10)])
def test_cleared_steps_are_silence_and_no_others(first: int, last: int) -> None:
    box = buffers()
    assert box.slots == 10
    for step in range(5, 15):
        write(box, 1, step, ids_of(1))
    clear_steps(box, 1, len(SIZES), first, last)
    cleared = {step % 10 for step in range(first, last + 1)}
    for step in range(5, 15):
        assert read(box, 1, step) == ([] if step % 10 in cleared else ids_of(1))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 17)), max_size=8),
    st.integers(0, 6),
    st.integers(0, 1),
    st.booleans(),
)
def test_validation_accepts_exactly_the_valid_packets(
    pairs: list[tuple[int, int]], steps: int, shard: int, ordered: bool
) -> None:
    if ordered:
        pairs = sorted(set(pairs))
    after, ids = [one for one, _ in pairs], [one for _, one in pairs]
    found = spikes_are_valid(np.array(after, np.uint16), np.array(ids, np.int32), steps, held_by(shard))
    assert found == plain_soundness(after, ids, steps, ids_of(shard))


@settings(max_examples=100)
@given(st.data(), st.integers(0, 1))
def test_one_wrong_number_among_sound_ones_is_seen(data: st.DataObject, shard: int) -> None:
    spikes = data.draw(some_spikes(shard, 0, 4))
    after = np.array([step for step, some in spikes.items() for _ in some], np.uint16)
    ids = np.array([one for some in spikes.values() for one in some], np.int32)
    assert spikes_are_valid(after, ids, 5, held_by(shard))
    if not len(ids):
        return
    place = data.draw(st.integers(0, len(ids) - 1), label="place")
    if data.draw(st.booleans(), label="a step"):
        after[place] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 5, 65535]))
    else:
        ids[place] = data.draw(st.one_of(st.integers(-5, 20), st.sampled_from([-(2**31), 2**31 - 1])))
    expected = plain_soundness(after.tolist(), ids.tolist(), 5, ids_of(shard))
    assert spikes_are_valid(after, ids, 5, held_by(shard)) == expected


@pytest.mark.parametrize(
    ("after", "ids", "held"),
    [
        ([0], [], [[0, 3]]),
        ([], [0], [[0, 3]]),
        ([0], [0], []),
        ([0, 0], [1, 1], [[0, 3]]),
        ([1, 0], [0, 1], [[0, 3]]),
        ([0], [2**31 - 1], [[0, 3]]),
        ([0], [-1], [[0, 3]]),
        ([7], [0], [[0, 3]]),
    ],
)
def test_invalid_packets_are_rejected(after: list[int], ids: list[int], held: list[list[int]]) -> None:
    rows = np.array(held, np.int64).reshape(-1, 2)
    assert not spikes_are_valid(np.array(after, np.uint16), np.array(ids, np.int32), 7, rows)


def test_an_empty_packet_is_valid_from_any_sender() -> None:
    nothing = np.zeros(0, np.uint16), np.zeros(0, np.int32)
    assert spikes_are_valid(*nothing, 1, np.zeros((0, 2), np.int64))
    assert spikes_are_valid(*nothing, 1, held_by(0))
