"""The gallery: a page for each example, with the output of a run, its picture and its code.

`gallery/catalogue.toml` lists the examples. Before Sphinx reads its pages, this extension runs each of them as the
catalogue says, two at a time, and writes `gallery/generated/NAME.md`, which Git ignores. Outputs are kept in
`_build/examples` with a digest of the command and of all sources: a second build runs only what has changed, and
`tests/test_examples.py` can check the outputs of the build instead of running every example again.

An example that fails, or that does not print what the catalogue expects, fails the build. One that needs hardware which
is missing shows the output in `gallery/recorded`, and says so.

    ```{gallery} Spiking networks
    ```

is a grid of cards, one for each example of a section.
"""

from __future__ import annotations

import ast
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

from example_runs import ROOT, Example, ExampleFailed, Outcome, catalogue, excerpt, obtain, picture_name, terminal

logger = logging.getLogger(__name__)
LONGEST = 40  # lines of an output on a page


def write_pages(app: Sphinx) -> None:
    """Run the examples and write their pages."""
    folder, pages = Path(app.srcdir) / "gallery", Path(app.srcdir) / "gallery" / "generated"
    store = Path(app.outdir).parent / "examples"
    examples = catalogue()
    outcomes: dict[str, Outcome] = {}
    here = [example for example in examples.values() if example.runs_here]
    try:
        with ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda one: obtain(one, store), here)
            outcomes |= {example.name: outcome for example, outcome in zip(here, done, strict=True)}
    except ExampleFailed as error:
        raise ExtensionError(str(error)) from None
    longest = sorted(outcomes.items(), key=lambda item: -item[1].seconds)
    logger.info("gallery: %d examples, %.0f s", len(outcomes), sum(one.seconds for one in outcomes.values()))
    logger.info("gallery: longest %s", ", ".join(f"{name} {one.seconds:.1f} s" for name, one in longest[:8]))
    pages.mkdir(exist_ok=True)
    for example in examples.values():
        if example.recorded:
            picture = (folder / "recorded" / example.recorded).read_bytes()
        elif example.name in outcomes:
            picture = (store / picture_name(example)).read_bytes()
        else:
            picture = terminal(example.command, recording(example, folder)).encode()
        _write(pages / picture_name(example), picture)
        _write(pages / f"{example.name}.md", page(example, outcomes.get(example.name), folder).encode())


def page(example: Example, outcome: Outcome | None, folder: Path) -> str:
    """Return the text of an example's page."""
    source = example.program.read_text()
    module = ast.parse(source)
    program = example.program.relative_to(ROOT).as_posix()
    blocks = [f"# {example.title}", *paragraphs(ast.get_docstring(module) or "", example.command)]
    if outcome is None:
        shown = recording(example, folder)
        text = f"This example needs a {example.needs}: the build of this site did not run it."
        if shown:
            text += " The output below was recorded on a machine that has one."
        blocks.append(f":::{{note}}\n{text}\n:::")
    else:
        shown = "\n".join(excerpt(outcome.output, LONGEST, example.prints))
    blocks += ["## Run it", f"```{{code-block}} bash\n{example.command}\n```"]
    if shown:
        blocks.append(f"````{{code-block}} text\n:class: program-output\n\n{shown}\n````")
    if example.recorded:
        blocks.append(f"`{example.recorded_by}` drew this picture; the build of this site did not repeat that run.")
    if example.picture or example.recorded:
        blocks.append(f"```{{image}} {picture_name(example)}\n:alt: {example.title}\n```")
    first = module.body[1].lineno
    blocks.append("## Code")
    blocks.append(f"```{{literalinclude}} ../../../{program}\n:language: python\n:lines: {first}-\n```")
    links = f"{{download}}`Download {example.program.name} <../../../{program}>`"
    if example.program.parent.name == example.name:
        links += f". The other files of this example are in `examples/{example.name}`; its `README.md` describes them."
    return "\n\n".join([*blocks, links]) + "\n"


def recording(example: Example, folder: Path) -> str:
    """Return the output that was recorded on a machine with the hardware that an example needs, if there is one."""
    path = folder / "recorded" / f"{example.name}.txt"
    return path.read_text().rstrip() if path.exists() else ""


def paragraphs(docstring: str, command: str) -> list[str]:
    """Return the blocks of a docstring, those with commands as code; one that only has the command is left out."""
    blocks = []
    for block in docstring.split("\n\n"):
        text = textwrap.dedent(block).strip("\n")
        if not text.startswith(("python ", "neuraxis ", "make ")):
            blocks.append(text)
        elif not command.startswith(text.partition(" [")[0]):
            blocks.append(f"```{{code-block}} bash\n{text}\n```")
    return blocks


class Gallery(Directive):
    """Show a card for each example of a section."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        cards = [
            f":::{{grid-item-card}} {example.title}\n:link: generated/{example.name}\n:link-type: doc\n"
            f":img-top: generated/{picture_name(example)}\n:img-alt: {example.title}\n:class-card: example-card\n\n"
            f"{summary(example)}\n:::"
            for example in catalogue().values()
            if example.section == self.arguments[0]
        ]
        if not cards:
            raise self.error(f"the catalogue has no section {self.arguments[0]!r}")
        text = "\n".join(["::::{grid} 1 2 2 2", ":gutter: 3", "", *cards, "::::"])
        parent = nodes.container()
        self.state.nested_parse(text.splitlines(), self.content_offset, parent)
        return parent.children


def summary(example: Example) -> str:
    """Return the first sentence of an example's docstring."""
    text = ast.get_docstring(ast.parse(example.program.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _write(path: Path, content: bytes) -> None:
    """Write a file, unless it has the content: Sphinx reads again what is newer."""
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("gallery", Gallery)
    app.connect("builder-inited", write_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
