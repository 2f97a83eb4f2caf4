"""The worker process of a ParallelExecutor: build a shard, then execute commands until the connection closes."""

from __future__ import annotations

import logging
import time
import traceback
from dataclasses import dataclass, replace
from typing import Any

from neuraxis.comm.backends.shm.memory import SharedRegion
from neuraxis.engine.placement import Slice
from neuraxis.engine.precompile import warm_up
from neuraxis.engine.shards import Place, on_cpu
from neuraxis.engine.spikes import SpikeBuffers, lags_between
from neuraxis.errors import CheckpointError, LineClosed, NeuraxisError, ShardFailed
from neuraxis.network import Network
from neuraxis.process import WorkerLine
from neuraxis.process.pickling import install
from neuraxis.simulation.crash_report import CRASH_REPORT_BYTES, CrashReport, CrashReportHandler
from neuraxis.simulation.python_populations import LocalPayloads, Payload, PythonPopulation, listeners
from neuraxis.simulation.runner import ShardRunner
from neuraxis.wire.tensors import to_sendable

__all__ = ["Setup", "serve"]

_REPORT_EVERY_S = 0.2
_log = logging.getLogger("neuraxis.worker")


@dataclass(frozen=True)
class Setup:
    """Everything a worker needs to build its shard. The shared region starts with the crash reports of all workers."""

    network: Network
    placement: tuple[tuple[Slice, ...], ...]
    region: str
    spin_limits: tuple[int, int]
    python_populations: tuple[PythonPopulation, ...]
    devices: tuple[Place, ...]
    main_objects: dict[str, Any]  # of a notebook, from which Python populations are created

    @property
    def lags(self) -> Any:
        return lags_between(self.network, self.placement, listeners(self.python_populations, self.placement))

    def spike_buffers(self, address: int) -> SpikeBuffers:
        return SpikeBuffers.at(
            address + CRASH_REPORT_BYTES * len(self.placement), self.network, self.placement, self.lags
        )

    @property
    def region_bytes(self) -> int:
        return CRASH_REPORT_BYTES * len(self.placement) + SpikeBuffers.size_for(self.network, self.placement, self.lags)


def serve(line: WorkerLine) -> None:
    """Run one shard after the other, as the parent sets them up, until the parent closes the connection."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    if not root.handlers:  # adding the crash report handler disables the default handler, which prints warnings
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
    install(setup.main_objects)
    with SharedRegion.attach(setup.region) as region:
        report = CrashReport(region.address + CRASH_REPORT_BYTES * line.rank)
        handler = CrashReportHandler(report)
        logging.getLogger().addHandler(handler)
        runner = None
        try:
            device = setup.devices[line.rank]
            if on_cpu(device):
                warm_up(setup.network)
            transport = _PipePayloads(line)
            try:
                runner = ShardRunner(
                    setup.network, setup.placement, line.rank, setup.spike_buffers(region.address), _Progress(line),
                    setup.spin_limits, setup.python_populations, transport, device,
                )  # fmt: skip
            except LineClosed:
                raise
            except NeuraxisError as error:
                # A reply: the parent raises it as an executor without workers does, for the lowest rank that has one.
                error.add_note(f"Raised by worker {line.rank}:\n{traceback.format_exc().rstrip()}")
                line.send(error)
                return _next_setup(line)
            built = runner.report()
            _log.info(
                "built %s synapses onto %s neurons", f"{built.synapses:,}", sum(p.part.n for p in runner.shard.held)
            )
            report.write_memory()
            line.send(built)
            while True:
                message = line.receive()
                if isinstance(message, Setup):
                    return message
                if isinstance(message, Payload):
                    transport.keep(message)
                    continue
                command, *arguments = message
                line.send(_execute(runner, transport, command, arguments))
                report.write_memory()
        finally:
            if runner is not None:
                runner.close()
            logging.getLogger().removeHandler(handler)


def _next_setup(line: WorkerLine) -> Setup:
    """Wait for another shard to build; the parent closes the connection instead if it gives up."""
    setup = line.receive()
    assert isinstance(setup, Setup)
    return setup


def _execute(runner: ShardRunner, transport: _PipePayloads, command: str, arguments: list[Any]) -> Any:
    try:
        if command == "advance":
            return runner.advance(*arguments, check=transport.take_arrived)
        return getattr(runner, command)(*arguments)
    except (CheckpointError, ShardFailed) as error:
        return error  # the worker survives a full disk; for a failed region the parent ends all workers


class _PipePayloads(LocalPayloads):
    """Payloads sent through the parent, which forwards them to the workers with subscribers."""

    def __init__(self, line: WorkerLine) -> None:
        super().__init__()
        self._line = line

    def send(self, payload: Payload) -> None:
        super().send(payload)
        self._line.send(replace(payload, content=to_sendable(payload.content, share=True)))

    def keep(self, payload: Payload) -> None:
        self.payloads[payload.source, payload.step] = payload.content

    def take_arrived(self) -> None:
        """Keep payloads that have arrived; raise LineClosed if the parent has closed the connection."""
        while self._line.poll():
            self.keep(self._line.receive())

    def wait_for(self, source: int, step: int) -> Any:
        while (source, step) not in self.payloads:
            self.keep(self._line.receive())
        return super().wait_for(source, step)


class _Progress:
    """Reports the number of built synapses to the parent a few times a second."""

    def __init__(self, line: WorkerLine) -> None:
        self._line = line
        self._built = 0
        self._reported = time.monotonic()

    def __call__(self, synapses: int) -> None:
        self._built += synapses
        now = time.monotonic()
        if now - self._reported >= _REPORT_EVERY_S:
            self._line.send(self._built)
            self._built = 0
            self._reported = now
