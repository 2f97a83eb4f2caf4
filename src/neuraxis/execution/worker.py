"""A worker process of the ParallelExecutor: builds its shard, then does what it is told until the line closes."""

from __future__ import annotations

import time
from typing import Any

from neuraxis.comm.region import SharedRegion
from neuraxis.engine.outboxes import Outboxes, lags_between
from neuraxis.engine.warm import warm_up
from neuraxis.errors import CheckpointError, LineClosed
from neuraxis.execution.runner import ShardRunner
from neuraxis.launch import WorkerLine

__all__ = ["serve"]

_REPORT_EVERY_S = 0.2


def serve(line: WorkerLine) -> None:
    """The worker's life."""
    try:
        network, placement, region_name, patience = line.receive()
    except LineClosed:
        return
    with SharedRegion.attach(region_name) as region:
        outboxes = Outboxes.at(region.address, network, placement, lags_between(network, placement))
        warm_up()
        runner = ShardRunner(network, placement, line.rank, outboxes, _Progress(line), patience)
        line.send(runner.report())
        while True:
            try:
                command, *arguments = line.receive()
            except LineClosed:
                return
            line.send(_do(runner, line, command, arguments))


def _do(runner: ShardRunner, line: WorkerLine, command: str, arguments: list[Any]) -> Any:
    if command == "advance":
        return runner.advance(arguments[0], check=lambda: _check(line))
    try:
        return getattr(runner, command)(*arguments)
    except CheckpointError as error:
        return error  # the shard is as it was: a full disk is no reason to end


def _check(line: WorkerLine) -> None:
    """End when the parent has closed the line while we wait for another worker."""
    if line.closed:
        raise LineClosed("the team was closed")


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
