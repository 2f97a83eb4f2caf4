"""The programs that run the networks of `neuraxis bench brain`: which can run here, and running one.

A program is a process of its own that runs one network once and prints one JSON object (brain_peers/). The peers are
run by another interpreter than this one if need be, as they seldom share an environment.
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
from neuraxis.errors import InvalidArgument
from neuraxis.observe.bench_contender import ContenderFailed
from neuraxis.observe.bench_contenders import LeftOut, signals_later

__all__ = ["PEERS", "PEERS_VARIABLE", "PROGRAMS", "find_peers_python", "left_out_peers", "parse_peers", "run_program"]

PEERS = ("nest", "brian2")
PEERS_VARIABLE = "NEURAXIS_PEERS"

_FOLDER = Path(__file__).parent / "brain_peers"
PROGRAMS = {
    "neuraxis": _FOLDER / "ours.py",
    "nest": _FOLDER / "peer_nest.py",
    "brian2": _FOLDER / "peer_brian2.py",
}

_REMEDY = "benchmarks/peers.sh makes an environment with it, or name a Python that has it with --peers-python"
_LOOK_LIMIT_S = 60.0
# In the order in which they are tried: the first lets a program take its workers along.
_ENDING = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))


def parse_peers(text: str) -> tuple[str, ...]:
    """Peers from "nest,brian2"; "none" for none."""
    wanted = {word.strip() for word in text.split(",")} - {"none", ""}
    unknown = sorted(wanted - set(PEERS))
    if unknown:
        raise InvalidArgument(f"--peers: {unknown[0]!r} is not one of {', '.join(PEERS)}, none")
    return tuple(peer for peer in PEERS if peer in wanted)


def find_peers_python(given: str | None = None) -> str:
    """The interpreter for the peers: the one given, else that of NEURAXIS_PEERS, of .venv-peers, or this one.

    .venv-peers is looked for in the source tree that this package was installed from, then in the working folder.
    """
    for path, source in ((given, "--peers-python"), (os.environ.get(PEERS_VARIABLE), PEERS_VARIABLE)):
        if path:
            # Its links are not followed: a virtual environment's Python is known by its own path.
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
    """Those of the peers that `python` cannot run, and why."""
    look = (
        "import importlib.util, sys\n"
        "specs = [(name, importlib.util.find_spec(name)) for name in sys.argv[1:]]\n"
        "print(' '.join(name for name, spec in specs if spec and spec.origin))"
    )
    present: list[str] = []
    if peers:
        with suppress(OSError, subprocess.SubprocessError):
            command = [python, "-c", look, *peers]
            said = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LOOK_LIMIT_S
            )
            present = said.stdout.split()
    gone = {peer: LeftOut(peer, f"{python} has no module {peer}", _REMEDY) for peer in peers if peer not in present}
    missing = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
    if "brian2" in present and missing:
        gone["brian2"] = LeftOut(
            "brian2", f"it compiles a program, and {missing[0]} is missing", "install g++ and make"
        )
    return gone


def run_program(command: Sequence[str], limit_s: float) -> str:
    """Run to the end; the last line that was printed. However this is left, the program has ended.

    Raises:
        ContenderFailed: it could not be started, ended with another status than 0, printed nothing, or took too long.
    """
    process: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            with signals_later():
                # A session of its own: Ctrl-C reaches only this process, which then ends the whole group in order.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
                )
            status = process.wait(limit_s)
        except OSError as error:
            raise ContenderFailed(f"{command[0]} could not be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise ContenderFailed(f"not done after {limit_s:g} s, and ended") from error
        finally:
            with signals_later():
                if process is not None:
                    _end(process)
        output.seek(0)
        errors.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
        complaints = errors.read().decode(errors="replace")
    spoken = [line for line in lines if line.strip()]
    if status != 0:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise ContenderFailed(": ".join(filter(None, (how, _last_words(complaints)))))
    if not spoken:
        raise ContenderFailed("it printed nothing")
    return spoken[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that is still running, and what it has started."""
    if process.poll() is not None:
        return
    for number, patience_s in _ENDING:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            break
    # It may have left others of its group behind, which took no notice.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_words(text: str) -> str:
    """The last line of an error's report that names an error, or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0] or ": error:" in line]
    return (named or lines or [""])[-1]
