"""Where everything in the graph's drawing goes: boxes, the ways of the edges between them, and their labels.

The drawing flows `along` its layers and spreads `across` them; on a wide screen along is to the right, on a phone it is
down. Boxes come from a layering; each end of an edge has a place of its own on its box's side, in the order of where
the edges come from, so that edges do not cross on arrival; a label takes the free place nearest to its edge's middle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from neuraxis.observe.brain_report.layering import Layering

__all__ = ["Box", "Drawing", "Point", "Way", "arrange"]

Point = tuple[float, float]

_APART = 26.0  # between boxes of a layer
_BEND_APART = 13.0  # between an edge that passes and its neighbour
_PORT_APART = 13.0  # between the ends of edges on a box's side
_HEAD = 9.0  # length of an arrow's head
_RELAXATIONS = 30
_LABEL_ROUNDS = 2
_COVERED, _CROSSED = 100.0, 0.4  # what a label costs that covers a box or label, or a point of another edge


@dataclass(frozen=True)
class Box:
    """A rectangle by its middle and its size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box, apart: float = 0.0) -> bool:
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2 + apart
            and abs(self.y - other.y) < (self.height + other.height) / 2 + apart
        )


@dataclass(frozen=True)
class Way:
    """An edge: cubic curves from its source to the neck of its head, the head's tip, and where its label is.

    `curves` has for each curve the four points that define it.
    """

    curves: tuple[tuple[Point, Point, Point, Point], ...]
    tip: Point
    label: Box


@dataclass(frozen=True)
class Drawing:
    width: float
    height: float
    boxes: tuple[Box, ...]
    ways: tuple[Way | None, ...]  # None for an edge from a node to itself


def arrange(
    layering: Layering,
    sizes: Sequence[tuple[float, float]],
    labels: Sequence[tuple[float, float]],
    *,
    down: bool,
    least_gap: float,
    fill: float = 0.0,
) -> Drawing:
    """Find the places.

    Args:
        sizes: width and height of each node's box, at least.
        labels: width and height of each edge's label.
        down: whether the drawing flows down, and not to the right.
        least_gap: the least distance between layers.
        fill: the extent along the flow that the gaps grow to fill, if they can.
    """
    grown = _grown(layering, sizes, down)
    along = [size[1] if down else size[0] for size in grown]
    across = [size[0] if down else size[1] for size in grown]
    nodes = len(sizes)

    depths = [max((along[v] for v in layer if v < nodes), default=0.0) for layer in layering.layers]
    gaps = max(1, len(depths) - 1)
    gap = min(max(least_gap, (fill - sum(depths)) / gaps), 2.6 * least_gap)
    middle: dict[int, float] = {}
    half: dict[int, float] = {}  # of the layer's depth: where the curves begin and end
    start = 0.0
    for layer, depth in zip(layering.layers, depths, strict=True):
        for vertex in layer:
            middle[vertex], half[vertex] = start + depth / 2, depth / 2
        start += depth + gap
    extent = start - gap if depths else 0.0

    place = _across(layering, across, nodes)
    low = min((place[v] - across[v] / 2 if v < nodes else place[v] - 4 for v in place), default=0.0)
    high = max((place[v] + across[v] / 2 if v < nodes else place[v] + 4 for v in place), default=0.0)

    def at(u: float, v: float) -> Point:
        return (v - low, u) if down else (u, v - low)

    boxes = tuple(Box(*at(middle[node], place[node]), *grown[node]) for node in range(nodes))
    curves = _curves(layering, along, across, middle, half, place, nodes)
    turned = []
    for chain in curves:
        turned.append(tuple((at(*a), at(*b), at(*c), at(*d)) for a, b, c, d in chain))
    tips = [
        at(*(chain[-1][3][0] + (_HEAD if ahead else -_HEAD), chain[-1][3][1])) if chain else None
        for chain, ahead in zip(curves, layering.forward, strict=True)
    ]
    placed = _labels(turned, labels, boxes)
    ways = tuple(
        Way(chain, tip, label) if tip is not None and label is not None else None
        for chain, tip, label in zip(turned, tips, placed, strict=True)
    )
    width, height = (high - low, extent) if down else (extent, high - low)
    return Drawing(width, height, boxes, ways)


