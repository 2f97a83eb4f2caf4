"""The API reference: a page for each public package and name, links from backquoted names, equations as MathML.

- Before Sphinx looks for pages, `reference/generated/<package>.rst` is written for each public package, with tables of
  its names. Autosummary adds a page for each name. Packages load their names on first use, so the pages are made from
  `__all__`, not from what has been loaded.
- The role `name`, the default role of docstrings, links a backquoted name to its page if there is exactly one such
  name in reach, and shows it as code otherwise.
- Equations become MathML when the site is built. Every current browser shows it without a script, so also offline.
"""

from __future__ import annotations

import importlib
import inspect
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxRole
from sphinx.util.nodes import make_refnode

import reference_tables as tables
from neuraxis.network import NeuronModel

PACKAGES = {
    "neuraxis": "the names that most programs need",
    "neuraxis.network": "describe spiking networks",
    "neuraxis.network.models": "neuron models",
    "neuraxis.network.library": "networks from the literature",
    "neuraxis.network.arithmetic": "functions for neuron models, equal on every machine",
    "neuraxis.simulation": "run networks",
    "neuraxis.brain": "brains of regions and pathways",
    "neuraxis.brain.regions": "regions that come with neuraxis",
    "neuraxis.report": "statistics of spike trains",
    "neuraxis.comm": "collectives between ranks",
    "neuraxis.launch": "start processes",
    "neuraxis.distributed": "collectives, calls and training under the names of `torch.distributed`",
    "neuraxis.rpc": "remote calls",
    "neuraxis.mesh": "nodes that come and go",
    "neuraxis.training": "train one torch model on several ranks",
    "neuraxis.torch": "the shared-memory backend for `torch.distributed`",
    "neuraxis.cluster": "data processing on Dask",
    "neuraxis.gpu": "CUDA kernels and arrays",
    "neuraxis.errors": "every exception",
}
FACADES = ("neuraxis", "neuraxis.distributed")  # they export names that other packages define
CONSTANTS = (str, int, float, tuple, dict, timedelta, types.UnionType)  # without a docstring of their own

# --- pages of packages ------------------------------------------------------------------------------------


def home_of(package: str, name: str, value: Any) -> str:
    """Return the full name under which a public name is documented, which is not that of a facade."""
    if package in FACADES and not isinstance(value, types.ModuleType | str):
        for other in PACKAGES:
            found = importlib.import_module(other)
            if other not in FACADES and name in found.__all__ and getattr(found, name) is value:
                return f"{other}.{name}"
    return f"{package}.{name}"


def package_page(package: str) -> str:
    """Return the page of a package: its docstring, and tables of its names by kind."""
    module = importlib.import_module(package)
    tables: dict[str, list[str]] = {"Packages": [], "Classes": [], "Functions": [], "Exceptions": [], "Values": []}
    for name in sorted(module.__all__, key=str.casefold):
        tables[kind_of(getattr(module, name))].append(name)
    lines = [package, "=" * len(package), "", f".. automodule:: {package}", "   :no-members:", ""]
    lines += [f".. currentmodule:: {package}", ""]
    for title, names in tables.items():
        if not names:
            continue
        lines += [f".. rubric:: {title}", ""]
        homes = {name: home_of(package, name, getattr(module, name)) for name in names}
        plain = [name for name in names if isinstance(getattr(module, name), CONSTANTS)]
        own = [name for name in names if name in own_names(package)]
        if title == "Packages":
            lines += [f"- :doc:`{homes[name]} <{homes[name]}>`: {PACKAGES[homes[name]]}" for name in names]
        elif own:
            lines += [".. autosummary::", "   :toctree: .", "   :nosignatures:", "", *(f"   {name}" for name in own)]
        if others := [name for name in names if name not in own and name not in plain and title != "Packages"]:
            lines += ["", ".. list-table::", "   :widths: 40 60", ""]
            for name in others:
                lines += [f"   * - :py:obj:`~{homes[name]}`", f"     - {first_sentence(getattr(module, name))}"]
        for name in plain:
            lines += [f".. py:data:: {name}", f"   :value: {short_value(getattr(module, name))}", ""]
        lines.append("")
    return "\n".join(lines)


def own_names(package: str) -> list[str]:
    """Return the names of a package that have a page of their own."""
    module = importlib.import_module(package)
    values = {name: getattr(module, name) for name in module.__all__}
    return [
        name
        for name, value in values.items()
        if not isinstance(value, (*CONSTANTS, types.ModuleType))
        and home_of(package, name, value) == f"{package}.{name}"
    ]


def kind_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return "Packages"
    if inspect.isclass(value):
        return "Exceptions" if issubclass(value, BaseException) else "Classes"
    return "Functions" if inspect.isroutine(value) else "Values"


