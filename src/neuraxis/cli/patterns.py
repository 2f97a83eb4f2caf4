"""`neuraxis patterns`: run every communication pattern and show the data before and after."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.report.patterns.collection import collect_patterns
from neuraxis.store import replacing

__all__ = ["patterns"]

_HELP = """See what each communication pattern does, by running it.

Starts a few processes (ranks), runs broadcast, reduce, all-reduce, barrier,
gather, all-gather, scatter, all-to-all, reduce-scatter, a ring of sends and
a group, and shows the data of each rank before and after. Every result is
compared with the pattern's definition.
"""

_EPILOGUE = """Examples:

  Four ranks on this machine:
    neuraxis patterns

  Two ranks with tensors of three values, carried by gloo:
    neuraxis patterns -n 2 --dim 3 --backend gloo

  A page with a drawing of every pattern:
    neuraxis patterns --html patterns.html

  For a program:
    neuraxis patterns --json | jq '.runs[] | select(.name == "reduce") | .ranks'

Exit codes: 0 when every result agrees with its definition, 1 when one does
not or the ranks failed, 2 for wrong usage."""

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
        Number of ranks.
    backend
        Backend; auto takes the best that is installed, mpi starts the ranks with mpirun.
    dim
        Number of values in a tensor.
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
            from neuraxis.report.patterns.page import render_page

            with replacing(html) as new:
                new.write_text(render_page(report), encoding="utf-8")
    except (NeuraxisError, OSError) as error:
        return fail("patterns", error)
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        from neuraxis.report.patterns.text import print_report

        print_report(report, Console())
    if html is not None:
        print(f"wrote {html}", file=sys.stderr)
    return 1 if report.problems else 0
