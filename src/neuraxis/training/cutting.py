"""Where to cut a model: units in the order in which they run, dealt to ranks in their order. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.training.capacity import Capacity

__all__ = ["Unit", "cut_by_capacity", "cut_by_names", "cut_evenly", "fastest_stages"]

Stages = list[tuple[int, int]]  # for each rank the units from (included) and to (not included); equal: none

_COPIES = 4  # a parameter, its gradient and what an optimizer keeps for it


class Unit(msgspec.Struct):
    """A part of a model that is not cut.

    Attributes:
        name: of the submodule.
        cost: how long it takes, in any measure that is the same for all units.
        parameter_bytes: of its parameters.
        output_bytes: of what it leaves for the backward pass of one micro-batch.
        separable: whether a stage may begin with it; not if it shares parameters with a unit before it.
    """

    name: str
    cost: float
    parameter_bytes: int = 0
    output_bytes: int = 0
    separable: bool = True


def cut_by_capacity(units: Sequence[Unit], capacities: Sequence[Capacity], under_way: Sequence[int]) -> Stages:
    """The stages for which the slowest takes the least time, each within its rank's memory.

    `under_way` is how many micro-batches each rank holds at the same time. A rank that would only hold the others up
    gets no unit. Raises InvalidArgument, with what is needed and what there is, if the model does not fit.
    """
    parameters = [0, *accumulate(unit.parameter_bytes for unit in units)]
    outputs = [0, *accumulate(unit.output_bytes for unit in units)]

    def fits(rank: int, start: int, end: int) -> bool:
        needed = _COPIES * (parameters[end] - parameters[start]) + under_way[rank] * (outputs[end] - outputs[start])
        return needed <= capacities[rank].memory_bytes

    stages = fastest_stages(
        [unit.cost for unit in units],
        [unit.separable for unit in units],
        [capacity.operations_per_s for capacity in capacities],
        fits,
    )
    if stages is None:
        needed = _COPIES * parameters[-1] + min(under_way) * outputs[-1]
        there = ", ".join(f"rank {one.rank} {one.memory_bytes:,}" for one in capacities)
        raise InvalidArgument(
            f"the model does not fit: to train it takes about {needed:,} bytes, in units that are not cut; "
            f"free are: {there}"
        )
    return stages


def cut_evenly(units: Sequence[Unit], size: int) -> Stages:
    """About equally many units for each rank."""
    stages = fastest_stages([1.0] * len(units), [unit.separable for unit in units], [1.0] * size, lambda *_: True)
    assert stages is not None  # everything fits
    return stages


def cut_by_names(units: Sequence[Unit], names: Sequence[str], size: int) -> Stages:
    """A new stage at each of these units; ranks that are left over get none."""
    places = {unit.name: place for place, unit in reversed(list(enumerate(units)))}
    for name in names:
        if name not in places:
            raise InvalidArgument(f"by={list(names)}: {name!r} is none of the units {', '.join(places)}")
        if not units[places[name]].separable:
            raise InvalidArgument(f"by={list(names)}: {name!r} shares parameters with a unit before it")
    starts = [0, *(places[name] for name in names)]
    if starts != sorted(set(starts)):
        raise InvalidArgument(
            f"by={list(names)}: units are expected in the order {', '.join(places)}, without the first"
        )
    if len(starts) > size:
        raise InvalidArgument(
            f"by={list(names)}: that makes {len(starts)} stages, and there are {size} places for them"
        )
    ends = [*starts[1:], len(units)]
    return list(zip(starts, ends, strict=True)) + [(len(units), len(units))] * (size - len(starts))


def fastest_stages(
    costs: Sequence[float],
    separable: Sequence[bool],
    speeds: Sequence[float],
    fits: Callable[[int, int, int], bool],
) -> Stages | None:
    """Of all ways to deal units to ranks in order, one whose slowest stage is fastest; None if there is none.

    Exact, by dynamic programming: how well the first ranks can have the first units follows from how well one rank
    fewer can have fewer. Where several are equally good, earlier ranks get more.
    """
    count = len(costs)
    total = [0.0, *accumulate(costs)]
    places = [place for place in range(count + 1) if place in (0, count) or separable[place]]
    best: dict[int, float] = {0: 0.0}  # units that are dealt → the time of the slowest stage
    choices: list[dict[int, int]] = []
    for rank, speed in enumerate(speeds):
        better: dict[int, float] = {}
        choice: dict[int, int] = {}
        for end in places:
            for start in reversed(places):
                if start > end or start not in best or (start < end and not fits(rank, start, end)):
                    continue
                slowest = max(best[start], (total[end] - total[start]) / speed if start < end else 0.0)
                if end not in better or slowest < better[end]:
                    better[end], choice[end] = slowest, start
        best = better
        choices.append(choice)
    if count not in best:
        return None
    stages: Stages = []
    end = count
    for choice in reversed(choices):
        stages.append((choice[end], end))
        end = choice[end]
    return stages[::-1]
