"""The compiled reductions against plain NumPy and torch: half precision, rounding, wrapping, means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.comm import ReduceOp
from neuraxis.comm.backends.shm import kernels
from neuraxis.comm.buffers import address_of
from neuraxis.comm.reduce_kernels import TILE_BYTES, fold_address
from neuraxis.comm.reduction import ElementType, check_reducible, element_type_of
from neuraxis.errors import InvalidType
from tests.ranks.arrays import MOVABLE, REDUCIBLE, defined, folded, terms, torch_module, wide_dtype

COMPILED = [element for element in ElementType if element <= ElementType.COMPLEX128]


def fold(element: ElementType, rows: Sequence[np.ndarray], op: ReduceOp) -> np.ndarray:
    out = np.empty_like(rows[0])
    _fold_into(out, element, rows, op)
    return out


def _fold_into(out: np.ndarray, element: ElementType, rows: Sequence[np.ndarray], op: ReduceOp) -> None:
    sources = np.array([address_of(row) for row in rows], np.int64)
    scratch = np.empty(TILE_BYTES, np.uint8)
    kernels.fold_now(
        fold_address(element),
        address_of(out),
        address_of(sources),
        len(rows),
        out.size,
        int(op),
        address_of(scratch),
    )


def bfloat_bits(values: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, by torch."""
    torch = torch_module()
    return torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()


def bfloat_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


# --- half precision ---

EVERY_HALF = np.arange(65536, dtype=np.uint16)


def assert_same_halves(got: np.ndarray, expected: np.ndarray) -> None:
    """Compare bits, except the payload bits of NaN."""
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint16), expected[~nan].view(np.uint16))


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and NaN are what is tested
def test_every_half_with_random_others(op: ReduceOp) -> None:
    every = EVERY_HALF.view(np.float16)
    random = np.random.default_rng(1)
    others = [random.permutation(EVERY_HALF).view(np.float16) for _ in range(4)]
    for rows in ([every], [every, every], *([every, other] for other in others), [every, *others]):
        expected = folded([row.astype(np.float32) for row in rows], op).astype(np.float16)
        assert_same_halves(fold(ElementType.FLOAT16, rows, op), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_rounding_of_a_half() -> None:
    """Means of neighbours are halfway between them, where rounding to even shows."""
    finite = np.sort(EVERY_HALF.view(np.float16)[np.isfinite(EVERY_HALF.view(np.float16))])
    rows = [finite[:-1].copy(), finite[1:].copy()]
    wide = [row.astype(np.float32) for row in rows]
    assert_same_halves(fold(ElementType.FLOAT16, rows, ReduceOp.AVG), folded(wide, ReduceOp.AVG).astype(np.float16))
    rows = [finite[:-3].copy(), finite[1:-2].copy(), finite[3:].copy()]  # thirds, as well
    wide = [row.astype(np.float32) for row in rows]
    assert_same_halves(fold(ElementType.FLOAT16, rows, ReduceOp.AVG), folded(wide, ReduceOp.AVG).astype(np.float16))


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bfloat_rounds_as_torch_does(op: ReduceOp) -> None:
    random = np.random.default_rng(2)
    rows = [EVERY_HALF, *(random.permutation(EVERY_HALF) for _ in range(3))]
    for count in (1, 2, 3, 4):
        got = bfloat_values(fold(ElementType.BFLOAT16, rows[:count], op))
        expected = folded([bfloat_values(row) for row in rows[:count]], op)
        expected = bfloat_values(bfloat_bits(np.ascontiguousarray(expected)))
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(got), nan)
        assert np.array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def test_halves_are_added_in_single_precision() -> None:
    """2048 + 1 + 1 is 2050: in half precision the ones would be lost one by one."""
    rows = [np.array([value], np.float16) for value in (2048, 1, 1)]
    assert fold(ElementType.FLOAT16, rows, ReduceOp.SUM).tolist() == [2050]


# --- everything that is compiled ---


