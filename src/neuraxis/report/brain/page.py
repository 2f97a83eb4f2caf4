"""The HTML page of a report: one file, without network access or script, for light and dark mode."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from neuraxis.errors import InvalidArgument
from neuraxis.report.brain.curve import describe_curve, draw_curve
from neuraxis.report.brain.graph import describe_graph, draw_graph
from neuraxis.report.brain.load import describe_load, draw_load
from neuraxis.report.brain.markup import Colours, count, percent, plural, words
from neuraxis.report.brain.model import BrainReport
from neuraxis.report.brain.raster import describe_raster, draw_raster
from neuraxis.store import replacing

__all__ = ["render_report", "write_report"]

_MAIN_FACTS = ("neurons", "synapses", "real-time factor")


def write_report(report: BrainReport, path: Path) -> None:
    """Write the page to a file, atomically.

    Raises
    ------
    InvalidArgument
        The folder does not exist, or the file cannot be written there.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(f"path is {str(path)!r}: the folder {str(path.absolute().parent)!r} does not exist")
    page = render_report(report)
    try:
        with replacing(path) as new:
            new.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"path is {str(path)!r}: it cannot be written ({error.strerror})") from error


def render_report(report: BrainReport) -> str:
    """Return the page as HTML that is also well-formed XML."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    colours = Colours(
        [node.name for node in report.graph.nodes]
        + [region.name for region in report.raster.regions]
        + [name for load in report.workers for name, _ in load.by_region]
    )
    sections = "\n".join(
        _section(name, title, caption, drawing)
        for name, title, caption, drawing in (
            ("learning", "Learning", describe_curve(report.curve), draw_curve(report.curve)),
            ("trial", "One trial, spike by spike", describe_raster(report.raster), draw_raster(report.raster, colours)),
            ("brain", "Regions and pathways", describe_graph(report.graph), draw_graph(report.graph, colours)),
            ("workers", "Load of the workers", describe_load(report.workers), draw_load(report.workers, colours)),
        )
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{words(report.title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{words(report.title)}</h1>
<p class="subtitle">{words(report.subtitle)}</p>
{_figures(report)}
</header>
<main>
{sections}
{_facts(report)}
</main>
<footer><p>Written by <code>neuraxis demo</code>.</p></footer>
</body>
</html>
"""


def _section(name: str, title: str, caption: str, drawing: str) -> str:
    return f"""<section id="{name}" aria-labelledby="{name}-heading">
<h2 id="{name}-heading">{title}</h2>
<figure><figcaption>{words(caption)}</figcaption>
{drawing}
</figure>
</section>"""


def _figures(report: BrainReport) -> str:
    """Return the key figures: accuracy, and the main facts that are short."""
    curve = report.curve
    figures: list[tuple[str, str]] = []
    if curve.correct:
        last = min(curve.window, len(curve.correct))
        figures.append((percent(float(curve.accuracy()[-1])), f"right, last {plural(last, 'trial')}"))
        if curve.target is not None:
            reached = curve.reached_at()
            trials = "not yet" if reached is None else count(reached + 1)
            figures.append((trials, f"trials until {percent(curve.target)} right"))
    figures += [(value, name) for name, value in report.facts if name in _MAIN_FACTS and len(value) <= 12]
    figures.append((count(len(report.graph.edges)), "pathway" if len(report.graph.edges) == 1 else "pathways"))
    figures.append((count(len(report.workers)), "worker" if len(report.workers) == 1 else "workers"))
    tiles = "".join(f"<div><dd>{words(value)}</dd><dt>{words(name)}</dt></div>" for value, name in figures)
    return f'<dl class="figures">{tiles}</dl>'


def _facts(report: BrainReport) -> str:
    if not report.facts:
        return ""
    rows = "".join(f"<div><dt>{words(name)}</dt><dd>{words(value)}</dd></div>" for name, value in report.facts)
    return f"""<section id="facts" aria-labelledby="facts-heading">
<h2 id="facts-heading">What ran</h2>
<dl class="facts">{rows}</dl>
</section>"""
