"""The shards of a network in worker processes, which exchange spikes through memory that they share.

The parent starts the workers (`launch.Team`), tells them what to do and gathers what they answer. Between two commands
the workers run whole stretches of steps by themselves: each writes its spikes to its outbox in the shared region, and
publishes the step; the others read them from there. The parent sees the words of their progress, too, so that it can
say how far a worker had come that died.
"""

from __future__ import annotations

import ctypes
import signal as signals
from collections.abc import Callable
from typing import Any, NoReturn

from neuraxis.comm.region import SharedRegion
from neuraxis.engine.outboxes import Outboxes, lags_between
from neuraxis.engine.placement import Slice, place
from neuraxis.errors import CheckpointError, InvalidArgument, LineTimeout, ShardFailed, WorkerFailed
from neuraxis.execution.executor import BuildReport
from neuraxis.execution.together import ShardsTogether, merge_reports
from neuraxis.execution.worker import serve
from neuraxis.launch import Team
from neuraxis.machine import usable_cores
from neuraxis.network import Network

__all__ = ["ParallelExecutor"]


class ParallelExecutor(ShardsTogether):
    """`workers` processes, each with a shard of the network."""

    def __init__(self, workers: int, *, timeout_s: float | None = None) -> None:
        """`timeout_s`: how long a command may take once all is built (None: while all workers live, any time)."""
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise InvalidArgument(f"workers={workers!r}: a number of processes, 1 or more, is expected")
        self.workers = workers
        self._timeout_s = timeout_s
        self._team: Team | None = None
        self._region: SharedRegion | None = None
        self._network: Network | None = None
        self._placement: tuple[tuple[Slice, ...], ...] = ()
        self._outboxes: Outboxes | None = None

    def start(self, network: Network, progress: Callable[[int], None]) -> BuildReport:
        if self._network is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        self._network = network
        self._placement = place(network, self.workers)
        lags = lags_between(network, self._placement)
        self._region = SharedRegion.create(Outboxes.size_for(network, self._placement, lags))
        self._outboxes = Outboxes.at(self._region.address, network, self._placement, lags)
        try:
            self._team = Team(serve, self.workers, grace_s=1.0)
            self._team.broadcast((network, self._placement, self._region.name, _patience(self.workers)))
            reports: dict[int, BuildReport] = {}
            while len(reports) < self.workers:
                rank, message = self._receive()
                if isinstance(message, BuildReport):
                    reports[rank] = message
                else:
                    progress(message)
            self._region.seal()
        except BaseException:
            self.close()
            raise
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
            answers = self._team.gather(timeout=self._timeout_s)
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

    def _receive(self) -> tuple[int, Any]:
        assert self._team is not None
        try:
            return self._team.receive()  # a worker that dies ends this, and building may take as long as it takes
        except WorkerFailed as error:
            self._fail(error)

    def _fail(self, error: WorkerFailed) -> NoReturn:
        """Say which shard failed and how far it had come."""
        step = self._last_step(error.rank)
        held = self._describe(error.rank)
        self.close()
        how = f"{_signal_name(error.signal)}" if error.signal else f"exit code {error.exit_code}"
        text = f"worker {error.rank} ({held}) failed after step {step}: {how}"
        if error.traceback:
            text = f"worker {error.rank} ({held}) failed after step {step}:\n{error.traceback.rstrip()}"
        raise ShardFailed(
            text, worker=error.rank, shard=held, step=step, exit_code=error.exit_code, signal=error.signal,
            traceback=error.traceback,
        ) from error  # fmt: skip

    def _last_step(self, rank: int) -> int:
        if self._region is None or self._outboxes is None or rank < 0:
            return 0
        word = ctypes.c_int64.from_address(int(self._outboxes.done[rank]))
        return int(word.value)

    def _describe(self, rank: int) -> str:
        if self._network is None or not 0 <= rank < len(self._placement):
            return "its shard"
        names = [
            f"{self._network.populations[part.population].name}[{part.first}:{part.last}]"
            for part in self._placement[rank]
        ]
        return ", ".join(names) if names else "no neurons"


def _signal_name(number: int) -> str:
    try:
        return f"signal {signals.Signals(number).name}"
    except ValueError:
        return f"signal {number}"


def _patience(workers: int) -> tuple[int, int]:
    """How often to look for another worker before yielding the core, and how often to yield before sleeping."""
    return (3000, 20000) if workers <= usable_cores() else (20, 20000)
