"""Messages over a pair of sockets, in pieces of every size."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidType, LineClosed
from neuraxis.process.messages import Frame, Kind, MessageStream, encode


@pytest.fixture
def pair() -> Iterator[tuple[MessageStream, MessageStream]]:
    one, two = (MessageStream(end) for end in socket.socketpair())
    yield one, two
    one.close()
    two.close()


def carry(source: MessageStream, target: MessageStream) -> None:
    while source.writing:
        source.write_some()
        target.read_some()
    target.read_some()


def frame_bytes(message: object) -> bytes:
    return b"".join(encode(message))


def plain(message: object) -> object:
    """The same with bytes for arrays, which can be compared as a whole."""
    if isinstance(message, list):
        return [plain(each) for each in message]
    return (message.dtype, message.tobytes()) if isinstance(message, np.ndarray) else message


MESSAGES = st.lists(
    st.one_of(
        st.none(),
        st.integers(),
        st.binary(max_size=100),
        st.integers(0, 40_000).map(lambda size: np.arange(size, dtype=np.uint8)),
        st.lists(st.integers(4_000, 6_000).map(lambda size: np.arange(size, dtype=np.int32)), max_size=3),
    ),
    max_size=5,
)


@given(MESSAGES, st.lists(st.integers(1, 50_000), min_size=1, max_size=50))
def test_messages_arrive_whole_however_the_bytes_are_cut(messages, cuts):
    near, far = socket.socketpair()
    stream = MessageStream(far)
    try:
        data = b"".join(map(frame_bytes, messages))
        for size in [*cuts, *[60_000] * (len(data) // 60_000 + 1)]:
            near.sendall(data[:size])
            data = data[size:]
            stream.read_some()
        assert not data
        assert plain([frame.message() for frame in stream.incoming]) == plain(messages)
    finally:
        near.close()
        stream.close()


def test_a_large_buffer_is_sent_from_where_it_lies_and_arrives_where_it_stays(pair):
    source, target = pair
    array = np.arange(3_000_000, dtype=np.uint8)
    parts = encode({"array": array, "small": array[:100]})
    assert [part.nbytes for part in parts[2:]] == [3_000_000]
    assert np.shares_memory(np.frombuffer(parts[2], np.uint8), array)
    source.put(parts)
    carry(source, target)
    (frame,) = target.incoming
    received = frame.message()["array"]
    assert np.array_equal(received, array)
    assert np.shares_memory(received, np.frombuffer(frame.parts[1], np.uint8))
    assert received.flags.writeable


def test_nothing_of_a_message_is_kept_when_it_has_been_taken(pair):
    source, target = pair
    source.put(encode(np.zeros(3_000_000, np.uint8)))
    carry(source, target)
    part = target.incoming.popleft().parts[1]
    part.close()  # raises while anything still looks into it


def test_a_buffered_message_does_not_change(pair):
    source, target = pair
    array = np.zeros(3_000_000, np.uint8)
    source.put(encode(array))
    source.write_some()
    assert source.writing
    source.keep_rest()
    array[:] = 1
    carry(source, target)
    assert not target.incoming.popleft().message().any()


def test_frames_without_a_message(pair):
    source, target = pair
    source.put(encode(kind=Kind.READY))
    source.put(encode("text"))
    source.put(encode(kind=Kind.FINISHED))
    carry(source, target)
    assert [frame.kind for frame in target.incoming] == [Kind.READY, Kind.MESSAGE, Kind.FINISHED]
    assert Frame(Kind.MESSAGE, target.incoming[1].parts).mentions(b"text")
    assert not target.incoming[1].mentions(b"other")


def test_both_ends_can_stop_and_the_other_notices(pair):
    source, target = pair
    source.put(encode("last"))
    source.write_some()
    source.stop_writing()
    assert target.read_some() is False
    assert target.at_end
    assert target.incoming.popleft().message() == "last"
    target.put(encode("answer"))
    carry(target, source)
    assert source.incoming.popleft().message() == "answer"
    source.put(encode("too late"))
    assert not source.writing


def test_writing_to_a_closed_stream(pair):
    source, target = pair
    source.put(encode(bytes(1_000_000)))
    source.write_some()
    target.close()
    source.write_some()
    assert source.broken
    assert not source.writing
    source.read_some()  # there was something unread: to the kernel that is a reset, here an end
    assert source.at_end


def test_values_that_cannot_be_pickled_are_named():
    with pytest.raises(InvalidType, match="message, a generator, cannot be pickled"):
        encode(i for i in range(3))


class _Breaks(Exception):
    pass


def test_a_truncated_stream_raises():
    class Torn(socket.socket):
        def recv_into(self, *args: object) -> int:  # type: ignore[override]
            super().recv_into(*args)  # type: ignore[arg-type]
            raise _Breaks

    near, far = socket.socketpair()
    stream = MessageStream(Torn(fileno=far.detach()))
    near.sendall(frame_bytes("one"))
    with pytest.raises(_Breaks):
        stream.read_some()
    for call in (stream.read_some, stream.write_some):
        with pytest.raises(LineClosed, match="handler raised"):
            call()
    near.close()
    stream.close()