def first_sentence(value: Any) -> str:
    paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].rstrip(".") + "."


def short_value(value: Any) -> str:
    """Return a value on one line: that of a mapping without its objects."""
    return repr(list(value)) if isinstance(value, dict) else repr(value)


def write_pages(app: Sphinx, _config: Config) -> None:
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{package}.rst": package_page(package) for package in PACKAGES}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    tables.write(folder)
    named = {f"{package}.{name}.rst" for package in PACKAGES for name in own_names(package)}
    for path in folder.glob("*.rst"):  # of names that are not public any more
        if path.name not in named and path.name not in pages:
            path.unlink()


# --- docstrings ---------------------------------------------------------------------------------------------


def skip_foreign(_app: Sphinx, _what: str, name: str, value: Any, skip: bool, _options: Any) -> bool | None:
    """Leave out the members that a class inherits from another package, such as torch or the standard library."""
    member = value.fget if isinstance(value, property) else value
    home = getattr(member, "__module__", None) or getattr(getattr(member, "__objclass__", None), "__module__", None)
    foreign = home is not None and not home.startswith("neuraxis")
    return True if foreign or isinstance(member, types.BuiltinMethodType) else None


def tables_of_model(_app: Sphinx, _what: str, _name: str, value: Any, _options: Any, lines: list[str]) -> None:
    """Show the parameters, inputs and states of a neuron model as tables."""
    if isinstance(value, NeuronModel):
        lines[:] = [*value.description.splitlines(), ""]
        for title, rows in tables.model_rows(value).items():
            lines += [f".. rubric:: {title}", "", ".. list-table::", ""]
            for row in rows:
                lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
            lines.append("")
        example = (value.__doc__ or "").partition("\nExamples\n--------\n")[2]
        lines += [".. rubric:: Examples", "", *example.splitlines(), ""]


# --- backquoted names -------------------------------------------------------------------------------------


class Name(nodes.literal):
    """A backquoted name, which may be that of a documented object."""


class NameRole(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        context = self.env.ref_context
        node = Name(self.rawtext, self.text, classes=["py", "py-obj"])
        node["module"], node["class"] = context.get("py:module"), context.get("py:class")
        return [node], []


class LinkNames(SphinxPostTransform):
    """Link names to their pages."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        for node in list(self.document.findall(Name)):
            shown = nodes.literal(node.rawsource, node.astext(), classes=node["classes"])
            full = self.find(node)
            if full is None:
                node.replace_self(shown)
                continue
            entry = self.env.domains.python_domain.objects[full]
            node.replace_self(
                make_refnode(self.app.builder, self.env.docname, entry.docname, entry.node_id, shown, full)
            )

    def find(self, node: Name) -> str | None:
        """Return the full name of what is meant: in the same class or module, at the top, or the only one."""
        known = self.env.domains.python_domain.objects
        text = node.astext().removesuffix("()")
        module, owner = node["module"], node["class"]
        for scope in (f"{module}.{owner}", module, "neuraxis"):
            if f"{scope}.{text}" in known:
                return f"{scope}.{text}"
        if text in known:
            return text
        found = by_last_part(self.env).get(text.rpartition(".")[2], [])
        found = [full for full in found if full.endswith(f".{text}")]
        if "." not in text:  # a parameter of another function is not meant
            found = [full for full in found if known[full].objtype in ("class", "exception", "function", "data")]
        return found[0] if len(found) == 1 else None


def by_last_part(env: Any) -> dict[str, list[str]]:
    """Return the full names of all documented objects by their last part."""
    if not hasattr(env, "_names_by_last_part"):
        table: dict[str, list[str]] = {}
        for full, entry in env.domains.python_domain.objects.items():
            if not entry.aliased:  # a class is known under the name of the module that defines it as well
                table.setdefault(full.rpartition(".")[2], []).append(full)
        env._names_by_last_part = table
    return env._names_by_last_part


def _skip_name(self: Any, node: nodes.Node) -> None:
    self.visit_literal(node)


def _leave_name(self: Any, node: nodes.Node) -> None:
    self.depart_literal(node)


# --- equations --------------------------------------------------------------------------------------------


def visit_math(self: Any, node: nodes.Element) -> None:
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def visit_displaymath(self: Any, node: nodes.Element) -> None:
    text = node.astext()
    if "\\\\" in text and "\\begin" not in text:
        text = f"\\begin{{aligned}}{text}\\end{{aligned}}"
    self.body.append(f'<div class="equation">{tex2mathml(text, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("name", NameRole())
    app.add_node(Name, html=(_skip_name, _leave_name))
    app.add_post_transform(LinkNames)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.connect("config-inited", write_pages)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", tables_of_model)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
