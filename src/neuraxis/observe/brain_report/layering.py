"""Which layer of the drawing each region belongs to, and its place among its neighbours there.

The method is Sugiyama's: sensors are the first layer, effectors the last; an edge that points back is turned round
while we look for places; one that crosses layers gets a bend in each of them; then the order within the layers is
changed, by the mean place of the neighbours, for as long as that takes crossings away. No step draws a random number,
so the same graph gives the same drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from neuraxis.observe.brain_report.model import RegionGraph

__all__ = ["Layering", "find_layers"]

_SWEEPS = 12
_ROW = 6  # nodes side by side where no edge says who comes first


@dataclass(frozen=True)
class Layering:
    """Vertices in layers. A vertex below `len(graph.nodes)` is that node; the others are bends of edges.

    Attributes:
        layers: the vertices of each layer, in their order.
        chains: for each edge its vertices from the lower layer to the higher one; of a node to itself, none.
        forward: for each edge whether it points from the lower layer to the higher one.
    """

    layers: tuple[tuple[int, ...], ...]
    chains: tuple[tuple[int, ...], ...]
    forward: tuple[bool, ...]


def find_layers(graph: RegionGraph) -> Layering:
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    pairs = [(places[edge.source], places[edge.target]) for edge in graph.edges]
    sensors = {place for place, node in enumerate(graph.nodes) if node.kind == "sensor"}
    effectors = {place for place, node in enumerate(graph.nodes) if node.kind == "effector"}
    key = _reading_order(len(places), pairs, sensors, effectors)
    forward = [key[source] < key[target] for source, target in pairs]
    low_high = [(a, b) if ahead else (b, a) for (a, b), ahead in zip(pairs, forward, strict=True)]
    layer_of = _layers(len(places), low_high, key, sensors, effectors)

    vertices = len(places)
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for place in sorted(range(len(places)), key=lambda place: key[place]):
        layers[layer_of[place]].append(place)
    chains: list[tuple[int, ...]] = []
    for low, high in low_high:
        if low == high:
            chains.append(())
            continue
        bends = []
        for layer in range(layer_of[low] + 1, layer_of[high]):
            bends.append(vertices)
            layers[layer].append(vertices)
            vertices += 1
        chains.append((low, *bends, high))
    return Layering(_untangled(layers, chains), tuple(chains), tuple(forward))


def _reading_order(
    nodes: int, pairs: Sequence[tuple[int, int]], sensors: set[int], effectors: set[int]
) -> list[tuple[int, int]]:
    """A key by which signals flow: the steps from the sensors, then the order in which the nodes were given."""
    targets: list[list[int]] = [[] for _ in range(nodes)]
    reached = [False] * nodes
    for source, target in pairs:
        targets[source].append(target)
        reached[target] |= source != target
    steps = [-1] * nodes
    # What no sensor leads to starts a search of its own: first nodes that nothing leads to, then the first in line.
    for starts in (sorted(sensors), [n for n in range(nodes) if not reached[n]], *([n] for n in range(nodes))):
        front = [start for start in starts if steps[start] < 0]
        for start in front:
            steps[start] = 0
        while front:
            following = []
            for node in front:
                for target in targets[node]:
                    if steps[target] < 0:
                        steps[target] = steps[node] + 1
                        following.append(target)
            front = following
    return [(-1 if node in sensors else nodes + 1 if node in effectors else steps[node], node) for node in range(nodes)]


def _layers(
    nodes: int,
    low_high: Sequence[tuple[int, int]],
    key: Sequence[tuple[int, int]],
    sensors: set[int],
    effectors: set[int],
) -> list[int]:
    """The layer of each node: behind all that lead to it."""
    if all(low == high for low, high in low_high):
        return [place % _ROW for place in range(nodes)]
    layer_of = [0] * nodes
    for node in sorted(range(nodes), key=lambda node: key[node]):
        layer_of[node] = max((layer_of[low] + 1 for low, high in low_high if high == node != low), default=0)
    for node in set(range(nodes)) - sensors:
        # A region that nothing leads to stands right before the first that it leads to.
        if layer_of[node] == 0:
            layer_of[node] = min((layer_of[high] - 1 for low, high in low_high if low == node != high), default=0)
    if effectors and len(effectors) < nodes:
        last = max(layer_of[node] for node in range(nodes) if node not in effectors)
        shift = last + 1 - min(layer_of[node] for node in effectors)
        for node in effectors:
            layer_of[node] += shift
    return layer_of


def _untangled(layers: list[list[int]], chains: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    links = [link for chain in chains for link in pairwise(chain)]
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for low, high in links:
        before.setdefault(high, []).append(low)
        after.setdefault(low, []).append(high)
    order = [list(layer) for layer in layers]
    best, fewest = order, _crossings(order, links)
    for sweep in range(_SWEEPS):
        order = [list(layer) for layer in order]
        down = sweep % 2 == 0
        neighbours = before if down else after
        for layer in range(1, len(order)) if down else range(len(order) - 2, -1, -1):
            place = {vertex: number for row in order for number, vertex in enumerate(row)}
            means = {
                vertex: sum(place[other] for other in others) / len(others) if others else float(place[vertex])
                for vertex in order[layer]
                for others in [neighbours.get(vertex, [])]
            }
            order[layer].sort(key=lambda vertex: (means[vertex], place[vertex]))
        crossings = _crossings(order, links)
        if crossings < fewest:
            best, fewest = order, crossings
    return tuple(tuple(layer) for layer in best)


def _crossings(order: Sequence[Sequence[int]], links: Sequence[tuple[int, int]]) -> int:
    where = {vertex: (layer, place) for layer, row in enumerate(order) for place, vertex in enumerate(row)}
    by_gap: dict[int, list[tuple[int, int]]] = {}
    for low, high in links:
        by_gap.setdefault(where[low][0], []).append((where[low][1], where[high][1]))
    return sum((a - c) * (b - d) < 0 for gap in by_gap.values() for (a, b), (c, d) in combinations(gap, 2))
