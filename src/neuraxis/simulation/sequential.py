"""Run the whole network in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neuraxis.engine.placement import Placement, place
from neuraxis.engine.precompile import warm_up
from neuraxis.engine.shards import Place, device_names, on_cpu, parse_devices, require
from neuraxis.engine.spikes import SpikeBuffers, lags_between
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network
from neuraxis.simulation.executor import BuildReport, ShardedExecutor
from neuraxis.simulation.python_populations import PythonPopulation, listeners
from neuraxis.simulation.runner import ShardRunner

__all__ = ["SequentialExecutor"]


class SequentialExecutor(ShardedExecutor):
    """Runs a network as one shard in the calling process.

    Parameters
    ----------
    device : str
        "cpu" or a GPU: "cuda", "cuda:1". Results are bit-identical.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_delta
    >>> from neuraxis.simulation import Simulation
    >>> network = Network(dt_ms=0.1, seed=1)
    >>> cells = network.population("cells", 10, lif_delta())
    >>> with Simulation(network, executor=SequentialExecutor()) as simulation:
    ...     simulation.step(5).time_ms
    0.5
    """

    workers = 1

    def __init__(self, device: Place = "cpu") -> None:
        (self._place,) = parse_devices((device,), 1)
        self.device = device_names((device,))
        self._runner: ShardRunner | None = None
        self.placement: Placement = ()

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        if self._runner is not None:
            raise InvalidArgument("this executor already runs a simulation. Make one executor per simulation")
        require((self._place,))
        if on_cpu(self._place):
            warm_up(network)
        self.placement = placement = place(network, 1)
        spike_buffers = SpikeBuffers.private(
            network, placement, lags_between(network, placement, listeners(python_populations, placement))
        )
        self._runner = ShardRunner(
            network, placement, 0, spike_buffers, progress, (0, 0), python_populations, device=self._place
        )
        return self._runner.report()

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        assert self._runner is not None
        return [getattr(self._runner, command)(*arguments)]

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
