"""Pages of the documentation: code that they show is executed by the build, and links to files resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if not {"_build", "decisions", "generated"} & set(path.relative_to(DOCS).parts)
)
FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|:{3,})(?P<kind>\S*)(?P<rest>[^`\n]*)$")
CODE = {"python", "py", "python3", "pycon", "sh", "bash", "shell", "console", "ipython", "{code-block}", "{code}"}
# Folders of a user, of this checkout and of a build.
MACHINE = re.compile(rf"(?<![\w/.-])(/(root|home|Users)/|{re.escape(str(ROOT))}\b)|/tmp/neuraxis-")


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Return the line number, kind and preceding line of each fenced block that stands by itself."""
    found, lines, end = [], text.splitlines(), None
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match is None:
            continue
        if end is None:
            kind = match["kind"]
            if kind == "{code-block}":
                kind = match["rest"].strip() or kind
            found.append((number + 1, kind, lines[number - 1] if number else ""))
            if match["mark"][0] == "`":
                end = match["mark"]
        elif line.strip() == end:
            end = None
    return found


def test_pages_exist() -> None:
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_code_is_executed_or_says_why_not(page: Path) -> None:
    text = page.read_text()
    wrong = [
        f"line {line}: {kind}"
        for line, kind, before in blocks(text)
        if kind in CODE and not re.match(r"\s*% not run: \S+ \S+", before)
    ]
    assert not wrong, f"{page}: use code-cell, file or shell, or put '% not run: reason' before the block: {wrong}"
    if "{code-cell}" in text:
        assert text.startswith("---\nfile_format: mystnb\n"), f"{page}: the header that makes it a notebook is missing"
    assert not (found := MACHINE.search(text)), f"{page}: a path of a machine, {found[0]}"


def test_a_block_that_is_not_executed_is_found() -> None:
    run, skipped = "```{shell}\nls\n```\n", "% not run: needs Slurm here\n```sh\nsrun\n```\n"
    text = "```python\n1\n```\n\n" + skipped + "\n````text\n```python\n```\n````\n" + run
    assert [(line, kind) for line, kind, _ in blocks(text)] == [(1, "python"), (6, "sh"), (10, "text"), (14, "{shell}")]


def test_a_path_of_a_machine_is_found() -> None:
    for text in (f"see {ROOT}/src", "`/root/a`", f"in\n{ROOT}", "/home/ann/a", "/tmp/neuraxis-docs-1/a"):
        assert MACHINE.search(text), text
    for text in ("docs/root/a", "the network/root/a", "https://example.org/home/a", "/tmp/a"):
        assert not MACHINE.search(text), text


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)|(?:src|href)=\"(?!https?:|#)([^\"#]+)")
ON_GITHUB = re.compile(r"github\.com/neuraxis/neuraxis/(?:blob|tree|raw|edit)/main/([^\s)\"'>#`]+)")


def test_links_of_the_readme_resolve() -> None:
    """Every link of README.md to a file of the project leads to one."""
    found = [first or second for first, second in LINK.findall((ROOT / "README.md").read_text())]
    assert len(found) >= 5
    assert not [target for target in found if not (ROOT / target).exists()]


def test_links_to_the_repository_resolve() -> None:
    """A page of the site links to files of the project by their address on GitHub."""
    pages = [*DOCS.rglob("*.md"), *DOCS.glob("_ext/*.py"), *ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    found = {
        (page.relative_to(ROOT).as_posix(), target.rstrip(".,:;/"))
        for page in pages
        if not {"_build", "generated"} & set(page.parts)
        for target in ON_GITHUB.findall(page.read_text())
        if "{" not in target
    }
    assert len(found) >= 5
    assert not [one for one in sorted(found) if not (ROOT / one[1]).exists()]


def test_links_are_found() -> None:
    text = '[a](docs/b.md#c) <img src="d.png"> [e](https://x.y/z) ![f](g.png)'
    assert [first or second for first, second in LINK.findall(text)] == ["docs/b.md", "d.png", "g.png"]
    assert ON_GITHUB.findall("(https://github.com/neuraxis/neuraxis/blob/main/a/b.py#L3).") == ["a/b.py"]
