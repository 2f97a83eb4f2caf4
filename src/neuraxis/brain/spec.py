"""The description of a brain: data that a TOML file can hold.

A description imports no user code. The structs check nothing, so that parts can be assembled in any order;
`neuraxis.brain.checks` checks the whole, and a description that passes survives writing to a file and reading back.
Ports and populations are checked when the regions are built.

Names consist of letters, digits, `_` and `-`. The source and target of a pathway are the name of a region ("cortex") or
of a region's port ("cortex.L4e"); the source can also be a sensor or effector. The source of a pathway to a user's own
region can also be a key expression that begins with "sensor/" ("sensor/*"): data from outside the brain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from neuraxis.arguments import frozen, near
from neuraxis.brain.region import RegionConfig
from neuraxis.deprecation import renamed_members
from neuraxis.errors import SpecError

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

PYTHON_KIND = "python"  # kind of a region that a user's callable makes
DATA_TOPIC = "data"  # default topic of the data of such a region
OUTSIDE = "sensor/"  # prefix of the names of data from outside the brain

Kinds = Mapping[str, type[RegionConfig]]
Struct = TypeVar("Struct", bound=msgspec.Struct)


_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")


# --- Parts of a brain ---


class RegionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A region: spiking neurons of one of the kinds in `neuraxis.brain.regions`, or a user's own code.

    Attributes
    ----------
    kind : str
        Kind of region; "python" for a user's own code.
    create : str, optional
        For kind "python": the callable that makes the region, "package.module:callable".
    neurons : int, optional
        For kind "python": number of outputs; None if it sends no spikes.
    groups : int, optional
        For kind "python": number of equal groups of outputs, for topographic pathways.
    tick_ms : float, optional
        For kind "python": interval between calls, in ms; None: called when it receives events.
    topic : str
        For kind "python": topic of its data on the mesh, "<region>/<topic>".
    roles : tuple of str
        Roles under which other nodes of the mesh can request it; empty: its name.
    device : str
        "cpu", "cuda" or "cuda:0".
    config : dict
        Configuration of the kind, or arguments of the user's callable.

    Examples
    --------
    >>> RegionSpec(kind="cortex", config={"neurons": 80}).kind
    'cortex'
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

    def __post_init__(self) -> None:
        _freeze(self, "config")


class PathwaySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pathway: axons from a region, sensor or effector to a region.

    The target region has a default for every value that is None.

    Attributes
    ----------
    source, target : str
        Ends of the pathway. The source is a region, "region.port", a sensor or an effector; the target is a region or
        "region.port".
    delay_ms : float
        Delay, in ms.
    weight : float, optional
        Weight of a synapse, in the unit of the target's cells (pA or mV).
    in_degree : int, optional
        Number of synapses on each target neuron.
    probability : float, optional
        Probability of a synapse between two neurons; excludes `in_degree`.
    topographic : bool
        Connect group g of the source with group g of the target only.
    plasticity : str, optional
        "none", or a rule of the target region.
    name : str, optional
        Label; needed only if two pathways have the same source and target.
    options : dict
        Further options of the target region.

    Examples
    --------
    >>> PathwaySpec(source="thalamus", target="cortex", delay_ms=5.0).label
    'thalamus->cortex'
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

    def __post_init__(self) -> None:
        _freeze(self, "options")

    @property
    def label(self) -> str:
        """Unique label of the pathway: its name, or "source->target"."""
        return self.name if self.name is not None else f"{self.source}->{self.target}"


class RhythmSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rhythm: max(floor, cos(2 pi (frequency * time + phase))).

    Attributes
    ----------
    frequency_hz : float
        Frequency, in Hz.
    phase : float
        Phase at time 0, in cycles.
    floor : float
        Lowest value, from -1 to below 1.

    Examples
    --------
    >>> RhythmSpec(frequency_hz=8.0).phase
    0.0
    """

    frequency_hz: float
    phase: float = 0.0
    floor: float = -1.0


class ModulatorSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A population whose spikes release a neuromodulator.

    Attributes
    ----------
    population : str
        The population, "region.population".
    amount : float
        Amount by which each spike raises the level.
    delay_ms : float
        Delay from spike to release, in ms.

    Examples
    --------
    >>> ModulatorSource(population="midbrain.dopamine", amount=0.01, delay_ms=20.0).amount
    0.01
    """

    population: str
    amount: float
    delay_ms: float


class ModulatorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A neuromodulator: a level that decays to its baseline.

    Attributes
    ----------
    baseline : float
        Level at rest.
    tau_ms : float
        Time constant of the decay, in ms.
    delay_ms : float
        Delay of a release by a reward or by `Brain.release`, in ms.
    sources : tuple of ModulatorSource
        Populations whose spikes release it.

    Examples
    --------
    >>> ModulatorSpec(baseline=1.0, tau_ms=100.0).delay_ms
    1.0
    """

    baseline: float = 0.0
    tau_ms: float = 200.0
    delay_ms: float = 1.0
    sources: tuple[ModulatorSource, ...] = ()


class SensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sensor: neurons that fire at random, at rates that the input sets.

    Attributes
    ----------
    neurons : int
        Number of neurons, a multiple of `groups`.
    groups : int
        Number of equal groups.
    rate_hz : float
        Rate at an input of 1, in Hz.
    background_hz : float
        Rate at an input of 0, in Hz.
    key : str, optional
        On the mesh, key expression of the messages that are its input; None: "sensor/<name>".

    Examples
    --------
    >>> SensorSpec(neurons=160, groups=4).rate_hz
    100.0
    """

    neurons: int
    groups: int = 1
    rate_hz: float = 100.0
    background_hz: float = 0.0
    key: str | None = None


class EffectorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An effector: reads the action that a region chooses; its motor cells fire while the action is carried out.

    Attributes
    ----------
    region : str
        Region with populations "D1" (for an action) and, optionally, "D2" (against it), in one group for each action.
    actions : int
        Number of actions.
    neurons : int
        Number of motor cells, in one group for each action; a pathway from the effector is an efference copy.
    rate_hz : float
        Rate of the motor cells of the current action, in Hz.
    duration_ms : float
        Duration of an action, in ms.
    temperature_hz : float
        Temperature of the softmax over action values, in Hz.

    Examples
    --------
    >>> EffectorSpec(region="striatum", actions=4).neurons
    40
    """

    region: str
    actions: int
    neurons: int = 40
    rate_hz: float = 100.0
    duration_ms: float = 120.0
    temperature_hz: float = 3.0


class RewardSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Effect of a reward: it releases neuromodulators by the reward prediction error.

    Attributes
    ----------
    critic : str, optional
        Population ("region.population") whose rate while the action was chosen gives the expected reward.
    critic_hz : float
        Rate of the critic that stands for an expected reward of 1, in Hz.
    lowest_expected : float
        Lower bound of the expected reward. Above 0, an unrewarded action always disappoints and is unlearned.
    dopamine : float
        Release for a prediction error of 1; a negative error lowers the level below its baseline.
    acetylcholine : float
        Release for an absolute prediction error of 1.
    noradrenaline : float
        Release at every outcome, which clears working memory.

    Examples
    --------
    >>> RewardSpec(critic="striatum.critic").critic_hz
    30.0
    """

    critic: str | None = None
    critic_hz: float = 30.0
    lowest_expected: float = 0.0
    dopamine: float = 1.0
    acetylcholine: float = 0.0
    noradrenaline: float = 0.0


@renamed_members(admissions="outside_pathways")
class BrainSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The description of a whole brain. `BrainBuilder` and `read_spec` make and check one; `Brain` runs it.

    Attributes
    ----------
    name : str
        Name of the brain.
    seed : int
        Seed of everything that is random.
    dt_ms : float
        Length of a step, in ms.
    default_node : str, optional
        Region that handles a request on the mesh for a role that no live node has.
    regions : dict of str to RegionSpec
        Regions by name, in the order in which they are built.
    pathways : tuple of PathwaySpec
        Pathways.
    rhythms : dict of str to RhythmSpec
        Rhythms by name.
    neuromodulators : dict of str to ModulatorSpec
        Neuromodulators by name.
    sensors : dict of str to SensorSpec
        Sensors by name.
    effectors : dict of str to EffectorSpec
        Effectors by name.
    reward : RewardSpec
        Effect of a reward.

    Examples
    --------
    >>> spec = BrainSpec(name="eye", sensors={"light": SensorSpec(neurons=10)})
    >>> spec.key_of("light")
    'sensor/light'
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

    def __post_init__(self) -> None:
        _freeze(self, "regions", "rhythms", "neuromodulators", "sensors", "effectors")

    def roles_of(self, region: str) -> tuple[str, ...]:
        """Return the roles under which other nodes of the mesh can request a region.

        Parameters
        ----------
        region : str
            Name of a region.

        Returns
        -------
        tuple of str
            The roles.
        """
        return self.regions[region].roles or (region,)

    def key_of(self, sensor: str) -> str:
        """Return the key expression, relative to the mesh, of the messages that are a sensor's input.

        Parameters
        ----------
        sensor : str
            Name of a sensor.

        Returns
        -------
        str
            The key expression.
        """
        key = self.sensors[sensor].key
        return f"{OUTSIDE}{sensor}" if key is None else key

    def outside_pathways(self) -> list[PathwaySpec]:
        """Return the pathways from data outside the brain."""
        return [pathway for pathway in self.pathways if is_outside(pathway.source)]


def _freeze(spec: msgspec.Struct, *fields: str) -> None:
    """Make dicts immutable: a change would not reach a brain that was made from the description."""
    for field in fields:
        msgspec.structs.force_setattr(spec, field, frozen(getattr(spec, field)))


_TABLES: dict[str, type[msgspec.Struct]] = {
    "regions": RegionSpec,
    "rhythms": RhythmSpec,
    "neuromodulators": ModulatorSpec,
    "sensors": SensorSpec,
    "effectors": EffectorSpec,
}


def split_port(end: str) -> tuple[str, str]:
    """Split "region.port" into region (or sensor) and port; the port is "" if none is named."""
    name, _, port = end.partition(".")
    return name, port


def is_outside(source: str) -> bool:
    """Return True if the source of a pathway, or the name of an input, is data from outside the brain."""
    return source.startswith(OUTSIDE)


def is_device(text: str) -> bool:
    """Return True if a text is the name of a device, which this machine need not have."""
    return _DEVICE.fullmatch(text) is not None


# --- Conversion of tables to structs ---


def as_spec(given: Mapping[str, Any], where: str = "brain") -> BrainSpec:
    """Convert nested tables, as read from a TOML file, to a description; checks types, not values."""
    # Entry by entry: the errors of msgspec do not name the entry.
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
    """Convert the table at `field` to a struct; a wrong field is a SpecError that names it."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text = str(error)
    found = re.fullmatch(r"(.*) - at `\$(.*)`", text, re.DOTALL)
    reason, inner = found.groups() if found else (text, "")
    place = (field + inner).removeprefix(".")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        name = unknown[1]
        # The field names are known for the outer struct only.
        hint = "" if inner else f"; {near(name, kind.__struct_encode_fields__)}"
        raise SpecError(f"there is no such field{hint}", where, _path(place, name))
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason, re.DOTALL):
        raise SpecError("is missing", where, _path(place, missing[1]))
    raise SpecError(reason.replace("`", ""), where, place)


def typed(entry: Any, kind: type[Struct], where: str, field: str) -> Struct:
    """Convert an entry of a table to its struct; convert a struct again, since its constructor checks no types."""
    table = msgspec.structs.asdict(entry) if isinstance(entry, kind) else entry
    if kind is ModulatorSpec and isinstance(table, dict) and isinstance(table.get("sources"), list | tuple):
        sources = enumerate(table["sources"])
        table = {**table, "sources": [typed(s, ModulatorSource, where, f"{field}.sources[{i}]") for i, s in sources]}
    return convert(table, kind, where, field)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
