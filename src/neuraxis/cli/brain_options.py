"""What commands that run a brain have in common: who runs it, and where results go."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from neuraxis.comm.environment import detect_launch
from neuraxis.errors import InvalidArgument
from neuraxis.machine import usable_cores

if TYPE_CHECKING:
    from neuraxis.brain.spec import BrainSpec
    from neuraxis.cli.mesh_options import MeshOptions
    from neuraxis.comm import Communicator
    from neuraxis.execution.executor import Executor
    from neuraxis.mesh import Topology

__all__ = [
    "Lockstep", "Ranks", "brain_workers", "check_page", "is_told_here", "lockstep_ranks", "make_importable",
    "mesh_nodes", "region_topologies", "tell_error", "tell_first_time", "tell_interrupt",
]  # fmt: skip

Lockstep = Literal["gloo", "mpi", "shm"]
Value = TypeVar("Value")


def brain_workers(
    given: str | None,
    sequential: bool,
    default: int | str | None = None,
    lockstep: str | None = None,
    mesh: bool = False,
    device: str = "cpu",
) -> int | str:
    """What `--workers` and `--sequential` mean; by default all cores, or as many as `--device` names."""
    if device != "cpu":
        from neuraxis.engine.cuda.device import parse_device

        for name in device.split(","):
            parse_device(name.strip())
        if mesh or lockstep is not None:
            raise InvalidArgument(f"--device {device}: not with --mesh or --lockstep, whose nodes and ranks use CPUs")
        default = device.count(",") + 1
    if mesh:
        if given is not None or sequential or lockstep is not None:
            raise InvalidArgument("--mesh: nodes run the brain: not with --workers, --sequential or --lockstep")
        return 1
    if lockstep is not None:
        if given is not None or sequential:
            raise InvalidArgument(f"--lockstep {lockstep}: the ranks run the brain: not with --workers or --sequential")
        return 1
    if sequential:
        if given is not None and given != "1":
            raise InvalidArgument(f"--workers {given} and --sequential: one of them, please")
        return 1
    if given is None:
        return usable_cores() if default is None else default
    if given == "auto":
        return "auto"
    try:
        workers = int(given)
    except ValueError:
        raise InvalidArgument(f"--workers {given}: a number of processes, or auto, is expected") from None
    if workers < 1:
        raise InvalidArgument(f"--workers {given}: at least one process is needed")
    return workers


# --- ranks that run one brain together ---


@dataclass(frozen=True)
class Ranks:
    """Who runs a brain: this process and its workers, or ranks that each do the same as this one.

    Attributes:
        executor: for the brain; None: its own workers.
        leads: whether this process prints and writes files.
        stop: whether a user has asked for an end, where Ctrl-C must not break into what ranks do together.
    """

    executor: Executor | None = None
    leads: bool = True
    stop: Callable[[], bool] | None = None

    @property
    def progress(self) -> bool | None:
        return None if self.leads else False

    def agree(self, make: Callable[[], Value]) -> Value:
        """What `make` gives in the process that leads; where it raises, all do."""
        return make() if self.executor is None else self.executor.agree(make)


@contextmanager
def lockstep_ranks(backend: str | None, command: str) -> Iterator[Ranks]:
    """Meet the other ranks that run the same command, if `--lockstep` says so."""
    if backend is None:
        yield Ranks()
        return
    from neuraxis.comm import DistributedContext
    from neuraxis.execution import LockstepExecutor

    if detect_launch().launcher == "none":
        launcher = "mpirun -n 4 neuraxis" if backend == "mpi" else "neuraxis launch -n 4 -m neuraxis"
        raise InvalidArgument(
            f"--lockstep {backend}: is for ranks that run the same command: {launcher} {command} --lockstep {backend}"
        )
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    # That all ranks make the same calls is known from here on, and need not be compared at each.
    with DistributedContext(backend=backend, check_calls=False) as context:
        _check_same_words(context.world)
        before = signal.signal(signal.SIGINT, note)
        try:
            yield Ranks(LockstepExecutor(context.world), context.rank == 0, lambda: bool(asked))
        finally:
            signal.signal(signal.SIGINT, before)


def mesh_nodes(spec: BrainSpec, options: MeshOptions, where: str = "", **settings: Any) -> Ranks:
    """A node of the mesh for each region; `settings` are those of `MeshExecutor`."""
    from neuraxis.brain.mesh import mesh_executor

    logging.getLogger("neuraxis").setLevel(logging.WARNING)
    topology = options.topology("driver")
    topologies = region_topologies(spec, options, settings.get("remote", ()))
    return Ranks(
        mesh_executor(spec, where, mesh=options.mesh_name, topology=topology, topologies=topologies, **settings)
    )


def region_topologies(spec: BrainSpec, options: MeshOptions, remote: Collection[str]) -> dict[str, Topology]:
    """How the nodes of regions that are started here reach the mesh: with keys, each with its own."""
    if options.tls is None:
        return {}
    return {name: replace(options, role=None).topology(name) for name in spec.regions if name not in remote}


def _check_same_words(world: Communicator) -> None:
    """Raise on all ranks if one was started with other options."""
    from neuraxis.execution.exchange import on_all_ranks

    words: list[list[str]] = [[]] * world.size
    world.all_gather_object(words, sys.argv[1:])
    for rank, theirs in enumerate(words):
        if theirs != words[0]:
            text = f"rank {rank} was started with `{' '.join(theirs)}` and rank 0 with `{' '.join(words[0])}`"
            raise on_all_ranks(InvalidArgument(f"{text}: all ranks need the same"))


def is_told_here(backend: str | None) -> bool:
    """Whether this process tells what all ranks know; of ranks, the first does."""
    try:
        return backend is None or detect_launch().rank == 0
    except InvalidArgument:
        return True


def tell_error(command: str, error: Exception, here: bool) -> int:
    """Print an error, and give the exit status; what all ranks raise alike is told by one of them."""
    from neuraxis.execution.exchange import ON_ALL_RANKS

    if here or ON_ALL_RANKS not in getattr(error, "__notes__", ()):
        print(f"neuraxis {command}: {error}", file=sys.stderr)
    return 2


# --- what is told ---


def make_importable(file: Path | None) -> None:
    """Let a brain's file name Python code that lies beside it."""
    if file is not None:
        folder = str(file.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)


def tell_first_time() -> None:
    """Say why the first run on a machine takes longer to begin."""
    from neuraxis.engine.warm import is_compiled

    if not is_compiled():
        print("compiling for this machine, once: about half a minute", file=sys.stderr)


def check_page(path: Path, option: str = "--html") -> None:
    """Raise before anything runs if a file cannot be written afterwards."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK) or path.is_dir():
        raise InvalidArgument(f"{option} {path}: cannot be written")


def tell_interrupt(interrupted: bool, text: str) -> int:
    """The exit status; where Ctrl-C ended it early, a line that says how far it came."""
    if not interrupted:
        return 0
    print(f"interrupted {text}", file=sys.stderr)
    return 130
