"""The graph of a brain: regions as boxes, pathways as arrows whose width shows their traffic.

The graph is drawn twice, to the right for wide screens and downwards for phones; the style sheet shows one of them. A
table below has the same numbers.

The layout follows Sugiyama's method. Sensors are the first layer and effectors the last. An edge that points back is
reversed during the layout; one that crosses layers gets a bend in each of them. Then each layer is sorted by the mean
position of its neighbours, as long as that removes crossings. Each end of an edge has its own port on the side of its
box, in the order of the other ends, so that edges do not cross on arrival. A label takes the free place nearest to the
middle of its edge. "Along" is the direction of the layers, "across" is perpendicular to it. No step is random, so that
the same graph gives the same drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from neuraxis.report.brain.markup import Colours, clipped, count, number, plural, rate, words
from neuraxis.report.brain.model import GraphEdge, GraphNode, RegionGraph

__all__ = ["Box", "Drawing", "Layering", "Point", "Route", "arrange", "describe_graph", "draw_graph", "find_layers"]

_MAX_CHARACTERS = 18  # of the name of a node
_NAME_PX, _SMALL_PX = 8.1, 6.4  # generous mean width of a character
_LINE_PX = 15.0
_THINNEST, _WIDEST = 1.3, 6.0
_MARGIN = 4.0
_WIDE_PX = 1140.0

# Layers.
_SWEEPS = 12
_ROW = 6  # nodes in a row if there are no edges

# Arrangement.
Point = tuple[float, float]

_BOX_DISTANCE = 26.0  # between boxes of a layer
_BEND_DISTANCE = 13.0  # between a passing edge and its neighbour
_PORT_DISTANCE = 13.0  # between the ends of edges on the side of a box
_HEAD = 9.0  # length of an arrowhead
_RELAXATIONS = 30
_LABEL_ROUNDS = 2
_COVERED, _CROSSED = 100.0, 0.4  # cost of a label that covers a box or label, or a point of another edge


def describe_graph(graph: RegionGraph) -> str:
    """Return a caption of the graph."""
    if not graph.nodes:
        return "There are no regions."
    text = [f"{plural(len(graph.nodes), 'part')}, {plural(len(graph.edges), 'pathway')}."]
    if graph.edges:
        text.append("Arrows are as wide as their traffic, labels are delays.")
        most = max(graph.edges, key=lambda edge: edge.spikes_per_s)
        source, target = clipped(most.source, 32), clipped(most.target, 32)
        where = f"stay within {source}" if most.source == most.target else f"go from {source} to {target}"
        text.append(f"Most spikes {where}, {count(most.spikes_per_s)} a second.")
    return " ".join(text)


def draw_graph(graph: RegionGraph, colours: Colours) -> str:
    """Return both drawings and the table as HTML."""
    if not graph.nodes:
        return '<p class="empty">No regions.</p>'
    return (
        f"{_drawing(graph, colours, down=False)}\n{_drawing(graph, colours, down=True)}\n{_key(graph)}\n{_table(graph)}"
    )


def _drawing(graph: RegionGraph, colours: Colours, *, down: bool) -> str:
    layering = find_layers(graph)
    loops: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        if edge.source == edge.target:
            loops.setdefault(edge.source, []).append(edge)
    characters = 11 if down else _MAX_CHARACTERS
    lines = {node.name: _lines(node, loops.get(node.name, []), characters) for node in graph.nodes}
    sizes = [_size(lines[node.name], bool(loops.get(node.name))) for node in graph.nodes]
    names = [_delay(edge) for edge in graph.edges]
    places = arrange(
        layering,
        sizes,
        [(len(name) * _SMALL_PX + 9, 17.0) for name in names],
        down=down,
        least_gap=70.0 if down else 62.0,
        fill=0.0 if down else _WIDE_PX,
    )
    busiest = max((edge.spikes_per_s for edge in graph.edges), default=0.0)
    routes = [(edge, route) for edge, route in zip(graph.edges, places.routes, strict=True) if route is not None]
    # Wide arrows first, so that narrow ones are visible where they cross.
    routes.sort(key=lambda entry: -entry[0].spikes_per_s)
    drawn = [_arrow(edge, route, _stroke(edge, busiest)) for edge, route in routes]
    drawn += [
        _node(node, box, lines[node.name], loops.get(node.name, []), colours[node.name])
        for node, box in zip(graph.nodes, places.boxes, strict=True)
    ]
    drawn += [_label(edge, route) for edge, route in routes]
    width, height = places.width + 2 * _MARGIN, places.height + 2 * _MARGIN
    return (
        f'<div class="frame {"tall" if down else "broad"}"><svg viewBox="{-_MARGIN:.0f} {-_MARGIN:.0f} '
        f'{width:.1f} {height:.1f}" role="img" aria-label="{words(describe_graph(graph))}" '
        f'style="--natural:{width:.0f}">{"".join(drawn)}</svg></div>'
    )


def _lines(node: GraphNode, loops: list[GraphEdge], characters: int) -> list[str]:
    lines = [clipped(node.name, characters), clipped(node.kind, characters)]
    lines.append(f"{count(node.neurons)}\u00a0\u00d7 {rate(node.rate_hz)}" if node.neurons else "no neurons")
    if loops:
        lines.append(clipped(", ".join(_delay(loop) for loop in loops), characters))
    return lines


def _size(lines: list[str], loop: bool) -> tuple[float, float]:
    widths = [len(lines[0]) * _NAME_PX, *(len(line) * _SMALL_PX for line in lines[1:])]
    if loop:
        widths[-1] += 18
    return max(76.0, max(widths) + 22), len(lines) * _LINE_PX + 14


def _node(node: GraphNode, box: Box, lines: list[str], loops: list[GraphEdge], colour: str) -> str:
    text_top = box.y - len(lines) * _LINE_PX / 2 + 11.5
    round_px = min(box.height / 2, 22.0) if node.kind in ("sensor", "effector") else 7.0
    text = f"{node.name} ({node.kind}): {plural(node.neurons, 'neuron')}, mean rate {rate(node.rate_hz)}"
    for loop in loops:
        text += f"\n{_tooltip(loop)}"
    drawn = [
        f"<title>{words(text)}</title>",
        f'<rect class="box" {_rectangle(box)} rx="{round_px:.1f}"/>',
    ]
    for place, line in enumerate(lines):
        y = text_top + place * _LINE_PX
        is_loop = bool(loops) and place == len(lines) - 1
        x = box.x + 8 if is_loop else box.x
        drawn.append(
            f'<text class="{"node-name" if place == 0 else "node-kind" if place == 1 else "node-number"}" '
            f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{words(line)}</text>'
        )
        if is_loop:
            icon = x - len(line) * _SMALL_PX / 2 - 9
            plastic = " plastic" if any(loop.plastic for loop in loops) else ""
            drawn.append(
                f'<g transform="translate({icon:.1f} {y - 4:.1f})"><path class="loop{plastic}" '
                f'd="M2.3 -3.9A4.5 4.5 0 1 0 4.5 0"/><path class="head{plastic}" d="M1.6 0.4H7.4L4.5 -4.2Z"/></g>'
            )
    return f'<g class="node {colour}">{"".join(drawn)}</g>'


def _rectangle(box: Box) -> str:
    return (
        f'x="{box.x - box.width / 2:.1f}" y="{box.y - box.height / 2:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}"'
    )


def _arrow(edge: GraphEdge, route: Route, stroke: float) -> str:
    (start, *_), (*_, neck) = route.curves[0], route.curves[-1]
    line = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(
        f"C{b[0]:.1f} {b[1]:.1f} {c[0]:.1f} {c[1]:.1f} {d[0]:.1f} {d[1]:.1f}" for _, b, c, d in route.curves
    )
    plastic = " plastic" if edge.plastic else ""
    # The base of the head is perpendicular to the line from its neck to its tip.
    length = math.hypot(route.tip[0] - neck[0], route.tip[1] - neck[1]) or 1.0
    side = (stroke / 2 + 3.2) / length
    across = ((route.tip[1] - neck[1]) * side, (neck[0] - route.tip[0]) * side)
    head = (
        f"M{neck[0] + across[0]:.1f} {neck[1] + across[1]:.1f}L{route.tip[0]:.1f} {route.tip[1]:.1f}"
        f"L{neck[0] - across[0]:.1f} {neck[1] - across[1]:.1f}Z"
    )
    return (
        f'<g class="edge{plastic}"><title>{words(_tooltip(edge))}</title><path class="reach" d="{line}"/>'
        f'<path class="wire" style="stroke-width:{stroke:.2f}px" d="{line}"/>'
        f'<path class="head{plastic}" d="{head}"/></g>'
    )


def _label(edge: GraphEdge, route: Route) -> str:
    box = route.label
    return (
        f'<g class="delay{" plastic" if edge.plastic else ""}"><title>{words(_tooltip(edge))}</title>'
        f'<rect {_rectangle(box)} rx="{box.height / 2:.1f}"/>'
        f'<text x="{box.x:.1f}" y="{box.y + 4:.1f}" text-anchor="middle">{words(_delay(edge))}</text></g>'
    )


def _stroke(edge: GraphEdge, busiest: float) -> float:
    """Return the width of an arrow, which grows with the square root of its traffic."""
    return _THINNEST + (_WIDEST - _THINNEST) * math.sqrt(edge.spikes_per_s / busiest if busiest > 0 else 0.0)


def _delay(edge: GraphEdge) -> str:
    return f"{number(edge.delay_ms, 2)}\u00a0ms"


def _tooltip(edge: GraphEdge) -> str:
    return (
        f"{edge.source} → {edge.target}: delay {_delay(edge)}, {number(edge.spikes_per_s)} spikes a second, "
        f"{'plastic' if edge.plastic else 'fixed'}"
    )


def _key(graph: RegionGraph) -> str:
    if not graph.edges:
        return ""
    pill = (
        '<svg class="delay{}" viewBox="0 0 44 17" width="44" height="17" aria-hidden="true">'
        '<rect x="1" y="1" width="42" height="15" rx="7.5"/><text x="22" y="12.4" text-anchor="middle">ms</text></svg>'
    )
    return (
        f'<ul class="key"><li>{pill.format(" plastic")}plastic: this pathway learns</li>'
        f"<li>{pill.format('')}fixed</li><li>in a box: neurons &#215; mean rate</li></ul>"
    )


def _table(graph: RegionGraph) -> str:
    if not graph.edges:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{words(edge.source)} → {words(edge.target)}</th><td>{_delay(edge)}</td>'
        f"<td>{number(edge.spikes_per_s)}</td><td>{'yes' if edge.plastic else 'no'}</td></tr>"
        for edge in sorted(graph.edges, key=lambda edge: -edge.spikes_per_s)
    )
    return (
        "<details><summary>All pathways as a table</summary>"
        '<div class="scroll"><table><thead><tr><th scope="col">pathway</th><th scope="col">delay</th>'
        '<th scope="col">spikes/s</th><th scope="col">plastic</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


# --- Layers ---


@dataclass(frozen=True)
class Layering:
    """Vertices in layers; a vertex below `len(graph.nodes)` is that node, the others are bends of edges.

    Attributes
    ----------
    layers : tuple of tuple of int
        Vertices of each layer, in order.
    chains : tuple of tuple of int
        Vertices of each edge from the lower layer to the higher one; none for an edge from a node to itself.
    forward : tuple of bool
        True for each edge that points from the lower layer to the higher one.
    """

    layers: tuple[tuple[int, ...], ...]
    chains: tuple[tuple[int, ...], ...]
    forward: tuple[bool, ...]


def find_layers(graph: RegionGraph) -> Layering:
    """Assign the nodes and the bends of the edges to layers, and order them within each layer."""
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
    """Return a sort key for each node: its distance from the sensors, then its index."""
    targets: list[list[int]] = [[] for _ in range(nodes)]
    reached = [False] * nodes
    for source, target in pairs:
        targets[source].append(target)
        reached[target] |= source != target
    steps = [-1] * nodes
    # Nodes that no sensor reaches start a search of their own: those without incoming edges first.
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
    """Return the layer of each node, after those of all nodes with an edge to it."""
    if all(low == high for low, high in low_high):
        return [place % _ROW for place in range(nodes)]
    layer_of = [0] * nodes
    for node in sorted(range(nodes), key=lambda node: key[node]):
        layer_of[node] = max((layer_of[low] + 1 for low, high in low_high if high == node != low), default=0)
    for node in set(range(nodes)) - sensors:
        # A region without incoming edges goes right before its first target.
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


# --- Arrangement ---


@dataclass(frozen=True)
class Box:
    """A rectangle, by its centre and size."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box, distance: float = 0.0) -> bool:
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2 + distance
            and abs(self.y - other.y) < (self.height + other.height) / 2 + distance
        )


