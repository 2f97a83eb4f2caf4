"""What each worker did with its time, as stacked bars, with its messages and its memory."""

from __future__ import annotations

from neuraxis.observe.brain_report.markup import Colours, clipped, count, memory, percent, plain, plural, words
from neuraxis.observe.brain_report.model import WorkerLoad

__all__ = ["describe_load", "draw_load"]

_NAMED_FROM = 0.16  # the share of a bar from which a part has room for its name
_LETTERS = 32  # of a region's name at most
_UNSEEN = 5e-4  # parts below this share are not drawn


def describe_load(workers: tuple[WorkerLoad, ...]) -> str:
    """The load in a sentence or two."""
    if not workers:
        return "Everything ran in one process: there were no workers."
    mean = sum(load.busy for load in workers) / len(workers)
    told = f"{plural(len(workers), 'worker')}, busy for {percent(mean)} of the time" + (
        " on average." if len(workers) > 1 else "."
    )
    if len(workers) > 1:
        waiting = max(workers, key=lambda load: load.waiting)
        told += f" Worker {waiting.worker} waits most, {percent(waiting.waiting)} of the time."
    return told


def draw_load(workers: tuple[WorkerLoad, ...], colours: Colours) -> str:
    """The figure, as HTML: a row for each worker."""
    if not workers:
        return '<p class="empty">No workers.</p>'
    return f'<div class="loads">{"".join(_row(load, colours) for load in workers)}</div>\n{_key(workers, colours)}'


def _row(load: WorkerLoad, colours: Colours) -> str:
    # Shares that are measured apart may come to a little more than the whole.
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
        if share > _UNSEEN
    )
    told = ", ".join(f"{name} {percent(share)}" for name, share, _ in parts if share > _UNSEEN)
    regions = ", ".join(load.regions) or "no region"
    shown = ", ".join(clipped(name, _LETTERS) for name in load.regions) or regions
    return f"""<div class="load">
<div class="load-name"><b>Worker {load.worker}</b> <span title="{words(regions)}">{words(shown)}</span></div>
<div class="bar" role="img" aria-label="{words(told)}">{bar}</div>
<dl class="load-numbers">
<div><dt>busy</dt><dd>{percent(load.busy)}</dd></div>
<div><dt>spikes out</dt><dd>{count(load.spikes_out)}</dd></div>
<div><dt>spikes in</dt><dd>{count(load.spikes_in)}</dd></div>
<div><dt>memory</dt><dd>{memory(load.memory_bytes)}</dd></div>
</dl>
</div>"""


def _key(workers: tuple[WorkerLoad, ...], colours: Colours) -> str:
    regions = sorted({name for load in workers for name, _ in load.by_region}, key=colours.place)
    entries = [f'<li><i class="chip {colours[name]}"></i>{words(clipped(name, _LETTERS))}</li>' for name in regions]
    entries.append('<li><i class="chip other"></i>exchange and other work</li>')
    entries.append('<li><i class="chip waiting"></i>waiting for others</li>')
    if any(load.busy + load.waiting < 1 - _UNSEEN for load in workers):
        entries.append('<li><i class="chip rest"></i>neither</li>')
    return f'<ul class="key">{"".join(entries)}</ul>'
