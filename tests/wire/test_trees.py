"""Nested values: every leaf is found, in order, and containers keep their types."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from neuraxis.wire.trees import iter_leaves, map_leaves


class Pair(NamedTuple):
    left: Any
    right: Any


nested = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=3)
    ),
)


@given(nested)
def test_unchanged_leaves_give_an_equal_value_of_the_same_types(value: Any) -> None:
    seen: list[Any] = []

    def look(leaf: Any) -> Any:
        seen.append(leaf)
        return leaf

    back = map_leaves(look, value)
    assert repr(back) == repr(value)
    assert seen == list(iter_leaves(value))
    assert list(iter_leaves(value, str)) == [leaf for leaf in seen if isinstance(leaf, str)]


def test_only_leaves_of_the_type_are_replaced() -> None:
    value = {"a": [1, "x", Pair(2, {"b": 3.5})], 4: ()}
    assert map_leaves(lambda number: -number, value, int) == {"a": [-1, "x", Pair(-2, {"b": 3.5})], 4: ()}
    assert list(iter_leaves(value, int)) == [1, 2]


def test_other_mappings_become_dicts() -> None:
    value = OrderedDict(a=MappingProxyType({"b": 1}))
    back = map_leaves(str, value)
    assert type(back) is type(back["a"]) is dict
    assert back == {"a": {"b": "1"}}


def test_plain_containers() -> None:
    back = map_leaves(str, {1: (2, Pair(3, [4]))}, plain=True)
    assert back == {"1": ["2", ["3", ["4"]]]}
