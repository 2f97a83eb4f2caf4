"""Blocks and grids: accepted forms, and limits of a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.gpu.arguments import Geometry, Limits


@pytest.mark.parametrize(
    ("block", "grid", "expected"),
    [
        (256, 4, ((256, 1, 1), (4, 1, 1))),
        ((256, 1, 1), (4, 1), ((256, 1, 1), (4, 1, 1))),
        ([16, 16], [3, 2, 1], ((16, 16, 1), (3, 2, 1))),
        (np.int64(32), (np.uint8(7),), ((32, 1, 1), (7, 1, 1))),
        ((1, 1, 64), (2**31 - 1, 65535, 65535), ((1, 1, 64), (2**31 - 1, 65535, 65535))),
    ],
)
def test_one_to_three_numbers(block: Any, grid: Any, expected: Any) -> None:
    geometry = Geometry.checked(block, grid)
    assert (geometry.block, geometry.grid) == expected
    assert all(type(number) is int for number in (*geometry.block, *geometry.grid))


@pytest.mark.parametrize(
    ("block", "grid", "error", "words"),
    [
        ((), 1, InvalidArgument, "one to three numbers"),
        ((1, 1, 1, 1), 1, InvalidArgument, "one to three numbers"),
        (256.0, 1, InvalidType, "256.0 (float) is not an integer"),
        (True, 1, InvalidType, "not an integer"),
        ("256", 1, InvalidType, "not an integer"),
        (None, 1, InvalidType, "not an integer"),
        (256, (0, 1), InvalidArgument, "for an empty array, launch nothing"),
        ((4, -1), 1, InvalidArgument, "-1 along y"),
        ((1, 1, 65), 1, InvalidArgument, "65 along z, and this device takes 64"),
        (32, (1, 65536), InvalidArgument, "grid=(1, 65536): 65536 along y, and this device takes 65535"),
        ((64, 32), 1, InvalidArgument, "2048 threads, and this kernel can have 1024 a block"),
    ],
)
def test_invalid_geometries_are_refused(block: Any, grid: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        Geometry.checked(block, grid)
    assert words in str(caught.value)


def test_a_kernel_of_many_registers_takes_fewer_threads() -> None:
    few = Limits(threads=640)
    assert Geometry.checked(640, 1, few).block == (640, 1, 1)
    with pytest.raises(InvalidArgument, match="641 threads, and this kernel can have 640 a block"):
        Geometry.checked(641, 1, few)
