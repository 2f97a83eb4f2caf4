"""The load of each worker as a stacked bar, with its spikes and memory."""

from __future__ import annotations

from neuraxis.report.brain.markup import Colours, clipped, count, memory, percent, plain, plural, words
from neuraxis.report.brain.model import WorkerLoad

__all__ = ["describe_load", "draw_load"]

_NAMED_FROM = 0.16  # least share of a bar with room for a name
_MAX_CHARACTERS = 32  # of the name of a region
_SMALLEST_SHARE = 5e-4  # smaller shares are not drawn


def describe_load(workers: tuple[WorkerLoad, ...]) -> str:
    """Return a caption of the figure."""
    if not workers:
        return "Everything ran in one process: there were no workers."
    mean = sum(load.busy for load in workers) / len(workers)
    text = f"{plural(len(workers), 'worker')}, busy for {percent(mean)} of the time" + (
        " on average." if len(workers) > 1 else "."
    )
    if len(workers) > 1:
        waiting = max(workers, key=lambda load: load.waiting)
        text += f" Worker {waiting.worker} waits most, {percent(waiting.waiting)} of the time."
    return text


def draw_load(workers: tuple[WorkerLoad, ...], colours: Colours) -> str:
    """Return the figure as HTML, with a row for each worker."""
    if not workers:
        return '<p class="empty">No workers.</p>'
    return f'<div class="loads">{"".join(_row(load, colours) for load in workers)}</div>\n{_key(workers, colours)}'


def _row(load: WorkerLoad, colours: Colours) -> str:
    # The shares are measured separately and may add up to slightly more than 1.
    whole = max(1.0, load.busy + load.waiting)
    by_region = sum(share for _, share in load.by_region)
    fitting = min(1.0, load.busy / by_region) if by_region else 1.0
    parts = [(name, share * fitting, f"region {colours[name]}") for name, share in load.by_region]
    parts.append(("exchange and other work", load.busy - by_region * fitting, "other"))
    parts.append(("waiting", load.waiting, "waiting"))
    bar = "".join(
        f'<span class="part {klass}" style="width:{plain(100 * share / whole, 3)}%" '
        f'title="{words(name)}: {percent(share)}">{words(name) if share / whole >= _NAMED_FROM else ""}</span>'
        for name, share, klass in parts
        if share > _SMALLEST_SHARE
    )
    text = ", ".join(f"{name} {percent(share)}" for name, share, _ in parts if share > _SMALLEST_SHARE)
    regions = ", ".join(load.regions) or "no region"
    shown = ", ".join(clipped(name, _MAX_CHARACTERS) for name in load.regions) or regions
    return f"""<div class="load">
<div class="load-name"><b>Worker {load.worker}</b> <span title="{words(regions)}">{words(shown)}</span></div>
<div class="bar" role="img" aria-label="{words(text)}">{bar}</div>
<dl class="load-numbers">
<div><dt>busy</dt><dd>{percent(load.busy)}</dd></div>
<div><dt>spikes out</dt><dd>{count(load.spikes_out)}</dd></div>
<div><dt>spikes in</dt><dd>{count(load.spikes_in)}</dd></div>
<div><dt>memory</dt><dd>{memory(load.memory_bytes)}</dd></div>
</dl>
</div>"""


def _key(workers: tuple[WorkerLoad, ...], colours: Colours) -> str:
    regions = sorted({name for load in workers for name, _ in load.by_region}, key=colours.place)
    entries = [
        f'<li><i class="chip {colours[name]}"></i>{words(clipped(name, _MAX_CHARACTERS))}</li>' for name in regions
    ]
    entries.append('<li><i class="chip other"></i>exchange and other work</li>')
    entries.append('<li><i class="chip waiting"></i>waiting for others</li>')
    if any(load.busy + load.waiting < 1 - _SMALLEST_SHARE for load in workers):
        entries.append('<li><i class="chip rest"></i>neither</li>')
    return f'<ul class="key">{"".join(entries)}</ul>'
