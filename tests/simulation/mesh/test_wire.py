"""Windows of spikes as bytes: they round-trip, and any other input raises ValueError."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.simulation.mesh.wire import MOST_STEPS, RegionStatus, Window, pack_window, unpack_window

HEAD = struct.Struct("<4sIqqqQ")


def window(
    first: int = 3, last: int = 9, spikes: int = 4, epoch_ns: int = 0, digest: int = 7, outputs: int = 0
) -> Window:
    after = np.linspace(0, last - first, spikes).astype(np.uint16)
    values = np.linspace(-1.0, 1.0, outputs, dtype=np.float32)
    return Window(first, last, after, np.arange(spikes, dtype=np.int32) * 3, epoch_ns, digest, values)


def assert_same(found: Window, expected: Window) -> None:
    for name in ("first", "last", "epoch_ns", "digest"):
        assert getattr(found, name) == getattr(expected, name)
    for name in ("after", "ids", "outputs"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


@given(
    st.integers(1, 2**31 - 2),
    st.integers(0, MOST_STEPS - 1),
    st.lists(st.tuples(st.integers(0, 65535), st.integers(-(2**31), 2**31 - 1)), max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.lists(st.floats(width=32, allow_nan=False), max_size=20),
)
def test_there_and_back(
    first: int, length: int, spikes: list[tuple[int, int]], epoch_ns: int, digest: int, rates: list[float]
) -> None:
    last = min(first + length, 2**31 - 2)
    after = np.array([one for one, _ in spikes], np.uint16)
    ids = np.array([one for _, one in spikes], np.int32)
    given = Window(first, last, after, ids, epoch_ns, digest, outputs=np.array(rates, np.float32))
    assert_same(unpack_window(pack_window(given)), given)


def test_a_silent_window_is_a_head() -> None:
    payload = pack_window(window(spikes=0))
    assert len(payload) == HEAD.size
    assert_same(unpack_window(payload), window(spikes=0))


@given(st.binary(max_size=200))
def test_any_bytes_are_no_window(payload: bytes) -> None:
    with pytest.raises(ValueError, match="window"):
        unpack_window(payload)


@given(st.integers(0, 99), st.integers(0, 255), st.integers(0, 5), st.sampled_from([0, 3]))
def test_a_changed_byte_gives_another_valid_window_or_an_error(
    place: int, byte: int, spikes: int, outputs: int
) -> None:
    payload = bytearray(pack_window(window(spikes=spikes, outputs=outputs)))
    place %= len(payload)
    payload[place] = byte
    try:
        found = unpack_window(bytes(payload))
    except ValueError:
        return
    assert 6 * len(found.ids) + 4 * found.outputs.size == 6 * spikes + 4 * outputs
    assert len(found.ids) == len(found.after)
    assert 1 <= found.first <= found.last < found.first + MOST_STEPS


@pytest.mark.parametrize(
    ("magic", "n", "first", "last"),
    [
        (b"nxw2", 2, 1, 5),
        (b"\0\0\0\0", 2, 1, 5),
        (b"nxw1", 3, 1, 5),
        (b"nxw1", 1, 1, 5),
        (b"nxw1", 2**32 - 1, 1, 5),
        (b"nxw1", 2, 0, 5),
        (b"nxw1", 2, -1, 5),
        (b"nxw1", 2, 6, 5),
        (b"nxw1", 2, 1, 1 + MOST_STEPS),
        (b"nxw1", 2, 1, 2**63 - 1),
        (b"nxw1", 2, -(2**63), 2**63 - 1),
        (b"nxw1", 2, 2**31 - 1, 2**31),
        (b"nxw1", 2, 2**62, 2**62),
    ],
)
def test_heads_that_lie(magic: bytes, n: int, first: int, last: int) -> None:
    body = bytes(12)
    with pytest.raises(ValueError, match="window"):
        unpack_window(HEAD.pack(magic, n, first, last, 0, 0) + body)
    assert unpack_window(HEAD.pack(b"nxw1", 2, 1, MOST_STEPS, 0, 0) + body).last == MOST_STEPS


@pytest.mark.parametrize("cut", [1, 4, 6, 20, HEAD.size, HEAD.size + 23])
@pytest.mark.parametrize("outputs", [0, 7])
def test_windows_that_were_cut(cut: int, outputs: int) -> None:
    payload = pack_window(window(outputs=outputs))
    with pytest.raises(ValueError, match="window"):
        unpack_window(payload[:-cut])
    with pytest.raises(ValueError, match="window"):
        unpack_window(payload + bytes(cut))


@pytest.mark.parametrize(
    "value", [None, 3, "nxw1", [1, 2], {"first": 1}, bytearray(60), memoryview(bytes(60)), np.zeros(9)]
)
def test_values_that_are_no_bytes_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a window"):
        unpack_window(value)


def test_a_status_travels_as_plain_data() -> None:
    status = RegionStatus(step=3, digest=2**64 - 1, waiting_for=["a"], missing={"b": 2}, hold_s=1.5, leaving=True)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(status)))
    assert msgspec.convert(plain, RegionStatus) == status


@pytest.mark.parametrize(
    "value",
    [None, 5, [], {}, {"step": 1}, {"step": "1", "digest": 2}, {"step": 1.5, "digest": 2},
     {"step": 1, "digest": 2, "missing": {"a": "b"}}, {"step": 1, "digest": 2, "waiting_for": 3},
     {"step": 1, "digest": 2, "hold_s": "long"}],
)  # fmt: skip
def test_malformed_status_messages_are_refused(value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, RegionStatus)
