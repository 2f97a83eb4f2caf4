"""Frames: whatever can be sent comes back, and whatever else comes is an error and nothing worse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import NotSerializable
from neuraxis.rpc.frames import ALIGNMENT, Frame
from neuraxis.rpc.messages import Kind, pack_head, read_head, read_reply, read_request
from neuraxis.rpc.once import AtMostOnce
from neuraxis.rpc.transport import Party
from neuraxis.rpc.values import Values

ME, OTHER = Party("me", 7), Party("other", 9)


class Handle:
    def __init__(self, data: Any) -> None:
        self.data = data


def values(allow_pickle: bool = False) -> Values:
    made = Values(allow_pickle, Handle, lambda handle, to: [handle.data, to.name], Handle)
    made.me = ME
    return made


def there_and_back(value: Any, allow_pickle: bool = False) -> Any:
    frame = values(allow_pickle).encode(Kind.CALL, 3, 5, 4, value, OTHER).joined()
    head = read_head(frame)
    assert head[:6] == (Kind.CALL, 3, 5, 4, OTHER.life, ME)
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
def test_plain_values_come_back(value: Any) -> None:
    assert there_and_back(value) == value


@given(st.lists(st.integers(0, 40000), max_size=4), st.sampled_from(["u1", ">i4", "f8", "c16", "M8[ns]", "S3", "?"]))
def test_arrays_come_back_where_they_lie_aligned(sizes: list[int], dtype: str) -> None:
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


def test_what_is_sent_later_is_what_was_joined() -> None:
    array = np.zeros(10_000)
    frame = values().encode(Kind.REPLY, 0, 1, 0, array, OTHER)
    assert [offset % ALIGNMENT for offset, _ in frame.pieces] == [0]
    joined = frame.joined()
    array[:] = 1
    assert frame.joined() is joined
    assert len(frame) == len(joined)
    assert values().decode(joined, read_head(joined)).sum() == 0


def test_handles_are_exported_for_who_gets_them() -> None:
    assert there_and_back([Handle(5)])[0].data == [5, "other"]


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


def test_what_is_no_request_or_reply() -> None:
    for value in (None, [], [1, "f", []], [1, 2, [], {}], ["1", "f", [], {}], {"a": 1}, [True, "f", [], {}]):
        with pytest.raises(Unreadable):
            read_request(value)
    assert read_request([1, "f", [2], {"a": 3}]) == (1, "f", [2], {"a": 3})
    for value in (None, [1, 2], [True], [True, 1, 2]):
        with pytest.raises(Unreadable):
            read_reply(value)


def test_a_request_is_begun_once_and_answered_again() -> None:
    once, answer = AtMostOnce(), Frame(b"answer")
    assert once.begin(ME, 1, 1) is None
    once.end(ME, 1, answer)
    assert once.begin(ME, 1, 1) is answer
    assert once.begin(OTHER, 1, 1) is None  # another caller's
    assert once.begin(ME, 3, 1) is None
    assert once.begin(ME, 2, 1) is None  # one that was overtaken
    once.end(ME, 2, answer)
    once.end(ME, 3, answer)
    assert once.begin(ME, 4, 4) is None  # the caller waits for none of the others
    with pytest.raises(ConnectionError, match="no longer there"):
        once.begin(ME, 3, 1)
    assert once._bytes == 0
    once.end(ME, 3, answer)  # too late
    assert once._bytes == 0


def test_the_head_has_the_name_of_who_says_it() -> None:
    named = Party("sensor/thermal-ü", 2**63)
    assert read_head(pack_head(Kind.BYE, 0, 0, 0, 1, named, 0, 0)).sender == named
