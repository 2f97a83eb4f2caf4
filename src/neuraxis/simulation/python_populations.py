"""Populations whose spikes come from Python objects instead of a neuron model.

A `PythonPopulation` is described by data (an importable name and a configuration), so that any process can create the
object. The shard that holds the population calls the object at the end of a step, with the events that arrived since
the last call; the spikes that it returns happen in later steps. The object therefore depends only on the past, and
results are bit-identical in every executor, provided that the object is a deterministic function of its events.

**Payloads.** An event may carry an array or a tensor to the Python populations that subscribe to its source. The event
itself is a spike of a population of one neuron, the *marker*, so it arrives in the same step in every executor. The
payload travels separately (`PayloadTransport`), and a subscriber that receives the spike waits for the payload.

**External data.** A Python population subscribes to data from outside by key expressions relative to the mesh
("sensor/*", "sensor/**"). Zenoh itself matches names against them, without a session, so a brain on the mesh and one
in a single process deliver the same data to the same populations.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import zenoh
from numpy.typing import NDArray

from neuraxis.deprecation import warn_deprecated
from neuraxis.engine.placement import Placement
from neuraxis.errors import CheckpointError, InvalidArgument, NotSerializable, ShardFailed
from neuraxis.network import Network
from neuraxis.network.grid import on_grid
from neuraxis.network.network import LARGEST_STEP
from neuraxis.wire.tensors import HostTensor, pack, to_device, to_sendable, unpack

if TYPE_CHECKING:  # these import Numba, which checking the description of a brain does not need
    from neuraxis.engine.cpu.shard import Shard
    from neuraxis.engine.spikes import Listener

__all__ = [
    "INPUT",
    "DataSubscription",
    "Event",
    "LocalPayloads",
    "Payload",
    "PayloadTransport",
    "PythonPopulation",
    "PythonPopulationRunner",
    "SpikeSubscription",
    "is_concrete",
    "listeners",
    "load_callable",
    "shard_of",
    "why_no_expression",
]

INPUT = "input"  # the source of data that the caller passes to `Simulation.give`
# Prefixes of keys in saved states. They are part of the file format, and no region has such a name.
_PAYLOAD, _EXTERNAL = "<letter>/", "<given>/"


@dataclass(frozen=True)
class Event:
    """Spikes of some neurons of one source, with optional data, that arrive at one time.

    In a returned event, `ids` are neurons of the Python population itself. `time_ms` is rounded to the nearest step,
    with a `RoundingWarning` the first time that a region returns one between two steps; None, or a time that is not in
    the future, means the next step. `source` is ignored.

    Parameters
    ----------
    time_ms : float, optional
        Time of arrival in ms; of a returned event the time of the spikes.
    ids : array_like of int
        Neurons that spiked: of the source, or in a returned event of the Python population itself.
    source : str
        Name of the population or of the data that the event comes from.
    data : object, optional
        Data that came from outside, or that a returned event publishes.

    Examples
    --------
    >>> Event(time_ms=12.5, ids=[3, 7])
    Event(time_ms=12.5, ids=[3, 7], source='', data=None)
    """

    time_ms: float | None = None
    ids: Any = ()
    source: str = ""
    data: Any = None


@dataclass(frozen=True)
class SpikeSubscription:
    """Deliver the spikes of a population (its index) `delay_steps` later, as events of `source`."""

    population: int
    source: str
    delay_steps: int


@dataclass(frozen=True)
class DataSubscription:
    """Deliver external data whose name matches the key expression, `delay_steps` after it was given."""

    expression: str
    delay_steps: int

    def includes(self, name: str) -> bool:
        return bool(zenoh.KeyExpr(self.expression).includes(name))


@dataclass(frozen=True)
class PythonPopulation:
    """Description of a population that a Python object drives.

    Parameters
    ----------
    name : str
        Name of the region.
    create : str
        "module:callable"; called as create(config, device), it returns an object with
        `process_events(now_ms, events)`.
    population : int
        Index of the population whose neurons the object makes spike.
    marker : int
        Index of a population of one neuron that spikes with each payload.
    config : mapping
        First argument of `create`.
    subscriptions : tuple of SpikeSubscription
        Populations whose spikes the object receives.
    batch_steps : int
        Number of steps whose events are delivered in one call.
    tick_steps : int
        Also call the object every so many steps without events; 0: call it only with events.
    device : str
        Device of the tensors that the object receives.
    data_subscriptions : tuple of DataSubscription
        External data that the object receives, besides data given to it by name.
    """

    name: str
    create: str
    population: int
    marker: int
    config: Mapping[str, Any] = field(default_factory=dict)
    subscriptions: tuple[SpikeSubscription, ...] = ()
    batch_steps: int = 1
    tick_steps: int = 0
    device: str = "cpu"
    data_subscriptions: tuple[DataSubscription, ...] = ()

    def subscribes_to(self, source: str) -> bool:
        """Return True if the object receives external data of this source."""
        return any(one.includes(source) for one in self.data_subscriptions)


if not TYPE_CHECKING:  # a module __getattr__ would hide misspelt names from type checkers

    def __getattr__(name: str) -> Any:
        if name == "Resident":
            warn_deprecated(f"{__name__}.Resident", f"Use {__name__}.PythonPopulation")
            return PythonPopulation
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def why_no_expression(text: str) -> str:
    """Return why a text is not a valid key expression, or "" if it is one."""
    try:
        zenoh.KeyExpr(text)
    except zenoh.ZError as error:
        # Zenoh appends the location in its own source.
        return str(error).split(" at /")[0].split("`: ", 1)[-1]
    return ""


def is_concrete(text: str) -> bool:
    """Return True if a text names one key and is not a pattern."""
    return "*" not in text and not why_no_expression(text)


def listeners(python_populations: Sequence[PythonPopulation], placement: Placement) -> list[Listener]:
    """Return the subscriptions as listeners for `lags_between`."""
    from neuraxis.engine.spikes import Listener

    return [
        Listener(shard_of(one, placement), spikes.population, spikes.delay_steps, spikes.delay_steps + one.batch_steps)
        for one in python_populations
        for spikes in one.subscriptions
    ]


def shard_of(python_population: PythonPopulation, placement: Placement) -> int:
    """Return the shard that holds the neurons of a Python population."""
    own = (python_population.population, python_population.marker)
    shards = {shard for shard, slices in enumerate(placement) for s in slices if s.population in own}
    if len(shards) != 1:
        raise InvalidArgument(
            f"region {python_population.name!r}: its neurons are spread over {len(shards)} workers, not one"
        )
    return shards.pop()


@dataclass(frozen=True)
class Payload:
    """Data of an event on its way to subscribers in other processes; `source` is the index of the marker."""

    source: int
    step: int
    content: Any


class PayloadTransport(Protocol):
    """Carries payloads between processes. `payloads` holds those known here, by (marker, step)."""

    payloads: dict[tuple[int, int], Any]

    def send(self, payload: Payload) -> None: ...

    def wait_for(self, source: int, step: int) -> Any:
        """Wait for a payload and return its content, or None if it is lost."""


class LocalPayloads:
    """Payloads within one process."""

    def __init__(self) -> None:
        self.payloads: dict[tuple[int, int], Any] = {}

    def send(self, payload: Payload) -> None:
        self.payloads[payload.source, payload.step] = to_sendable(payload.content)

    def wait_for(self, source: int, step: int) -> Any:
        return self.payloads[source, step]


@dataclass(frozen=True)
class _ExternalData:
    """Data from outside, delivered in the first call at or after `step`."""

    step: int
    source: str
    data: Any


class PythonPopulationRunner:
    """Calls the Python populations of one shard and injects the spikes that they return."""

    def __init__(
        self,
        network: Network,
        shard: Shard,
        python_populations: Sequence[PythonPopulation],
        transport: PayloadTransport,
    ) -> None:
        self._network = network
        self._shard = shard
        self._transport = transport
        self._dt_ms = network.dt_ms
        here = [one for one in python_populations if shard_of(one, shard.placement) == shard.me]
        self._markers = {one.marker for one in python_populations}
        self._subscribed = {subscription.population for one in python_populations for subscription in one.subscriptions}
        self._instances = [(spec, _create(spec)) for spec in here]
        self._external: dict[str, list[_ExternalData]] = {spec.name: [] for spec in here}
        self._done = shard.step
        self._called: set[str] = set()
        self._rounded: set[str] = set()  # regions whose rounded times have been reported
        self.around_first_call: Callable[[bool], None] = lambda begins: None  # a first call may import a lot
        # Multiples of these steps may require a call.
        self._every = [one.batch_steps for one in here if one.subscriptions] + [
            one.tick_steps for one in here if one.tick_steps
        ]

    def next_stop(self, until: int) -> int:
        """Return the next step after which an object may have to be called, `until` at the latest."""
        now = self._shard.step
        due = [max(one.step, now + 1) for given in self._external.values() for one in given]
        return min([until, *due, *((now // every + 1) * every for every in self._every)])

    def call_due(self) -> None:
        """Call the objects that have events after the present step or whose tick is due."""
        now = self._shard.step
        if now == self._done:
            return
        self._done = now
        for spec, instance in self._instances:
            if spec.population in self._shard.silent:
                self._take_external(spec, now)  # a silenced population receives nothing
                continue
            events = self._events(spec, now)
            ticks = spec.tick_steps and now % spec.tick_steps == 0
            if not events and not ticks:
                continue
            if spec.name in self._called:
                self._call(spec, instance, events, now)
                continue
            self._called.add(spec.name)
            self.around_first_call(True)
            self._call(spec, instance, events, now)
            self.around_first_call(False)

    def discard_delivered(self) -> None:
        """Discard payloads that every subscriber has received."""
        oldest = self._shard.step - self._shard.slots
        for key in [key for key in self._transport.payloads if key[1] <= oldest]:
            del self._transport.payloads[key]

    def skip_to_now(self) -> None:
        """Make no calls for steps that were skipped."""
        self._done = self._shard.step

    def set_node(self, node: Any) -> None:
        """Set the attribute `node`, where an object has one, to the mesh node of this process or None."""
        for _, instance in self._instances:
            if hasattr(instance, "node"):
                instance.node = node

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        """Queue external data for the next call, or for the delay of each matching subscription."""
        if name not in self._external:
            return
        delays = [1]
        if source != INPUT:
            spec = next(one for one, _ in self._instances if one.name == name)
            delays = [one.delay_steps for one in spec.data_subscriptions if one.includes(source)]
        self._external[name] += [_ExternalData(self._shard.step + delay, source, data) for delay in delays]

    def _events(self, spec: PythonPopulation, now: int) -> list[Event]:
        """Return the events since the last call, ordered by time, then by subscription."""
        events = []
        begun = now - spec.batch_steps + 1 if now % spec.batch_steps == 0 else now + 1
        for step in range(begun, now + 1):
            for subscription in spec.subscriptions:
                emitted = step - subscription.delay_steps
                ids = self._shard.spikes_of(subscription.population, emitted)
                if not len(ids):
                    continue
                data = None
                if subscription.population in self._markers:
                    ids = ids[:0]
                    content = self._transport.wait_for(subscription.population, emitted)
                    if content is None:
                        continue  # lost; the transport counts it
                    data = to_device(content, spec.device)
                events.append(Event(step * self._dt_ms, ids, subscription.source, data))
        events += [
            Event(now * self._dt_ms, np.zeros(0, np.int64), one.source, to_device(one.data, spec.device))
            for one in self._take_external(spec, now)
        ]
        return events

    def _take_external(self, spec: PythonPopulation, now: int) -> list[_ExternalData]:
        """Remove and return the external data that is due, in the order in which it was given."""
        given = self._external[spec.name]
        self._external[spec.name] = [one for one in given if one.step > now]
        return [one for one in given if one.step <= now]

    def _call(self, spec: PythonPopulation, instance: Any, events: list[Event], now: int) -> None:
        if hasattr(instance, "signals"):
            instance.signals = self._signals(now)
        try:
            returned = instance.process_events(now * self._dt_ms, events)
            spikes = [part for one in _as_events(returned) for part in self._spikes(spec, one, now)]
        except Exception as error:
            raise ShardFailed(
                f"region {spec.name!r} failed at {now * self._dt_ms:g} ms: {type(error).__name__}: {error}",
                worker=self._shard.me,
                shard=spec.name,
                step=now,
                traceback=traceback.format_exc(),
            ) from error
        if spikes:
            steps = np.concatenate([np.full(len(ids), step, np.int64) for step, ids in spikes])
            self._shard.inject(steps, np.concatenate([ids for _, ids in spikes]))

    def _signals(self, now: int) -> dict[str, float]:
        """Return the phases of rhythms, in turns, and the levels of neuromodulators that this shard knows."""
        signals = {one.name: one.phase_at(now, self._dt_ms) for one in self._network.rhythms}
        released = {one.modulator.name for one in self._network.modulations}
        for one in self._network.neuromodulators:
            level = None if one.name in released else self._shard.level(one.index)
            if level is not None:
                signals[one.name] = one.baseline + level
        return signals

    def _spikes(self, spec: PythonPopulation, event: Event, now: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Return (step, neurons in the network) for a returned event, and send its payload."""
        step = now + 1 if event.time_ms is None else self._step_of(spec, event.time_ms, now)
        ids = np.asarray(event.ids)
        population = self._network.populations[spec.population]
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.min() < 0 or ids.max() >= population.n):
            raise InvalidArgument(f"it returned ids {ids!r}; expected whole numbers from 0 to {population.n - 1}")
        spikes = [(step, population.first_id + ids.astype(np.int64).reshape(-1))]
        if event.data is not None and spec.marker in self._subscribed:
            if (spec.marker, step) in self._transport.payloads:
                raise InvalidArgument(
                    f"it returned data twice for {step * self._dt_ms:g} ms. Send it in one event, as a list"
                )
            spikes.append((step, np.array([self._network.populations[spec.marker].first_id])))
            self._transport.send(Payload(spec.marker, step, event.data))
        return spikes

    def _step_of(self, spec: PythonPopulation, time_ms: Any, now: int) -> int:
        """Return the step of a returned event; warn of the first one of each region that is between two steps."""
        try:
            time_ms = float(time_ms)
            step = int(np.floor(time_ms / self._dt_ms + 0.5))
        except (TypeError, ValueError, OverflowError):  # not a number, nan, inf
            raise InvalidArgument(
                f"it returned an event with time_ms={time_ms!r}; expected a time in ms, or None"
            ) from None
        if step <= now:
            return now + 1
        if step > LARGEST_STEP:
            raise InvalidArgument(f"it returned an event at {time_ms:g} ms, which is beyond the last step")
        if spec.name not in self._rounded:
            used = on_grid(time_ms, self._dt_ms, f"region {spec.name!r} (reported once): a returned time_ms")
            if used != time_ms:
                self._rounded.add(spec.name)
        return step

    # --- Saving and restoring ----------------------------------------------------------------------------------

    def export(self, received: bool = False) -> dict[str, NDArray[np.generic]]:
        """Return the states of all objects as arrays, by "name/key".

        `received` adds the payloads that came from other shards.
        """
        arrays: dict[str, NDArray[np.generic]] = {}
        for spec, instance in self._instances:
            if any(one.source == INPUT for one in self._external[spec.name]):
                raise CheckpointError(f"region {spec.name!r} has not received all its data. Run a step first")
            if getattr(instance, "stateless", False):
                continue
            if not hasattr(instance, "get_state") or not hasattr(instance, "set_state"):
                raise CheckpointError(
                    f"region {spec.name!r} cannot be saved. Give {type(instance).__name__} the methods get_state() "
                    "(returns a dict of arrays) and set_state(dict), or set stateless = True if it has no state"
                )
            try:
                state = dict(instance.get_state())
            except Exception as error:
                raise CheckpointError(f"region {spec.name!r}: get_state() raised {error!r}") from error
            for key, value in state.items():
                array = np.asarray(value)
                if array.dtype.kind not in "biuf":
                    raise CheckpointError(f"region {spec.name!r}: get_state()[{key!r}]: expected numbers")
                arrays[f"{spec.name}/{key}"] = array
        return arrays | self._payloads_in_flight(received) | self._external_in_flight()

    def _external_in_flight(self) -> dict[str, NDArray[np.generic]]:
        """Return the external data that is not yet delivered."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, given in self._external.items():
            for place, one in enumerate(given):
                content = _packed(one.data, f"region {name!r}: its undelivered data")
                arrays[f"{_EXTERNAL}{name}/{place}/{one.step}/{one.source}"] = content
        return arrays

    def _payloads_in_flight(self, received: bool) -> dict[str, NDArray[np.generic]]:
        """Return the payloads sent here (or `received`) that a subscriber may still need."""
        oldest = self._shard.step - self._shard.slots
        here = {spec.marker: spec.name for spec, _ in self._instances}
        arrays: dict[str, NDArray[np.generic]] = {}
        for (source, step), content in self._transport.payloads.items():
            if (received or source in here) and step > oldest:
                kind = (content.dtype or "tensor") if isinstance(content, HostTensor) else "array"
                values = content.values if isinstance(content, HostTensor) else content
                if not isinstance(values, np.ndarray | np.generic) or values.dtype.kind not in "biuf":
                    kind, values = "packed", _packed(content, f"region {here.get(source, '')!r}: undelivered data")
                arrays[f"{_PAYLOAD}{source}/{step}/{kind}"] = np.asarray(values)
        return arrays

    def install(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        for spec, instance in self._instances:
            self._external[spec.name].clear()
            prefix = f"{spec.name}/"
            own = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
            if hasattr(instance, "set_state") and not getattr(instance, "stateless", False):
                try:
                    instance.set_state(own)
                except Exception as error:
                    raise CheckpointError(f"region {spec.name!r}: set_state() raised {error!r}") from error
        in_flight = [key for key in arrays if key.startswith(_EXTERNAL)]
        for key in sorted(in_flight, key=lambda key: int(key.split("/")[2])):
            _, name, _, step, source = key.split("/", 4)
            if name in self._external:
                self._external[name].append(_ExternalData(int(step), source, unpack(arrays[key])))
        self._transport.payloads.clear()
        for key, array in arrays.items():
            if key.startswith(_PAYLOAD):
                source, step, kind = key.removeprefix(_PAYLOAD).split("/")
                self._transport.payloads[int(source), int(step)] = _restored_payload(kind, array)
        self._done = self._shard.step


def _packed(content: Any, what: str) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(pack(content), np.uint8)
    except NotSerializable as error:
        raise CheckpointError(f"{what} cannot be saved: {error}") from error


def _restored_payload(kind: str, array: NDArray[np.generic]) -> Any:
    """Return the content of a saved payload."""
    if kind == "packed":
        return unpack(array)
    return array if kind == "array" else HostTensor(array, "" if kind == "tensor" else kind)


def load_callable(name: str, what: str) -> Callable[..., Any]:
    """Import and return the callable "module:qualified.name"."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"{what}: create={name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidArgument(f"{what}: create={name!r} is a {type(found).__name__} and cannot be called")
    return found  # type: ignore[no-any-return]


def _create(spec: PythonPopulation) -> Any:
    what = f"region {spec.name!r}"
    create = load_callable(spec.create, what)
    try:
        instance = create(dict(spec.config), spec.device)
    except Exception as error:
        raise InvalidArgument(f"{what}: {spec.create} raised {type(error).__name__}: {error}") from error
    if not callable(getattr(instance, "process_events", None)):
        raise InvalidArgument(
            f"{what}: {spec.create} returned a {type(instance).__name__} without process_events(now, events)"
        )
    return instance


def _as_events(returned: Any) -> Iterable[Event]:
    """Convert a return value (None, events, or ids that spike in the next step) to events."""
    if returned is None:
        return []
    if isinstance(returned, Event):
        return [returned]
    if isinstance(returned, np.ndarray):
        return [Event(ids=returned)]
    events: list[Event] = list(returned)
    for one in events:
        if not isinstance(one, Event):
            raise InvalidArgument(f"process_events returned {one!r}; expected events or an array of ids")
    return events
