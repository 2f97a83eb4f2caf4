"""The `neuraxis` command; one module per command.

Commands are registered by import path, so that `neuraxis launch` does not import what `neuraxis bench` needs: cyclopts
imports the module of a command when that command is called.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

import neuraxis
from neuraxis.cli.errors import EXIT_CODES, INTERRUPTED, fail, rename_options, usage_error
from neuraxis.errors import InvalidArgument

__all__ = ["app", "main"]

_EPILOGUE = """neuraxis help COMMAND (or COMMAND --help) explains a command. neuraxis --install-completion installs
completion for bash, zsh or fish.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 Ctrl-C (neuraxis help exit-codes)."""

app = App(
    name="neuraxis",
    help="A distributed runtime for brains and neural networks.",
    help_epilogue=_EPILOGUE,
    version=neuraxis.__version__,
    error_formatter=usage_error,
)
_COMMANDS = (
    ("demo", "neuraxis.cli.demo:demo", "Watch a brain learn, and get a report."),
    ("run", "neuraxis.cli.run:run", "Run a brain from a file, on a task or a stimulus."),
    ("sweep", "neuraxis.cli.sweep:sweep", "Run a grid of brains on a cluster, into one table and a plot."),
    (
        "patterns",
        "neuraxis.cli.patterns:patterns",
        "Run every communication pattern and show what it moves.",
    ),
    ("launch", "neuraxis.cli.launch:launch", "Start, supervise and restart the ranks of a script."),
    ("bench", "neuraxis.cli.bench:app", "Compare neuraxis with the installed peers."),
    ("node", "neuraxis.cli.node:node", "Run one region of a brain as a node of the mesh."),
    ("nodes", "neuraxis.cli.nodes:nodes", "List the nodes of the mesh."),
    ("topics", "neuraxis.cli.nodes:topics", "List the topics of the mesh, their publishers and rates."),
    ("echo", "neuraxis.cli.echo:echo", "Print messages of the mesh as they arrive."),
    ("hz", "neuraxis.cli.echo:hz", "Measure the rate and the regularity of messages."),
    ("pub", "neuraxis.cli.pub:pub", "Publish a value on the mesh by hand."),
    ("router", "neuraxis.cli.router:router", "Run a router that connects nodes on several machines."),
    ("mesh", "neuraxis.cli.mesh:app", "Create keys and access rules for a mesh of several machines."),
    ("models", "neuraxis.cli.models:models", "List the neuron models, or show one."),
    ("compile", "neuraxis.cli.compile:compile_app", "Compile ahead what the first use would compile."),
    ("doctor", "neuraxis.cli.doctor:doctor", "Check what is usable on this machine, and show how to fix the rest."),
)
_called = sys.argv[2:3] if sys.argv[1:2] == ["help"] else sys.argv[1:2]
for _name, _target, _help in _COMMANDS:
    # The line is for the list of commands; a command that is called has a longer help text of its own.
    app.command(_target, name=_name, **({} if _called == [_name] else {"help": _help}))


@app.command(name="help", version_flags=())
def _help_command(*command: str) -> int | None:
    """Explain a command, or the exit codes.

    Parameters
    ----------
    command
        A command, such as "run" or "bench mesh", or "exit-codes"; without one, list all commands.
    """
    if command == ("exit-codes",):
        print(EXIT_CODES)
        return 0
    known = [name for name, *_ in _COMMANDS]
    if command and command[0] not in known:
        names = ", ".join([*known, "exit-codes"])
        return fail("help", InvalidArgument(f"there is no command {command[0]!r}; the commands are {names}"))
    status: int | None = app([*command, "--help"], result_action="return_value")
    return status


@app.command(name="--install-completion", version_flags=())
def _install_completion(
    *,
    shell: Literal["bash", "zsh", "fish"] | None = None,
    output: Annotated[Path | None, Parameter(name=["-o", "--output"])] = None,
) -> int:
    """Install completion for bash, zsh or fish.

    Parameters
    ----------
    shell
        The shell; by default the one from which this command is run.
    output
        Write the completion script to this file, and change no start-up file of the shell.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    name = "--install-completion"
    if shell is None:
        try:
            found = detect_shell()
        except ShellDetectionError:
            return fail(name, InvalidArgument("your shell cannot be determined; name it, for instance --shell bash"))
        if found == "powershell":
            return fail(name, InvalidArgument("PowerShell is not supported; name another shell, as in --shell bash"))
        shell = found
    try:
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except OSError as error:
        return fail(name, error)
    if output is not None:
        print(f"Wrote completion for {shell} to {path}. To use it, run: source {path}")
    else:
        needs = " (in zsh, ~/.zshrc must call compinit)" if shell == "zsh" else ""
        print(f"Installed completion for {shell} in {path}. Start a new shell to use it{needs}.")
    return 0


def main() -> None:
    """Run the command in `sys.argv` and exit."""
    try:
        app(rename_options(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # before a command could handle it
    except BrokenPipeError:
        # The reader of our output has ended (`| head`). Python would report it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)
