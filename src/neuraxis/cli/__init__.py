"""The `neuraxis` command; one module a command.

The commands are named by their import path so that `neuraxis launch` does not pay for what `neuraxis
bench` needs: cyclopts imports a command's module when that command is called.
"""

from __future__ import annotations

from cyclopts import App

import neuraxis

__all__ = ["app", "main"]

app = App(
    name="neuraxis",
    help="A distributed runtime for brains and neural networks.",
    version=neuraxis.__version__,
)
app.command("neuraxis.cli.launch:launch", name="launch")
app.command("neuraxis.cli.patterns:patterns", name="patterns")
app.command("neuraxis.cli.bench:app", name="bench")
app.command("neuraxis.cli.doctor:doctor", name="doctor")


def main() -> None:
    app()
