"""The `neuraxis` command; one module a command.

The commands are named by their import path so that `neuraxis launch` does not pay for what `neuraxis
bench` needs: cyclopts imports a command's module when that command is called.
"""

from __future__ import annotations

import os
import sys

from cyclopts import App

import neuraxis

__all__ = ["app", "main"]

app = App(
    name="neuraxis",
    help="A distributed runtime for brains and neural networks.",
    version=neuraxis.__version__,
)
for _name, _target, _help in (
    ("demo", "neuraxis.cli.demo:demo", "Watch a brain learn, and get a report."),
    ("run", "neuraxis.cli.run:run", "Run a brain from a file, on a task or a stimulus."),
    ("patterns", "neuraxis.cli.patterns:patterns", "Run every communication pattern and show what moved."),
    ("launch", "neuraxis.cli.launch:launch", "Start, supervise and restart the ranks of a script."),
    ("bench", "neuraxis.cli.bench:app", "Measure, side by side with the peers that are installed."),
    ("doctor", "neuraxis.cli.doctor:doctor", "What is usable here, and what to do about the rest."),
):
    app.command(_target, name=_name, help=_help)


def main() -> None:
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