def _grown(layering: Layering, sizes: Sequence[tuple[float, float]], down: bool) -> list[tuple[float, float]]:
    """The boxes, made long enough for the ends of their edges."""
    ends: dict[tuple[int, bool], int] = {}
    for chain in layering.chains:
        if chain:
            ends[chain[0], True] = ends.get((chain[0], True), 0) + 1
            ends[chain[-1], False] = ends.get((chain[-1], False), 0) + 1
    grown = []
    for node, (width, height) in enumerate(sizes):
        side = _PORT_APART * (max(ends.get((node, True), 0), ends.get((node, False), 0)) + 1)
        grown.append((max(width, side), height) if down else (width, max(height, side)))
    return grown


def _across(layering: Layering, across: Sequence[float], nodes: int) -> dict[int, float]:
    """Each vertex as near as can be to the mean of its neighbours, in order and apart from the next."""
    neighbours: dict[int, list[int]] = {}
    for chain in layering.chains:
        for one, other in pairwise(chain):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)

    def apart(one: int, other: int) -> float:
        halves = sum(across[v] / 2 for v in (one, other) if v < nodes)
        bends = (one >= nodes) + (other >= nodes)
        return halves + (_APART if bends == 0 else _BEND_APART)

    place: dict[int, float] = {}
    for layer in layering.layers:
        spread = _in_order(layer, [0.0] * len(layer), [1.0] * len(layer), apart)
        place.update(zip(layer, spread, strict=True))
    for _ in range(_RELAXATIONS):
        for layers in (layering.layers, layering.layers[::-1]):
            for layer in layers:
                centre = sum(place.values()) / len(place)
                wishes = [
                    sum(place[other] for other in neighbours[v]) / len(neighbours[v]) if v in neighbours else centre
                    for v in layer
                ]
                # A bend that leaves its line makes an edge wavy; a node can afford to.
                weights = [1.0 if v < nodes else 3.0 for v in layer]
                place.update(zip(layer, _in_order(layer, wishes, weights, apart), strict=True))
    for layer in layering.layers:
        # One that is alone in its layer, with one neighbour, stands on a level with it.
        if len(layer) == 1 and len(set(neighbours.get(layer[0], []))) == 1:
            place[layer[0]] = place[neighbours[layer[0]][0]]
    return place


def _in_order(
    layer: Sequence[int], wishes: Sequence[float], weights: Sequence[float], apart: Callable[[int, int], float]
) -> list[float]:
    """The places nearest to the wishes (least squares) that keep the order and the distances.

    Without the distances this is isotonic regression: neighbours in the wrong order are pooled at their mean.
    """
    offsets = [0.0]
    for one, other in pairwise(layer):
        offsets.append(offsets[-1] + apart(one, other))
    pools: list[list[float]] = []  # mean, weight, members
    for wish, weight, offset in zip(wishes, weights, offsets, strict=False):
        pools.append([wish - offset, weight, 1.0])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, total, members = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * total) / (last[1] + total)
            last[1] += total
            last[2] += members
    means = [mean for mean, _, members in pools for _ in range(int(members))]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


def _curves(
    layering: Layering,
    along: Sequence[float],
    across: Sequence[float],
    middle: dict[int, float],
    half: dict[int, float],
    place: dict[int, float],
    nodes: int,
) -> list[list[tuple[Point, Point, Point, Point]]]:
    """The edges as curves in (along, across), from source to the neck of the head: level at boxes and bends."""
    ports = _ports(layering, across, place)
    curves: list[list[tuple[Point, Point, Point, Point]]] = []
    for edge, (chain, ahead) in enumerate(zip(layering.chains, layering.forward, strict=True)):
        if not chain:
            curves.append([])
            continue
        stops: list[tuple[Point, Point]] = []  # for each vertex where the line comes and where it leaves
        for vertex in chain:
            if vertex >= nodes:
                line = place[vertex]
                stops.append(((middle[vertex] - half[vertex], line), (middle[vertex] + half[vertex], line)))
        first, last = chain[0], chain[-1]
        begin = (middle[first] + along[first] / 2 + (0.0 if ahead else _HEAD), ports[edge, True])
        end = (middle[last] - along[last] / 2 - (_HEAD if ahead else 0.0), ports[edge, False])
        points = [begin, *(point for stop in stops for point in stop), end]
        pieces = [_level(one, other) for one, other in pairwise(points)]
        curves.append(pieces if ahead else [(d, c, b, a) for a, b, c, d in reversed(pieces)])
    return curves


