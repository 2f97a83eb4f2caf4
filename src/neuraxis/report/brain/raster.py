"""The spike raster of one trial: a band for each region, a tick for each spike, and marks for events."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from neuraxis.report.brain.markup import (
    Colours,
    clipped,
    count,
    draw_axis,
    draw_flags,
    number,
    plain,
    plural,
    rate,
    ticks,
    words,
)
from neuraxis.report.brain.model import Raster, RasterRegion

__all__ = ["MAX_SPIKES", "describe_raster", "draw_raster"]

MAX_SPIKES = 100_000  # more make a page slow and black; they are thinned out, and the caption says so

_WIDTH = 4000  # of a band, in units; four to a pixel on a wide screen
_UNITS = 4  # units in the height of a pixel
_HEIGHT_PX = 430.0  # total height, shared in proportion to the square root of the number of neurons
_LEAST_PX, _MAX_PX = 40.0, 150.0


def describe_raster(raster: Raster) -> str:
    """Return a caption, which says so if spikes are left out."""
    counts = [int(np.count_nonzero(_within(region, raster))) for region in raster.regions]
    spikes = sum(counts)
    if not raster.regions:
        return "No region was recorded."
    neurons = plural(sum(region.neurons for region in raster.regions), "neuron")
    sentences = [f"{plural(spikes, 'spike')} of {neurons} in {number(raster.stop_ms - raster.start_ms)} ms."]
    if spikes > MAX_SPIKES:
        drawn = sum(_count_to_draw(many, spikes) for many in counts)
        sentences.append(f"Thinned out evenly: {count(drawn)} of them are drawn.")
    if any(region.inhibitory_from is not None for region in raster.regions):
        sentences.append("Excitatory neurons are in the region's colour, inhibitory ones below them in grey.")
    return " ".join(sentences)


def draw_raster(raster: Raster, colours: Colours) -> str:
    """Return the figure as HTML."""
    if not raster.regions:
        return '<p class="empty">No regions.</p>'
    span_ms = raster.stop_ms - raster.start_ms
    flags = [
        ((moment_ms - raster.start_ms) / span_ms, name)
        for moment_ms, name in raster.marks
        if raster.start_ms <= moment_ms <= raster.stop_ms
    ]
    lines = "".join(f'<path class="mark" d="M{plain(_WIDTH * share)} 0V9999"/>' for share, _ in flags)
    roots = [math.sqrt(max(1, region.neurons)) for region in raster.regions]
    heights_px = [round(min(_MAX_PX, max(_LEAST_PX, _HEIGHT_PX * root / sum(roots)))) for root in roots]
    spikes = sum(int(np.count_nonzero(_within(region, raster))) for region in raster.regions)
    bands = "\n".join(
        _band(region, raster, height_px, spikes, lines, colours[region.name])
        for region, height_px in zip(raster.regions, heights_px, strict=True)
    )
    places = [
        ((tick - raster.start_ms) / span_ms, number(tick, 3)) for tick in ticks(raster.start_ms, raster.stop_ms, 8)
    ]
    return f"""<div class="plot raster-plot" role="img" aria-label="{words(describe_raster(raster))}">
<div class="corner"></div>{draw_flags(flags)}
{bands}
<div class="corner"></div>{draw_axis(places, "time (ms)")}
</div>"""


def _band(region: RasterRegion, raster: Raster, height_px: int, spikes: int, lines: str, colour: str) -> str:
    shown = _shown(region, raster)
    keep = _count_to_draw(len(shown), spikes)
    kept = shown[np.arange(keep) * len(shown) // max(1, keep)]
    height = height_px * _UNITS
    row = height / max(1, region.neurons)
    tick = round(min(max(row, 1.7 * _UNITS), 7 * _UNITS, height))
    x = ((region.times_ms[kept] - raster.start_ms) * (_WIDTH / (raster.stop_ms - raster.start_ms))).astype(np.int64)
    y = np.clip((region.ids[kept] + 0.5) * row - tick / 2, 0, height - tick).round().astype(np.int64)
    inhibitory = np.zeros(len(kept), np.bool_)
    border = ""
    if region.inhibitory_from is not None and region.inhibitory_from < region.neurons:
        inhibitory = region.ids[kept] >= region.inhibitory_from
        if region.inhibitory_from > 0:
            border = f'<path class="border" d="M0 {round(region.inhibitory_from * row)}H{_WIDTH}"/>'
    rate_hz = len(shown) / max(1, region.neurons) / ((raster.stop_ms - raster.start_ms) / 1000)
    about = f"{plural(region.neurons, 'neuron')} · {rate(rate_hz)}"
    return (
        f'<div class="band-name {colour}" title="{words(region.name)}: {words(about)}, {plural(len(shown), "spike")}">'
        f"<b>{words(clipped(region.name, 32))}</b> <span>{about}</span></div>"
        f'<svg class="band {colour}" style="height:{height_px}px" viewBox="0 0 {_WIDTH} {height}" '
        f'preserveAspectRatio="none">{lines}{border}'
        f'<path class="spikes" d="{_ticks(x[~inhibitory], y[~inhibitory], tick)}"/>'
        + (
            f'<path class="spikes inhibitory" d="{_ticks(x[inhibitory], y[inhibitory], tick)}"/>'
            if border or inhibitory.any()
            else ""
        )
        + "</svg>"
    )


def _ticks(x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], tick: int) -> str:
    return "".join([f"M{a} {b}v{tick}" for a, b in zip(x.tolist(), y.tolist(), strict=True)])


def _shown(region: RasterRegion, raster: Raster) -> npt.NDArray[np.int64]:
    """Return the indices of the spikes to show, sorted by time, so that thinning takes them evenly."""
    within = np.flatnonzero(_within(region, raster))
    return within[np.lexsort((region.ids[within], region.times_ms[within]))]


def _within(region: RasterRegion, raster: Raster) -> npt.NDArray[np.bool_]:
    return (region.times_ms >= raster.start_ms) & (region.times_ms < raster.stop_ms)


def _count_to_draw(many: int, spikes: int) -> int:
    """Return the number of a region's spikes to draw, in proportion, if there are `spikes` in total."""
    return many if spikes <= MAX_SPIKES else many * MAX_SPIKES // spikes
