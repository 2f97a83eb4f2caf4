"""Serialization of objects: values round-trip, nothing runs code, pickle only where allowed."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from neuraxis.errors import NeuraxisError, NotSerializable
from neuraxis.imports import install_command
from neuraxis.wire.objects import Unreadable, decode, encode
from tests.ranks.arrays import torch_module

# --- any nesting of plain data ---

hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.sets(hashables, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
    ),
    max_leaves=12,
)


def exactly(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down (True is not 1, 1.0 is not 1)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(exactly, left, right))
    if isinstance(left, dict):
        return exactly(list(left.items()), list(right.items()))
    if isinstance(left, (set, frozenset)):
        return left == right and sorted(map(repr, map(type, left))) == sorted(map(repr, map(type, right)))
    if isinstance(left, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


@given(values)
def test_nested_values_come_back_as_they_were(value: Any) -> None:
    assert exactly(decode(encode(value)), value)


@given(values)
def test_content_may_be_an_array_of_bytes(value: Any) -> None:
    assert exactly(decode(np.frombuffer(encode(value), np.uint8)), value)


def test_not_a_number() -> None:
    assert math.isnan(decode(encode(math.nan)))


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400])
def test_integers_of_any_size(value: int) -> None:
    assert exactly(decode(encode([value, {value: value}])), [value, {value: value}])


# --- arrays ---


@given(
    hnp.arrays(
        dtype=hnp.boolean_dtypes()
        | hnp.integer_dtypes(endianness="?")
        | hnp.floating_dtypes(endianness="?")
        | hnp.complex_number_dtypes(endianness="?")
        | hnp.datetime64_dtypes()
        | hnp.byte_string_dtypes(min_len=1)
        | hnp.unicode_string_dtypes(min_len=1),
        shape=hnp.array_shapes(min_dims=0, min_side=0),
    )
)
def test_arrays_of_any_dtype_and_shape(array: np.ndarray) -> None:
    back = decode(encode({"array": array}))["array"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("V7"),
        np.dtype([("a", "i1"), ("b", "f8")]),
        np.dtype([("a", "i1"), ("b", "f8")], align=True),
        np.dtype([("inner", [("x", "i4"), ("y", "f4")]), ("matrix", "f4", (2, 3))]),
        np.dtype({"names": ["late", "early"], "formats": ["i4", "i4"], "offsets": [8, 0], "itemsize": 16}),
    ],
    ids=["void", "record", "aligned", "nested", "offsets"],
)
def test_void_and_structured_arrays(dtype: np.dtype) -> None:
    array = np.frombuffer(bytes(range(1, 1 + 2 * dtype.itemsize)), dtype)
    back = decode(encode(array))
    assert back.dtype == dtype
    fields = dtype.names or ()
    assert all(np.array_equal(back[name], array[name]) for name in fields)
    assert fields or back.tobytes() == array.tobytes()
    assert decode(encode(array[0])) == array[0]


def test_names_of_a_record_that_are_changed_later() -> None:
    array = np.zeros(2, [("outer", [("x", "i4")])])
    assert decode(encode(array)).dtype["outer"].names == ("x",)
    array.dtype["outer"].names = ("y",)
    assert decode(encode(array)).dtype["outer"].names == ("y",)


def test_second_names_of_a_record_do_not_travel_whatever_they_are() -> None:
    array = np.zeros(2, np.dtype({"names": ["a"], "formats": ["i4"], "titles": [["volts"]]}))
    assert decode(encode(array)).dtype == np.dtype([("a", "i4")])


def test_a_record_dtype_described_as_text_is_not_cached() -> None:
    packed = msgspec.msgpack.encode(msgspec.msgpack.Ext(6, msgspec.msgpack.encode(["i4,f8", [1], bytes(12)])))
    decode(packed).dtype.names = ("x", "y")
    assert decode(packed).dtype.names == ("f0", "f1")


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "transposed"])
def test_arrays_that_are_not_contiguous(layout: str) -> None:
    array = np.arange(24).reshape(4, 6)
    view = {
        "fortran": np.asfortranarray(array),
        "strided": array[::2, 1::2],
        "reversed": array[::-1],
        "transposed": array.T,
    }[layout]
    assert np.array_equal(decode(encode(view)), view)


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2020-01-01"), np.str_("text")]
)
def test_numpy_scalars_keep_their_type(scalar: Any) -> None:
    back = decode(encode([scalar]))[0]
    assert type(back) is type(scalar)
    assert back == scalar


@pytest.mark.parametrize(
    "name",
    ["bool", "uint8", "int16", "int64", "uint16", "float16", "bfloat16", "float32", "complex64", "float8_e5m2"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_tensors(name: str, shape: tuple[int, ...]) -> None:
    torch = torch_module()
    count = math.prod(shape)
    tensor = torch.arange(count).reshape(shape).to(getattr(torch, name))
    for value in (tensor, torch.from_numpy(np.zeros(shape, np.int32)).to(tensor.dtype)):
        back = decode(encode((value, "text")))[0]
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        assert back.double().equal(value.double()) if name != "complex64" else back.equal(value)


def test_tensors_that_are_views() -> None:
    torch = torch_module()
    tensor = torch.arange(12.0).reshape(3, 4)
    for value in (
        tensor.t(),
        tensor[:, ::2],
        tensor[0, :1],
        torch.zeros(2)[::2],
        torch.tensor([1 + 2j]).conj(),
        tensor.requires_grad_(),
    ):
        assert decode(encode(value)).equal(value.detach().resolve_conj())


def test_a_masked_array_does_not_lose_its_mask() -> None:
    masked = np.ma.array([1, 2, 3], mask=[0, 1, 0])
    try:
        back = decode(encode(masked))
    except NotSerializable:
        return
    assert back.tolist() == [1, None, 3]


# --- what is refused ---


class Unknown:
    def __eq__(self, other: object) -> bool:
        return type(other) is Unknown

    __hash__ = None  # type: ignore[assignment]


marks: list[str] = []


def leave_mark(mark: str) -> None:
    marks.append(mark)


class Executed:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> Any:
        return leave_mark, ("executed",)


@pytest.mark.parametrize(
    "value",
    [Unknown(), object(), len, Fraction(1, 3), bytearray(b"x"), np.array([object()]), range(3)],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"key": (1, [v])}], ids=range(3))
def test_unknown_classes_are_refused_wherever_they_are(value: Any, wrap: Any) -> None:
    with pytest.raises(NotSerializable, match="allow_pickle"):
        encode(wrap(value))


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(NotSerializable):
        encode("\ud800")


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")  # torch has deprecated them
def test_tensors_that_are_more_than_their_elements_are_refused() -> None:
    torch = torch_module()
    quantized = torch._empty_affine_quantized([3], scale=0.5, zero_point=1, dtype=torch.qint8)
    for tensor in (torch.eye(2).to_sparse(), quantized, torch.zeros([1] * 65)):
        with pytest.raises(NotSerializable):
            encode(tensor)


@pytest.mark.parametrize("dtype", [[], "V0", [("a", "S0")]], ids=str)
def test_arrays_with_elements_of_no_size_are_refused(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    for value in (array, array[0]):
        with pytest.raises(NotSerializable):
            encode([value])
    assert decode(encode([np.str_(""), np.array([""])])) == ["", np.array([""])]  # which have room for one character


def test_pickle_where_both_sides_allow_it() -> None:
    value = [Unknown(), {"third": Fraction(1, 3)}, (Unknown(),)]
    assert exactly(decode(encode(value, allow_pickle=True), allow_pickle=True), value)


def test_a_pickle_that_was_not_asked_for_is_not_read() -> None:
    marks.clear()
    content = encode({"deep": [Executed()]}, allow_pickle=True)
    with pytest.raises(NotSerializable, match="pickle"):
        decode(content)
    assert marks == []
    decode(content, allow_pickle=True)  # the proof that it would have run
    assert marks == ["executed"]


def test_an_unknown_extension_is_an_error_of_ours() -> None:
    with pytest.raises(NeuraxisError, match="extension"):
        decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"")))


# --- content that lies ---

ARRAY, TENSOR, SCALAR = 6, 7, 9


def parts(code: int, description: Any, shape: Any, content: Any) -> bytes:
    """An array, a tensor or a single number, as a sender without `encode` may write it."""
    inside = msgspec.msgpack.encode([description, shape, content])
    return msgspec.msgpack.encode({"deep": [msgspec.msgpack.Ext(code, inside)]})


LYING_SHAPES = [
    *([-1], [2, -1], [-2, -2], [0, -1], [-(2**63)]),
    *([], [3], [5], [2, 3], [2**62, 4], [2**32, 2**32], [2**64 - 1], [1] * 65, [4] + [1] * 100_000),
    *(None, 4, "4", [4.0], ["4"], [True, 4], {"4": 4}),
]


@pytest.mark.parametrize("shape", LYING_SHAPES, ids=lambda shape: str(shape)[:30])
@pytest.mark.parametrize("content", [bytes(16), b""], ids=["content", "nothing"])
def test_a_shape_that_does_not_fit_the_content(shape: Any, content: bytes) -> None:
    torch_module()
    for code, description in ((ARRAY, "<f4"), (TENSOR, "float32"), (SCALAR, "<f4")):
        with pytest.raises(Unreadable):
            decode(parts(code, description, shape, content))


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**62, 4], [2**40, 0, 2**40]], ids=str)
def test_a_shape_without_elements_that_is_too_large_to_count(shape: list[int]) -> None:
    torch_module()
    for code, description in ((ARRAY, "<f4"), (TENSOR, "float32")):
        with pytest.raises(Unreadable, match="does not fit"):
            decode(parts(code, description, shape, b""))


@pytest.mark.parametrize(
    "name",
    [
        *("qint32", "qint8", "quint8", "quint4x2", "quint2x4", "bits8", "uint4", "int4"),
        *("float", "double", "_dynamo", "Tensor", "nn", "load", "__name__", "", "x" * 10_000),
        *(5, None, ["float32"], {"float32": 1}),
    ],
    ids=lambda name: str(name)[:20],
)
def test_a_tensor_type_comes_from_a_closed_list(name: Any) -> None:
    torch_module()
    for shape in ([4], [16], [2]):  # one fits, whatever the size of its elements
        with pytest.raises(Unreadable, match="claims elements of type") as caught:
            decode(parts(TENSOR, name, shape, bytes(16)))
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("description", "shape", "size"),
    [
        ("O", [2], 16),
        ("O", [0], 0),
        ("T", [1], 16),
        ("(4,)<f4", [4], 16),
        ("(4,)<f4", [1], 16),
        ("S0", [2**20], 0),  # which NumPy makes one byte each, and whatever was in memory before
        ("U0", [3], 0),
        ("V0", [2**60], 0),
        ([[], [], [], 0], [2**60], 0),
        ("nonsense", [4], 16),
        ("x" * 10_000, [4], 16),
        (None, [4], 16),
        (7, [4], 16),
        ([["a"], [["O", []]], [0], 8], [2], 16),
        ([["a"], [["<f4", []]], [0], 2], [8], 16),
        ([["a"], [["<f4", []]], [-4], 8], [2], 16),
        ([["a"], [["<f4", [-1]]], [0], 8], [2], 16),
        ([["a"], [["<f4", []]], [0]], [2], 16),
    ],
    ids=lambda value: str(value)[:30],
)
def test_elements_that_do_not_travel(description: Any, shape: list[int], size: int) -> None:
    for code in (ARRAY, SCALAR):
        with pytest.raises(Unreadable, match="claims elements of type") as caught:
            decode(parts(code, description, shape, bytes(size)))
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "inside", [None, 5, [], ["<f4", [4]], ["<f4", [4], "text"], ["<f4", [1], [0, 0, 0, 0]]], ids=str
)
def test_an_array_without_its_parts(inside: Any) -> None:
    torch_module()
    for code in (ARRAY, TENSOR, SCALAR):
        with pytest.raises(Unreadable, match="a type, a shape and bytes"):
            decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(inside))))


def test_a_single_number_has_no_shape() -> None:
    assert decode(parts(SCALAR, "<f4", [], bytes(4)))["deep"] == [0.0]
    with pytest.raises(Unreadable, match="scalar that has a shape"):
        decode(parts(SCALAR, "<f4", [1], bytes(4)))


@given(
    st.sampled_from([ARRAY, TENSOR, SCALAR]),
    st.sampled_from(
        ["<f4", "|u1", ">i2", "float32", "uint8", "bfloat16", "qint8", "O", "", [["a"], [["<f4", []]], [0], 4]]
    ),
    st.lists(st.integers(-2, 5), max_size=3),
    st.binary(max_size=40),
)
def test_a_decoded_array_is_no_larger_than_its_bytes(
    code: int, description: Any, shape: list[int], content: bytes
) -> None:
    torch_module()
    try:
        (value,) = decode(parts(code, description, shape, content))["deep"]
    except Unreadable:
        return
    assert list(value.shape) == shape
    assert value.nbytes == len(content)


def test_a_tensor_where_there_is_no_torch() -> None:
    """In a fresh interpreter that cannot import it, as in a base install."""
    program = f"""
import sys
sys.modules["torch"] = None
from neuraxis.wire.objects import Unreadable, decode
(array,) = decode({encode([torch_module().ones(3)])!r})
assert type(array).__name__ == "ndarray" and array.tolist() == [1, 1, 1]
try:
    decode({encode([torch_module().zeros(3, dtype=torch_module().bfloat16)])!r})
except Unreadable as error:
    assert {install_command("torch")!r} in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
