"""Hints: every option that a message, a docstring or a page of the documentation names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from pathlib import Path

import pytest
from cyclopts import App

import neuraxis
from neuraxis.cli import app
from neuraxis.cli.errors import RENAMED
from neuraxis.cli.launch import ELSEWHERE as OPTIONS_ELSEWHERE
from neuraxis.cli.launch import _options as launch_options

PACKAGE = Path(neuraxis.__file__).parent
DOCUMENTS = Path(__file__).parents[2] / "docs"
SEARCHED = ("mesh", "rpc", "simulation", "brain", "sweep", "process", "cli", "errors.py")
# Options of other programs, which some lines name.
OTHERS = {
    "cli/__init__.py": {"--install-completion"},  # a command
    "cli/doctor.py": {"--shm-size"},
    "cli/errors.py": {old for renamed in RENAMED.values() for old in renamed},
    "cli/launch.py": {"--epochs", *OPTIONS_ELSEWHERE},
    "cli/sweep.py": {"--host", "--port", "--nworkers", "--nthreads"},
    "process/supervisor.py": {"--time"},  # an arrow
    "simulation/parallel.py": {"--shm-size"},  # of Docker
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
COMMAND = re.compile(r"neuraxis ((?:[a-z]+ ?)+)")


def commands(of: App = app, *words: str) -> Iterator[tuple[tuple[str, ...], App]]:
    """All commands, by their words."""
    yield words, of
    for name in of:
        if not name.startswith("-") or name == "--install-completion":
            yield from commands(of[name], *words, name)


def options_of(command: App) -> set[str]:
    if command.default_command is None:
        return set()
    arguments = command.assemble_argument_collection()
    return {name for argument in arguments for name in (*argument.names, *argument.negatives)}


OPTIONS = {words: options_of(command) for words, command in commands()}
OPTIONS["launch",] |= options_of(launch_options)  # it takes its words apart itself: the script has options, too
ALL = {"--help", "--version"}.union(*OPTIONS.values())


def texts() -> Iterator[tuple[str, str]]:
    """Every string of the sources, with where it is, and every block of code of the documentation."""
    for one in SEARCHED:
        path = PACKAGE / one
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            where = str(file.relative_to(PACKAGE))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                    yield f"{where}:{node.lineno}", "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{where}:{node.lineno}", node.value
    for name in ("mesh.md", "rpc.md", "security.md"):
        yield f"docs/{name}", (DOCUMENTS / name).read_text(encoding="utf-8")


def wrong_options(text: str, others: Set[str] = frozenset()) -> list[str]:
    """Options that no command has, or not the command that is named before them on the same line."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        named = None
        for part in re.split(r"(?=neuraxis [a-z])|(?=[;,()`])", line):
            if part[:1] in tuple(";,()`"):
                named = None  # what follows may be about another command
            command = COMMAND.match(part)
            if command is not None:
                words = tuple(command[1].split())
                named = next((words[:n] for n in range(len(words), 0, -1) if words[:n] in OPTIONS), None)
            allowed = ALL if named is None else OPTIONS[named] | {"--help"}
            for option in OPTION.findall(part):
                if option not in allowed | others:
                    found.append(f"{option} of neuraxis {' '.join(named or ())}".rstrip())
    return found


def test_every_option_that_is_named_exists() -> None:
    wrong = {
        where: options
        for where, text in texts()
        if (options := wrong_options(text, OTHERS.get(where.partition(":")[0], set())))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("make it: neuraxis mesh keys init keys/ --roles arm", []),
        ("say where they are (--tls FOLDER)", []),
        ("neuraxis mesh keys init keys/ --acl x", ["--acl of neuraxis mesh keys init"]),
        ("say --no-such-thing", ["--no-such-thing of neuraxis"]),
    ],
)
def test_the_test_itself_finds_them(text: str, expected: list[str]) -> None:
    assert wrong_options(text) == expected
