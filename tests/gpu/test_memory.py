"""Ownership of memory by address, while blocks are allocated and freed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from neuraxis.gpu.memory import Block, memory_of

BASE = 1 << 60  # no device has addresses there


@dataclass
class Pointer:
    ptr: int


@dataclass
class Owner:
    name: str


def block(start: int, size: int, owner: Any) -> Block:
    from neuraxis.gpu.memory import _registry

    made = Block(Pointer(BASE + start), size, owner)
    _registry.add(made)
    return made


def test_an_address_belongs_to_the_block_around_it() -> None:
    one, two = Owner("one"), Owner("two")
    held = [block(0, 100, one), block(512, 8, two)]
    assert memory_of(BASE) is one
    assert memory_of(BASE + 99) is one
    assert memory_of(BASE + 100) is None
    assert memory_of(BASE + 519) is two
    assert memory_of(BASE + 520) is None
    assert memory_of(BASE - 1) is None
    assert memory_of(0) is None
    del held[0]
    assert memory_of(BASE + 50) is None
    assert memory_of(BASE + 512) is two


def test_an_address_that_is_used_again_belongs_to_the_new_one() -> None:
    one, two = Owner("one"), Owner("two")
    first = block(0, 64, one)
    del first
    second = block(0, 32, two)
    assert memory_of(BASE) is two
    assert memory_of(BASE + 40) is None
    del second
    assert memory_of(BASE) is None


def test_many_blocks_in_any_order() -> None:
    choice = random.Random(3)
    owner = Owner("all")
    held: dict[int, Block] = {}
    for _ in range(2000):
        place = choice.randrange(50)
        if place in held and choice.random() < 0.5:
            del held[place]
        elif place not in held:
            held[place] = block(place * 16, 16, owner)
        asked = choice.randrange(50)
        assert (memory_of(BASE + asked * 16 + 7) is owner) == (asked in held)
