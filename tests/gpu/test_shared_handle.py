"""The handle of a shared array: there and back, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument
from neuraxis.gpu.sharing import THIS_PROCESS, SharedHandle

GOOD: dict[str, Any] = {
    "process": THIS_PROCESS,
    "device": bytes(range(16)),
    "memory": bytes(64),
    "size": 1024,
    "offset": 512,
    "shape": (4, 8),
    "dtype": "<f4",
}


def test_there_and_back() -> None:
    handle = SharedHandle(**GOOD)
    assert handle.nbytes == 128
    assert SharedHandle.unpacked(handle.packed()) == handle


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 1024 - 124},
        {"offset": -4},
        {"offset": 2},
        {"size": 600},
        {"shape": (1 << 40, 1 << 40)},
        {"shape": (-1, -32)},
        {"shape": (0,)},
        {"shape": (1,) * 33},
        {"dtype": "O"},
        {"dtype": "U4"},
        {"dtype": "no dtype"},
        {"dtype": ","},
        {"dtype": ""},
        {"device": b"short"},
        {"memory": bytes(63)},
        {"process": b""},
    ],
    ids=str,
)
def test_invalid_handles_are_refused(changes: dict[str, Any]) -> None:
    packed = SharedHandle(**{**GOOD, **changes}).packed()
    with pytest.raises(InvalidArgument, match="damaged"):
        SharedHandle.unpacked(packed)


@given(
    st.binary()
    | st.builds(msgspec.msgpack.encode, st.lists(st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()))
)
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no handle"):
        SharedHandle.unpacked(content)


@pytest.mark.parametrize("other", [None, "text", 5])
def test_values_that_are_no_bytes_are_refused(other: Any) -> None:
    with pytest.raises(InvalidArgument):
        SharedHandle.unpacked(other)
