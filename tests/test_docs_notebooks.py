"""The .ipynb files of the documentation: Jupyter can show and run them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("myst_nb")
ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
try:
    from notebook_files import has_notebook, to_markdown, to_notebook
finally:
    sys.path.pop(0)

HEADER = """---
file_format: mystnb
kernelspec: {name: python3, display_name: Python 3}
---
"""
PAGE = f"""{HEADER}
# Numbers

See [the rest](../engine.md#compiling) and [Zenoh](https://zenoh.io).

```{{code-cell}}
print(6 * 7)
```

:::{{note}}
Two lines
of `[text](page.md)`.
:::
"""


def test_markdown_of_a_page() -> None:
    cases = {
        "[a](../b.md#c)": "a",
        "[a](https://b.c/d.md)": "[a](https://b.c/d.md)",
        "![a](b.png)": "![a](b.png)",
        "see {doc}`that page <b>` and {term}`rank`": "see that page and rank",
        "`{doc}` and `[a](b.md)`": "`{doc}` and `[a](b.md)`",
        "```text\n[a](b.md)\n```": "```text\n[a](b.md)\n```",
        "% a comment\ntext": "text",
        "(label)=\n# Title": "# Title",
        ":::{admonition} Title\n:class: tip\nA [link](b.md).\n:::": "> **Title**\n>\n> A link.",
    }
    for myst, markdown in cases.items():
        assert to_markdown(myst) == markdown
    site = "https://example.org/docs/"
    assert to_markdown("[a](../b.md#c)", "x/page", site) == "[a](https://example.org/docs/b.html#c)"
    assert to_markdown("[a](b.md)", "x/page", site) == "[a](https://example.org/docs/x/b.html)"
    assert to_markdown("[](b.md)", "x/page", site, {"x/b": "A title"}) == "[A title](https://example.org/docs/x/b.html)"
    assert to_markdown("[](b.md)", "x/page") == "b"


def test_figures_of_a_page() -> None:
    name = "collectives-16-cores-2-ranks.json"
    text = to_markdown(f"{{measured}}`{name}; all_reduce; 4 B; shm µs` µs on {{measured-on}}`{name}`")
    assert re.fullmatch(r"[\d.]+ µs on 16 cores, \d+ \w+ 20\d\d", text)


def test_notebook_of_a_page() -> None:
    notebook = to_notebook(PAGE)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "markdown"]
    assert "See the rest and [Zenoh](https://zenoh.io)." in notebook.cells[0].source
    assert notebook.cells[1].source == "print(6 * 7)"
    assert notebook.cells[2].source == "> **Note**\n>\n> Two lines\n> of `[text](page.md)`."
    assert nbformat.writes(notebook) == nbformat.writes(to_notebook(PAGE))


def test_pages_without_a_notebook() -> None:
    assert has_notebook(PAGE)
    assert not has_notebook("# Title\n\n```{code-cell}\n1\n```\n")  # no header: not executed
    assert not has_notebook(f"{PAGE}\n```{{shell}}\nneuraxis --version\n```\n")


def test_every_tutorial_is_a_notebook() -> None:
    pages = sorted((ROOT / "docs" / "tutorials").glob("[0-9]*.md"))
    assert len(pages) >= 8
    for page in pages:
        notebook = to_notebook(page.read_text(encoding="utf-8"))
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert "](../" not in text
        assert ":::" not in text
        assert "## What you made" in text
        assert "## Next" in text


def test_build_writes_and_links_the_file(tmp_path: Path) -> None:
    sphinx = pytest.importorskip("sphinx.application")
    source = tmp_path / "docs"
    (source / "tutorials").mkdir(parents=True)
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs' / '_ext')!r})\n"
        "extensions = ['myst_nb', 'notebook_files']\nnb_execution_mode = 'off'\n"
        "html_baseurl = 'https://example.org/'\n"
    )
    (source / "index.md").write_text("# Start\n\n```{toctree}\ntutorials/numbers\nengine\n```\n")
    (source / "engine.md").write_text(f"# Engine\n\n## Compiling\n\n```text\nin {ROOT}/src\n```\n")
    (source / "tutorials" / "numbers.md").write_text(PAGE)
    out = tmp_path / "html"
    app = sphinx.Sphinx(source, source, out, tmp_path / "trees", "html", status=None, warning=None)
    app.build()
    assert 'href="numbers.ipynb"' in (out / "tutorials" / "numbers.html").read_text()
    engine = (out / "engine.html").read_text()
    assert "ipynb" not in engine
    assert "in neuraxis/src" in engine
    assert str(ROOT) not in engine
    notebook = nbformat.read(out / "tutorials" / "numbers.ipynb", as_version=4)
    assert "https://example.org/engine.html#compiling" in notebook.cells[0].source
    assert not (out / "engine.ipynb").exists()
