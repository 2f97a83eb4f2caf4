"""What each role of a brain may say and hear on the mesh, from the brain's graph.

A region says what is its own. It hears the regions that have a pathway to it, and how its neighbours are. It may ask
its neighbours and whoever may stand in for them, but commands come from the driver alone.
"""

from __future__ import annotations

from neuraxis.brain.spec import OUTSIDE, BrainSpec, is_outside, split_port
from neuraxis.errors import SpecError
from neuraxis.execution.mesh.wire import COMMAND, HEALTH
from neuraxis.mesh.access import Grant
from neuraxis.mesh.certificates import ROUTER

__all__ = ["AGREED", "ANSWERED", "CLAIM", "COMMANDS", "DRIVER", "OBSERVER", "SENSOR", "grants_of", "roles_of"]

DRIVER = "driver"  # runs the brain
OBSERVER = "observer"  # hears everything, says nothing
SENSOR = OUTSIDE.rstrip("/")  # brings data from outside
COMMANDS = (COMMAND,)  # served topics that are the driver's alone
CLAIM, ANSWERED = "prompt/claim", "prompt/answered"  # how those who may answer a prompt agree on who does
AGREED = "agreed"  # the topic on which nodes of one role say what they have decided together

_TAKEN = (DRIVER, OBSERVER, SENSOR, ROUTER, "ca")


def roles_of(spec: BrainSpec) -> list[str]:
    """The roles that need a certificate, besides routers: each region, and those that are no region."""
    return [grant.role for grant in grants_of(spec)]


def grants_of(spec: BrainSpec) -> list[Grant]:
    """A grant for each region, and for those who drive, watch and feed the brain."""
    for name in spec.regions:
        if name in _TAKEN:
            raise SpecError(
                f"{name!r} is a role of its own on the mesh: call the region otherwise", "", f"regions.{name}"
            )
    hears = {region: _sources(spec, region) for region in spec.regions}
    return [
        *(_region(spec, region, hears) for region in spec.regions),
        _driver(spec),
        Grant(OBSERVER, nodes=(OBSERVER,), subscribes=("**",)),
        Grant(SENSOR, nodes=(SENSOR,), publishes=_unique(_below(SENSOR), *map(_below, _sensor_keys(spec)))),
    ]


def _region(spec: BrainSpec, region: str, hears: dict[str, list[str]]) -> Grant:
    sources = hears[region]
    neighbours = [name for name in spec.regions if name != region and (name in sources or region in hears[name])]
    companions = _companions(spec, region)
    asked = _stand_ins(spec, [region, *neighbours])
    return Grant(
        region,
        nodes=(region,),
        publishes=_unique(
            _below(region), *(_below(name) for name, one in spec.effectors.items() if one.region == region)
        ),
        subscribes=_unique(
            *(_below(source) for source in sources),
            *(_below(peer) for peer in companions),
            *([f"*/{AGREED}"] if companions else []),
            *(f"{name}/{HEALTH}" for name in neighbours),
            _below(DRIVER),
            f"**/{ANSWERED}",
        ),
        serves=((region, "**"),),
        # Whoever was asked must be able to claim the prompt from who asked.
        requests=(*((name, "**") for name in asked if name != region), ("**", CLAIM)),
        never_requests=tuple(("**", topic) for topic in COMMANDS),
    )


def _driver(spec: BrainSpec) -> Grant:
    """Commands go to every region; an action and the reward that is expected for it are read from regions' spikes."""
    read = [one.region for one in spec.effectors.values()]
    if spec.reward.critic is not None:
        read.append(split_port(spec.reward.critic)[0])
    return Grant(
        DRIVER,
        nodes=(DRIVER,),
        publishes=(_below(DRIVER),),
        subscribes=_unique(*(f"{name}/{HEALTH}" for name in spec.regions), *map(_below, read)),
        serves=((DRIVER, "**"),),
        requests=tuple((name, "**") for name in spec.regions),
    )


# --- the graph ---


def _sources(spec: BrainSpec, region: str) -> list[str]:
    """What a region must hear: names of regions and effectors, and key expressions of data from outside."""
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


def _companions(spec: BrainSpec, region: str) -> list[str]:
    """Other regions with a role of this one: they agree among themselves."""
    mine = set(spec.roles_of(region))
    return [name for name in spec.regions if name != region and mine & set(spec.roles_of(name))]


def _stand_ins(spec: BrainSpec, regions: list[str]) -> list[str]:
    """Regions and all that may answer in their place."""
    default = [] if spec.default_node is None else [spec.default_node]
    return list(dict.fromkeys([*regions, *(peer for one in regions for peer in _companions(spec, one)), *default]))


def _sensor_keys(spec: BrainSpec) -> list[str]:
    return [spec.key_of(name) for name in spec.sensors] + [pathway.source for pathway in spec.admissions()]


def _below(key: str) -> str:
    """A key and everything below it."""
    return key if key == "**" or key.endswith("/**") else f"{key}/**"


def _unique(*keys: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(keys))
