"""One trial's spikes: a band for each region, a tick for each spike, and marks at what happened."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from neuraxis.observe.brain_report.marks import draw_axis, draw_flags
from neuraxis.observe.brain_report.markup import Colours, clipped, count, number, plain, plural, rate, ticks, words
from neuraxis.observe.brain_report.model import Raster, RasterRegion

__all__ = ["MOST_SPIKES", "describe_raster", "draw_raster"]

MOST_SPIKES = 100_000  # more make a page slow and black; beyond, they are thinned out and the caption says so

_WIDTH = 4000  # of a band in its own units: four to a pixel on a wide screen
_UNITS = 4  # a pixel's height in a band's units
_HEIGHT_PX = 430.0  # that the bands share, by the roots of their neurons
_LEAST_PX, _MOST_PX = 40.0, 150.0


def describe_raster(raster: Raster) -> str:
    """What is drawn, in words; says so where spikes are left out."""
    counts = [int(np.count_nonzero(_within(region, raster))) for region in raster.regions]
    spikes = sum(counts)
    if not raster.regions:
        return "No region was recorded."
    neurons = plural(sum(region.neurons for region in raster.regions), "neuron")
    told = [f"{plural(spikes, 'spike')} of {neurons} in {number(raster.stop_ms - raster.start_ms)} ms."]
    if spikes > MOST_SPIKES:
        drawn = sum(_kept(many, spikes) for many in counts)
        told.append(f"Thinned out evenly: {count(drawn)} of them are drawn.")
    if any(region.inhibitory_from is not None for region in raster.regions):
        told.append("Excitatory neurons are in the region's colour, inhibitory ones below them in grey.")
    return " ".join(told)


def draw_raster(raster: Raster, colours: Colours) -> str:
    """The figure, as HTML."""
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
    heights_px = [round(min(_MOST_PX, max(_LEAST_PX, _HEIGHT_PX * root / sum(roots)))) for root in roots]
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
    keep = _kept(len(shown), spikes)
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
    """The spikes within the time shown, in the order of time, so that a choice at even distances is fair."""
    within = np.flatnonzero(_within(region, raster))
    return within[np.lexsort((region.ids[within], region.times_ms[within]))]


def _within(region: RasterRegion, raster: Raster) -> npt.NDArray[np.bool_]:
    return (region.times_ms >= raster.start_ms) & (region.times_ms < raster.stop_ms)


def _kept(many: int, spikes: int) -> int:
    """How many of a region's spikes are drawn, if there are `spikes` in all: its fair share of the most."""
    return many if spikes <= MOST_SPIKES else many * MOST_SPIKES // spikes