@pytest.mark.parametrize("element", COMPILED, ids=lambda element: element.label)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_folds_agree_with_the_model(element: ElementType, n: int) -> None:
    name = element.label
    for op in ReduceOp:
        if not defined(name, op):
            continue
        for count in (0, 1, 7, TILE_BYTES // wide_dtype(name).itemsize + 3, 20_001):
            wide = [terms(name, op, (count,), rank) for rank in range(n)]
            expected = folded(wide, op)
            if element is ElementType.BFLOAT16:
                rows, expected = [bfloat_bits(row.copy()) for row in wide], bfloat_bits(expected)
            else:
                rows, expected = [row.astype(name) for row in wide], expected.astype(name)
            before = [row.copy() for row in rows]
            result = fold(element, rows, op)
            assert result.tobytes() == expected.tobytes(), (op, count)
            assert all(map(np.array_equal, rows, before)), "a source was written"
            _fold_into(rows[-1], element, rows, op)  # the result may go where a source was
            assert rows[-1].tobytes() == expected.tobytes(), (op, count, "in place")


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@given(data=st.data())
def test_integers_wrap_and_their_means_go_towards_zero(name: str, data: Any) -> None:
    limits = np.iinfo(name)
    edge = st.sampled_from([limits.min, limits.min + 1, limits.max, limits.max - 1, 0])
    number = edge | st.integers(limits.min, limits.max)
    n = data.draw(st.integers(1, 5))
    rows = [np.array(data.draw(st.lists(number, min_size=4, max_size=4)), name) for _ in range(n)]
    op = data.draw(st.sampled_from(list(ReduceOp)))
    assert fold(ElementType[name.upper()], rows, op).tolist() == folded(rows, op).tolist()


@pytest.mark.parametrize(("values", "mean"), [((-3, -4), -3), ((3, 4), 3), ((-1, 0), 0), ((-7, 0), -3)])
def test_a_mean_of_negative_integers_goes_towards_zero(values: tuple[int, int], mean: int) -> None:
    for element in (ElementType.INT8, ElementType.INT16, ElementType.INT32, ElementType.INT64):
        rows = [np.array([value], element.label) for value in values]
        assert fold(element, rows, ReduceOp.AVG).tolist() == [mean]


@given(
    st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from([ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG]),
)
def test_any_floats_in_rank_order(values: list[list[float]], op: ReduceOp) -> None:
    rows = [np.array(row, np.float32) for row in values]
    with np.errstate(all="ignore"):
        expected = folded(rows, op)
    np.testing.assert_array_equal(fold(ElementType.FLOAT32, rows, op), expected)


# --- which reductions have a meaning ---


@pytest.mark.parametrize("name", sorted({*REDUCIBLE["numpy"], *REDUCIBLE["torch"]}))
@pytest.mark.parametrize("op", ReduceOp, ids=lambda op: op.name)
def test_defined_reductions(name: str, op: ReduceOp) -> None:
    element = ElementType[name.upper()]
    if defined(name, op):
        check_reducible(element, op, "all_reduce")
    else:
        with pytest.raises(InvalidType, match="all_reduce"):
            check_reducible(element, op, "all_reduce")


def test_every_element_type_is_tested() -> None:
    names = {*MOVABLE["numpy"], *MOVABLE["torch"]}
    assert {element.label for element in ElementType} - names == {"opaque"}


def test_element_types_of_numpy() -> None:
    for name in REDUCIBLE["numpy"]:
        if name != "bfloat16":
            assert element_type_of(np.dtype(name)).label == name
    assert element_type_of(np.dtype(np.longlong)) is ElementType.INT64
    assert element_type_of(np.dtype(np.intc)) is ElementType.INT32
    for opaque in ("M8[ns]", "m8[s]", "S3", "U3", "V5", ">i4"):
        assert element_type_of(np.dtype(opaque)) is ElementType.OPAQUE
    with pytest.raises(InvalidType, match="object collectives"):
        element_type_of(np.dtype(object))
