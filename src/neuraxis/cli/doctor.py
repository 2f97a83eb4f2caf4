"""`neuraxis doctor`: what is installed and usable here, and what to do about the rest."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuraxis.observe.doctor import Finding, all_checks, examine

__all__ = ["doctor"]


def doctor(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Check what is installed and usable on this machine, and say what to do about the rest.

    Everything is tried out: ranks reduce over shared memory and over gloo, a Zenoh session is opened.
    The exit status is 0 unless the base install is broken, however many extras are missing.

    Parameters
    ----------
    json
        Print the findings as JSON.
    """
    findings = list(_examine_with_progress())
    broken = [finding.name for finding in findings if finding.required and not finding.usable]
    if json:
        report = {"ok": not broken, "broken": broken, "checks": [asdict(finding) for finding in findings]}
        print(json_module.dumps(report, indent=1))
    else:
        console = Console()
        if console.is_terminal:
            _print_table(findings, console)
        else:
            _print_text(findings)
        if broken:
            print(f"The base install is broken: {', '.join(broken)}.", file=sys.stderr)
    return 1 if broken else 0


def _examine_with_progress() -> Iterator[Finding]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from examine()
        return
    checks = all_checks()
    with console.status("") as status:
        found = examine(checks)
        for check in checks:
            status.update(f"checking {check.name}")
            yield next(found)


def _print_table(findings: list[Finding], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        if finding.usable:
            mark = Text("✓", "green")
        else:
            mark = Text("✗", "bold red" if finding.required else "yellow")
        table.add_row(mark, finding.name, Text(finding.detail), Text(finding.remedy))
    console.print(table)


def _print_text(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        text = f"{'ok' if finding.usable else 'no'}  {finding.name:{width}}  {finding.detail}"
        print(text.encode("ascii", "replace").decode())
        if finding.remedy:
            print(f"    {'':{width}}  -> {finding.remedy}")
