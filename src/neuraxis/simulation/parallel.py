"""Run the shards of a network in worker processes that exchange spikes through shared memory.

The parent starts the workers (`launch.Team`), sends them commands and collects the replies. Between two commands the
workers run many steps without the parent: each writes its spikes to its spike buffer in the shared region and publishes
the step; the others read them from there. The parent reads the published steps too, so it can report the last step of
a worker that died.
"""

from __future__ import annotations

import ctypes
import signal as signals
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from neuraxis.arguments import is_whole
from neuraxis.comm.backends.shm.memory import SharedRegion
from neuraxis.deprecation import renamed_arguments
from neuraxis.engine.placement import Placement, check_placement, describe_slices, place, place_on_devices
from neuraxis.engine.shards import Place, device_names, on_cpu, parse_devices, require
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.errors import (
    BackendUnavailable,
    CheckpointError,
    InvalidArgument,
    LaunchError,
    LineTimeout,
    NeuraxisError,
    ResourceExhausted,
    ShardFailed,
    WorkerFailed,
)
from neuraxis.machine import check_process_count, usable_cores
from neuraxis.network import Network
from neuraxis.process import Team
from neuraxis.process.pickling import main_objects
from neuraxis.simulation.crash_report import CRASH_REPORT_BYTES, CrashReport
from neuraxis.simulation.executor import BuildReport, ShardedExecutor, merge_reports
from neuraxis.simulation.python_populations import INPUT, Payload, PythonPopulation, shard_of
from neuraxis.simulation.worker import Setup, serve
from neuraxis.wire.tensors import to_sendable

__all__ = ["ParallelExecutor"]

_LOG_LINES = 5


_ENDED = "the workers of this simulation have ended. Make a new one; restore() continues from a saved state"


