"""One shard on each rank of a communicator: on a cluster, over gloo or MPI, in programs that every rank runs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from neuraxis.comm import Communicator
from neuraxis.engine.outboxes import Outboxes, lags_between
from neuraxis.engine.placement import Placement, place
from neuraxis.engine.warm import warm_up
from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.execution.exchange import Exchange
from neuraxis.execution.executor import BuildReport, Counters, Recorded, Samples, WorkerStatus
from neuraxis.execution.resident import OwnMail, Resident, listeners
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

    Files are written by rank 0. Saved states need a folder that all ranks see. Errors are the communicator's: a rank
    that dies raises PeerLost on the others.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.workers = communicator.size
        self.leads = communicator.rank == 0
        self._communicator = communicator
        self._runner: ShardRunner | None = None
        self._exchange: Exchange | None = None
        self.placement: Placement = ()

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        if self._runner is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        warm_up()
        self.placement = placement = place(
            network, self.workers, together=[(one.population, one.mark) for one in residents]
        )
        me = self._communicator.rank
        lags = lags_between(network, placement, listeners(residents, placement))
        lags[:] = lags.min()  # all ranks meet at the same steps
        outboxes = Outboxes.private(network, placement, lags)
        self._runner = ShardRunner(network, placement, me, outboxes, progress, (0, 0), residents, _RankMail())
        self._exchange = Exchange(self._runner.shard, self._communicator)
        return merge_reports(self._gather(self._runner.report()))

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        assert self._runner is not None
        assert self._exchange is not None
        answer: Any
        if command == "advance":
            answer = self._runner.advance(arguments[0], fetch=self._exchange)
        else:
            try:
                answer = getattr(self._runner, command)(*arguments)
            except CheckpointError as error:
                answer = error
        if command == "publish":
            self._exchange.begin_at(self._runner.shard.step)
        answers = self._gather(answer)
        for one in answers:
            if isinstance(one, CheckpointError):
                raise one
        return answers

    def agree(self, make: Callable[[], Value]) -> Value:
        """Called on rank 0; where that raises because of a file or an argument, so it does on all."""
        made: list[Any] = [None]
        if self.leads:
            try:
                made = [_lowered(make())]
            except (CheckpointError, InvalidArgument) as error:
                made = [_lowered(error)]
        self._communicator.broadcast_object_list(made, src=0)
        value = _raised(made[0])
        if isinstance(value, CheckpointError | InvalidArgument):
            raise value
        return value  # type: ignore[no-any-return]

    def close(self) -> None:
        self._runner = self._exchange = None

    def _gather(self, answer: Any) -> list[Any]:
        answers: list[Any] = [None] * self.workers
        self._communicator.all_gather_object(answers, _lowered(answer))
        return [_raised(one) for one in answers]


class _RankMail(OwnMail):
    """Ranks exchange spikes and nothing else: data reach residents of the same rank only."""

    def fetch(self, source: int, step: int) -> Any:
        if (source, step) not in self.letters:
            raise InvalidArgument(
                "data do not travel between ranks: let residents that exchange them run in one process"
            )
        return super().fetch(source, step)


# Answers travel as plain data (nothing is pickled); these are what they are made of.
_KINDS = {kind.__name__: kind for kind in (BuildReport, Counters, Recorded, Samples, WorkerStatus)}

_ERRORS = {kind.__name__: kind for kind in (CheckpointError, InvalidArgument)}


def _lowered(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: _lowered(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list):
        return [_lowered(one) for one in value]
    if isinstance(value, CheckpointError | InvalidArgument):
        return {"kind": type(value).__name__, "text": str(value)}
    return value


def _raised(value: Any) -> Any:
    if isinstance(value, list):
        return [_raised(one) for one in value]
    if isinstance(value, dict) and value.get("kind") in _ERRORS:
        return _ERRORS[value["kind"]](value["text"])
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return _KINDS[value["kind"]](**{name: _raised(one) for name, one in value.items() if name != "kind"})
    return value
