"""Parsing of CUDA source: kernels, their parameters, and equality of sources."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.gpu.sources import Parameter, cache_key, kernel_names, parameters_of
from tests.gpu.kernels import LEAKY


def one(declaration: str) -> Parameter:
    parameters = parameters_of(f"__global__ void f({declaration}) {{}}", "f")
    assert parameters is not None
    (parameter,) = parameters
    return parameter


def test_the_tutorials_kernel() -> None:
    assert kernel_names(LEAKY) == ["custom_activation"]
    assert parameters_of(LEAKY, "custom_activation") == (
        Parameter("float *input", True, np.dtype("f4")),
        Parameter("float *output", True, np.dtype("f4")),
        Parameter("int n", False, np.dtype("i4")),
        Parameter("float alpha", False, np.dtype("f4")),
    )


@pytest.mark.parametrize(
    ("declaration", "dtype"),
    [
        ("int", "i4"),
        ("unsigned", "u4"),
        ("const unsigned int n", "u4"),
        ("long long n", "i8"),
        ("unsigned long long int n", "u8"),
        ("long n", f"i{ctypes.sizeof(ctypes.c_long)}"),
        ("short int n", "i2"),
        ("signed char c", "i1"),
        ("bool on", "?"),
        ("double x = 1.0", "f8"),
        ("size_t n", "u8"),
        ("uint16_t n", "u2"),
        ("std::int64_t n", "i8"),
        ("half h", "f2"),
        ("thrust::complex<float> z", "c8"),
        ("complex < double > z", "c16"),
    ],
)
def test_numbers(declaration: str, dtype: str) -> None:
    parameter = one(declaration)
    assert parameter.pointer is False
    assert parameter.dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("declaration", "dtype"),
    [
        ("float *x", "f4"),
        ("const float* __restrict__ x", "f4"),
        ("double x[]", "f8"),
        ("unsigned char const * x", "u1"),
        ("void *x", None),
        ("T *x", None),
        ("float **x", "u8"),
        ("const complex<float>* z", "c8"),
    ],
)
def test_pointers(declaration: str, dtype: str | None) -> None:
    parameter = one(declaration)
    assert parameter.pointer is True
    assert parameter.dtype == (None if dtype is None else np.dtype(dtype))


@pytest.mark.parametrize("declaration", ["T x", "Settings settings", "float3 v", "float &x", "long double x y"])
def test_unparsed_declarations_are_not_checked(declaration: str) -> None:
    assert one(declaration) in (Parameter(declaration), Parameter(declaration, False, np.dtype("f8")))


def test_kernels_are_found_through_comments_attributes_and_templates() -> None:
    source = """
    // __global__ void commented(int a)
    /* __global__ void also(int a) */
    const char *text = "__global__ void quoted(int a)";
    __device__ float helper(float x) { return x; }
    extern "C" __global__ void __launch_bounds__(256, 2) bounded(float *x /* all of it */, int n) {}
    __launch_bounds__(128) __global__ void before(int n);
    template <typename T, int N> __global__ void generic(T *x, pair<int, T> y, float factor) {}
    namespace inner { __global__ static void nothing(void) {} }
    """
    assert kernel_names(source) == ["bounded", "before", "generic", "nothing"]
    assert [one.text for one in parameters_of(source, "bounded") or ()] == ["float *x", "int n"]
    generic = parameters_of(source, "generic<float, 3>")
    assert generic is not None
    assert [one.text for one in generic] == ["T *x", "pair<int, T> y", "float factor"]
    assert [one.dtype for one in generic] == [None, None, np.dtype("f4")]
    assert parameters_of(source, "inner::nothing") == ()
    assert parameters_of(source, "commented") is None


def test_overloads_that_differ_leave_parameters_open() -> None:
    twice = "__global__ void f(int n);\n__global__ void f(int n) {}"
    assert parameters_of(twice, "f") == (Parameter("int n", False, np.dtype("i4")),)
    assert parameters_of(twice.replace("f(int n) {}", "f(float n) {}"), "f") is None
    assert parameters_of("#define KERNEL __global__ void\nKERNEL f(int n) {}", "f") is None


def test_a_source_that_ends_early() -> None:
    assert kernel_names("__global__ void f(int n") == []
    assert kernel_names("__global__") == []
    assert kernel_names("__global__ void f; __global__ (int)") == []


parts = st.tuples(
    st.text(max_size=4), st.text(max_size=4), st.lists(st.text(max_size=3), max_size=3), st.text(max_size=2)
)


@given(parts, parts)
def test_keys_are_the_same_for_the_same_only(
    first: tuple[str, str, list[str], str], second: tuple[str, str, list[str], str]
) -> None:
    keys = [
        cache_key(source, function, tuple(options), device) for source, function, options, device in (first, second)
    ]
    assert (keys[0] == keys[1]) == (first == second)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    for name in kernel_names(text + "\n__global__ void last(int n) {}"):
        parameters_of(text, name)