@dataclass(frozen=True)
class Route:
    """An edge: cubic Bezier curves (four points each) from its source to the arrowhead, its tip, and its label."""

    curves: tuple[tuple[Point, Point, Point, Point], ...]
    tip: Point
    label: Box


@dataclass(frozen=True)
class Drawing:
    """Positions of all boxes and edges."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    routes: tuple[Route | None, ...]  # None for an edge from a node to itself


def arrange(
    layering: Layering,
    sizes: Sequence[tuple[float, float]],
    labels: Sequence[tuple[float, float]],
    *,
    down: bool,
    least_gap: float,
    fill: float = 0.0,
) -> Drawing:
    """Return the positions of all boxes, edges and labels.

    Parameters
    ----------
    layering : Layering
        Layers of the graph.
    sizes : sequence of (float, float)
        Least width and height of each node's box.
    labels : sequence of (float, float)
        Width and height of each edge's label.
    down : bool
        Draw downwards instead of to the right.
    least_gap : float
        Least distance between layers.
    fill : float
        Extent along the layers that the gaps grow to fill, if they can.
    """
    enlarged = _enlarged(layering, sizes, down)
    along = [size[1] if down else size[0] for size in enlarged]
    across = [size[0] if down else size[1] for size in enlarged]
    nodes = len(sizes)

    depths = [max((along[v] for v in layer if v < nodes), default=0.0) for layer in layering.layers]
    gaps = max(1, len(depths) - 1)
    gap = min(max(least_gap, (fill - sum(depths)) / gaps), 2.6 * least_gap)
    middle: dict[int, float] = {}
    half: dict[int, float] = {}  # half the depth of the layer, where curves begin and end
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

    boxes = tuple(Box(*at(middle[node], place[node]), *enlarged[node]) for node in range(nodes))
    curves = _curves(layering, along, across, middle, half, place, nodes)
    turned = []
    for chain in curves:
        turned.append(tuple((at(*a), at(*b), at(*c), at(*d)) for a, b, c, d in chain))
    tips = [
        at(*(chain[-1][3][0] + (_HEAD if ahead else -_HEAD), chain[-1][3][1])) if chain else None
        for chain, ahead in zip(curves, layering.forward, strict=True)
    ]
    placed = _labels(turned, labels, boxes)
    routes = tuple(
        Route(chain, tip, label) if tip is not None and label is not None else None
        for chain, tip, label in zip(turned, tips, placed, strict=True)
    )
    width, height = (high - low, extent) if down else (extent, high - low)
    return Drawing(width, height, boxes, routes)


def _enlarged(layering: Layering, sizes: Sequence[tuple[float, float]], down: bool) -> list[tuple[float, float]]:
    """Return the sizes of the boxes, enlarged for the ends of their edges."""
    ends: dict[tuple[int, bool], int] = {}
    for chain in layering.chains:
        if chain:
            ends[chain[0], True] = ends.get((chain[0], True), 0) + 1
            ends[chain[-1], False] = ends.get((chain[-1], False), 0) + 1
    enlarged = []
    for node, (width, height) in enumerate(sizes):
        side = _PORT_DISTANCE * (max(ends.get((node, True), 0), ends.get((node, False), 0)) + 1)
        enlarged.append((max(width, side), height) if down else (width, max(height, side)))
    return enlarged


def _across(layering: Layering, across: Sequence[float], nodes: int) -> dict[int, float]:
    """Return positions across the layers, near the mean of the neighbours, in order and without overlap."""
    neighbours: dict[int, list[int]] = {}
    for chain in layering.chains:
        for one, other in pairwise(chain):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)

    def distance(one: int, other: int) -> float:
        halves = sum(across[v] / 2 for v in (one, other) if v < nodes)
        bends = (one >= nodes) + (other >= nodes)
        return halves + (_BOX_DISTANCE if bends == 0 else _BEND_DISTANCE)

    place: dict[int, float] = {}
    for layer in layering.layers:
        spread = _in_order(layer, [0.0] * len(layer), [1.0] * len(layer), distance)
        place.update(zip(layer, spread, strict=True))
    for _ in range(_RELAXATIONS):
        for layers in (layering.layers, layering.layers[::-1]):
            for layer in layers:
                centre = sum(place.values()) / len(place)
                desired = [
                    sum(place[other] for other in neighbours[v]) / len(neighbours[v]) if v in neighbours else centre
                    for v in layer
                ]
                # A displaced bend makes an edge wavy, so bends weigh more than nodes.
                weights = [1.0 if v < nodes else 3.0 for v in layer]
                place.update(zip(layer, _in_order(layer, desired, weights, distance), strict=True))
    for layer in layering.layers:
        # A vertex alone in its layer with one neighbour is aligned with it.
        if len(layer) == 1 and len(set(neighbours.get(layer[0], []))) == 1:
            place[layer[0]] = place[neighbours[layer[0]][0]]
    return place


def _in_order(
    layer: Sequence[int], desired: Sequence[float], weights: Sequence[float], distance: Callable[[int, int], float]
) -> list[float]:
    """Return the positions nearest to the desired ones (least squares) that keep order and distances.

    Apart from the distances this is isotonic regression: neighbours in the wrong order are pooled at their mean.
    """
    offsets = [0.0]
    for one, other in pairwise(layer):
        offsets.append(offsets[-1] + distance(one, other))
    pools: list[list[float]] = []  # mean, weight, members
    for target, weight, offset in zip(desired, weights, offsets, strict=False):
        pools.append([target - offset, weight, 1.0])
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
    """Return the edges as curves in (along, across), from source to arrowhead, perpendicular to the boxes."""
    ports = _ports(layering, across, place)
    curves: list[list[tuple[Point, Point, Point, Point]]] = []
    for edge, (chain, ahead) in enumerate(zip(layering.chains, layering.forward, strict=True)):
        if not chain:
            curves.append([])
            continue
        stops: list[tuple[Point, Point]] = []  # for each vertex, where the line arrives and leaves
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
    """Return the position of each end of an edge; keys are the edge and True for the end in the lower layer."""
    sides: dict[tuple[int, bool], list[tuple[float, int]]] = {}
    for edge, chain in enumerate(layering.chains):
        if chain:
            sides.setdefault((chain[0], True), []).append((place[chain[1]], edge))
            sides.setdefault((chain[-1], False), []).append((place[chain[-2]], edge))
    ports = {}
    for (node, lower), ends in sides.items():
        step = min(2 * _PORT_DISTANCE, across[node] / (len(ends) + 1))
        for i, (_, edge) in enumerate(sorted(ends)):
            ports[edge, lower] = place[node] + (i - (len(ends) - 1) / 2) * step
    return ports


def _labels(
    curves: Sequence[Sequence[tuple[Point, Point, Point, Point]]],
    sizes: Sequence[tuple[float, float]],
    boxes: Sequence[Box],
) -> list[Box | None]:
    """Return a place on each edge for its label: clear of boxes, labels and, if possible, other edges, near the middle.

    The shortest edges have the fewest places and choose first; then each chooses again, given the others.
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
    """Return the cost of a label of this size at each of the points."""
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
