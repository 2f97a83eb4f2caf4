"""The HTML page of a run: a drawing of each pattern with code and caption. It needs no network and no script."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from neuraxis.report.patterns.diagram import GOAL_PIN, draw_diagram, draw_timeline, rank_class
from neuraxis.report.patterns.model import PatternReport, PatternRun, pieces, sources
from neuraxis.report.patterns.text import shown_places

__all__ = ["render_page"]

_WIDE = 24  # number of values in a row from which on a drawing takes the whole width of the page


def render_page(report: PatternReport) -> str:
    """Return the page as HTML."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    ranks = "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"
    wide = report.world_size * len(shown_places(report.dim)) > _WIDE
    entries = "".join(f'<li><a href="#{run.name}">{escape(run.title)}</a></li>' for run in report.runs)
    sections = "\n".join(_section(number, run) for number, run in enumerate(report.runs, start=1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Communication patterns on {ranks}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>Communication patterns on {ranks}</h1>
<p>How cooperating processes exchange data. Each drawing shows the values that the ranks really held: above before the
call, below after it.</p>
<p class="facts">backend {escape(report.backend)} · {ranks} · tensors of {report.dim} {escape(report.dtype)} ·
host {escape(report.host)}</p>
{_KEY}
<nav aria-label="Patterns"><ol>{entries}</ol></nav>
</header>
<main{' class="wide"' if wide else ""}>
{sections}
</main>
<footer>{_check_result(report)}
<p>Drawn by <code>neuraxis patterns --html</code>; <code>dist</code> is <code>neuraxis.distributed</code>.</p></footer>
</body>
</html>
"""


_KEY = f"""<ul class="key" aria-label="How to read the drawings">
<li><svg viewBox="0 0 14 14" aria-hidden="true"><circle class="badge r0" cx="7" cy="7" r="6"/>\
<text class="badge-word r0" x="7" y="10.4" text-anchor="middle">0</text></svg>came from rank 0</li>
<li><svg viewBox="-1 0 14 19" aria-hidden="true"><path class="goal r1" d="{GOAL_PIN}"/>\
<text class="goal-word r1" x="6" y="11" text-anchor="middle">1</text></svg>goes to rank 1</li>
<li><svg viewBox="0 0 24 14" aria-hidden="true"><path class="line r0" d="M1 7H18"/>\
<path class="head r0" d="M17 3.8V10.2L22.5 7Z"/></svg>moved</li>
<li><svg viewBox="0 0 20 16" aria-hidden="true"><rect class="cell sum" x="1" y="1" width="18" height="11"/>\
<rect class="strip r0" x="1" y="12" width="6" height="3"/><rect class="strip r1" x="7" y="12" width="6" height="3"/>\
<rect class="strip r2" x="13" y="12" width="6" height="3"/></svg>Σ a sum, with the ranks whose values it contains</li>
<li><svg viewBox="0 0 20 14" aria-hidden="true"><rect class="box changed" x="1" y="1" width="18" height="12" rx="3"/>\
</svg>changed by the call</li>
</ul>"""


def _section(number: int, run: PatternRun) -> str:
    drawing = draw_timeline(run) if run.name == "barrier" else draw_diagram(run)
    return f"""<section id="{run.name}" aria-labelledby="{run.name}-heading">
<h2 id="{run.name}-heading">{number}. {escape(run.title)}</h2>
<figure><figcaption>{escape(run.caption)}</figcaption>
{drawing}</figure>
{_sums(run)}<pre><code>{escape(run.call)}</code></pre>
<p class="use"><b>When:</b> {escape(run.use)}</p>
</section>"""


def _sums(run: PatternRun) -> str:
    """Return each sum with its terms, in the colours of the ranks that they came from."""
    if not run.reduces or len(sources(run, 0, 0)) == 1:
        return ""
    alike = len({tuple(pieces(view.after)[0]) for view in run.ranks}) == 1
    summed = [view.rank for view in run.ranks if len(sources(run, view.rank, 0)) > 1]
    if alike or len(summed) <= 1:
        intro = "The terms of the sums" + (", the same on every rank:" if len(summed) > 1 else " on rank 0:")
        places = [place for place in shown_places(len(pieces(run.ranks[0].after)[0])) if place is not None]
        lines = [_sum(run, 0, place, f"place {place}") for place in places]
    else:
        intro = "The terms of the first sum on each rank:"
        lines = [_sum(run, rank, 0, f"rank {rank}") for rank in summed]
    return f'<p class="made">{intro}</p><ul class="sums">{"".join(lines)}</ul>\n'


def _sum(run: PatternRun, rank: int, place: int, where: str) -> str:
    terms = [
        f'<span class="{rank_class(move.from_rank)}" title="from rank {move.from_rank}">'
        f"{pieces(run.ranks[move.from_rank].before)[move.from_slot][place]}</span>"
        for move in sources(run, rank, 0)
    ]
    total = pieces(run.ranks[rank].after)[0][place]
    return f'<li><span class="where">{where}:</span> {" + ".join(terms)} = <b>{total}</b></li>'


def _check_result(report: PatternReport) -> str:
    if not report.problems:
        return f"<p>All {len(report.runs)} agree with their definitions on every rank.</p>"
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems)
    return f'<div class="wrong"><p>Some results differ from their definitions:</p><ul>{problems}</ul></div>'
