"""Runs of the examples, as `docs/gallery/catalogue.toml` lists them, and a store of their outputs.

The gallery and `tests/test_examples.py` share it, and `programs` runs the commands of pages with it. It does not need
Sphinx.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 240
KILL_S = 30  # for processes of their own groups, which end after the one that started them
COLUMNS = 96  # of the terminal that an example prints to
WIDTH, LINES = 76, 13  # columns and lines of a picture of a terminal; longer lines are cut
# rich's own template loads a font from a server; a page must work offline.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


class ExampleFailed(Exception):
    """An example ended with an error, or without what it should print or draw."""


@dataclass(frozen=True)
class Example:
    """One entry of the catalogue."""

    name: str
    title: str
    section: str
    command: str
    prints: str
    picture: str = ""
    needs: str = ""
    recorded: str = ""
    recorded_by: str = ""

    @property
    def program(self) -> Path:
        """Return the first Python file that the command names."""
        return ROOT / next(word for word in self.command.split() if word.endswith(".py"))

    @property
    def runs_here(self) -> bool:
        return self.needs != "GPU" or any(Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    status: int
    output: str
    seconds: float


def catalogue() -> dict[str, Example]:
    listed = tomllib.loads((ROOT / "docs" / "gallery" / "catalogue.toml").read_text())
    return {name: Example(name, **entry) for name, entry in listed.items()}


def run_example(example: Example, folder: Path) -> Outcome:
    """Run an example in a folder that gets a link to the examples, as in the folder of the project."""
    (folder / "examples").symlink_to(EXAMPLES)
    begun = time.monotonic()
    status, output = run_command(example.command, folder, TIMEOUT_S, PYTHONWARNINGS="error", MPLBACKEND="agg")
    if status is None:
        output += f"\nno end within {TIMEOUT_S} s"
    return Outcome(-signal.SIGKILL if status is None else status, output, time.monotonic() - begun)


def run_command(command: str, folder: Path, timeout: float, **variables: str) -> tuple[int | None, str]:
    """Run commands with bash in a folder; return the exit code, None after `timeout` seconds, and the output.

    Processes that the commands leave in the background are killed, unless they made a process group of their own. The
    output has no paths of this machine.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    variables = {"PATH": path, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        status = None
        output, _ = process.communicate(timeout=KILL_S)
    finally:
        _kill_group(process.pid)
    return status, without_paths(output, folder)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # macOS reports the latter for a group of zombies
        os.killpg(group, signal.SIGKILL)


def without_paths(text: str, folder: Path | None = None) -> str:
    """Replace the paths of a folder, of the project, of the environment and of the user."""
    names = [] if folder is None else [(folder, "~"), (folder.resolve(), "~")]
    names.append((ROOT, "neuraxis"))
    names += [(Path(sys.prefix), ".venv")] if sys.prefix != sys.base_prefix else []
    names += [(Path.home(), "~")] if Path.home() != Path("/") else []
    for path, name in names:
        text = text.replace(str(path), name)
    return text


@cache
def sources() -> str:
    """Return a digest of the sources that a command may run."""
    total = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*"), *EXAMPLES.rglob("*")]):
        if path.suffix in {".py", ".cu", ".cuh", ".toml"}:
            total.update(path.read_bytes())
    return total.hexdigest()


def digest(example: Example) -> str:
    """Return a digest of everything that an output depends on."""
    return hashlib.sha256(f"{sources()} {example.command}".encode()).hexdigest()[:32]


def kept(example: Example, store: Path) -> Outcome | None:
    """Return the output of an earlier run of the same sources, if the store has it."""
    path = store / f"{example.name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return Outcome(**found["outcome"]) if found["digest"] == digest(example) else None


def obtain(example: Example, store: Path) -> Outcome:
    """Return the output of a run, and keep it with its picture, if the run did what it should."""
    found = kept(example, store)
    if found is not None:
        return found
    folder = Path(tempfile.mkdtemp(prefix="neuraxis-example-"))
    try:
        outcome = run_example(example, folder)
        wrong = []
        if outcome.status != 0:
            wrong.append(f"exit code {outcome.status}")
        if example.prints not in outcome.output:
            wrong.append(f"the output lacks {example.prints!r}")
        if example.picture and not (folder / example.picture).exists():
            wrong.append(f"there is no {example.picture}")
        if wrong:
            raise ExampleFailed(f"{example.command}: {'; '.join(wrong)}\n{outcome.output}")
        store.mkdir(parents=True, exist_ok=True)
        if example.picture:
            shutil.copy(folder / example.picture, store / picture_name(example))
        else:
            drawn = terminal(example.command, outcome.output, example.prints)
            (store / picture_name(example)).write_text(drawn)
        entry = {"digest": digest(example), "outcome": vars(outcome)}
        (store / f"{example.name}.json").write_text(json.dumps(entry))
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def picture_name(example: Example) -> str:
    return example.name + (Path(example.picture or example.recorded).suffix or ".svg")


def excerpt(output: str, most: int, important: str) -> list[str]:
    """Return at most so many lines of an output: its beginning, or its end, if that has the important text."""
    lines = output.rstrip().splitlines()
    if len(lines) <= most:
        return lines
    first = next((number for number, line in enumerate(lines) if important in line), 0)
    return [*lines[: most - 1], "..."] if first < most - 1 else ["...", *lines[-most + 1 :]]


def terminal(command: str, output: str, important: str = "") -> str:
    """Return a terminal with a command and a part of its output as SVG."""
    # No console of rich's own: NO_COLOR and TERM of the build must not change the picture.
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor",
                          no_color=False, legacy_windows=False)  # fmt: skip
        console.print(Text.assemble(("$ ", "bold #7ee787"), (command, "bold #e6edf3")))
        lines = excerpt(output, LINES, important)
        for line in [*lines, *[""] * (LINES - len(lines))]:  # all pictures have the same shape
            console.print(Text(line, style="#c9d1d9"), overflow="ellipsis", no_wrap=True)
        return console.export_svg(title="", code_format=SVG, unique_id="terminal")
