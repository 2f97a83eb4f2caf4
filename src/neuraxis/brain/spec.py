"""The description of a brain: data that a TOML file can hold.

A description runs nothing and imports no code of the user's. The structs themselves check nothing, so that parts can
be put together in any order; `neuraxis.brain.checks` checks the whole, and whatever passes can be written to a file
and read back as it was. What only a built region knows (which ports and populations it has) is checked where regions
are built.

Names are made of letters, digits, `_` and `-`. Where a pathway starts and ends is the name of a region ("cortex"), of
a region's port ("cortex.L4e") or, at its start only, of a sensor or effector. A pathway to a user's own region may also
start at a key expression that begins with "sensor/" ("sensor/*"): data from outside the brain whose name it includes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from neuraxis.brain.region import RegionConfig
from neuraxis.errors import SpecError
from neuraxis.network.arguments import near

__all__ = [
    "DATA_TOPIC",
    "OUTSIDE",
    "PYTHON_KIND",
    "BrainSpec",
    "EffectorSpec",
    "Kinds",
    "ModulatorSource",
    "ModulatorSpec",
    "PathwaySpec",
    "RegionSpec",
    "RewardSpec",
    "RhythmSpec",
    "SensorSpec",
    "as_spec",
    "convert",
    "is_device",
    "is_outside",
    "split_port",
    "typed",
]

PYTHON_KIND = "python"  # the kind of a region that a user's own function makes
DATA_TOPIC = "data"  # on which topic the data of such a region travel, if its description does not say
OUTSIDE = "sensor/"  # what the name of data from outside the brain begins with

Kinds = Mapping[str, type[RegionConfig]]
Struct = TypeVar("Struct", bound=msgspec.Struct)


_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")


# --- what a brain is made of ---


class RegionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A region: spiking neurons of one of the kinds in `neuraxis.brain.regions`, or a user's own code.

    Attributes:
        kind: which kind; "python" for a user's own.
        create: for kind "python", what makes the region: "package.module:callable".
        neurons: for kind "python", how many outputs it has; None if it sends nothing.
        groups: for kind "python", into how many equal parts these are divided, for topographic pathways.
        tick_ms: for kind "python", how often it is called; None: when there are events.
        topic: for kind "python", where on the mesh its data travel: "<region>/<topic>".
        roles: what it can be asked for on the mesh; none: its own name.
        device: "cpu", "cuda" or "cuda:0".
        config: the settings of the kind, or what a user's own callable takes.
    """

    kind: str
    create: str | None = None
    neurons: int | None = None
    groups: int | None = None
    tick_ms: float | None = None
    topic: str = DATA_TOPIC
    roles: tuple[str, ...] = ()
    device: str = "cpu"
    config: dict[str, Any] = {}


class PathwaySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Axons from a region or sensor to a region. None: as the region at the end thinks best.

    Attributes:
        weight, in_degree, probability: of the synapses; in_degree and probability exclude each other.
        topographic: group g of the source reaches group g of the target only.
        plasticity: "none", or a word that the region at the end knows.
        name: needed only where two pathways lead from the same place to the same place.
        options: what else the region at the end knows.
    """

    source: str
    target: str
    delay_ms: float
    weight: float | None = None
    in_degree: int | None = None
    probability: float | None = None
    topographic: bool = False
    plasticity: str | None = None
    name: str | None = None
    options: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """What the pathway is called: its name, or "source->target". No two of a brain are called the same."""
        return self.name if self.name is not None else f"{self.source}->{self.target}"


class RhythmSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rhythm: max(floor, cos(2 pi (frequency * time + phase))), with the phase in cycles."""

    frequency_hz: float
    phase: float = 0.0
    floor: float = -1.0


class ModulatorSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Each spike of a population ("region.population") adds `amount` to a neuromodulator's level, `delay_ms` later."""

    population: str
    amount: float
    delay_ms: float


class ModulatorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A neuromodulator: a level that decays to its baseline with `tau_ms`.

    Attributes:
        delay_ms: how long what is released from outside (a reward) takes to arrive.
    """

    baseline: float = 0.0
    tau_ms: float = 200.0
    delay_ms: float = 1.0
    sources: tuple[ModulatorSource, ...] = ()


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sensor: neurons in `groups` equal parts, each part firing at random at a rate that its input sets.

    Attributes:
        rate_hz: the rate at an input of 1.
        background_hz: the rate at an input of 0.
        key: on the mesh, the key expression of the messages that are its input; None: "sensor/<name>".
    """

    neurons: int
    groups: int = 1
    rate_hz: float = 100.0
    background_hz: float = 0.0
    key: str | None = None


class EffectorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An effector: reads which of `actions` a region chooses, and fires while the action is carried out.

    Attributes:
        region: its outputs "D1" speak for an action and "D2" against it, group by group.
        neurons: motor cells, in one group for each action; a pathway from the effector is an efference copy.
        rate_hz: their rate while their action is carried out.
        duration_ms: how long that takes.
        temperature_hz: by how much the rate for an action must be ahead to make it e times as likely.
    """

    region: str
    actions: int
    neurons: int = 40
    rate_hz: float = 100.0
    duration_ms: float = 120.0
    temperature_hz: float = 3.0


class RewardSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a reward does: neuromodulators are released in proportion to what was not expected of it.

    Attributes:
        critic: the population ("region.population") whose rate while the action was chosen is the reward expected.
        critic_hz: the rate that means that a reward of 1 is expected.
        lowest_expected: a reward is never expected to be less: something is always hoped for, so that what is
            not rewarded is given up.
        dopamine: released for each unit of reward more than expected (less: the level falls below its baseline).
        acetylcholine: released for each unit of reward more or less than expected.
        noradrenaline: released at every outcome, which clears what was held in memory.
    """

    critic: str | None = None
    critic_hz: float = 30.0
    lowest_expected: float = 0.0
    dopamine: float = 1.0
    acetylcholine: float = 0.0
    noradrenaline: float = 0.0


class BrainSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole brain, in steps of `dt_ms`; everything random in it is drawn from `seed`.

    `default_node` is the region that is asked on the mesh when no live node has the role that was asked for.
    """

    name: str
    seed: int = 1
    dt_ms: float = 0.1
    default_node: str | None = None
    regions: dict[str, RegionSpec] = {}
    pathways: tuple[PathwaySpec, ...] = ()
    rhythms: dict[str, RhythmSpec] = {}
    neuromodulators: dict[str, ModulatorSpec] = {}
    sensors: dict[str, SensorSpec] = {}
    effectors: dict[str, EffectorSpec] = {}
    reward: RewardSpec = RewardSpec()

    def roles_of(self, region: str) -> tuple[str, ...]:
        """What a region can be asked for on the mesh."""
        return self.regions[region].roles or (region,)

    def key_of(self, sensor: str) -> str:
        """The key expression, relative to the mesh, of the messages that are a sensor's input."""
        key = self.sensors[sensor].key
        return f"{OUTSIDE}{sensor}" if key is None else key

    def admissions(self) -> list[PathwaySpec]:
        """The pathways by which data come from outside the brain."""
        return [pathway for pathway in self.pathways if is_outside(pathway.source)]


_TABLES: dict[str, type[msgspec.Struct]] = {
    "regions": RegionSpec,
    "rhythms": RhythmSpec,
    "neuromodulators": ModulatorSpec,
    "sensors": SensorSpec,
    "effectors": EffectorSpec,
}


def split_port(end: str) -> tuple[str, str]:
    """The region (or sensor) and the port of a pathway's end; the port is "" where none is named."""
    name, _, port = end.partition(".")
    return name, port


def is_outside(source: str) -> bool:
    """Whether a pathway's start, or the name of an input, is data from outside the brain."""
    return source.startswith(OUTSIDE)


def is_device(text: str) -> bool:
    """Whether a text can name a device; not whether this machine has it."""
    return _DEVICE.fullmatch(text) is not None


# --- from tables to structs ---


def as_spec(given: Mapping[str, Any], where: str = "brain") -> BrainSpec:
    """A description from nested tables, as a TOML file gives them; the types are checked, what they mean is not."""
    # Entry by entry, since msgspec's errors do not say which entry of a table they are about.
    parts = dict(given)
    for table, kind in _TABLES.items():
        if isinstance(entries := parts.get(table), dict):
            parts[table] = {
                name: typed(entry, kind, where, _path(table, name) if isinstance(name, str) else table)
                for name, entry in entries.items()
            }
    if isinstance(pathways := parts.get("pathways"), list | tuple):
        parts["pathways"] = [typed(e, PathwaySpec, where, f"pathways[{i}]") for i, e in enumerate(pathways)]
    if "reward" in parts:
        parts["reward"] = typed(parts["reward"], RewardSpec, where, "reward")
    return convert(parts, BrainSpec, where)


def convert(given: Mapping[str, Any], kind: type[Struct], where: str, field: str = "") -> Struct:
    """A struct from a table that is at `field`; a wrong field is a SpecError that names it."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    found = re.fullmatch(r"(.*) - at `\$(.*)`", text, re.DOTALL)
    reason, inner = found.groups() if found else (text, "")
    place = (field + inner).removeprefix(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        name = unknown[1]
        # The fields of a struct within the struct are not at hand.
        hint = "" if inner else f"; {near(name, kind.__struct_encode_fields__)}"
        raise SpecError(f"there is no such field{hint}", where, _path(place, name))
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason, re.DOTALL):
        raise SpecError("is missing", where, _path(place, missing[1]))
    raise SpecError(reason.replace("`", ""), where, place)


def typed(entry: Any, kind: type[Struct], where: str, field: str) -> Struct:
    """An entry of a table as its struct, also where it is one already: making a struct checks no types."""
    table = msgspec.structs.asdict(entry) if isinstance(entry, kind) else entry
    if kind is ModulatorSpec and isinstance(table, dict) and isinstance(table.get("sources"), list | tuple):
        sources = enumerate(table["sources"])
        table = {**table, "sources": [typed(s, ModulatorSource, where, f"{field}.sources[{i}]") for i, s in sources]}
    return convert(table, kind, where, field)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
