"""Offer every notebook page as a Jupyter notebook: `page.ipynb` beside `page.html`, and a link to it below the title.

A page is written in MyST Markdown, which Jupyter shows as plain Markdown. So the text is converted: an admonition
becomes a quotation, a role its text or its figure, and a link to another page a link to the site (`html_baseurl`), or
its text where the address of the site is unknown. A link without text gets the title of its page. Pages with the
directives `shell` and `file` have no notebook, because Jupyter could not run them.

Outputs of cells show no paths of the machine that built the site.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from posixpath import normpath
from types import MappingProxyType
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from sphinx.application import Sphinx

from example_runs import without_paths
from measurements import ROLES

_CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1`*~*[ ]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_ADMONITION = re.compile(r"^(:{3,}|`{3,})\{(\w+)\}[ ]*(.*?)\n(.*?)^\1[ ]*$", re.DOTALL | re.MULTILINE)
_TITLES = {"note", "tip", "hint", "important", "warning", "caution", "attention", "danger", "error"}
_ROLE = re.compile(r"\{[\w:+-]+\}`([^`]+?)(?:\s*<[^`>]+>)?`")
_FIGURE = re.compile(rf"\{{({'|'.join(ROLES)})\}}`([^`]+)`")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_COMMENT = re.compile(r"^%.*\n?|^\([\w-]+\)=\n", re.MULTILINE)
_SHELL = re.compile(r"^`{3,}\{(shell|file)\}", re.MULTILINE)


def has_notebook(text: str) -> bool:
    """Return True if a page is a notebook that Jupyter can run."""
    return is_myst_markdown_notebook(text) and not _SHELL.search(text)


def to_notebook(
    text: str, docname: str = "", site: str = "", titles: Mapping[str, str] = MappingProxyType({})
) -> nbformat.NotebookNode:
    """Return the notebook of a page, without outputs.

    Parameters
    ----------
    text : str
        The page in MyST Markdown.
    docname : str
        Path of the page on the site, which its links are relative to.
    site : str
        Address of the site; "" if it is not known.
    titles : mapping of str to str
        Titles of the pages of the site, by their paths.
    """
    notebook = read_myst_markdown_notebook(text, add_source_map=False)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # not a random one: the same page gives the same file
        if cell.cell_type == "markdown":
            cell.source = to_markdown(cell.source, docname, site, titles)
    notebook.nbformat_minor = max(notebook.nbformat_minor, 5)  # the first version with ids
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
    nbformat.validate(notebook)
    return notebook


def to_markdown(text: str, docname: str = "", site: str = "", titles: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return MyST Markdown as the Markdown that Jupyter shows."""
    text = _ADMONITION.sub(_quotation, text)
    parts, at = [], 0
    for code in _CODE.finditer(text):
        if text[: code.start()].endswith("}"):  # the text of a role
            continue
        parts += [_prose(text[at : code.start()], docname, site, titles), code.group()]
        at = code.end()
    return "".join([*parts, _prose(text[at:], docname, site, titles)])


def _prose(text: str, docname: str, site: str, titles: Mapping[str, str]) -> str:
    text = _FIGURE.sub(lambda role: ROLES[role[1]](role[2]), _COMMENT.sub("", text))
    text = _ROLE.sub(r"\1", text)
    return _LINK.sub(lambda link: _link(link[1], link[2], docname, site, titles), text)


def _link(words: str, target: str, docname: str, site: str, titles: Mapping[str, str]) -> str:
    if re.match(r"[a-z]+:|#", target):
        return f"[{words}]({target})"
    page, _, anchor = target.partition("#")
    path = normpath(PurePosixPath(docname).parent / page).removesuffix(".md")
    words = words or titles.get(path, PurePosixPath(path).name)
    if not site or not page.endswith(".md"):
        return words
    return f"[{words}]({site.rstrip('/')}/{path}.html{'#' * bool(anchor)}{anchor})"


def _quotation(found: re.Match[str]) -> str:
    _, name, argument, body = found.groups()
    if name in _TITLES:
        title, body = name.capitalize(), "\n".join(part for part in (argument, body) if part)
    elif name in ("admonition", "dropdown"):
        title = argument
    else:
        return found.group()
    body = re.sub(r"\A(:[\w-]+:.*\n)+", "", body).strip()
    return "\n".join(f"> {line}".rstrip() for line in [f"**{title}**", "", *body.splitlines()])


def _hide_paths(_app: Sphinx, doctree: nodes.document) -> None:
    for kind in (nodes.literal_block, nodes.raw):
        for block in list(doctree.findall(kind)):
            text = block.astext()
            if (shown := without_paths(text)) != text:
                block.rawsource, block.children = shown, []
                block += nodes.Text(shown)


def _add_link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    if app.builder.name != "html" or not has_notebook(_source(app, docname)):
        return
    name = PurePosixPath(docname).name
    html = (
        f'<p class="notebook-download"><a class="sd-btn sd-btn-sm sd-btn-outline-primary" href="{name}.ipynb" '
        f"download>Download as notebook</a></p>"
    )
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is not None:
        title.parent.insert(title.parent.index(title) + 1, nodes.raw("", html, format="html"))


def _write_files(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    titles = {docname: title.astext() for docname, title in app.env.titles.items()}
    for docname in sorted(app.env.found_docs):
        text = _source(app, docname)
        if has_notebook(text):
            target = Path(app.outdir) / f"{docname}.ipynb"
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(to_notebook(text, docname, app.config.html_baseurl, titles), target)


def _source(app: Sphinx, docname: str) -> str:
    return Path(app.env.doc2path(docname)).read_text(encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _hide_paths)
    app.connect("doctree-resolved", _add_link)
    app.connect("build-finished", _write_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