def _level(one: Point, other: Point) -> tuple[Point, Point, Point, Point]:
    bend = (other[0] - one[0]) * 0.5
    return one, (one[0] + bend, one[1]), (other[0] - bend, other[1]), other


def _ports(layering: Layering, across: Sequence[float], place: dict[int, float]) -> dict[tuple[int, bool], float]:
    """Where across its box each edge ends; keys are the edge and whether it is the end at its lower layer."""
    sides: dict[tuple[int, bool], list[tuple[float, int]]] = {}
    for edge, chain in enumerate(layering.chains):
        if chain:
            sides.setdefault((chain[0], True), []).append((place[chain[1]], edge))
            sides.setdefault((chain[-1], False), []).append((place[chain[-2]], edge))
    ports = {}
    for (node, lower), ends in sides.items():
        step = min(2 * _PORT_APART, across[node] / (len(ends) + 1))
        for number, (_, edge) in enumerate(sorted(ends)):
            ports[edge, lower] = place[node] + (number - (len(ends) - 1) / 2) * step
    return ports


def _labels(
    curves: Sequence[Sequence[tuple[Point, Point, Point, Point]]],
    sizes: Sequence[tuple[float, float]],
    boxes: Sequence[Box],
) -> list[Box | None]:
    """A place on each edge for its label: off all boxes and labels, if it can be off the other edges, near the middle.

    The shortest edges have the least choice and choose first; then each may choose again, as the others stand.
    """
    sampled = [[_on(curve, step / 20) for curve in chain for step in range(21)] for chain in curves]
    order = sorted((edge for edge in range(len(curves)) if curves[edge]), key=lambda edge: (len(curves[edge]), edge))
    costs = {}
    for edge in order:
        others = [point for other in order if other != edge for point in sampled[other]]
        costs[edge] = _costs(sampled[edge], sizes[edge], others, boxes)
    labels: list[Box | None] = [None] * len(curves)
    for edge in order * _LABEL_ROUNDS:
        places = [Box(x, y, *sizes[edge]) for x, y in sampled[edge]]
        taken = [label for other, label in enumerate(labels) if other != edge and label is not None]
        covered = [sum(place.meets(label, 2.0) for label in taken) for place in places]
        labels[edge] = places[int(np.argmin(costs[edge] + _COVERED * np.array(covered)))]
    return labels


def _costs(
    points: Sequence[Point], size: tuple[float, float], others: Sequence[Point], boxes: Sequence[Box]
) -> npt.NDArray[np.float64]:
    """What it costs to have a label of this size at each of the points."""
    cost = 2.0 * np.abs(np.linspace(0.0, 1.0, len(points)) - 0.5)
    at = np.array(points)[:, None, :]
    half = np.array(size) / 2
    if others:
        cost += _CROSSED * (np.abs(at - np.array(others)) < half + 1.0).all(axis=2).sum(axis=1)
    middles = np.array([(box.x, box.y) for box in boxes])
    halves = np.array([(box.width / 2, box.height / 2) for box in boxes])
    cost += _COVERED * (np.abs(at - middles) < half + halves + 3.0).all(axis=2).sum(axis=1)
    return np.asarray(cost, np.float64)


def _on(curve: tuple[Point, Point, Point, Point], share: float) -> Point:
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = curve
    rest = 1 - share
    a, b, c, d = rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3
    return a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy
