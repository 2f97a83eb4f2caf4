"""Options and helpers of the commands that run a brain: workers, ranks or nodes that run it, and its output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from neuraxis.cli.errors import INTERRUPTED, exit_code, fail
from neuraxis.errors import InvalidArgument
from neuraxis.machine import check_process_count, usable_cores
from neuraxis.process.environment import detect_launch

if TYPE_CHECKING:
    from neuraxis.brain.spec import BrainSpec
    from neuraxis.cli.mesh_options import MeshOptions
    from neuraxis.comm import Communicator
    from neuraxis.mesh import Topology
    from neuraxis.simulation.executor import Executor

__all__ = [
    "Lockstep", "Ranks", "announce_compilation", "brain_workers", "check_writable", "interrupted_status",
    "is_first_rank", "lockstep_ranks", "make_importable", "mesh_nodes", "region_topologies", "report_error",
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
    """Return the workers for `--workers` and `--sequential`; default: all cores, or as many as `--device` names."""
    if device != "cpu":
        from neuraxis.engine.cuda.device import parse_device

        for name in device.split(","):
            parse_device(name.strip())
        if mesh or lockstep is not None:
            raise InvalidArgument(
                f"--device {device}: not with --mesh or --lockstep, whose nodes and ranks use CPUs; leave one out"
            )
        default = device.count(",") + 1
    if mesh:
        if given is not None or sequential or lockstep is not None:
            raise InvalidArgument("--mesh: nodes run the brain; leave out --workers, --sequential and --lockstep")
        return 1
    if lockstep is not None:
        if given is not None or sequential:
            raise InvalidArgument(
                f"--lockstep {lockstep}: the ranks run the brain; leave out --workers and --sequential"
            )
        return 1
    if sequential:
        if given is not None and given != "1":
            raise InvalidArgument(f"--workers {given} and --sequential exclude each other; use one of them")
        return 1
    if given is None:
        return usable_cores() if default is None else default
    if given == "auto":
        return "auto"
    try:
        workers = int(given)
    except ValueError:
        raise InvalidArgument(f"--workers {given}: not a number; give a number of processes, or auto") from None
    if workers < 1:
        raise InvalidArgument(f"--workers {given}: at least one process is needed")
    check_process_count(workers, "--workers")
    return workers


# --- ranks that run one brain together ---


@dataclass(frozen=True)
class Ranks:
    """The processes that run a brain: this one and its workers, or ranks that all run the same command.

    Attributes:
        executor: of the brain; None for its own workers.
        leads: True if this process prints and writes files.
        stop: returns True after Ctrl-C, where an exception must not interrupt a collective.
        terminated: True after SIGTERM, in one process.
    """

    executor: Executor | None = None
    leads: bool = True
    stop: Callable[[], bool] | None = None
    terminated: Callable[[], bool] = lambda: False

    @property
    def progress(self) -> bool | None:
        return None if self.leads else False

    def agree(self, make: Callable[[], Value]) -> Value:
        """Return the result of `make` in the leading process on all ranks; if it raises, all ranks raise."""
        return make() if self.executor is None else self.executor.agree(make)


@contextmanager
def _sigterm_interrupts() -> Iterator[Callable[[], bool]]:
    """Handle SIGTERM like SIGINT, which is deferred to the end of a trial; yield a function that is True after one."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def lockstep_ranks(backend: str | None, command: str) -> Iterator[Ranks]:
    """Connect to the other ranks that run the same command, if `--lockstep` is given.

    In one process SIGTERM, which schedulers and containers send, interrupts as Ctrl-C does, so that the state is saved.
    """
    if backend is None:
        with _sigterm_interrupts() as terminated:
            yield Ranks(terminated=terminated)
        return
    from neuraxis.comm import DistributedContext
    from neuraxis.simulation import LockstepExecutor

    if detect_launch().launcher == "none":
        launcher = "mpirun -n 4 neuraxis" if backend == "mpi" else "neuraxis launch -n 4 -m neuraxis"
        raise InvalidArgument(
            f"--lockstep {backend}: no launcher started this command; run {launcher} {command} --lockstep {backend}"
        )
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # All ranks have the same options and make the same calls, so calls need not be compared.
    with DistributedContext(backend=backend, check_calls=False) as context:
        _check_same_command(context.world)
        before = signal.signal(signal.SIGINT, remember)
        try:
            yield Ranks(LockstepExecutor(context.world), context.rank == 0, lambda: bool(received))
        finally:
            signal.signal(signal.SIGINT, before)


