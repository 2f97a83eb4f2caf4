"""A worker process of the ParallelExecutor: builds its shard, then does what it is told until the line closes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

from neuraxis.comm.region import SharedRegion
from neuraxis.engine.cuda.factory import Place, on_cpu
from neuraxis.engine.outboxes import Outboxes, lags_between
from neuraxis.engine.placement import Slice
from neuraxis.engine.warm import warm_up
from neuraxis.errors import CheckpointError, LineClosed, ShardFailed
from neuraxis.execution.notes import NOTES_BYTES, Notes, NotesHandler
from neuraxis.execution.resident import Letter, OwnMail, Resident, listeners
from neuraxis.execution.runner import ShardRunner
from neuraxis.execution.tensors import lowered
from neuraxis.launch import WorkerLine
from neuraxis.network import Network

__all__ = ["Setup", "serve"]

_REPORT_EVERY_S = 0.2
_log = logging.getLogger("neuraxis.worker")


@dataclass(frozen=True)
class Setup:
    """What a worker must know to build its shard. The notes of all workers are at the start of the shared region."""

    network: Network
    placement: tuple[tuple[Slice, ...], ...]
    region: str
    patience: tuple[int, int]
    residents: tuple[Resident, ...]
    devices: tuple[Place, ...]

    @property
    def lags(self) -> Any:
        return lags_between(self.network, self.placement, listeners(self.residents, self.placement))

    def outboxes(self, address: int) -> Outboxes:
        return Outboxes.at(address + NOTES_BYTES * len(self.placement), self.network, self.placement, self.lags)

    @property
    def region_bytes(self) -> int:
        return NOTES_BYTES * len(self.placement) + Outboxes.size_for(self.network, self.placement, self.lags)


def serve(line: WorkerLine) -> None:
    """The worker's life: one shard after the other, as the parent sets it up."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    if not root.handlers:  # a handler of ours would take the place of the one that prints warnings
        printing = logging.StreamHandler()
        printing.setLevel(logging.WARNING)
        root.addHandler(printing)
    try:
        setup = line.receive()
        while True:
            setup = _serve_one(line, setup)
    except LineClosed:
        return


def _serve_one(line: WorkerLine, setup: Setup) -> Setup:
    """Run a shard until the parent sets up another one."""
    with SharedRegion.attach(setup.region) as region:
        notes = Notes(region.address + NOTES_BYTES * line.rank)
        handler = NotesHandler(notes)
        logging.getLogger().addHandler(handler)
        runner = None
        try:
            device = setup.devices[line.rank]
            if on_cpu(device):
                warm_up()
            mail = _LineMail(line)
            runner = ShardRunner(
                setup.network, setup.placement, line.rank, setup.outboxes(region.address), _Progress(line),
                setup.patience, setup.residents, mail, device,
            )  # fmt: skip
            report = runner.report()
            _log.info(
                "built %s synapses onto %s neurons", f"{report.synapses:,}", sum(p.part.n for p in runner.shard.held)
            )
            notes.write_memory()
            line.send(report)
            while True:
                message = line.receive()
                if isinstance(message, Setup):
                    return message
                if isinstance(message, Letter):
                    mail.keep(message)
                    continue
                command, *arguments = message
                line.send(_do(runner, mail, command, arguments))
                notes.write_memory()
        finally:
            if runner is not None:
                runner.close()
            logging.getLogger().removeHandler(handler)


def _do(runner: ShardRunner, mail: _LineMail, command: str, arguments: list[Any]) -> Any:
    try:
        if command == "advance":
            return runner.advance(arguments[0], check=mail.look)
        return getattr(runner, command)(*arguments)
    except (CheckpointError, ShardFailed) as error:
        return error  # a full disk is no reason to end; a region that failed is told by the parent


class _LineMail(OwnMail):
    """Mail by way of the parent, who passes letters on to the workers that have residents who want them."""

    def __init__(self, line: WorkerLine) -> None:
        super().__init__()
        self._line = line

    def post(self, letter: Letter) -> None:
        super().post(letter)
        self._line.send(replace(letter, content=lowered(letter.content, share=True)))

    def keep(self, letter: Letter) -> None:
        self.letters[letter.source, letter.step] = letter.content

    def look(self) -> None:
        """Take in what has come, while we wait for another worker; raise if the parent has closed the line."""
        while self._line.poll():
            self.keep(self._line.receive())  # raises LineClosed at the end

    def fetch(self, source: int, step: int) -> Any:
        while (source, step) not in self.letters:
            self.keep(self._line.receive())
        return super().fetch(source, step)


class _Progress:
    """Tells the parent how many synapses were built, a few times a second."""

    def __init__(self, line: WorkerLine) -> None:
        self._line = line
        self._built = 0
        self._told = time.monotonic()

    def __call__(self, synapses: int) -> None:
        self._built += synapses
        now = time.monotonic()
        if now - self._told >= _REPORT_EVERY_S:
            self._line.send(self._built)
            self._built = 0
            self._told = now
