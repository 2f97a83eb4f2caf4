"""One shard on each rank of a communicator: on a cluster, over gloo or MPI, in programs that every rank runs alike."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from neuraxis.comm import Communicator
from neuraxis.engine.outboxes import LONGEST_LAG, Outboxes, lags_between
from neuraxis.engine.packing import warm_up_packing
from neuraxis.engine.placement import Placement, check_placement, place
from neuraxis.engine.warm import warm_up
from neuraxis.errors import CheckpointError, InvalidArgument, ShardFailed
from neuraxis.execution.answers import lowered_answer, raised_answer
from neuraxis.execution.checkpoint import describe_network
from neuraxis.execution.exchange import Exchange, RankMail, on_all_ranks
from neuraxis.execution.executor import BuildReport, Recorded
from neuraxis.execution.resident import Resident, listeners, shard_of
from neuraxis.execution.runner import ShardRunner
from neuraxis.execution.together import ShardsTogether, merge_reports
from neuraxis.network import Network

__all__ = ["LockstepExecutor"]

Value = TypeVar("Value")


class LockstepExecutor(ShardsTogether):
    """Every rank makes the same Simulation and calls the same methods of it, and every rank gets the whole answer.

        with DistributedContext(backend="gloo") as context:
            with Simulation(network, executor=LockstepExecutor(context.world)) as simulation:
                summary = simulation.run(1000.0)  # on all ranks

    Files are written by rank 0. To go on from a saved state, its folder must be one that all ranks see. Errors are the
    communicator's: a rank that dies raises PeerLost on the others. A resident that raises does so on all ranks.

    Args:
        placement: who has which neurons; by default every rank has a part of every large population, and in a brain
            regions stay whole where that pays.
    """

    def __init__(self, communicator: Communicator, placement: Placement | None = None) -> None:
        self.workers = communicator.size
        self.leads = communicator.rank == 0
        self._communicator = communicator
        self._runner: ShardRunner | None = None
        self._exchange: Exchange | None = None
        self.placement: Placement = placement or ()

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        if self._runner is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        warm_up()
        warm_up_packing()
        if self.placement:
            check_placement(network, self.placement, self.workers)
        else:
            self.placement = place(network, self.workers, together=[(one.population, one.mark) for one in residents])
        self._check_same(network, residents)
        placement, me = self.placement, self._communicator.rank
        lags = lags_between(network, placement, listeners(residents, placement))
        apart = ~np.eye(self.workers, dtype=bool)
        lags[apart] = lags[apart].min(initial=LONGEST_LAG)  # all ranks meet at the same steps
        outboxes = Outboxes.private(network, placement, lags)
        mail = RankMail(_heard_abroad(residents, placement))
        answer: Any
        try:
            self._runner = ShardRunner(network, placement, me, outboxes, progress, (0, 0), residents, mail)
            self._exchange = Exchange(self._runner.shard, self._communicator, mail)
            answer = self._runner.report()
        except InvalidArgument as error:
            answer = error  # a resident cannot be made; only the rank where it would live knows
        return merge_reports(self._answers(answer))

    def _check_same(self, network: Network, residents: Sequence[Resident]) -> None:
        """Raise on all ranks unless all have the same: files may differ between hosts, and the result would be none."""
        beside = [[one.name, one.create, one.population, one.mark] for one in residents]
        mine = [describe_network(network), beside, repr(self.placement)]
        for rank, theirs in enumerate(everybody := self._gather(mine)):
            if theirs != everybody[0]:
                raise on_all_ranks(
                    InvalidArgument(f"network: rank {rank} was given another one than rank 0; all need the same")
                )

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        assert self._runner is not None
        assert self._exchange is not None
        answer: Any
        if command == "advance":
            answer = self._advance(self._runner, self._exchange, arguments[0])
        else:
            try:
                answer = getattr(self._runner, command)(*arguments)
            except CheckpointError as error:
                answer = error
        if command == "publish":
            self._exchange.begin_at(self._runner.shard.step)
        return self._answers(answer)

    def _advance(self, runner: ShardRunner, exchange: Exchange, until: int) -> Recorded:
        try:
            recorded = runner.advance(until, fetch=exchange)
        except ShardFailed as error:
            if not exchange.failed:
                exchange.end(error)
            raise
        exchange.end()
        return recorded

    def save(self, folder: Path) -> list[str]:
        """Ranks that do not see the folder, which is rank 0's, send rank 0 what they would write."""
        if all(self._gather(folder.is_dir())):
            return super().save(folder)
        with tempfile.TemporaryDirectory(prefix="neuraxis-save-") as own:
            name = self._answers(self._saved_to(Path(own)))[self._communicator.rank]
            content = np.fromfile(Path(own) / name, np.uint8)
        sent: list[Any] = [None] * self.workers
        self._communicator.gather_object([name, content], sent if self.leads else None, group_dst=0)
        return self.agree(lambda: [_write(folder / name, content) for name, content in sent])

    def _saved_to(self, folder: Path) -> str | CheckpointError:
        assert self._runner is not None
        try:
            return self._runner.save(folder)
        except CheckpointError as error:
            return error

    def agree(self, make: Callable[[], Value]) -> Value:
        """Called on rank 0; where that raises because of a file or an argument, so it does on all."""
        made: list[Any] = [None]
        if self.leads:
            try:
                made = [lowered_answer(make())]
            except (CheckpointError, InvalidArgument) as error:
                made = [lowered_answer(error)]
        self._communicator.broadcast_object_list(made, group_src=0)
        value = raised_answer(made[0])
        if isinstance(value, CheckpointError | InvalidArgument):
            raise on_all_ranks(value)
        return value  # type: ignore[no-any-return]

    def close(self) -> None:
        self._runner = self._exchange = None

    def _answers(self, answer: Any) -> list[Any]:
        """Every rank's answer; where one of them is an error, all raise it."""
        answers = self._gather(answer)
        for one in answers:
            if isinstance(one, CheckpointError | InvalidArgument):
                raise on_all_ranks(one)
        return answers

    def _gather(self, answer: Any) -> list[Any]:
        answers: list[Any] = [None] * self.workers
        self._communicator.all_gather_object(answers, lowered_answer(answer))
        return [raised_answer(one) for one in answers]


def _heard_abroad(residents: Sequence[Resident], placement: Placement) -> set[int]:
    """The marks of residents that are heard on another rank than their own."""
    home = {one.mark: shard_of(one, placement) for one in residents}
    return {
        hearing.population
        for one in residents
        for hearing in one.hears
        if home.get(hearing.population, shard_of(one, placement)) != shard_of(one, placement)
    }


def _write(path: Path, content: np.ndarray) -> str:
    try:
        content.tofile(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    return path.name
