"""A brain as nodes of the mesh: placement, topics and roles of its regions, and access rules.

Every region is a node. The neurons of a sensor are on the node of the first region that it projects to, those of an
effector on the node of the region that it reads: they are ends of nerves and compute little.

The access rules follow from the brain's graph. A region publishes below its own name. It subscribes to the regions with
a pathway to it, and to the health of its neighbours. It may send requests to its neighbours and to the regions that can
replace them; only the driver sends commands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.brain.checks import validate
from neuraxis.brain.lowering import Lowered, lower
from neuraxis.brain.regions.sources import thresholds
from neuraxis.brain.spec import OUTSIDE, PYTHON_KIND, BrainSpec, SensorSpec, is_outside, split_port
from neuraxis.brain.stimulus import sensor_rates
from neuraxis.errors import SpecError
from neuraxis.mesh.access import Grant
from neuraxis.mesh.certificates import ROUTER
from neuraxis.simulation.mesh.executor import MeshExecutor
from neuraxis.simulation.mesh.setup import Feed, RegionSetup, Units
from neuraxis.simulation.mesh.wire import COMMAND, HEALTH

__all__ = [
    "AGREED",
    "ANSWERED",
    "CLAIM",
    "COMMANDS",
    "DRIVER",
    "OBSERVER",
    "REGION",
    "SENSOR",
    "grants_of",
    "mesh_executor",
    "region_setups",
    "roles_of",
    "sensor_keys",
    "sensor_thresholds",
    "units_of",
]

# Roles.
DRIVER = "driver"  # the process that runs the brain
OBSERVER = "observer"  # subscribes to everything, publishes nothing
REGION = "region"  # role of every region's node
SENSOR = OUTSIDE.rstrip("/")  # role of nodes that publish data from outside the brain
# Topics.
COMMANDS = (COMMAND,)  # services that only the driver may request
CLAIM, ANSWERED = "prompt/claim", "prompt/answered"  # by which nodes of one role agree on the one that answers a prompt
AGREED = "agreed"  # on which nodes of one role publish their joint decisions

_RESERVED = (DRIVER, OBSERVER, SENSOR, ROUTER, "ca")


def roles_of(spec: BrainSpec, sensors: Sequence[str] = ()) -> list[str]:
    """Return the roles that need a certificate: each region and sensor, the driver and the observer."""
    return [grant.role for grant in grants_of(spec, sensors)]


def grants_of(spec: BrainSpec, sensors: Sequence[str] = ()) -> list[Grant]:
    """Return the access rules of each region, the driver, the observer and each sensor (see `sensor_keys`)."""
    for name in spec.regions:
        if name in _RESERVED or name.startswith(f"{SENSOR}-"):
            raise SpecError(f"{name!r} is a reserved role on the mesh; rename the region", "", f"regions.{name}")
    sources = {region: _sources(spec, region) for region in spec.regions}
    return [
        *(_region(spec, region, sources) for region in spec.regions),
        _driver(spec),
        Grant(OBSERVER, nodes=(OBSERVER,), subscribes=("**",)),
        *(_sensor(role, key) for role, key in sensor_keys(spec, sensors).items()),
    ]


def sensor_keys(spec: BrainSpec, sensors: Sequence[str] = ()) -> dict[str, str]:
    """Return the key below which each sensor role may publish, by role: "sensor-<name>" for a sensor called <name>.

    Parameters
    ----------
    spec : BrainSpec
        The brain. Each of its sensors has a role, and each outside source of a pathway without wildcards.
    sensors : sequence of str
        Names of further nodes ("sensor/thermal"), for pathways from "sensor/*" or "sensor/**".

    Raises
    ------
    SpecError
        No pathway starts at a node of `sensors`, or two keys would have the same role.

    Examples
    --------
    >>> from neuraxis.brain.spec import SensorSpec
    >>> sensor_keys(BrainSpec(name="b", sensors={"camera": SensorSpec(neurons=10)}))
    {'sensor-camera': 'sensor/camera'}
    """
    keys = [spec.key_of(name) for name in spec.sensors] + [pathway.source for pathway in spec.outside_pathways()]
    found: dict[str, str] = {}
    for key in dict.fromkeys((*(key for key in keys if not set(key) & set("*$")), *sensors)):
        if key in sensors and not any(_includes(one, key) for one in keys):
            raise SpecError(
                f"no sensor of the brain has the key {key!r}, and no pathway starts at it", "", f"sensors {key}"
            )
        role = re.sub("[^A-Za-z0-9_-]", "-", key if key.startswith(OUTSIDE) else f"{OUTSIDE}{key}")
        if role in found:
            raise SpecError(
                f"{key!r} and {found[role]!r} would have the same role; rename one of them", "", f"sensors {key}"
            )
        found[role] = key
    return found


def _sensor(role: str, key: str) -> Grant:
    return Grant(role, nodes=(key,), roles=(SENSOR,), publishes=(_below(key),))


def _includes(expression: str, key: str) -> bool:
    import zenoh

    return bool(zenoh.KeyExpr(expression).includes(zenoh.KeyExpr(key)))


def _region(spec: BrainSpec, region: str, sources: dict[str, list[str]]) -> Grant:
    neighbours = [
        name for name in spec.regions if name != region and (name in sources[region] or region in sources[name])
    ]
    peers = _peers(spec, region)
    requested = _with_replacements(spec, [region, *neighbours])
    return Grant(
        region,
        nodes=(region,),
        roles=_unique(REGION, *spec.roles_of(region)),
        publishes=_unique(
            _below(region), *(_below(name) for name, one in spec.effectors.items() if one.region == region)
        ),
        subscribes=_unique(
            *(_below(source) for source in sources[region]),
            *(_below(peer) for peer in peers),
            *([f"*/{AGREED}"] if peers else []),
            *(f"{name}/{HEALTH}" for name in neighbours),
            _below(DRIVER),
            f"**/{ANSWERED}",
        ),
        serves=((region, "**"),),
        # A region that received a prompt claims it at the node that sent it, which can be any.
        requests=(*((name, "**") for name in requested if name != region), ("**", CLAIM)),
        never_requests=tuple(("**", topic) for topic in COMMANDS),
    )


def _driver(spec: BrainSpec) -> Grant:
    """The driver sends commands to every region, and reads actions and expected rewards from spikes of regions."""
    read = [one.region for one in spec.effectors.values()]
    if spec.reward.critic is not None:
        read.append(split_port(spec.reward.critic)[0])
    return Grant(
        DRIVER,
        nodes=(DRIVER,),
        roles=(DRIVER,),
        publishes=(_below(DRIVER),),
        subscribes=_unique(*(f"{name}/{HEALTH}" for name in spec.regions), *map(_below, read)),
        serves=((DRIVER, "**"),),
        requests=tuple((name, "**") for name in spec.regions),
    )


def _sources(spec: BrainSpec, region: str) -> list[str]:
    """Return the keys that a region subscribes to: regions, effectors and key expressions of data from outside."""
    found = []
    for pathway in spec.pathways:
        if split_port(pathway.target)[0] != region:
            continue
        source = pathway.source if is_outside(pathway.source) else split_port(pathway.source)[0]
        if source in spec.sensors:
            found.append(spec.key_of(source))
        elif source in spec.effectors:
            found += [source, spec.effectors[source].region]
        else:
            found.append(source)
    # A neuromodulator reaches all regions.
    for modulator in spec.neuromodulators.values():
        found += [split_port(source.population)[0] for source in modulator.sources]
    return [source for source in dict.fromkeys(found) if source != region]


def _peers(spec: BrainSpec, region: str) -> list[str]:
    """Return the other regions that share a role with this one."""
    mine = set(spec.roles_of(region))
    return [name for name in spec.regions if name != region and mine & set(spec.roles_of(name))]


def _with_replacements(spec: BrainSpec, regions: list[str]) -> list[str]:
    """Return regions, and all that can answer in their place."""
    default = [] if spec.default_node is None else [spec.default_node]
    return list(dict.fromkeys([*regions, *(peer for one in regions for peer in _peers(spec, one)), *default]))


def _below(key: str) -> str:
    """Return the expression for a key and everything below it."""
    return key if key == "**" or key.endswith("/**") else f"{key}/**"


def _unique(*keys: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))


_CONVERT = "neuraxis.brain.mesh:sensor_thresholds"


def units_of(spec: BrainSpec, lowered: Lowered) -> Units:
    """Return the populations, data topic and roles of each node, and the messages that set its sensors' rates."""
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
    """Return the state of a sensor's neurons for a message: a number for each group or neuron; None: background."""
    settings = {name: config[name] for name in ("neurons", "groups", "rate_hz", "background_hz")}
    sensor = SensorSpec(**settings)
    if value is None:
        rates = np.full(sensor.neurons, sensor.background_hz)
    else:
        rates = sensor_rates(value, config["name"], sensor)
    return thresholds(rates, config["dt_ms"])


