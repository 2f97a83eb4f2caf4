"""The shards of a network in worker processes, which exchange spikes through memory that they share.

The parent starts the workers (`launch.Team`), tells them what to do and gathers what they answer. Between two commands
the workers run whole stretches of steps by themselves: each writes its spikes to its outbox in the shared region, and
publishes the step; the others read them from there. The parent sees the words of their progress, too, so that it can
say how far a worker had come that died.
"""

from __future__ import annotations

import ctypes
import signal as signals
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from neuraxis.comm.region import SharedRegion
from neuraxis.engine.cuda.factory import Place, device_names, on_cpu, parse_devices, require
from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.placement import Placement, check_placement, describe_slices, place, place_on_devices
from neuraxis.errors import CheckpointError, InvalidArgument, LaunchError, LineTimeout, ShardFailed, WorkerFailed
from neuraxis.execution.executor import BuildReport
from neuraxis.execution.notes import NOTES_BYTES, Notes
from neuraxis.execution.resident import INPUT, Letter, Resident, shard_of
from neuraxis.execution.tensors import lowered
from neuraxis.execution.together import ShardsTogether, merge_reports
from neuraxis.execution.worker import Setup, serve
from neuraxis.launch import Team
from neuraxis.launch.call import importable_main
from neuraxis.machine import usable_cores
from neuraxis.network import Network

__all__ = ["ParallelExecutor"]

_LOG_LINES = 5


