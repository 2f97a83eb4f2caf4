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
    ("sweep", "neuraxis.cli.sweep:sweep", "Run a grid of brains on a cluster, into one table and a picture."),
    ("patterns", "neuraxis.cli.patterns:patterns", "Run every communication pattern and show what moved."),
    ("launch", "neuraxis.cli.launch:launch", "Start, supervise and restart the ranks of a script."),
    ("bench", "neuraxis.cli.bench:app", "Measure, side by side with the peers that are installed."),
    ("node", "neuraxis.cli.node:node", "Run one region of a brain as a node of the mesh."),
    ("nodes", "neuraxis.cli.nodes:nodes", "Who is on the mesh."),
    ("topics", "neuraxis.cli.topics:topics", "What is said on the mesh, by whom and how often."),
    ("echo", "neuraxis.cli.echo:echo", "Print messages of the mesh as they come."),
    ("hz", "neuraxis.cli.hz:hz", "Measure how often messages come, and how evenly."),
    ("pub", "neuraxis.cli.pub:pub", "Publish a value on the mesh by hand."),
    ("router", "neuraxis.cli.router:router", "Run a router, through which nodes on several machines meet."),
    ("mesh", "neuraxis.cli.mesh:app", "Keys for a mesh beyond this machine, and who may do what."),
    ("doctor", "neuraxis.cli.doctor:doctor", "What is usable here, and what to do about the rest."),
):
    # The line is for the list of commands; a command that is called tells more about itself.
    app.command(_target, name=_name, **({} if sys.argv[1:2] == [_name] else {"help": _help}))


def main() -> None:
    # "--mesh local" says in words what "--mesh" means where a brain is run.
    words = sys.argv[1:]
    if words[:1] in (["run"], ["demo"]):
        words = [word for i, word in enumerate(words) if word != "local" or words[i - 1] != "--mesh"]
    try:
        app(words)
    except KeyboardInterrupt:
        sys.exit(130)  # before a command could take it into its own hands
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
