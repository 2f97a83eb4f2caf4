"""`neuraxis patterns`: every communication pattern, run for real, before and after."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.observe.patterns.collection import collect_patterns

__all__ = ["patterns"]

_HELP = """See what each communication pattern does, by running it.

Starts a few processes (ranks), runs broadcast, reduce, all-reduce, barrier,
gather, all-gather, scatter, all-to-all, reduce-scatter, a ring of sends and
a group for real, and shows what each rank held before and after. Every
result is compared with the pattern's definition.
"""

_EPILOGUE = """Examples:

  Four ranks on this machine:
    neuraxis patterns

  Two ranks with tensors of three values, carried by gloo:
    neuraxis patterns -n 2 --dim 3 --backend gloo

  A page with a drawing of every pattern, to keep open while you learn:
    neuraxis patterns --html patterns.html

  For a program:
    neuraxis patterns --json | jq '.runs[] | select(.name == "reduce") | .ranks'

Exit status: 0 when every result agrees with its definition, 1 when one does
not, 2 when the patterns cannot be run as asked."""

patterns = App(name="patterns", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@patterns.default
def _patterns(
    *,
    n: Annotated[int, Parameter(name="-n")] = 4,
    backend: Literal["auto", "local", "shm", "gloo", "nccl", "mpi"] = "auto",
    dim: int = 4,
    html: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run every pattern.

    Parameters
    ----------
    n
        How many ranks.
    backend
        What carries the data; auto takes the best that is here, mpi starts the ranks with mpirun.
    dim
        How many values a tensor has.
    html
        Write a page with a drawing of each pattern to this file.
    as_json
        Print one JSON object instead of tables.
    """
    try:
        if html is not None and not html.absolute().parent.is_dir():
            raise InvalidArgument(f"--html {html}: the folder {html.absolute().parent} does not exist")
        report = collect_patterns(n, backend, dim)
        if html is not None:
            from neuraxis.observe.patterns.page import render_page

            _write_whole(html, render_page(report))
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis patterns: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        from neuraxis.observe.patterns.text import print_report

        print_report(report, Console())
    if html is not None:
        print(f"wrote {html}", file=sys.stderr)
    return 1 if report.problems else 0


def _write_whole(path: Path, content: str) -> None:
    """Write a file so that a reader sees the old page or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
