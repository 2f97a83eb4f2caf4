"""Arrays as bytes: the formats that files and other programs rely on, and elements out of band."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from neuraxis.errors import NotSerializable
from neuraxis.wire import codecs, objects
from neuraxis.wire.arrays import take_from
from neuraxis.wire.objects import Serializer, Unreadable
from neuraxis.wire.tensors import HostTensor, pack, unpack
from tests.ranks.arrays import torch_module

LARGE = 5000  # elements, of 8 bytes


def joined(apart: list[Any]) -> memoryview:
    return memoryview(bytearray(b"".join(apart)))


def test_the_bytes_of_a_message_with_arrays_stay() -> None:
    """Programs in other languages read and write them."""
    payload, encoding = codecs.encode({"a": np.array([1, 2], "<i2"), "t": (1,)})
    assert encoding == "application/msgpack"
    assert payload.hex() == "82a161c70d0693a33c69329102c40401000200a174d5019101"
    payload, encoding = codecs.encode(np.array([[1, 2]], "<i2"))
    assert encoding == "application/x-neuraxis-array"
    assert payload == b"\x0a\0\0\0" + msgspec.msgpack.encode(["<i2", [1, 2], "C"]) + bytes(50) + b"\1\0\2\0"


def test_the_bytes_of_saved_payloads_stay() -> None:
    """Saved states of the previous release contain them."""
    saved = (
        "82a161c70d0693a33c69329102c40401000200a1629301a178c71e0192c7110693a33c66349102c4080000803f0000803f"
        "a862666c6f61743136"
    )
    value = unpack(bytes.fromhex(saved))
    assert value["a"].tolist() == [1, 2]
    assert value["b"][:2] == [1, "x"]
    assert value["b"][2].values.tolist() == [1, 1]
    assert value["b"][2].dtype == "bfloat16"
    assert pack(value).hex() == saved


def test_large_arrays_are_neither_copied_to_be_sent_nor_to_be_received() -> None:
    serializer = Serializer()
    array, other = np.arange(float(LARGE)), np.asfortranarray(np.arange(float(LARGE)).reshape(50, 100))
    apart: list[Any] = []
    content = serializer.encode({"a": [array, (other, {1: np.arange(3)})]}, apart)
    assert len(content) < 300
    assert all(np.shares_memory(np.asarray(one), source) for one, source in zip(apart, (array, other), strict=True))
    memory = joined(apart)
    back = serializer.decode(content, take_from(memory, 0))["a"]
    for one, source in ((back[0], array), (back[1][0], other)):
        assert np.array_equal(one, source)
        assert np.shares_memory(one, np.asarray(memory))
        one[:] = 0
    assert back[1][0].flags.f_contiguous
    assert back[1][1][1].tolist() == [0, 1, 2]


def test_elements_of_every_layout_and_of_tensors_out_of_band() -> None:
    torch = torch_module()
    whole = np.arange(4.0 * LARGE).reshape(100, -1)
    values = [whole, whole.T, whole[::2, ::2], whole[::-1], torch.arange(LARGE), torch.ones(2, LARGE).T.bfloat16()]
    apart: list[Any] = []
    content = Serializer().encode(values, apart)
    assert len(apart) == len(values)
    for memory in (joined(apart), joined(apart).toreadonly(), memoryview(b"x" + b"".join(apart))[1:]):
        back = Serializer().decode(content, take_from(memory, 0))
        for one, value in zip(back, values, strict=True):
            assert type(one) is type(value)
            assert (one == value).all()
            one[:] = 0  # whatever the buffer: writable


@pytest.mark.parametrize("code", [11, 12])
@pytest.mark.parametrize(
    "described",
    [
        ["<f4", [4], "C", 12],
        ["<f4", [4], "C", 2**62],
        ["<f4", [-1], "C", 16],
        ["<f4", [2**62], "C", 16],
        ["O", [2], "C", 16],
        ["<f4", [4], "K", 16],
        ["<f4", [4], "C"],
        ["<f4", [4], "C", -16],
        None,
    ],
    ids=str,
)
def test_descriptions_that_do_not_fit_the_elements(code: int, described: Any) -> None:
    torch_module()
    if code == 12 and described is not None and described[0] == "<f4":
        described = ["float32", *described[1:]]
    content = msgspec.msgpack.encode([msgspec.msgpack.Ext(code, msgspec.msgpack.encode(described))])
    with pytest.raises(Unreadable):
        Serializer().decode(content, take_from(memoryview(bytes(16)), 0))
    with pytest.raises(Unreadable):
        objects.decode(b"\xc1" + len(content).to_bytes(8, "little") + content + bytes(16))


def test_each_buffer_is_used_once() -> None:
    """Otherwise a small message could claim many copies of a large buffer."""
    one = msgspec.msgpack.Ext(12, msgspec.msgpack.encode(["float32", [4], "C", 16]))
    content = msgspec.msgpack.encode([one, one])
    with pytest.raises(Unreadable):
        Serializer().decode(content, take_from(memoryview(bytes(16)), 0))
    assert len(Serializer().decode(content, take_from(memoryview(bytes(32)), 0))) == 2
    with pytest.raises(Unreadable, match="missing"):
        Serializer().decode(content)


def test_large_arrays_between_ranks() -> None:
    value = {"a": np.arange(LARGE), "b": (1, np.zeros((2, LARGE), np.float32)), "c": b"x" * 10}
    content = objects.encode(value)
    for given in (content, np.frombuffer(content, np.uint8), bytearray(content)):
        back = objects.decode(given)
        assert np.array_equal(back["a"], value["a"])
        assert back["b"][1].shape == (2, LARGE)
        back["a"][:] = 0
    assert objects.decode(content)["a"][-1] == LARGE - 1
    for bad in (content[:1], content[:9], content[:-1], b"\xc1" + b"\xff" * 8, b"\xc1" * 20):
        with pytest.raises(Unreadable):
            objects.decode(bad)


def test_values_that_contain_themselves_or_too_long_numbers_cannot_be_sent() -> None:
    itself: list[Any] = []
    itself.append((itself,))
    for value in (itself, 10**5000, "\ud800"):
        with pytest.raises(NotSerializable):
            objects.encode(value)


def test_a_struct_is_refused_where_no_type_brings_it_back() -> None:
    class Point(msgspec.Struct):
        x: int

    for value in (Point(1), [Point(1)], {"a": (Point(1),)}):
        with pytest.raises(NotSerializable):
            objects.encode(value)
    assert codecs.decode(*codecs.encode([Point(1)]), type=list[Point]) == [Point(1)]


def test_payloads_are_read_only() -> None:
    value = unpack(pack({"a": np.arange(3), "t": HostTensor(np.ones(2))}))
    assert not value["a"].flags.writeable
