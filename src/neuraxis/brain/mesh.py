"""A brain's regions as nodes of the mesh: which node has what, and what it takes in from outside.

Every region is a node. A sensor's neurons are with the first region that it leads to, those of an effector with the
region whose choice it shows: they are ends of nerves, not places that compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.brain.checks import validate
from neuraxis.brain.lowering import Lowered, lower
from neuraxis.brain.models.sources import thresholds
from neuraxis.brain.spec import PYTHON_KIND, BrainSpec, SensorSpec, split_port
from neuraxis.brain.stimulus import sensor_rates
from neuraxis.errors import SpecError
from neuraxis.execution.mesh.executor import MeshExecutor
from neuraxis.execution.mesh.setup import Feed, RegionSetup, Units

__all__ = ["mesh_executor", "region_setups", "sensor_thresholds", "units_of"]

_CONVERT = "neuraxis.brain.mesh:sensor_thresholds"


def units_of(spec: BrainSpec, lowered: Lowered) -> Units:
    """Which node has which populations, where its data travel, which roles it has, and what sets its sensors' rates."""
    homes = {name: name for name in spec.regions}
    first = next(iter(spec.regions))
    for name in spec.sensors:
        targets = [split_port(one.target)[0] for one in spec.pathways if split_port(one.source)[0] == name]
        homes[name] = targets[0] if targets else first
    for name, effector in spec.effectors.items():
        homes[name] = effector.region
    populations: dict[str, list[int]] = {name: [] for name in spec.regions}
    for name, home in homes.items():
        populations[home] += [one.index for one in lowered.populations_of(name)]
    feeds: dict[str, list[Feed]] = {name: [] for name in spec.regions}
    for name, sensor in spec.sensors.items():
        cells = lowered.regions[name].populations["cells"]
        config = {
            "name": name, "neurons": sensor.neurons, "groups": sensor.groups, "rate_hz": sensor.rate_hz,
            "background_hz": sensor.background_hz, "dt_ms": spec.dt_ms,
        }  # fmt: skip
        feeds[homes[name]].append(Feed(spec.key_of(name), cells.index, "threshold", _CONVERT, config))
    return Units(
        populations=populations,
        topics={name: region.topic for name, region in spec.regions.items() if region.kind == PYTHON_KIND},
        roles={name: spec.roles_of(name) for name in spec.regions},
        feeds=feeds,
    )


def sensor_thresholds(value: Any, config: Mapping[str, Any]) -> NDArray[np.int32]:
    """The state of a sensor's cells for a message: a number for each group or neuron; None: its background."""
    settings = {name: config[name] for name in ("neurons", "groups", "rate_hz", "background_hz")}
    sensor = SensorSpec(**settings)
    if value is None:
        rates = np.full(sensor.neurons, sensor.background_hz)
    else:
        rates = sensor_rates(value, config["name"], sensor)
    return thresholds(rates, config["dt_ms"])


def mesh_executor(spec: BrainSpec, where: str = "", **options: Any) -> MeshExecutor:
    """An executor that runs a brain as nodes of the mesh: `Brain(spec, executor=mesh_executor(spec))`.

    `options` are those of `MeshExecutor`; `where` is what errors about the description begin with.
    """
    lowered = _lowered(spec, where)
    executor = MeshExecutor(units_of(spec, lowered), **options)
    executor.placement = executor.units.placement(lowered.network)
    return executor


def region_setups(
    spec: BrainSpec, where: str = "", *, topologies: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, RegionSetup]:
    """What the node of each region runs, by its name; `options` are those of `RegionSetup`.

    `topologies`: by region, how it reaches the mesh, where that is not the same for all.
    """
    lowered = _lowered(spec, where)
    units = units_of(spec, lowered)
    ways = topologies or {}
    return {
        name: RegionSetup(
            name,
            units,
            lowered.network,
            lowered.residents,
            **{**options, "topology": ways.get(name, options.get("topology"))},
        )
        for name in units.names
    }


def _lowered(spec: BrainSpec, where: str) -> Lowered:
    where = where or spec.name
    spec = validate(spec, where)
    if not spec.regions:
        raise SpecError("there is none, so there is nothing to run", where, "regions")
    return lower(spec, 1, where)
