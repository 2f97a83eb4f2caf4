"""The brain as a graph: regions as boxes, pathways as arrows that are as wide as their traffic.

It is drawn twice, to the right for wide screens and downwards for phones; the page's style shows one of them. The
same numbers are in a table below, for those who cannot hover.
"""

from __future__ import annotations

import math

from neuraxis.observe.brain_report.layering import find_layers
from neuraxis.observe.brain_report.markup import Colours, clipped, count, number, plural, rate, words
from neuraxis.observe.brain_report.model import GraphEdge, GraphNode, RegionGraph
from neuraxis.observe.brain_report.routing import Box, Way, arrange

__all__ = ["describe_graph", "draw_graph"]

_LETTERS = 18  # of a node's name at most
_NAME_PX, _SMALL_PX = 8.1, 6.4  # mean width of a letter, on the safe side
_LINE_PX = 15.0
_THINNEST, _WIDEST = 1.3, 6.0
_MARGIN = 4.0
_WIDE_PX = 1140.0


def describe_graph(graph: RegionGraph) -> str:
    """The graph in a sentence or two."""
    if not graph.nodes:
        return "There are no regions."
    told = [f"{plural(len(graph.nodes), 'part')}, {plural(len(graph.edges), 'pathway')}."]
    if graph.edges:
        told.append("Arrows are as wide as their traffic, labels are delays.")
        most = max(graph.edges, key=lambda edge: edge.spikes_per_s)
        source, target = clipped(most.source, 32), clipped(most.target, 32)
        where = f"stay within {source}" if most.source == most.target else f"go from {source} to {target}"
        told.append(f"Most spikes {where}, {count(most.spikes_per_s)} a second.")
    return " ".join(told)


def draw_graph(graph: RegionGraph, colours: Colours) -> str:
    """Both drawings and the table, as HTML."""
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
    letters = 11 if down else _LETTERS
    lines = {node.name: _lines(node, loops.get(node.name, []), letters) for node in graph.nodes}
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
    ways = [(edge, way) for edge, way in zip(graph.edges, places.ways, strict=True) if way is not None]
    # The wide arrows first, so that the narrow ones are seen where they cross.
    ways.sort(key=lambda entry: -entry[0].spikes_per_s)
    drawn = [_arrow(edge, way, _stroke(edge, busiest)) for edge, way in ways]
    drawn += [
        _node(node, box, lines[node.name], loops.get(node.name, []), colours[node.name])
        for node, box in zip(graph.nodes, places.boxes, strict=True)
    ]
    drawn += [_label(edge, way) for edge, way in ways]
    width, height = places.width + 2 * _MARGIN, places.height + 2 * _MARGIN
    return (
        f'<div class="frame {"tall" if down else "broad"}"><svg viewBox="{-_MARGIN:.0f} {-_MARGIN:.0f} '
        f'{width:.1f} {height:.1f}" role="img" aria-label="{words(describe_graph(graph))}" '
        f'style="--natural:{width:.0f}">{"".join(drawn)}</svg></div>'
    )


# --- boxes ---


def _lines(node: GraphNode, loops: list[GraphEdge], letters: int) -> list[str]:
    lines = [clipped(node.name, letters), clipped(node.kind, letters)]
    lines.append(f"{count(node.neurons)}\u00a0\u00d7 {rate(node.rate_hz)}" if node.neurons else "no neurons")
    if loops:
        lines.append(clipped(", ".join(_delay(loop) for loop in loops), letters))
    return lines


def _size(lines: list[str], loop: bool) -> tuple[float, float]:
    widths = [len(lines[0]) * _NAME_PX, *(len(line) * _SMALL_PX for line in lines[1:])]
    if loop:
        widths[-1] += 18
    return max(76.0, max(widths) + 22), len(lines) * _LINE_PX + 14


def _node(node: GraphNode, box: Box, lines: list[str], loops: list[GraphEdge], colour: str) -> str:
    text_top = box.y - len(lines) * _LINE_PX / 2 + 11.5
    round_px = min(box.height / 2, 22.0) if node.kind in ("sensor", "effector") else 7.0
    told = f"{node.name} ({node.kind}): {plural(node.neurons, 'neuron')}, mean rate {rate(node.rate_hz)}"
    for loop in loops:
        told += f"\n{_told(loop)}"
    drawn = [
        f"<title>{words(told)}</title>",
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


# --- arrows ---


def _arrow(edge: GraphEdge, way: Way, stroke: float) -> str:
    (start, *_), (*_, neck) = way.curves[0], way.curves[-1]
    line = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(
        f"C{b[0]:.1f} {b[1]:.1f} {c[0]:.1f} {c[1]:.1f} {d[0]:.1f} {d[1]:.1f}" for _, b, c, d in way.curves
    )
    plastic = " plastic" if edge.plastic else ""
    # The way arrives level, so the head's base stands upright on the line from neck to tip.
    length = math.hypot(way.tip[0] - neck[0], way.tip[1] - neck[1]) or 1.0
    side = (stroke / 2 + 3.2) / length
    across = ((way.tip[1] - neck[1]) * side, (neck[0] - way.tip[0]) * side)
    head = (
        f"M{neck[0] + across[0]:.1f} {neck[1] + across[1]:.1f}L{way.tip[0]:.1f} {way.tip[1]:.1f}"
        f"L{neck[0] - across[0]:.1f} {neck[1] - across[1]:.1f}Z"
    )
    return (
        f'<g class="edge{plastic}"><title>{words(_told(edge))}</title><path class="reach" d="{line}"/>'
        f'<path class="wire" style="stroke-width:{stroke:.2f}px" d="{line}"/>'
        f'<path class="head{plastic}" d="{head}"/></g>'
    )


def _label(edge: GraphEdge, way: Way) -> str:
    box = way.label
    return (
        f'<g class="delay{" plastic" if edge.plastic else ""}"><title>{words(_told(edge))}</title>'
        f'<rect {_rectangle(box)} rx="{box.height / 2:.1f}"/>'
        f'<text x="{box.x:.1f}" y="{box.y + 4:.1f}" text-anchor="middle">{words(_delay(edge))}</text></g>'
    )


def _stroke(edge: GraphEdge, busiest: float) -> float:
    """The width of an arrow: its area grows with the traffic as the eye expects, from a hairline for none."""
    return _THINNEST + (_WIDEST - _THINNEST) * math.sqrt(edge.spikes_per_s / busiest if busiest > 0 else 0.0)


def _delay(edge: GraphEdge) -> str:
    return f"{number(edge.delay_ms, 2)}\u00a0ms"


def _told(edge: GraphEdge) -> str:
    return (
        f"{edge.source} → {edge.target}: delay {_delay(edge)}, {number(edge.spikes_per_s)} spikes a second, "
        f"{'plastic' if edge.plastic else 'fixed'}"
    )


# --- words below ---


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