def mesh_nodes(spec: BrainSpec, options: MeshOptions, where: str = "", **settings: Any) -> Ranks:
    """Return an executor with a mesh node for each region; `settings` are those of `MeshExecutor`."""
    from neuraxis.brain.mesh import mesh_executor

    logging.getLogger("neuraxis").setLevel(logging.WARNING)
    topology = options.topology("driver")
    topologies = region_topologies(spec, options, settings.get("remote", ()))
    return Ranks(
        mesh_executor(spec, where, mesh=options.mesh_name, topology=topology, topologies=topologies, **settings)
    )


def region_topologies(spec: BrainSpec, options: MeshOptions, remote: Collection[str]) -> dict[str, Topology]:
    """Return the topologies of the regions that start here; with TLS, each region has its own keys."""
    if options.tls is None:
        return {}
    return {name: replace(options, role=None).topology(name) for name in spec.regions if name not in remote}


def _check_same_command(world: Communicator) -> None:
    """Raise `InvalidArgument` on all ranks if one was started with other options."""
    from neuraxis.simulation.lockstep import on_all_ranks

    words: list[list[str]] = [[]] * world.size
    world.all_gather_object(words, sys.argv[1:])
    for rank, theirs in enumerate(words):
        if theirs != words[0]:
            text = f"rank {rank} was started with `{' '.join(theirs)}` and rank 0 with `{' '.join(words[0])}`"
            raise on_all_ranks(InvalidArgument(f"{text}; start all ranks with the same options"))


def is_first_rank(backend: str | None) -> bool:
    """Return True if this process prints the output: it is the first rank, or not a rank."""
    try:
        return backend is None or detect_launch().rank == 0
    except InvalidArgument:
        return True


def report_error(command: str, error: Exception, here: bool) -> int:
    """Print an error and return the exit code; of an error that all ranks raise, only one rank prints it."""
    from neuraxis.simulation.lockstep import ON_ALL_RANKS

    if here or ON_ALL_RANKS not in getattr(error, "__notes__", ()):
        return fail(command, error)
    return exit_code(error)


# --- input and output ---


def make_importable(file: Path | None) -> None:
    """Make Python modules in the folder of a brain's file importable, so that the file can name them."""
    if file is not None:
        folder = str(file.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)


def announce_compilation() -> None:
    """Print one line if the kernels are not in the cache: the run that follows compiles them first."""
    from neuraxis.engine.precompile import KERNELS, kernel_cache, missing_parts

    if missing_parts([KERNELS]):
        print(
            f"compiling for this machine, once: about {KERNELS.functions} functions, kept in {kernel_cache()} "
            "(neuraxis compile does it ahead)",
            file=sys.stderr,
            flush=True,
        )


def check_writable(path: Path, option: str = "--html") -> None:
    """Raise `InvalidArgument` before anything runs if a file cannot be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"{option} {path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK) or path.is_dir():
        raise InvalidArgument(f"{option} {path}: cannot be written")


def interrupted_status(interrupted: bool, text: str, terminated: bool = False) -> int:
    """Return the exit code; after Ctrl-C or SIGTERM (`terminated`), also print the progress of the run."""
    if not interrupted:
        return 0
    print(f"interrupted {text}", file=sys.stderr)
    return 128 + signal.SIGTERM if terminated else INTERRUPTED
