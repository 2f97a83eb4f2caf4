"""Start a new interpreter that makes one pickled call: what `run` and `Team` have in common."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from neuraxis.launch.processes import POSIX, RankProcess

__all__ = ["spawn_rank"]

# The worker module is imported only once `sys.path` is the parent's: neuraxis itself may be found through it.
_BOOTSTRAP = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from neuraxis.launch.{module} import main; main()"
)


def spawn_rank(
    rank: int,
    module: str,
    job: object,
    call: bytes,
    *,
    environment: Mapping[str, str],
    capture: bool = False,
    pass_fds: Sequence[int] = (),
) -> RankProcess:
    """Run `main()` of the module of that name in this folder; it reads `job` and `call` from its standard input."""
    # A file and not a pipe: a large argument would fill a pipe, and the start of one rank would wait for the
    # interpreter of the one before.
    with tempfile.TemporaryFile() as file:
        pickle.dump([path or os.getcwd() for path in sys.path], file)
        pickle.dump(job, file)
        file.write(call)
        file.seek(0)
        return RankProcess(
            rank,
            [sys.executable, *_interpreter_flags(), "-u", "-c", _BOOTSTRAP.format(module=module)],
            environment=environment,
            stdin=file,
            capture=capture and POSIX,
            pass_fds=pass_fds,
        )


def _interpreter_flags() -> list[str]:
    """The options (-W, -X, -O ...) that this interpreter was started with."""
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return flags
