"""Programs that run simulators: find the interpreter and the simulators that can run here, and run one program.

A program is a process that runs one network or model once and prints one JSON object (`brain/peers/`, `models/peers/`).
The peers may run under another interpreter, because they rarely fit into one environment with neuraxis.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import neuraxis
from neuraxis.bench.harness import LeftOut
from neuraxis.bench.processes import ContenderFailed, defer_signals, end_process, last_error, start_process
from neuraxis.errors import InvalidArgument, LaunchError

__all__ = ["PEERS", "PEERS_VARIABLE", "find_peers_python", "left_out_peers", "run_program"]

PEERS = ("nest", "brian2")
PEERS_VARIABLE = "NEURAXIS_PEERS"

_REMEDY = "benchmarks/peers.sh makes an environment with it, or name a Python that has it with --peers-python"
_LOOK_TIMEOUT_S = 60.0
# In this order: SIGINT lets a program end its own workers.
_ENDING = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))


def find_peers_python(given: str | None = None) -> str:
    """Return the interpreter for the peers: the one given, else that of NEURAXIS_PEERS, of .venv-peers, or this one.

    The search for .venv-peers covers the source tree that this package was installed from, then the working folder.
    """
    for path, source in ((given, "--peers-python"), (os.environ.get(PEERS_VARIABLE), PEERS_VARIABLE)):
        if path:
            # Links are not followed: a virtual environment is recognized by the path of its Python.
            found = shutil.which(os.path.expanduser(path))
            if found is None:
                raise InvalidArgument(f"{source}={path}: there is no Python to run; name one, or leave it out")
            return str(Path(found).absolute())
    source_tree = Path(neuraxis.__file__).parents[2]
    for folder in ([source_tree] if (source_tree / "pyproject.toml").is_file() else []) + [Path.cwd()]:
        python = folder / ".venv-peers" / "bin" / "python"
        if os.access(python, os.X_OK):
            return str(python)
    return sys.executable


def left_out_peers(peers: Sequence[str], python: str) -> dict[str, LeftOut]:
    """Return the peers that `python` cannot run, and why."""
    look = (
        "import importlib.util, sys\n"
        "specs = [(name, importlib.util.find_spec(name)) for name in sys.argv[1:]]\n"
        "print(' '.join(name for name, spec in specs if spec and spec.origin))"
    )
    present: list[str] = []
    if peers:
        with suppress(OSError, subprocess.SubprocessError):
            command = [python, "-c", look, *peers]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOOK_TIMEOUT_S
            )
            present = done.stdout.split()
    gone = {peer: LeftOut(peer, f"{python} has no module {peer}", _REMEDY) for peer in peers if peer not in present}
    missing = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
    if "brian2" in present and missing:
        gone["brian2"] = LeftOut(
            "brian2", f"it compiles a program, and {missing[0]} is missing", "install g++ and make"
        )
    return gone


def run_program(command: Sequence[str], limit_s: float) -> str:
    """Run a program to its end and return the last line that it printed. However this returns, the program has ended.

    Raises:
        ContenderFailed: it could not be started, failed, printed nothing, or took longer than `limit_s` seconds.
    """
    process: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            with defer_signals():
                process = start_process("program", command, output=output, errors=errors)
            status = process.wait(limit_s)
        except LaunchError as error:
            raise ContenderFailed(str(error).removeprefix("program: ")) from error
        except subprocess.TimeoutExpired as error:
            raise ContenderFailed(f"not done after {limit_s:g} s, and ended") from error
        finally:
            with defer_signals():
                if process is not None:
                    end_process(process, *_ENDING, kill_group=True)
        output.seek(0)
        errors.seek(0)
        lines = [line for line in output.read().decode(errors="replace").split("\n") if line.strip()]
        log = errors.read().decode(errors="replace")
    if status != 0:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise ContenderFailed(": ".join(filter(None, (how, last_error(log)))))
    if not lines:
        raise ContenderFailed("it printed nothing")
    return lines[-1]
