"""Arguments of a launch against the parameters of a kernel, with fake device arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.gpu.arguments import QuickMatch, is_device_array, matched
from neuraxis.gpu.sources import Parameter, parameters_of


@dataclass
class OnDevice:
    """The attributes of a device array that the checks use."""

    dtype: np.dtype
    contiguous: bool = True
    device_id: int = 0

    @property
    def data(self) -> Any:
        return SimpleNamespace(device_id=self.device_id)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=self.contiguous)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AssertionError("the checks need no memory")


FLOATS = OnDevice(np.dtype("f4"))
TAKEN = parameters_of("__global__ void f(const float *x, int n, double factor, bool on, T *any, Odd odd) {}", "f")
GOOD = (FLOATS, np.int32(3), np.float64(0.5), np.bool_(True), OnDevice(np.dtype("i2")), np.uint8(1))


def with_one(position: int, value: Any) -> list[Any]:
    return [*GOOD[:position], value, *GOOD[position + 1 :]]


def test_valid_arguments_are_passed_unchanged() -> None:
    given = matched("f", GOOD, TAKEN)
    assert all(one is other for one, other in zip(given, GOOD, strict=True))


@pytest.mark.parametrize(
    ("position", "value", "expected"),
    [
        (1, 5, np.int32(5)),
        (1, -(2**31), np.int32(-(2**31))),
        (2, 0.25, np.float64(0.25)),
        (2, 2, np.float64(2.0)),
        (3, False, np.bool_(False)),
        (0, None, None),
        (5, None, None),
    ],
)
def test_pythons_numbers_get_the_kernels_type(position: int, value: Any, expected: Any) -> None:
    given = matched("f", with_one(position, value), TAKEN)[position]
    assert given == expected
    assert type(given) is type(expected)


@pytest.mark.parametrize(
    ("position", "value", "error", "words"),
    [
        (
            0,
            OnDevice(np.dtype("f8")),
            InvalidType,
            "argument 0 (const float *x): an array of float64, and the kernel reads",
        ),
        (0, OnDevice(np.dtype("f4"), False), InvalidArgument, "not contiguous"),
        (0, np.zeros(3, np.float32), InvalidType, "the array is in the memory of the host. Copy it with to_gpu()"),
        (0, torch.zeros(3), InvalidType, "the array is in the memory of the host"),
        (0, np.float32(1), InvalidType, "takes a pointer"),
        (0, [1.0, 2.0], InvalidType, "list is neither an array on the GPU nor a number"),
        (1, FLOATS, InvalidType, "takes a number"),
        (1, np.int64(3), InvalidType, "argument 1 (int n): int64 was given. Write np.int32(3)"),
        (1, np.float32(3), InvalidType, "float32 was given. Write np.int32(3.0)"),
        (1, 2**31, InvalidArgument, "2147483648 does not fit into int32"),
        (2, 10**400, InvalidArgument, "does not fit into float64, whose largest number is 1.8e+308"),
        (1, 3.0, InvalidType, "3.0 is not of type int32"),
        (1, True, InvalidType, "True is not of type int32"),
        (1, None, InvalidType, "NoneType is neither"),
        (2, np.float32(3), InvalidType, "float32 was given. Write np.float64(3.0)"),
        (3, 1, InvalidType, "1 is not of type bool"),
        (5, 7, InvalidType, "argument 5 (Odd odd): 7 has no C type. Pass"),
        (5, np.str_("a"), InvalidType, "is not a number"),
    ],
)
def test_invalid_arguments_are_named(position: int, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        matched("f", with_one(position, value), TAKEN)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"kernel 'f', argument {position}")


def test_a_number_too_large_for_a_float_is_refused_and_infinity_is_not() -> None:
    taken = parameters_of("__global__ void f(float x) {}", "f")
    for value in (1e40, -1e40, 10**40):
        with pytest.raises(InvalidArgument, match=r"\(float x\): -?1\S+ does not fit into float32, whose largest"):
            matched("f", (value,), taken)
    assert matched("f", (math.inf,), taken) == (np.float32(math.inf),)
    assert matched("f", (3.4028235e38,), taken)[0] == np.finfo(np.float32).max
    assert np.isnan(matched("f", (math.nan,), taken)[0])


VALUES = [
    *GOOD, OnDevice(np.dtype("f8")), OnDevice(np.dtype("f4"), False), OnDevice(np.dtype("?")), np.zeros(2), None, "3",
    True, 0, 3, -1, 200, 2**31, 2**63, 10**400, 0.5, 65519.0, 1e40, math.inf, math.nan, 1j,
    np.int64(3), np.float32(0.5), np.uint8(3), np.bool_(1), np.float16(2), np.longdouble(1), np.complex64(1),
    np.str_("a"),
]  # fmt: skip
KINDS = ["float *x", "char *x", "T *x", "int x", "unsigned char x", "float x", "half x", "double x", "bool x", "Odd x",
         "long long x", "complex<float> x"]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_the_fast_check_equals_the_full_check(kind: str | None) -> None:
    taken: tuple[Parameter, ...] | None = None
    if kind is not None:
        taken = parameters_of(f"__global__ void f({kind}) {{}}", "f")
        assert taken is not None
    quick = QuickMatch(taken, OnDevice)
    known = 0
    for value in VALUES:
        found = quick((value,), 0)
        if found is not None:
            known += 1
            (full,) = matched("f", (value,), taken)  # raises if it should not have been taken
            assert type(found[0]) is type(full)
            assert found[0] is full or found[0] == full
        assert quick((value, value), 0) is None or kind is None
    assert known > 0
    assert quick((OnDevice(np.dtype("f4"), device_id=1),), 0) is None


def test_a_wrong_number_of_arguments_shows_the_expected_ones() -> None:
    for given in (GOOD[:-1], (*GOOD, np.int32(1))):
        with pytest.raises(InvalidType, match=r"takes 6 arguments \(const float \*x, int n, .*\), got [57]"):
            matched("f", given, TAKEN)


def test_of_an_unknown_kernel_only_kinds_are_checked() -> None:
    given = (FLOATS, np.float32(1), None)
    assert matched("f", given, None) == given
    for bad in (1, 1.5, np.zeros(2)):
        with pytest.raises(InvalidType):
            matched("f", (bad,), None)


def test_bytes_are_bytes() -> None:
    taken = parameters_of("__global__ void f(char *text) {}", "f")
    for kind in ("i1", "u1", "?"):
        matched("f", (OnDevice(np.dtype(kind)),), taken)
    with pytest.raises(InvalidType):
        matched("f", (OnDevice(np.dtype("i2")),), taken)


def test_tensors_on_the_host_are_no_device_arrays() -> None:
    assert is_device_array(FLOATS)
    assert not is_device_array(torch.zeros(1))
    assert not is_device_array(np.zeros(1))
