"""Check the first code block of every page: it is executed, as it stands, and prints something.

It may be a cell of a notebook, a `shell` block, or `file` blocks that a `shell` block follows. A page that begins with
other code, or with code that prints nothing, gives a warning. Decisions, generated pages and raw measurements are
exempt.

`first-blocks.txt` beside the site lists the pages, the slowest first, with the seconds that the first block took when
it was run last, and the processor time of all its processes. For a notebook these are the seconds of all its cells,
because no others are known. They depend on the machine and on what else it does, so no page fails for them; the goal is
five seconds on an idle machine once everything is compiled. (Importing torch and making an optimizer of torch take
about 2.5 s of processor time in each rank.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

EXEMPT = ("decisions/", "gallery/", "reference/generated/", "explanation/measurements-", "benchmarks-", "changelog")
GOAL_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    kind: str  # "cell", "file", "shell" or "other"
    prints: bool = False
    seconds: float | None = None
    cpu_s: float | None = None
    line: int | None = None


def blocks(doctree: nodes.document) -> Iterator[Block]:
    """Yield the code blocks of a page in their order."""
    inside: set[nodes.Node] = set()  # parts of a cell or a file
    for node in doctree.findall(nodes.Element):
        if node in inside:
            continue
        if node.get("nb_element") == "cell_code":
            inside.update(node.findall(nodes.Element))
            prints = any(part.get("nb_element") == "cell_code_output" for part in node.findall(nodes.container))
            yield Block("cell", prints, line=node.line)
        elif program := node.get("program"):
            inside.update(node.findall(nodes.Element))
            if program != "output":
                yield Block(program, node.get("prints", False), node.get("seconds"), node.get("cpu_s"), node.line)
        elif isinstance(node, nodes.literal_block | nodes.doctest_block):
            yield Block("other", line=node.line)


def first_that_runs(found: Iterable[Block]) -> Block | None:
    """Return the first block that is not a file, which the files before it belong to."""
    return next((block for block in found if block.kind != "file"), None)


def fault(found: Sequence[Block]) -> str:
    """Return what is wrong with the first block of a page; "" if nothing is, or the page has no code."""
    if not found:
        return ""
    block = first_that_runs(found)
    if block is None or (found[0].kind == "file" and block.kind == "cell"):
        return "no shell block runs the first file"
    if block.kind == "other":
        return "the first code block is not executed: use code-cell, shell, or file and then shell"
    return "" if block.prints else "the first code block prints nothing"


def _check(app: Sphinx, doctree: nodes.document) -> None:
    docname = app.env.docname
    if docname.startswith(EXEMPT):
        return
    found = list(blocks(doctree))
    block = first_that_runs(found)
    if text := fault(found):
        line = f":{found[0].line}" if found[0].line else ""
        logger.warning(text, location=f"{app.env.doc2path(docname)}{line}", type="first_block")
    elif block is not None:
        _kept(app.env)[docname] = block


def _kept(env: BuildEnvironment) -> dict[str, Block]:
    if not hasattr(env, "first_blocks"):
        env.first_blocks = {}  # type: ignore[attr-defined]
    kept: dict[str, Block] = env.first_blocks  # type: ignore[attr-defined]
    return kept


def _forget(_app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _kept(env).pop(docname, None)


def _merge(_app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    _kept(env).update({name: block for name, block in _kept(other).items() if name in docnames})


def _seconds(env: BuildEnvironment, docname: str, block: Block) -> float | None:
    if block.kind != "cell":
        return block.seconds
    executed = getattr(env, "nb_metadata", {}).get(docname, {}).get("exec_data") or {}
    return executed.get("runtime")


def _list(app: Sphinx, error: Exception | None) -> None:
    if error is not None:
        return
    rows = [(_seconds(app.env, name, block) or 0.0, name, block) for name, block in _kept(app.env).items()]
    rows.sort(key=lambda row: (-row[0], row[1]))
    slow = [name for seconds, name, block in rows if block.kind == "shell" and seconds > GOAL_S]
    logger.info("first blocks of %d pages ran; longer than %g s: %s", len(rows), GOAL_S, ", ".join(slow) or "none")
    kinds = {"cell": "all cells"}
    cpu = {name: "" if block.cpu_s is None else f"{block.cpu_s:.1f} s CPU" for _, name, block in rows}
    lines = [
        f"{seconds:7.1f} s  {cpu[name]:>10}  {kinds.get(block.kind, block.kind):9}  {name}\n"
        for seconds, name, block in rows
    ]
    (Path(app.outdir).parent / "first-blocks.txt").write_text("".join(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _check)
    app.connect("env-purge-doc", _forget)
    app.connect("env-merge-info", _merge)
    app.connect("build-finished", _list)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
