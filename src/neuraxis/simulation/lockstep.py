"""Run one shard on each rank of a communicator: on a cluster, over gloo or MPI, in programs that every rank runs alike.

Ranks share no memory. They exchange spikes by one all-gather for each window of steps; a window is as long as the
shortest delay between two ranks, so no rank needs a spike before its window is exchanged. All ranks stop at the same
steps, so each exchange is one collective.

Ranks with Python populations also exchange payloads. A payload is sent before the step of its spike, so everything sent
since the last window travels with this one and arrives before its spike can be delivered.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.comm import Communicator
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.placement import Placement, check_placement, place
from neuraxis.engine.precompile import warm_up
from neuraxis.engine.spikes import (
    LONGEST_LAG,
    SpikeBuffers,
    lags_between,
    pack_outputs,
    pack_steps,
    unpack_outputs,
    unpack_steps,
)
from neuraxis.errors import CheckpointError, InvalidArgument, ShardFailed
from neuraxis.network import Network
from neuraxis.simulation.checkpoint import describe_network
from neuraxis.simulation.executor import (
    BuildReport,
    Recorded,
    ShardedExecutor,
    decode_reply,
    encode_reply,
    merge_reports,
)
from neuraxis.simulation.python_populations import LocalPayloads, Payload, PythonPopulation, listeners, shard_of
from neuraxis.simulation.runner import ShardRunner
from neuraxis.store import replacing
from neuraxis.wire.tensors import pack, unpack

__all__ = ["ON_ALL_RANKS", "Exchange", "LockstepExecutor", "LockstepPayloads", "on_all_ranks"]

ON_ALL_RANKS = "(raised on all ranks)"  # added to errors that every rank raises, so that only one prints them

Value = TypeVar("Value")
Error = TypeVar("Error", bound=Exception)

# Header of an exchange: failed, number of words of outputs and spikes, number of payloads; then as many words as fit.
_FAILED, _LENGTH, _PAYLOADS = range(3)
_HEADER = 3
_INLINE = 509


class LockstepExecutor(ShardedExecutor):
    """Runs a network as one shard on each rank of a communicator.

    Every rank makes the same `Simulation` and calls the same methods; every rank gets the complete result. Rank 0
    writes files. To restore a saved state, all ranks must see its folder. If a rank dies, the others raise `PeerLost`;
    if a Python population raises, all ranks raise `ShardFailed`.

    Parameters
    ----------
    communicator : Communicator
        The ranks, such as `DistributedContext.world`.
    placement : Placement, optional
        Neurons of each rank. By default every rank has a part of every large population, and regions of a brain stay
        whole where that is faster.

    Examples
    --------
    >>> from neuraxis.comm import DistributedContext
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_delta
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_delta)
    >>> from neuraxis.simulation import Simulation
    >>> with DistributedContext("local") as context:
    ...     with Simulation(network, executor=LockstepExecutor(context.world)) as simulation:
    ...         simulation.step(5).time_ms
    0.5

    On several ranks every rank runs the same lines, with a backend as "shm" or "gloo".
    """

    def __init__(self, communicator: Communicator, placement: Placement | None = None) -> None:
        self.workers = communicator.size
        self.leads = communicator.rank == 0
        self._communicator = communicator
        self._runner: ShardRunner | None = None
        self._exchange: Exchange | None = None
        self.placement: Placement = placement or ()

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        if self._runner is not None:
            raise InvalidArgument("this executor already runs a simulation. Make one executor per simulation")
        warm_up(network, packing=True)
        if self.placement:
            check_placement(network, self.placement, self.workers)
        else:
            self.placement = place(
                network, self.workers, together=[(one.population, one.marker) for one in python_populations]
            )
        self._check_same(network, python_populations)
        placement, me = self.placement, self._communicator.rank
        lags = lags_between(network, placement, listeners(python_populations, placement))
        apart = ~np.eye(self.workers, dtype=bool)
        lags[apart] = lags[apart].min(initial=LONGEST_LAG)  # all ranks exchange at the same steps
        spike_buffers = SpikeBuffers.private(network, placement, lags)
        transport = LockstepPayloads(_remote_subscriptions(python_populations, placement))
        reply: Any
        try:
            self._runner = ShardRunner(
                network, placement, me, spike_buffers, progress, (0, 0), python_populations, transport
            )
            self._exchange = Exchange(self._runner.shard, self._communicator, transport)
            reply = self._runner.report()
        except InvalidArgument as error:
            reply = error  # only the rank of a Python population knows that it cannot be created
        return merge_reports(self._replies(reply))

    def _check_same(self, network: Network, python_populations: Sequence[PythonPopulation]) -> None:
        """Raise on all ranks unless all were given the same network; files may differ between hosts."""
        beside = [[one.name, one.create, one.population, one.marker] for one in python_populations]
        mine = [describe_network(network), beside, repr(self.placement)]
        for rank, theirs in enumerate(gathered := self._gather(mine)):
            if theirs != gathered[0]:
                raise on_all_ranks(
                    InvalidArgument(
                        f"network: rank {rank} has a different network than rank 0. Give all ranks the same"
                    )
                )

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        assert self._runner is not None
        assert self._exchange is not None
        reply: Any
        if command == "advance":
            reply = self._advance(self._runner, self._exchange, *arguments)
        else:
            try:
                reply = getattr(self._runner, command)(*arguments)
            except CheckpointError as error:
                reply = error
        if command == "publish":
            self._exchange.begin_at(self._runner.shard.step)
        return self._replies(reply)

    def _advance(self, runner: ShardRunner, exchange: Exchange, until: int, check_last: bool) -> Recorded:
        try:
            recorded = runner.advance(until, fetch=exchange, check_last=check_last)
        except ShardFailed as error:
            if not exchange.failed:
                exchange.end(error)
            raise
        exchange.end()
        return recorded

    def save(self, folder: Path) -> list[str]:
        """Write one file per rank; ranks that do not see the folder of rank 0 send their file to rank 0.

        Parameters
        ----------
        folder : Path
            An existing folder on rank 0.

        Returns
        -------
        list of str
            Names of the files.
        """
        if all(self._gather(folder.is_dir())):
            return super().save(folder)
        with tempfile.TemporaryDirectory(prefix="neuraxis-save-") as own:
            name = self._replies(self._saved_to(Path(own)))[self._communicator.rank]
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
        """Call a function on rank 0 only; an error about a file or argument is raised on all ranks.

        Parameters
        ----------
        make : callable
            Function without arguments.

        Returns
        -------
        object
            What it returned, on every rank.
        """
        made: list[Any] = [None]
        if self.leads:
            try:
                made = [encode_reply(make())]
            except (CheckpointError, InvalidArgument) as error:
                made = [encode_reply(error)]
        self._communicator.broadcast_object_list(made, group_src=0)
        value = decode_reply(made[0])
        if isinstance(value, CheckpointError | InvalidArgument):
            raise on_all_ranks(value)
        return value  # type: ignore[no-any-return]

    def close(self) -> None:
        self._runner = self._exchange = None

    def _replies(self, reply: Any) -> list[Any]:
        """Gather the replies of all ranks; if one of them is an error, all ranks raise it."""
        replies = self._gather(reply)
        for one in replies:
            if isinstance(one, CheckpointError | InvalidArgument):
                raise on_all_ranks(one)
        return replies

    def _gather(self, reply: Any) -> list[Any]:
        replies: list[Any] = [None] * self.workers
        self._communicator.all_gather_object(replies, encode_reply(reply))
        return [decode_reply(one) for one in replies]


class LockstepPayloads(LocalPayloads):
    """Payloads that travel with the next window; `remote` are the markers that other ranks subscribe to."""

    def __init__(self, remote: Collection[int]) -> None:
        super().__init__()
        self._remote = frozenset(remote)
        self.outgoing: list[list[Any]] = []

    def send(self, payload: Payload) -> None:
        super().send(payload)
        if payload.source in self._remote:
            # Serialized here, so that the sender gets the error if it cannot be.
            content = pack(self.payloads[payload.source, payload.step])
            self.outgoing.append([payload.source, payload.step, content])

    def keep(self, payloads: list[list[Any]]) -> None:
        for source, step, content in payloads:
            self.payloads[source, step] = unpack(content)


class Exchange:
    """Fills this process's copies of the other ranks' spike buffers.

    All ranks run as far as they can without new spikes and then stop at the same step, so each call is one collective.
    """

    def __init__(self, shard: Shard, communicator: Communicator, transport: LockstepPayloads) -> None:
        self._shard = shard
        self._communicator = communicator
        self._transport = transport
        network = shard.network
        self._first_ids = np.array([p.first_id for p in network.populations] + [network.neuron_count], np.int64)
        self._window = int(np.delete(shard.lags, shard.me).min(initial=LONGEST_LAG))
        self._known = 0  # last exchanged step
        self.failed = False  # True once all ranks know that a Python population failed

    def __call__(self) -> None:
        """Exchange the spikes and outputs of the steps since the last exchange."""
        self._exchange_window(self._known)

    def begin_at(self, step: int) -> None:
        """Exchange the spikes of the window before a restored state; its payloads are part of the state."""
        self._transport.outgoing.clear()
        self._exchange_window(max(0, step - self._window))

    def end(self, error: ShardFailed | None = None) -> None:
        """Complete a run, or report that a Python population on this rank failed; then all ranks raise ShardFailed.

        All ranks take part in an exchange at the end of each window and run, so a failed rank can report its error
        instead of leaving the others waiting.
        """
        self._gather_spikes(np.zeros(0, np.int32), 0, error)

    def _exchange_window(self, after: int) -> None:
        shard, now = self._shard, self._shard.step
        steps, ids = pack_steps(shard.spike_buffers, shard.me, len(shard.network.populations), after + 1, now)
        outputs = pack_outputs(shard.spike_buffers, shard.me, after + 1, now)
        payloads, self._transport.outgoing = self._transport.outgoing, []
        flat = np.concatenate([outputs.view(np.int32), steps.astype(np.int32), ids])
        gathered, has_payloads = self._gather_spikes(flat, len(payloads))
        for other, theirs in enumerate(gathered):
            if other != shard.me:
                size = int(shard.spike_buffers.output_counts[other]) * (now - after)
                outputs, theirs = theirs[:size].view(np.float32), theirs[size:]
                unpack_outputs(shard.spike_buffers, other, after + 1, now, outputs, after + 1)
                steps, ids = theirs[: theirs.size // 2].astype(np.uint16), theirs[theirs.size // 2 :]
                unpack_steps(shard.spike_buffers, other, self._first_ids, after + 1, now, steps, ids, after + 1)
            ctypes.c_int64.from_address(int(shard.spike_buffers.done[other])).value = now
        if has_payloads:
            sent: list[Any] = [None] * self._communicator.size
            self._communicator.all_gather_object(sent, payloads)
            for other, posted in enumerate(sent):
                if other != shard.me:
                    self._transport.keep(posted)
        self._known = now

    def _gather_spikes(
        self, flat: NDArray[np.int32], payloads: int, error: ShardFailed | None = None
    ) -> tuple[list[NDArray[np.int32]], bool]:
        """Return the spikes of each rank, and whether any rank has payloads.

        Most windows hold few spikes, which travel with the header; only longer ones need a second all-gather.
        """
        size = self._communicator.size
        headers = np.zeros((size, _HEADER + _INLINE), np.int32)
        mine = np.zeros(_HEADER + _INLINE, np.int32)
        mine[:_HEADER] = error is not None, flat.size, payloads
        mine[_HEADER : _HEADER + flat.size] = flat[:_INLINE]
        self._communicator.all_gather_into_tensor(headers.reshape(-1), mine)
        if headers[:, _FAILED].any():
            self.failed = True
            errors: list[Any] = [None] * size
            self._communicator.all_gather_object(errors, None if error is None else _encode_error(error))
            raise on_all_ranks(error or _decode_error(next(one for one in errors if one is not None)))
        rows = headers[:, _HEADER:]
        missing = int(headers[:, _LENGTH].max()) - _INLINE
        if missing > 0:
            rest = np.zeros((size, missing), np.int32)
            mine = np.zeros(missing, np.int32)
            mine[: max(0, flat.size - _INLINE)] = flat[_INLINE:]
            self._communicator.all_gather_into_tensor(rest.reshape(-1), mine)
            rows = np.concatenate([rows, rest], axis=1)
        return [row[:length] for row, length in zip(rows, headers[:, _LENGTH], strict=True)], bool(
            headers[:, _PAYLOADS].any()
        )


def on_all_ranks(error: Error) -> Error:
    """Mark an error that every rank raises."""
    error.add_note(ON_ALL_RANKS)
    return error


def _encode_error(error: ShardFailed) -> list[Any]:
    return [str(error), error.worker, error.shard, error.step, error.traceback]


def _decode_error(errors: list[Any]) -> ShardFailed:
    text, worker, shard, step, traceback = errors
    return ShardFailed(text, worker=worker, shard=shard, step=step, traceback=traceback)


def _remote_subscriptions(python_populations: Sequence[PythonPopulation], placement: Placement) -> set[int]:
    """Return the markers that Python populations on other ranks subscribe to."""
    shard_by_marker = {one.marker: shard_of(one, placement) for one in python_populations}
    return {
        subscription.population
        for one in python_populations
        for subscription in one.subscriptions
        if shard_by_marker.get(subscription.population, shard_of(one, placement)) != shard_of(one, placement)
    }


def _write(path: Path, content: np.ndarray) -> str:
    try:
        with replacing(path) as new:
            content.tofile(new)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    return path.name
