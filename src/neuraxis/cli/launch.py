"""`neuraxis launch`: run a script as N ranks.

Everything after the script's name belongs to the script, even options that look like ours, and --help. cyclopts accepts
options anywhere, so the command takes all words unparsed, finds the script, and puts a `--` before it, which ends the
options for the parser of the inner command.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from cyclopts import App, Parameter

from neuraxis.cli.errors import fail, usage_error
from neuraxis.errors import InvalidArgument, NeuraxisError
from neuraxis.machine import usable_cores
from neuraxis.process.script import DEFAULT_GRACE_S, LaunchOptions, launch_script

__all__ = ["launch"]

_HELP = """Run a script as several processes (ranks) that work together.

Each finds its rank and the address of the others in RANK, LOCAL_RANK,
WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. When one fails,
the launcher ends the others, and shows the traceback of the failed one and
one line for all others.
"""

_EPILOGUE = """Examples:

  Four ranks; --epochs is the script's own:
    neuraxis launch -n 4 train.py --epochs 10

  A module, as in python -m:
    neuraxis launch -n 2 -m package.train

  A brain, whose regions are spread over the ranks:
    neuraxis launch -n 4 -m neuraxis run brain.toml --lockstep gloo

  Restart all ranks after a failure, up to three times. NEURAXIS_RESTART
  has the number of the restart; the script resumes from its checkpoint:
    neuraxis launch -n 4 --max-restarts 3 train.py

  Two hosts (give both launchers the same options):
    neuraxis launch -n 8 --nodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
    neuraxis launch -n 8 --nodes 2 --node-rank 1 --master-addr 10.0.0.1 train.py

Exit codes: 0, or that of the rank that failed first (128 + the number of
the signal that killed it); 1 when ranks cannot be started, 2 for wrong
usage."""

# Options of torchrun, mpirun and accelerate, with - for _, and what to write here.
_HOSTS = "start neuraxis launch on each host with --nodes, --node-rank and --master-addr, or use mpirun or srun itself"
ELSEWHERE = {
    **dict.fromkeys(
        ("--nproc-per-node", "--nproc", "--num-processes", "--np", "-np", "--ntasks-per-node"),
        "write -n, the number of processes on this host",
    ),
    **dict.fromkeys(("--nnodes", "--num-machines"), "write --nodes"),
    "--machine-rank": "write --node-rank",
    "--main-process-ip": "write --master-addr",
    "--main-process-port": "write --master-port",
    "--standalone": "leave it out, one host is the default",
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
        "write --master-addr and --master-port, where ranks connect",
    ),
    **dict.fromkeys(("--host", "-host", "-H", "--hostfile", "-hostfile", "--machinefile", "-machinefile"), _HOSTS),
    **dict.fromkeys(("--oversubscribe", "--allow-run-as-root"), "leave it out, nothing forbids it"),
}

# No argument can contain NUL, so with this delimiter every word is passed on, "--" and empty ones included.
launch = App(name="launch", help=_HELP, help_flags=(), version_flags=(), end_of_options_delimiter="\0")
_options = App(
    name="neuraxis launch",
    help=_HELP,
    help_epilogue=_EPILOGUE,
    help_format="plaintext",
    version_flags=(),
    usage="Usage: neuraxis launch [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]...",
    error_formatter=partial(usage_error, program="neuraxis launch"),
)


@launch.default
def _launch(*words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int | None:
    try:
        marked = _mark_script(words)
    except InvalidArgument as error:
        return fail("launch", error)
    status: int | None = _options(marked, result_action="return_value")
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
        The script to run; all words after it are passed to it.
    n
        Processes on this host; auto is one for each usable core.
    module
        The script is a module's name, as in python -m.
    nodes
        Number of hosts, each with its own launcher and -n processes.
    node_rank
        Index of this host, from 0.
    master_addr
        Address of host 0, where ranks connect. Required with several hosts; 127.0.0.1 on one.
    master_port
        Port where ranks connect; default: a free one on one host, 29500 with several.
    max_restarts
        Largest number of restarts of all ranks after failures.
    grace
        Seconds between SIGTERM and SIGKILL when ranks are ended.
    prefix
        Prefix each line of output with its rank.
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
            grace=grace,
            prefix=prefix,
        )
        return launch_script(options)
    except NeuraxisError as error:
        return fail("launch", error)


def _mark_script(words: Sequence[str]) -> list[str]:
    """Insert `--` before the script, which is the first word that is neither an option nor an option's value."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            return [*words[:position], "--", *words[position:]]
        _check_option(word.partition("=")[0])
        position += 2 if _takes_next_word(word) else 1
    return list(words)


def _check_option(option: str) -> None:
    """Raise InvalidArgument for an option of another launcher, with what to write instead."""
    dashed = f"--{option[2:].replace('_', '-')}" if option.startswith("--") else option
    instead = f"write {dashed}" if dashed != option and dashed in _names() else ELSEWHERE.get(dashed)
    if instead is not None:
        raise InvalidArgument(f"unknown option {option}: {instead}; see neuraxis help launch")


def _names() -> set[str]:
    return {name for argument in _options.assemble_argument_collection() for name in argument.names}


def _takes_next_word(option: str) -> bool:
    if "=" in option:
        return False
    names = _names()
    flags = {"-m", "--module", "--prefix", "--no-prefix", "--help", "-h"}
    if option.startswith("--"):
        return option in names - flags
    # Short options can be combined (-mn 4), and a value can follow its option directly (-n4).
    flag_letters = {name[1] for name in flags if len(name) == 2}
    letters = option[1:].lstrip("".join(flag_letters))
    return len(letters) == 1 and f"-{letters}" in names
