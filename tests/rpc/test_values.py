"""Frames: every supported value round-trips, and any other input raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import NotSerializable
from neuraxis.rpc.calls import Numbers
from neuraxis.rpc.frames import ALIGNMENT
from neuraxis.rpc.messages import Kind, pack_head, read_head, read_reply, read_request
from neuraxis.rpc.transport import Endpoint
from neuraxis.rpc.values import HandleData, TooLarge, Values
from neuraxis.wire.objects import Unreadable

ME, OTHER = Endpoint("me", 7), Endpoint("other", 9)


class Handle:
    def __init__(self, data: HandleData) -> None:
        self.data = data


class Keeper:
    """Records its calls."""

    handle_type: type = Handle

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []

    def describe(self, handle: Handle) -> HandleData:
        return handle.data

    def retain_for(self, handles: Sequence[Handle], endpoint: Endpoint) -> None:
        self.calls += [("retain", handle.data.number, endpoint.name) for handle in handles]

    def adopt(self, data: HandleData) -> Handle:
        self.calls.append(("adopt", data.number, data.owner))
        return Handle(data)

    def detach(self, handle: Handle) -> None:
        self.calls.append(("detach", handle.data.number, handle.data.owner))

    def release(self, data: HandleData) -> None:
        self.calls.append(("release", data.number, data.owner))


def values(allow_pickle: bool = False, keeper: Keeper | None = None) -> Values:
    made = Values(allow_pickle, keeper or Keeper())
    made.me = ME
    return made


def there_and_back(value: Any, allow_pickle: bool = False) -> Any:
    frame = values(allow_pickle).encode(Kind.CALL, 3, 5, 4, value, OTHER).joined()
    head = read_head(frame)
    assert head[:6] == (Kind.CALL, 3, 5, 4, OTHER.incarnation, ME)
    return values(allow_pickle).decode(frame, head)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.integers() | st.tuples(st.booleans()), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=10,
)


@given(PLAIN)
def test_plain_values_round_trip(value: Any) -> None:
    assert there_and_back(value) == value


@given(st.lists(st.integers(0, 40000), max_size=4), st.sampled_from(["u1", ">i4", "f8", "c16", "M8[ns]", "S3", "?"]))
def test_arrays_round_trip_aligned(sizes: list[int], dtype: str) -> None:
    arrays = [np.zeros(size, dtype) for size in sizes]
    back = there_and_back({"deep": [(array,) for array in arrays]})["deep"]
    assert len(back) == len(arrays)
    for (one,), array in zip(back, arrays, strict=True):
        np.testing.assert_array_equal(one, array)
        assert one.dtype == array.dtype
        assert one.flags.writeable
        assert one.flags.aligned


def test_an_array_beside_is_not_copied_when_it_is_read() -> None:
    frame = np.frombuffer(
        bytearray(values().encode(Kind.REPLY, 0, 1, 0, [np.arange(10_000.0)], OTHER).joined()), np.uint8
    )
    (back,) = values().decode(frame, read_head(frame))
    assert np.shares_memory(back, frame)
    back[:] = 0


def test_a_frame_sent_later_equals_the_joined_parts() -> None:
    array = np.zeros(10_000)
    frame = values().encode(Kind.REPLY, 0, 1, 0, array, OTHER)
    assert [offset % ALIGNMENT for offset, _ in frame.pieces] == [0]
    joined = frame.joined()
    array[:] = 1
    assert frame.joined() is joined
    assert len(frame) == len(joined)
    assert values().decode(joined, read_head(joined)).sum() == 0


def test_the_receiver_of_a_handle_is_counted_when_the_frame_is_ready() -> None:
    keeper = Keeper()
    handles = [Handle(HandleData("owner", 3, number, "thing")) for number in (5, 6, 7)]
    value = [handles[0], (handles[1], {1: handles[2]})]
    ours = values(True, keeper)
    with pytest.raises(NotSerializable):
        values(False, keeper).encode(Kind.CALL, 0, 1, 1, [*value, object()], OTHER)
    ours.largest = 10
    with pytest.raises(TooLarge):
        ours.encode(Kind.CALL, 0, 1, 1, value, OTHER)
    assert keeper.calls == []
    ours.largest = 10_000
    frame = ours.encode(Kind.CALL, 0, 1, 1, value, OTHER).joined()
    assert keeper.calls == [("retain", 5, "other"), ("retain", 6, "other"), ("retain", 7, "other")]
    for read, what in ((ours.decode, "adopt"), (ours.discard, "release")):
        keeper.calls.clear()
        read(frame, read_head(frame))
        assert keeper.calls == [(what, 5, "owner"), (what, 6, "owner"), (what, 7, "owner")]


def test_all_handles_of_an_unreadable_frame_are_released_once() -> None:
    keeper = Keeper()
    handles = [Handle(HandleData("owner", 3, number, "thing")) for number in (5, 6)]
    frame = values(True).encode(Kind.CALL, 0, 1, 1, [handles[0], range(3), handles[1]], OTHER).joined()
    with pytest.raises(NotSerializable):
        values(False, keeper).decode(frame, read_head(frame))
    adopted = [number for what, number, _ in keeper.calls if what == "adopt"]
    assert [number for what, number, _ in keeper.calls if what == "detach"] == adopted
    assert [number for what, number, _ in keeper.calls if what == "release"] == [5, 6]


def test_pickle_only_where_it_is_allowed() -> None:
    assert there_and_back(range(3), allow_pickle=True) == range(3)
    with pytest.raises(NotSerializable, match="allow_pickle"):
        there_and_back(range(3))
    frame = values(True).encode(Kind.CALL, 0, 1, 1, [range(3)], OTHER).joined()
    with pytest.raises(NotSerializable, match="pickle is not allowed here"):
        values().decode(frame, read_head(frame))


@given(st.binary(max_size=200))
def test_garbage_is_no_message(content: bytes) -> None:
    with pytest.raises(Unreadable):
        values().decode(content, read_head(content))


@given(st.data())
def test_a_damaged_message_is_an_error_or_another_value(data: st.DataObject) -> None:
    frame = bytearray(values().encode(Kind.CALL, 1, 2, 1, [1, "f", [np.arange(5000), (1, 2j)], {}], OTHER).joined())
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    try:
        values().decode(bytes(frame[:cut]), read_head(frame[:cut]))
    except (Unreadable, NotSerializable):
        pass


def test_malformed_requests_and_replies() -> None:
    for value in (None, [], [1, "f", []], [1, 2, [], {}], ["1", "f", [], {}], {"a": 1}, [True, "f", [], {}]):
        with pytest.raises(Unreadable):
            read_request(value)
    assert read_request([1, "f", [2], {"a": 3}]) == (1, "f", [2], {"a": 3})
    for value in (None, [1, 2], [True], [True, 1, 2]):
        with pytest.raises(Unreadable):
            read_reply(value)


def test_the_header_has_the_pending_numbers() -> None:
    for still_open in ([], [3], [1, 2**40, 2**63]):
        frame = values().encode(Kind.CALL, 1, 9, 8, ["f"], OTHER, still_open).joined()
        head = read_head(frame)
        assert (head.settled, list(head.still_open)) == (8, still_open)
        assert values().decode(frame, head) == ["f"]


def test_request_numbers_list_the_pending_calls() -> None:
    numbers = Numbers()
    assert numbers.take(ME) == (1, 1, [])
    assert numbers.take(OTHER) == (1, 1, [])  # a sequence of its own
    assert numbers.take(ME) == (2, 2, [1])
    numbers.settle(ME, 2)
    assert numbers.take(ME) == (3, 3, [1])
    numbers.settle(ME, 1)
    assert numbers.take(ME) == (4, 4, [3])
    for _ in range(600):
        last = numbers.take(OTHER)
    assert last.still_open[0] == 1
    assert last.still_open[-1] < last.settled < last.value  # not all are named: what is not is kept
    for number in range(1, 700):
        numbers.settle(ME, number)
        numbers.settle(OTHER, number)
    assert numbers._open == {}


def test_the_header_has_the_sender() -> None:
    named = Endpoint("sensor/thermal-ü", 2**63)
    assert read_head(pack_head(Kind.BYE, 0, 0, 0, 1, named)).sender == named
