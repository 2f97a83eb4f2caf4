"""`neuraxis launch`: run a script as N ranks.

Everything after the script's name is the script's own, options that look like ours and --help included.
cyclopts takes options wherever they stand, so the command takes all words as they are, finds the script, and
puts the `--` before it that says "no more options" to the parser of the real command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import App, Parameter

from neuraxis.errors import NeuraxisError
from neuraxis.launch.options import DEFAULT_GRACE_S, LaunchOptions
from neuraxis.launch.script import launch_script
from neuraxis.machine import usable_cores

__all__ = ["launch"]

_HELP = """Run a script as several processes (ranks) that work together.

Each finds its place in RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT. When one fails, the others are ended and its
last lines are shown.
"""

_EPILOGUE = """Examples:

  Four ranks; --epochs is the script's own:
    neuraxis launch -n 4 train.py --epochs 10

  A module, as in python -m:
    neuraxis launch -n 2 -m package.train

  A brain, whose regions are spread over the ranks:
    neuraxis launch -n 4 -m neuraxis run brain.toml --lockstep gloo

  Start all again after a failure, up to three times. NEURAXIS_RESTART
  counts, and the script goes on from its own checkpoint:
    neuraxis launch -n 4 --max-restarts 3 train.py

  Two hosts (their launchers do not talk: give both the same options):
    neuraxis launch -n 8 --nodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    neuraxis launch -n 8 --nodes 2 --node-rank 1 --master-addr 10.0.0.1 train.py

Exit status: 0, or that of the rank that failed first (128 + the number of
the signal that killed it)."""

# No argument can hold a NUL, so with this delimiter every word arrives, "--" and empty ones included.
launch = App(name="launch", help=_HELP, help_flags=(), version_flags=(), end_of_options_delimiter="\0")
_options = App(
    name="neuraxis launch",
    help=_HELP,
    help_epilogue=_EPILOGUE,
    help_format="plaintext",
    version_flags=(),
    usage="Usage: neuraxis launch [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]...",
)


@launch.default
def _launch(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int | None:
    status: int | None = _options(_mark_script(words), result_action="return_value")
    return status


@_options.default
def _run(
    script: str,
    /,
    *arguments: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    n: Annotated[int | Literal["auto"], Parameter(name="-n")] = "auto",
    module: Annotated[bool, Parameter(name=("-m", "--module"), negative=())] = False,
    nodes: int = 1,
    node_rank: int = 0,
    master_addr: str | None = None,
    master_port: int | None = None,
    max_restarts: int = 0,
    grace: float = DEFAULT_GRACE_S,
    prefix: bool = True,
) -> int:
    """Run the script.

    Parameters
    ----------
    script
        The script to run. What follows it is passed to it untouched.
    n
        Processes on this host; auto is one for each usable core.
    module
        The script is a module's name, as in python -m.
    nodes
        Hosts that take part, each with its own launcher and -n processes.
    node_rank
        Which of the hosts this one is, from 0.
    master_addr
        Address of host 0, where ranks meet. Needed with several hosts; 127.0.0.1 on one.
    master_port
        Port where ranks meet. A free one is found on one host; 29500 with several.
    max_restarts
        How often to start all ranks again after a failure.
    grace
        Seconds that ranks have to end when asked to, before they are killed.
    prefix
        Begin each line of output with its rank.
    """
    try:
        options = LaunchOptions(
            script=script,
            arguments=arguments,
            n=usable_cores() if n == "auto" else n,
            module=module,
            nodes=nodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            max_restarts=max_restarts,
            grace_s=grace,
            prefix=prefix,
        )
        return launch_script(options)
    except NeuraxisError as error:
        print(f"neuraxis launch: {error}", file=sys.stderr)
        return 2


def _mark_script(words: Sequence[str]) -> list[str]:
    """`words` with `--` before the script, the first word that is neither an option nor an option's value."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            return [*words[:position], "--", *words[position:]]
        position += 2 if _takes_next_word(word) else 1
    return list(words)


def _takes_next_word(option: str) -> bool:
    if "=" in option:
        return False
    names = {name for argument in _options.assemble_argument_collection() for name in argument.names}
    flags = {"-m", "--module", "--prefix", "--no-prefix", "--help", "-h"}
    if option.startswith("--"):
        return option in names - flags
    # Short ones can stand together (-mn 4), and a value can follow its option at once (-n4).
    flag_letters = {name[1] for name in flags if len(name) == 2}
    letters = option[1:].lstrip("".join(flag_letters))
    return len(letters) == 1 and f"-{letters}" in names
