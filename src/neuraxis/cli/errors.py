"""Errors and exit codes of all commands.

An error is one line on stderr: `neuraxis COMMAND: what happened; what to do`. Its exit code distinguishes wrong usage,
which the user can correct in the command, from a failure.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from neuraxis.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from cyclopts import CycloptsError

__all__ = [
    "EXIT_CODES",
    "FAILURE",
    "INTERRUPTED",
    "RENAMED",
    "USAGE",
    "exit_code",
    "fail",
    "rename_options",
    "usage_error",
]

FAILURE, USAGE, INTERRUPTED = 1, 2, 130

EXIT_CODES = """Exit codes of all commands:

  0    success
  1    failure: the command started and something failed, or its check did
       not hold (a worker died, no message arrived, results differ)
  2    wrong usage: an option, an argument or a file cannot be used
  130  Ctrl-C ended it early (143: SIGTERM; 128 + the signal's number)

neuraxis launch exits with the code of the rank that failed first. Commands
that run until Ctrl-C (echo, hz, router, node) exit with 0 at Ctrl-C."""

# Old spellings of options, which keep working for one release.
RENAMED = {
    "run": {"--patience-s": "--silence-timeout"},
    "node": {
        "--patience-s": "--silence-timeout",
        "--reconnect-s": "--reconnect-timeout",
        "--start-wait-s": "--start-timeout",
    },
    "pub": {"--wait": "--timeout"},
    "sweep": {"--connect-timeout-s": "--connect-timeout", "--no-workers-s": "--no-workers-timeout"},
    "bench": {"--limit-s": "--timeout", "--ways": "--methods"},
}
_RUNS_BRAIN = ("demo", "run")  # commands in which --mesh is a flag
_MESH_TOOLS = ("node", "nodes", "topics", "echo", "hz", "pub")


def fail(command: str, error: BaseException) -> int:
    """Print an error of a command, and return the exit code."""
    print(f"neuraxis {command}: {str(error) or type(error).__name__}", file=sys.stderr)
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    return USAGE if isinstance(error, InvalidArgument | InvalidType) else FAILURE


def usage_error(error: CycloptsError, program: str = "neuraxis") -> NoReturn:
    """Print an error of the option parser as one line, and exit.

    An `error_formatter` of cyclopts; it prints by itself, because cyclopts would wrap the line.
    """
    command = [*program.split()[1:], *(error.command_chain or ())]
    text = " ".join(str(error).split()).removeprefix(f'Command "{" ".join(command)}" parameter ').rstrip(" .,")
    see = " See" if text.endswith("?") else "; see"
    print(f"{' '.join(['neuraxis', *command])}: {text}{see} {' '.join(['neuraxis help', *command])}", file=sys.stderr)
    sys.exit(USAGE)


def rename_options(words: list[str]) -> list[str]:
    """Return a command line with old spellings of options replaced; print a line for each of them."""
    command, rest = words[:1], words[1:]
    name = "".join(command)
    if name in _RUNS_BRAIN or name in _MESH_TOOLS:
        flag = ["--mesh"] if name in _RUNS_BRAIN else []
        for position in reversed(range(len(rest) - 1)):
            if rest[position : position + 2] == ["--mesh", "local"]:
                rest[position : position + 2] = flag
                advice = "use --mesh" if flag else "leave it out, the mesh of this machine is the default"
                _warn(name, f"--mesh local is deprecated: {advice}")
    for position, word in enumerate(rest):
        option, equals, value = word.partition("=")
        new = RENAMED.get(name, {}).get(option)
        if new is not None:
            rest[position] = new + equals + value
            _warn(name, f"{option} is deprecated: use {new}")
    return [*command, *rest]


def _warn(command: str, text: str) -> None:
    print(f"neuraxis {command}: {text}; the old spelling will be removed in the next release", file=sys.stderr)