class ParallelExecutor(ShardsTogether):
    """`workers` processes, each with a shard of the network."""

    def __init__(
        self,
        workers: int,
        *,
        timeout_s: float | None = None,
        placement: Placement | None = None,
        devices: str | Sequence[Place] = (),
    ) -> None:
        """
        Args:
            timeout_s: how long a command may take once all is built (None: while all workers live, any time).
            placement: who has which neurons; by default every worker has a part of every large population, or, where
                some have a GPU, these have everything but the populations of users' own regions.
            devices: where each worker runs its shard: ("cuda:0", "cpu", ...); by default all on the CPU.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise InvalidArgument(f"workers={workers!r}: a number of processes, 1 or more, is expected")
        self.workers = workers
        self._places = parse_devices(devices or "cpu", workers)
        if len(self._places) != workers:
            raise InvalidArgument(f"devices={self._places!r}: one for each of {workers} workers is expected")
        self.device = device_names(self._places)
        self._timeout_s = timeout_s
        self.placement: Placement = placement or ()
        self._residents: tuple[Resident, ...] = ()
        self._team: Team | None = None
        self._region: SharedRegion | None = None
        self._setup: Setup | None = None
        self._outboxes: Outboxes | None = None

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        if self._setup is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        self._residents = tuple(residents)
        for one in residents:
            if one.create.startswith("__main__:") and not importable_main():
                raise InvalidArgument(
                    f"region {one.name!r}: create={one.create!r} cannot be found in a worker process: this program "
                    "is no file that can be imported; put the region into a module"
                )
        require(self._places)
        placement = self.placement
        together = [(one.population, one.mark) for one in residents]
        gpus = [not on_cpu(one) for one in self._places]
        if placement:
            check_placement(network, placement, self.workers)
        elif any(gpus):
            placement = place_on_devices(network, gpus, together)
        else:
            placement = place(network, self.workers, together)
        try:
            self._team = Team(serve, self.workers, grace_s=1.0)
            return self._build(network, placement, progress)
        except BaseException:
            self.close()
            raise

    def move(self, placement: Placement) -> None:
        """Have the workers hold other neurons than before. Their states are lost: restore them."""
        assert self._setup is not None
        if self._team is None:
            raise ShardFailed("the workers of this simulation have ended")
        try:
            self._build(self._setup.network, placement, lambda synapses: None)
        except BaseException:
            self.close()
            raise

    def _build(self, network: Network, placement: Placement, progress: Callable[[int], None]) -> BuildReport:
        """Have every worker build its shard."""
        assert self._team is not None
        setup = Setup(network, placement, "", _patience(self.workers), self._residents, self._places)
        region = SharedRegion.create(setup.region_bytes)
        old, self._region = self._region, region
        self._setup = setup = replace(setup, region=region.name)
        self.placement = placement
        self._outboxes = setup.outboxes(region.address)
        reports: dict[int, BuildReport] = {}
        try:
            self._team.broadcast(setup)
            while len(reports) < self.workers:
                rank, message = self._team.receive()  # who dies ends this, and building may take as long as it takes
                if isinstance(message, BuildReport):
                    reports[rank] = message
                else:
                    progress(message)
        except WorkerFailed as error:
            self._fail(error)
        finally:
            if old is not None:
                old.close()
        region.seal()
        return merge_reports(list(reports.values()))

    def close(self) -> None:
        """End the workers and give the memory back."""
        team, self._team = self._team, None
        region, self._region = self._region, None
        if team is not None:
            team.close()
        self._outboxes = None
        if region is not None:
            region.close()

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        """Tell all workers to do the same; their answers, by rank."""
        if self._team is None:
            raise ShardFailed("the workers of this simulation have ended")
        try:
            self._team.broadcast((command, *arguments))
            answers = self._answers() if self._residents else self._team.gather(timeout=self._timeout_s)
        except WorkerFailed as error:
            self._fail(error)
        except LineTimeout as error:
            # Who is late may answer later, when nobody expects it: there is no going on from here.
            self.close()
            late = ", ".join(str(rank) for rank in error.ranks)
            raise ShardFailed(
                f"worker {late} did not answer {command!r} within {self._timeout_s:g} s, and was ended",
                worker=error.ranks[0] if error.ranks else -1,
            ) from error
        except BaseException:
            # Answers to this question may come when the next is asked: better none than the wrong one.
            self.close()
            raise
        for answer in answers:
            if isinstance(answer, CheckpointError):
                raise answer
        return answers

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        # What is heard at once may go as a handle; what has a way to go must outlive it, and be saved on the way.
        on_gpu = any(one.name == resident and one.device != "cpu" for one in self._residents)
        self.ask("give", resident, lowered(data, share=on_gpu and source == INPUT), source)

    def _answers(self) -> list[Any]:
        """One answer of each worker, by rank. Letters that come meanwhile are passed on."""
        assert self._team is not None
        assert self._setup is not None
        answers: dict[int, Any] = {}
        while len(answers) < self.workers:
            rank, message = self._team.receive(timeout=self._timeout_s)
            if isinstance(message, Letter):
                homes = {
                    shard_of(one, self._setup.placement)
                    for one in self._residents
                    if any(hearing.population == message.source for hearing in one.hears)
                }
                for home in homes - {rank}:
                    self._team.send(home, message)
            elif isinstance(message, ShardFailed):
                # The others wait for a shard that will not go on.
                self.close()
                raise message
            else:
                answers[rank] = message
        return [answers[rank] for rank in range(self.workers)]

    def _fail(self, error: WorkerFailed) -> NoReturn:
        """Say which shard failed and how far it had come."""
        if isinstance(error.__cause__, LaunchError):
            # The script itself is at fault: it starts processes when it is imported. Its one line says all.
            self.close()
            raise error.__cause__ from None
        step = self._last_step(error.rank)
        held = self._describe(error.rank)
        memory, log = self._notes(error.rank)
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

    def _notes(self, rank: int) -> tuple[int, list[str]]:
        """What a worker left: its memory, and the last lines of its log."""
        if self._region is None or not 0 <= rank < self.workers:
            return 0, []
        notes = Notes(self._region.address + NOTES_BYTES * rank)
        return notes.memory_bytes, notes.lines()[-_LOG_LINES:]

    def _last_step(self, rank: int) -> int:
        if self._region is None or self._outboxes is None or rank < 0:
            return 0
        word = ctypes.c_int64.from_address(int(self._outboxes.done[rank]))
        return int(word.value)

    def _describe(self, rank: int) -> str:
        if self._setup is None or not 0 <= rank < self.workers:
            return "its shard"
        return describe_slices(self._setup.network, self._setup.placement[rank])


def _next_action(error: WorkerFailed) -> str:
    if error.traceback:
        return "mend what raised, and run again from the last saved state (restore)"
    if error.signal == signals.SIGKILL:
        return "see whether the memory was enough (dmesg), and run again from the last saved state (restore)"
    return "run again from the last saved state (restore), or with workers=1 to see it happen in this process"


def _signal_name(number: int) -> str:
    try:
        return f"signal {signals.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _patience(workers: int) -> tuple[int, int]:
    """How often to look for another worker before yielding the core, and how often to yield before sleeping."""
    return (3000, 20000) if workers <= usable_cores() else (20, 20000)
