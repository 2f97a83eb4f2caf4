"""Directives for pages that show files and commands: what a page shows has run.

    ```{file} hello.py
    print("hello")
    ```

    ```{shell}
    python hello.py
    ```

`file` shows a file under its name, and writes it into a folder that belongs to the page; with `:from: path` the text is
that of a file of the project, relative to the page. `shell` shows commands, runs
them with bash in that folder, and shows what they printed. The folder has a link to `examples/` of the project. Options
of `shell`:

- `:exit: 1`: the exit code that is expected, 0 unless given. Another one fails the build.
- `:timeout: 120`: seconds, 60 unless given.
- `:lines: 12`: show this many lines of the output at most; `0` shows none.

Outputs, and the seconds that they took, are kept in `_build/programs`, under a digest of everything that was run before
on the page and of the sources of neuraxis, so that a second build runs only what has changed.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from example_runs import EXAMPLES, run_command, sources

PAGES = "program_pages"  # in env.temp_data: the page that is being read
LANGUAGES = {".py": "python", ".mjs": "javascript", ".toml": "toml", ".sh": "bash", ".json": "json"}
COLUMNS = 88  # of the terminal that commands print to: as many as a page shows beside its sidebars


class Page:
    """The folder of a page, and what has run in it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="neuraxis-docs-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "examples").symlink_to(EXAMPLES)
        self.digest = hashlib.sha256(sources().encode())
        self.pending: list[tuple[str, int, float]] = []  # commands that a cached output made unnecessary so far

    def add(self, *texts: str) -> str:
        for text in texts:
            self.digest.update(f"{len(text)}:{text}".encode())
        return self.digest.hexdigest()[:32]


def page_of(directive: Directive) -> Page:
    data = directive.state.document.settings.env.temp_data
    if PAGES not in data:
        data[PAGES] = Page()
    page: Page = data[PAGES]
    return page


def run(page: Page, commands: str, expected: int, timeout: float) -> dict[str, Any]:
    """Run commands in the folder of a page; return what they printed, the seconds, and those of processors."""
    begun, used_before = time.monotonic(), _used_s()
    status, printed = run_command(commands, page.folder, timeout, COLUMNS=str(COLUMNS))
    if status is None:
        raise ExtensionError(f"no end within {timeout:g} s:\n{commands}\n{printed}")
    if status != expected:
        raise ExtensionError(f"exit code {status}, expected {expected}:\n{commands}\n{printed}")
    cpu_s = _used_s() - used_before
    return {"printed": printed, "seconds": round(time.monotonic() - begun, 2), "cpu_s": round(cpu_s, 2)}


def _used_s() -> float:
    """Return the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class File(Directive):
    """Show a file, and write it."""

    required_arguments = 1
    has_content = True
    option_spec = {"from": directives.path}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name, page = self.arguments[0], page_of(self)
        text = "\n".join(self.content) + "\n"
        if "from" in self.options:
            env = self.state.document.settings.env
            source = Path(env.doc2path(env.docname)).parent / self.options["from"]
            env.note_dependency(str(source))
            text = source.read_text()
        page.add("file", name, text)
        (page.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (page.folder / name).write_text(text)
        language = LANGUAGES.get(Path(name).suffix, "text")
        block = nodes.literal_block(text, text, language=language)
        caption = nodes.caption("", "", nodes.literal(name, name))
        facts: dict[str, Any] = {"literal_block": True, "classes": ["literal-block-wrapper"], "program": "file"}
        return [nodes.container("", caption, block, **facts)]


class Shell(Directive):
    """Show commands, run them, and show what they printed."""

    has_content = True
    option_spec = {  # noqa: RUF012
        "exit": directives.nonnegative_int,
        "timeout": directives.positive_int,
        "lines": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        env, page = self.state.document.settings.env, page_of(self)
        commands = "\n".join(self.content)
        expected, timeout = self.options.get("exit", 0), self.options.get("timeout", 60)
        store = Path(env.app.outdir).parent / "programs" / f"{page.add('shell', commands, str(expected))}.json"
        if store.exists():
            ran = json.loads(store.read_text())
            page.pending.append((commands, expected, timeout))
        else:
            where = f"{env.doc2path(env.docname)}:{self.lineno}"
            try:
                while page.pending:  # what follows may need what they left in the folder
                    run(page, *page.pending.pop(0))
                ran = run(page, commands, expected, timeout)
            except ExtensionError as error:
                page.remove()
                raise ExtensionError(f"{where}: {error.message}") from None
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_text(json.dumps(ran))
        lines = ran["printed"].rstrip().splitlines()
        most = self.options.get("lines", len(lines))
        if len(lines) > most:
            lines = [*lines[:most], "..."] if most else []
        facts = {"program": "shell", "prints": bool(lines), "seconds": ran["seconds"], "cpu_s": ran.get("cpu_s")}
        shown = nodes.literal_block(commands, commands, language="bash", **facts)
        if not lines:
            return [shown]
        output = nodes.literal_block("\n".join(lines), "\n".join(lines), language="text")
        # Tables fit the terminal and keep their lines; messages can be longer, and wrap.
        wrapped = ["long-lines"] if max(map(len, lines)) > COLUMNS else []
        return [shown, nodes.container("", output, classes=["program-output", *wrapped], program="output")]


def _end_page(_app: Sphinx, doctree: Any) -> None:
    page = doctree.settings.env.temp_data.pop(PAGES, None)
    if page is not None:
        page.remove()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("file", File)
    app.add_directive("shell", Shell)
    app.connect("doctree-read", _end_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