@renamed_arguments(timeout_s="timeout")
class ParallelExecutor(ShardedExecutor):
    """Runs a network as one shard in each of `workers` processes.

    Parameters
    ----------
    workers : int
        Number of processes.
    timeout : float, optional
        Longest time in seconds that a command may take after the network is built; by default there is no limit while
        all workers are alive.
    placement : Placement, optional
        Neurons of each worker. By default every worker has a part of every large population; if some have a GPU, those
        have all populations except the Python populations.
    devices : sequence of str, optional
        Device of each worker: ("cuda:0", "cpu"); by default all use the CPU.

    Raises
    ------
    InvalidArgument
        An argument is invalid, or the machine cannot hold so many processes.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_delta
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_delta)
    >>> from neuraxis.simulation import Simulation
    >>> with Simulation(network, executor=ParallelExecutor(2, timeout=60.0)) as simulation:
    ...     simulation.step(5).workers
    2

    Scripts need the guard `if __name__ == "__main__":`, because workers import the main module.
    """

    def __init__(
        self,
        workers: int,
        *,
        timeout: float | None = None,
        placement: Placement | None = None,
        devices: str | Sequence[Place] = (),
    ) -> None:
        self.workers = workers = as_workers(workers)
        check_process_count(workers, "workers")
        self._places = parse_devices(devices or "cpu", workers)
        if len(self._places) != workers:
            raise InvalidArgument(f"devices={self._places!r}: expected one for each of {workers} workers")
        self.device = device_names(self._places)
        self._timeout = timeout
        self.placement: Placement = placement or ()
        self._python_populations: tuple[PythonPopulation, ...] = ()
        self._main_objects: dict[str, Any] = {}
        self._team: Team | None = None
        self._region: SharedRegion | None = None
        self._setup: Setup | None = None
        self._spike_buffers: SpikeBuffers | None = None

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        if self._setup is not None:
            raise InvalidArgument("this executor already runs a simulation. Make one executor per simulation")
        self._python_populations = tuple(python_populations)
        self._main_objects = main_objects(one.create for one in python_populations)
        require(self._places)
        placement = self.placement
        together = [(one.population, one.marker) for one in python_populations]
        gpus = [not on_cpu(one) for one in self._places]
        if placement:
            check_placement(network, placement, self.workers)
        elif any(gpus):
            placement = place_on_devices(network, gpus, together)
        else:
            placement = place(network, self.workers, together)
        try:
            self._team = Team(serve, self.workers, grace=1.0)
            return self._build(network, placement, progress)
        except BaseException:
            self.close()
            raise

    def move(self, placement: Placement) -> None:
        """Redistribute the neurons over the workers. Their states are lost: restore them.

        Parameters
        ----------
        placement : Placement
            Neurons of each worker.
        """
        assert self._setup is not None
        if self._team is None:
            raise ShardFailed(_ENDED)
        try:
            self._build(self._setup.network, placement, lambda synapses: None)
        except BaseException:
            self.close()
            raise

    def _build(self, network: Network, placement: Placement, progress: Callable[[int], None]) -> BuildReport:
        """Build a shard in every worker."""
        assert self._team is not None
        setup = Setup(
            network, placement, "", _spin_limits(self.workers), self._python_populations, self._places,
            self._main_objects,
        )  # fmt: skip
        try:
            region = SharedRegion.create(setup.region_bytes)
        except BackendUnavailable as error:  # its advice is for groups of ranks
            raise ResourceExhausted(
                error.reason,
                "Give the container more (docker run --shm-size=1g), or use workers=1, which needs no shared memory",
            ) from error
        old, self._region = self._region, region
        self._setup = setup = replace(setup, region=region.name)
        self.placement = placement
        self._spike_buffers = setup.spike_buffers(region.address)
        reports: dict[int, BuildReport] = {}
        errors: dict[int, NeuraxisError] = {}
        try:
            self._team.broadcast(setup)
            while len(reports) + len(errors) < self.workers:
                rank, message = self._team.receive()  # no timeout: a worker that dies raises
                if isinstance(message, BuildReport):
                    reports[rank] = message
                elif isinstance(message, NeuraxisError):
                    errors[rank] = message
                else:
                    progress(message)
        except WorkerFailed as error:
            self._fail(error)
        finally:
            if old is not None:
                old.close()
        if errors:
            raise errors[min(errors)]
        region.seal()
        return merge_reports(list(reports.values()))

    def close(self) -> None:
        """Stop the workers and free the shared memory."""
        team, self._team = self._team, None
        region, self._region = self._region, None
        if team is not None:
            team.close()
        self._spike_buffers = None
        if region is not None:
            region.close()

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker's `ShardRunner`.

        Parameters
        ----------
        command : str
            Name of the method.
        *arguments
            Its arguments.

        Returns
        -------
        list
            The replies, by rank.
        """
        if self._team is None:
            raise ShardFailed(_ENDED)
        try:
            self._team.broadcast((command, *arguments))
            replies = self._replies() if self._python_populations else self._team.gather(timeout=self._timeout)
        except WorkerFailed as error:
            self._fail(error)
        except LineTimeout as error:
            # A late reply would be taken for the reply to the next command.
            self.close()
            late = ", ".join(str(rank) for rank in error.ranks)
            raise ShardFailed(
                f"worker {late} did not answer {command!r} within {self._timeout:g} s and was stopped. Give more time "
                "with ParallelExecutor(timeout=...)",
                worker=error.ranks[0] if error.ranks else -1,
            ) from error
        except BaseException:
            # Replies to this command would be taken for replies to the next one.
            self.close()
            raise
        for reply in replies:
            if isinstance(reply, CheckpointError):
                raise reply
        return replies

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        # Data that is delivered at once may travel as a GPU handle; delayed data must outlive the handle and be saved.
        on_gpu = any(one.name == name and one.device != "cpu" for one in self._python_populations)
        self.ask("give", name, to_sendable(data, share=on_gpu and source == INPUT), source)

    def _replies(self) -> list[Any]:
        """Collect one reply of each worker, by rank, and forward payloads between workers meanwhile."""
        assert self._team is not None
        assert self._setup is not None
        replies: dict[int, Any] = {}
        while len(replies) < self.workers:
            rank, message = self._team.receive(timeout=self._timeout)
            if isinstance(message, Payload):
                subscribers = {
                    shard_of(one, self._setup.placement)
                    for one in self._python_populations
                    if any(subscription.population == message.source for subscription in one.subscriptions)
                }
                for subscriber in subscribers - {rank}:
                    self._team.send(subscriber, message)
            elif isinstance(message, ShardFailed):
                # The other workers wait for a shard that has stopped.
                self.close()
                raise message
            else:
                replies[rank] = message
        return [replies[rank] for rank in range(self.workers)]

    def _fail(self, error: WorkerFailed) -> NoReturn:
        """Raise ShardFailed with the shard, the last step, and the crash report of the worker."""
        if isinstance(error.__cause__, LaunchError):
            # The script starts processes when it is imported; the message of that error is enough.
            self.close()
            raise error.__cause__ from None
        step = self._last_step(error.rank)
        held = self._describe(error.rank)
        memory, log = self._crash_report(error.rank)
        self.close()
        how = f"{_signal_name(error.signal)}" if error.signal else f"exit code {error.exit_code}"
        text = f"worker {error.rank} ({held}) failed after step {step}: {how}"
        if error.traceback:
            text = f"worker {error.rank} ({held}) failed after step {step}:\n{error.traceback.rstrip()}"
        if memory:
            text += f"\nits memory: {memory / 2**20:,.0f} MiB"
        if log:
            text += "\nthe last lines of its log:\n" + "\n".join(f"  {line}" for line in log)
        text += "\nnext: " + _next_action(error)
        raise ShardFailed(
            text, worker=error.rank, shard=held, step=step, exit_code=error.exit_code, signal=error.signal,
            traceback=error.traceback, memory_bytes=memory, log="\n".join(log),
        ) from error  # fmt: skip

    def _crash_report(self, rank: int) -> tuple[int, list[str]]:
        """Return the peak memory of a worker and the last lines of its log."""
        if self._region is None or not 0 <= rank < self.workers:
            return 0, []
        report = CrashReport(self._region.address + CRASH_REPORT_BYTES * rank)
        return report.memory_bytes, report.lines()[-_LOG_LINES:]

    def _last_step(self, rank: int) -> int:
        if self._region is None or self._spike_buffers is None or rank < 0:
            return 0
        word = ctypes.c_int64.from_address(int(self._spike_buffers.done[rank]))
        return int(word.value)

    def _describe(self, rank: int) -> str:
        if self._setup is None or not 0 <= rank < self.workers:
            return "its shard"
        return describe_slices(self._setup.network, self._setup.placement[rank])


def _next_action(error: WorkerFailed) -> str:
    if error.traceback:
        return "fix the exception above, and run again from the last saved state (restore)"
    if error.signal == signals.SIGKILL:
        return "check dmesg for a lack of memory, and run again from the last saved state (restore)"
    return "run again from the last saved state (restore), or with workers=1 to reproduce it in this process"


def _signal_name(number: int) -> str:
    try:
        return f"signal {signals.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _spin_limits(workers: int) -> tuple[int, int]:
    """Return how often to poll for another worker before yielding the core, and how often to yield before sleeping."""
    return (3000, 20000) if workers <= usable_cores() else (20, 20000)


def as_workers(workers: object) -> int:
    """Return a checked number of processes."""
    if not is_whole(workers) or workers < 1:
        raise InvalidArgument(f"workers={workers!r}: expected a number of processes, 1 or more")
    return int(workers)