def mesh_executor(spec: BrainSpec, where: str = "", **options: Any) -> MeshExecutor:
    """Return an executor that runs each region of a brain as a node of the mesh.

    Parameters
    ----------
    spec : BrainSpec
        The description.
    where : str
        Prefix of errors about the description.
    **options
        Keyword arguments of `MeshExecutor`.

    Returns
    -------
    MeshExecutor
        The executor, for `Brain(spec, executor=...)`.

    Raises
    ------
    SpecError
        The description is wrong or has no region.

    Examples
    --------
    >>> from neuraxis.brain import default_brain
    >>> mesh_executor(default_brain()).units.names[:2]
    ('thalamus', 'cortex')

    The nodes are processes of their own, which `Brain` starts::

        with Brain(spec, executor=mesh_executor(spec)) as brain:
            brain.run(100.0)
    """
    lowered = _lowered(spec, where)
    executor = MeshExecutor(units_of(spec, lowered), **options)
    executor.placement = executor.units.placement(lowered.network)
    return executor


def region_setups(
    spec: BrainSpec, where: str = "", *, topologies: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, RegionSetup]:
    """Return the setup of each region's node, by name.

    `options` are those of `RegionSetup`; `topologies` has, by region, a topology that differs from the others.
    """
    lowered = _lowered(spec, where)
    units = units_of(spec, lowered)
    own = topologies or {}
    return {
        name: RegionSetup(
            name,
            units,
            lowered.network,
            lowered.python_populations,
            **{**options, "topology": own.get(name, options.get("topology"))},
        )
        for name in units.names
    }


def _lowered(spec: BrainSpec, where: str) -> Lowered:
    where = where or spec.name
    spec = validate(spec, where)
    if not spec.regions:
        raise SpecError("is empty; add a region", where, "regions")
    return lower(spec, 1, where)
