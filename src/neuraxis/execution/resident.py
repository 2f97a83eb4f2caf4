"""Python that lives beside the neurons: it hears spikes, and has neurons of its own that spike as it says.

A resident is described by data (an importable name, a configuration), so that whichever process it is placed in can
make it. It is called at the end of a step, with what arrived since it was called last, and what it answers happens in
the steps after. So it reads only the past, and its place in the order of things does not depend on who runs it: results
are the same in every mode, provided that it is itself a function of what it was given.

**Data.** An event may carry an array or a tensor, to residents that hear its source. The event itself is a spike of a
population of one neuron, the resident's *mark*, so it travels like any spike and arrives in the same step everywhere;
the data travel beside it (`Mail`), and whoever hears the spike waits for them.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.outboxes import Listener
from neuraxis.engine.placement import Placement
from neuraxis.engine.shard import Shard
from neuraxis.errors import CheckpointError, InvalidArgument, NotSerializable, ShardFailed
from neuraxis.execution.admission import Admission
from neuraxis.execution.tensors import HostTensor, lowered, packed, raised, unpacked
from neuraxis.network import Network
from neuraxis.network.network import LARGEST_STEP

__all__ = [
    "INPUT",
    "Admission",
    "Event",
    "Hearing",
    "Letter",
    "Mail",
    "OwnMail",
    "Resident",
    "Residents",
    "listeners",
    "load_callable",
    "shard_of",
]

INPUT = "input"  # the source of what the caller sends
_LETTER, _GIVEN = "<letter>/", "<given>/"  # no region has such a name


@dataclass(frozen=True)
class Event:
    """Spikes of some neurons of a source, and possibly data, that arrive at one time.

    As an answer: `ids` are neurons of the resident itself. `time_ms` None, or not after now, means the next step;
    `source` need not be given.
    """

    time_ms: float | None = None
    ids: Any = ()
    source: str = ""
    data: Any = None


@dataclass(frozen=True)
class Hearing:
    """The spikes of a population (its index) are heard `delay_steps` later, as events of `source`."""

    population: int
    source: str
    delay_steps: int


@dataclass(frozen=True)
class Resident:
    """What lives beside the neurons.

    Attributes:
        create: "module:callable"; it is called as create(config, device) and returns an object with
            `process_events(now_ms, events)`.
        population: the index of the population whose neurons it lets spike.
        mark: the index of the population of one neuron that spikes with data.
        batch_steps: events of so many steps are given in one call.
        tick_steps: it is also called every so many steps with nothing to hear; 0: only when there is something.
        device: where tensors that it is given are to be.
        admits: which data from outside it hears, besides those that are given to it by name.
    """

    name: str
    create: str
    population: int
    mark: int
    config: Mapping[str, Any] = field(default_factory=dict)
    hears: tuple[Hearing, ...] = ()
    batch_steps: int = 1
    tick_steps: int = 0
    device: str = "cpu"
    admits: tuple[Admission, ...] = ()

    def admits_data_of(self, source: str) -> bool:
        return any(one.includes(source) for one in self.admits)


def listeners(residents: Sequence[Resident], placement: Placement) -> list[Listener]:
    """Who hears what, for `lags_between`; a resident lives where its population does."""
    return [
        Listener(shard_of(resident, placement), one.population, one.delay_steps, one.delay_steps + resident.batch_steps)
        for resident in residents
        for one in resident.hears
    ]


def shard_of(resident: Resident, placement: Placement) -> int:
    own = (resident.population, resident.mark)
    homes = {shard for shard, slices in enumerate(placement) for s in slices if s.population in own}
    if len(homes) != 1:
        raise InvalidArgument(f"region {resident.name!r}: its neurons are spread over {len(homes)} workers, not one")
    return homes.pop()


@dataclass(frozen=True)
class Letter:
    """Data of an event, on their way to residents in other processes."""

    source: int  # the mark
    step: int
    content: Any


@dataclass(frozen=True)
class _Given:
    """Data from outside, to be heard in the first call at or after a step."""

    step: int
    source: str
    data: Any


class Mail(Protocol):
    """Carries the data of events. `letters` are those that are known here, by (population, step)."""

    letters: dict[tuple[int, int], Any]

    def post(self, letter: Letter) -> None: ...

    def fetch(self, source: int, step: int) -> Any:
        """The content of a letter, waited for; None where it is lost."""


class OwnMail:
    """Mail within one process."""

    def __init__(self) -> None:
        self.letters: dict[tuple[int, int], Any] = {}

    def post(self, letter: Letter) -> None:
        self.letters[letter.source, letter.step] = lowered(letter.content)

    def fetch(self, source: int, step: int) -> Any:
        return self.letters[source, step]


class Residents:
    """The residents of one shard."""

    def __init__(self, network: Network, shard: Shard, residents: Sequence[Resident], mail: Mail) -> None:
        self._network = network
        self._shard = shard
        self._mail = mail
        self._dt_ms = network.dt_ms
        here = [one for one in residents if shard_of(one, shard.placement) == shard.me]
        self._marks = {one.mark for one in residents}
        self._heard_by_any = {hearing.population for one in residents for hearing in one.hears}
        self._living = [(resident, _make(resident)) for resident in here]
        self._given: dict[str, list[_Given]] = {resident.name: [] for resident in here}
        self._done = shard.step
        self._called: set[str] = set()
        self.around_first_call: Callable[[bool], None] = lambda begins: None  # it may take long: much is imported then
        # Steps in which somebody may have to be called; none where nobody hears or ticks.
        self._every = [one.batch_steps for one in here if one.hears] + [
            one.tick_steps for one in here if one.tick_steps
        ]

    def next_stop(self, until: int) -> int:
        """The next step after which residents may have to be called, `until` at the latest."""
        now = self._shard.step
        due = [max(one.step, now + 1) for given in self._given.values() for one in given]
        return min([until, *due, *((now // every + 1) * every for every in self._every)])

    def act(self) -> None:
        """Call those who have something to hear after the present step, or whose turn it is."""
        now = self._shard.step
        if now == self._done:
            return
        self._done = now
        for resident, living in self._living:
            if resident.population in self._shard.silent:
                self._take_given(resident, now)  # what arrives now is lost on it
                continue
            first = resident.name not in self._called
            if first:
                self.around_first_call(True)
            events = self._events(resident, now)
            ticks = resident.tick_steps and now % resident.tick_steps == 0
            if events or ticks:
                self._called.add(resident.name)
                self._answer(resident, living, events, now)
            if first:
                self.around_first_call(False)

    def forget(self) -> None:
        """Let go of data that everybody has heard."""
        oldest = self._shard.step - self._shard.slots
        for key in [key for key in self._mail.letters if key[1] <= oldest]:
            del self._mail.letters[key]

    def go_on(self) -> None:
        """Steps were left out: nobody is called for them."""
        self._done = self._shard.step

    def introduce(self, node: Any) -> None:
        """Tell residents that have an attribute `node` through which node of the mesh they can speak; None: none."""
        for _, living in self._living:
            if hasattr(living, "node"):
                living.node = node

    def give(self, name: str, data: Any, source: str = INPUT) -> None:
        """Data from outside, for the next call; those of a source that is admitted, after each admission's delay."""
        if name not in self._given:
            return
        delays = [1]
        if source != INPUT:
            resident = next(one for one, _ in self._living if one.name == name)
            delays = [one.delay_steps for one in resident.admits if one.includes(source)]
        self._given[name] += [_Given(self._shard.step + delay, source, data) for delay in delays]

    def _events(self, resident: Resident, now: int) -> list[Event]:
        """What arrived since the last call, in the order of time, then of pathways."""
        events = []
        begun = now - resident.batch_steps + 1 if now % resident.batch_steps == 0 else now + 1
        for step in range(begun, now + 1):
            for hearing in resident.hears:
                emitted = step - hearing.delay_steps
                ids = self._shard.spikes_of(hearing.population, emitted)
                if not len(ids):
                    continue
                data = None
                if hearing.population in self._marks:
                    ids = ids[:0]
                    content = self._mail.fetch(hearing.population, emitted)
                    if content is None:
                        continue  # they are lost; the mail counts them
                    data = raised(content, resident.device)
                events.append(Event(step * self._dt_ms, ids, hearing.source, data))
        events += [
            Event(now * self._dt_ms, np.zeros(0, np.int64), one.source, raised(one.data, resident.device))
            for one in self._take_given(resident, now)
        ]
        return events

    def _take_given(self, resident: Resident, now: int) -> list[_Given]:
        """What was given to a resident and has arrived, in the order in which it was given."""
        given = self._given[resident.name]
        self._given[resident.name] = [one for one in given if one.step > now]
        return [one for one in given if one.step <= now]

    def _answer(self, resident: Resident, living: Any, events: list[Event], now: int) -> None:
        if hasattr(living, "signals"):
            living.signals = self._signals(now)
        try:
            answer = living.process_events(now * self._dt_ms, events)
            spikes = [part for one in _as_events(answer) for part in self._spikes(resident, one, now)]
        except Exception as error:
            raise ShardFailed(
                f"region {resident.name!r} failed at {now * self._dt_ms:g} ms: {type(error).__name__}: {error}",
                worker=self._shard.me,
                shard=resident.name,
                step=now,
                traceback=traceback.format_exc(),
            ) from error
        if spikes:
            steps = np.concatenate([np.full(len(ids), step, np.int64) for step, ids in spikes])
            self._shard.inject(steps, np.concatenate([ids for _, ids in spikes]))

    def _signals(self, now: int) -> dict[str, float]:
        """The phases of rhythms, in turns, and the levels of neuromodulators, but for those that act elsewhere."""
        signals = {one.name: one.phase_at(now, self._dt_ms) for one in self._network.rhythms}
        released = {one.modulator.name for one in self._network.modulations}
        for one in self._network.neuromodulators:
            level = None if one.name in released else self._shard.level(one.index)
            if level is not None:
                signals[one.name] = one.baseline + level
        return signals

    def _spikes(self, resident: Resident, event: Event, now: int) -> list[tuple[int, NDArray[np.int64]]]:
        """(the step, the neurons in the network) of an answered event; its data are sent off."""
        step = now + 1
        if event.time_ms is not None:
            step = max(step, int(np.floor(event.time_ms / self._dt_ms + 0.5)))
        if step > LARGEST_STEP:
            raise InvalidArgument(f"it answered an event at {event.time_ms:g} ms, which is beyond the last step")
        ids = np.asarray(event.ids)
        population = self._network.populations[resident.population]
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.min() < 0 or ids.max() >= population.n):
            raise InvalidArgument(f"it answered ids {ids!r}; whole numbers from 0 to {population.n - 1} are expected")
        spikes = [(step, population.first_id + ids.astype(np.int64).reshape(-1))]
        if event.data is not None and resident.mark in self._heard_by_any:
            if (resident.mark, step) in self._mail.letters:
                raise InvalidArgument(
                    f"it answered data twice for {step * self._dt_ms:g} ms; send them in one event, as a list"
                )
            spikes.append((step, np.array([self._network.populations[resident.mark].first_id])))
            self._mail.post(Letter(resident.mark, step, event.data))
        return spikes

    # --- to keep ----------------------------------------------------------------------------------------------

    def export(self, heard: bool = False) -> dict[str, NDArray[np.generic]]:
        """The states of all residents as arrays, by "name/key". `heard`: with the data of others that came here."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for resident, living in self._living:
            if any(one.source == INPUT for one in self._given[resident.name]):
                raise CheckpointError(f"region {resident.name!r} has not seen all that it was given: run a step first")
            if getattr(living, "stateless", False):
                continue
            if not hasattr(living, "get_state") or not hasattr(living, "set_state"):
                raise CheckpointError(
                    f"region {resident.name!r} cannot be saved: give {type(living).__name__} the methods get_state() "
                    "(to a dict of arrays) and set_state(dict), or set stateless = True if it remembers nothing"
                )
            try:
                state = dict(living.get_state())
            except Exception as error:
                raise CheckpointError(f"region {resident.name!r}: get_state() raised {error!r}") from error
            for key, value in state.items():
                array = np.asarray(value)
                if array.dtype.kind not in "biuf":
                    raise CheckpointError(f"region {resident.name!r}: get_state()[{key!r}]: numbers are expected")
                arrays[f"{resident.name}/{key}"] = array
        return arrays | self._letters_under_way(heard) | self._given_under_way()

    def _given_under_way(self) -> dict[str, NDArray[np.generic]]:
        """Data from outside that residents of this shard have still to hear."""
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, given in self._given.items():
            for place, one in enumerate(given):
                content = _packed(one.data, f"region {name!r}: data under way to it")
                arrays[f"{_GIVEN}{name}/{place}/{one.step}/{one.source}"] = content
        return arrays

    def _letters_under_way(self, heard: bool) -> dict[str, NDArray[np.generic]]:
        """Data that residents of this shard have sent (or `heard`) and that somebody may still have to hear."""
        oldest = self._shard.step - self._shard.slots
        here = {resident.mark: resident.name for resident, _ in self._living}
        arrays: dict[str, NDArray[np.generic]] = {}
        for (source, step), content in self._mail.letters.items():
            if (heard or source in here) and step > oldest:
                kind = (content.dtype or "tensor") if isinstance(content, HostTensor) else "array"
                values = content.values if isinstance(content, HostTensor) else content
                if not isinstance(values, np.ndarray | np.generic) or values.dtype.kind not in "biuf":
                    kind, values = "packed", _packed(content, f"region {here.get(source, '')!r}: data under way")
                arrays[f"{_LETTER}{source}/{step}/{kind}"] = np.asarray(values)
        return arrays

    def install(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        for resident, living in self._living:
            self._given[resident.name].clear()
            prefix = f"{resident.name}/"
            own = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
            if hasattr(living, "set_state") and not getattr(living, "stateless", False):
                try:
                    living.set_state(own)
                except Exception as error:
                    raise CheckpointError(f"region {resident.name!r}: set_state() raised {error!r}") from error
        under_way = [key for key in arrays if key.startswith(_GIVEN)]
        for key in sorted(under_way, key=lambda key: int(key.split("/")[2])):
            _, name, _, step, source = key.split("/", 4)
            if name in self._given:
                self._given[name].append(_Given(int(step), source, unpacked(arrays[key])))
        self._mail.letters.clear()
        for key, array in arrays.items():
            if key.startswith(_LETTER):
                source, step, kind = key.removeprefix(_LETTER).split("/")
                self._mail.letters[int(source), int(step)] = _letter(kind, array)
        self._done = self._shard.step


def _packed(content: Any, what: str) -> NDArray[np.uint8]:
    try:
        return np.frombuffer(packed(content), np.uint8)
    except NotSerializable as error:
        raise CheckpointError(f"{what} cannot be saved: {error}") from error


def _letter(kind: str, array: NDArray[np.generic]) -> Any:
    """The content of a saved letter."""
    if kind == "packed":
        return unpacked(array)
    return array if kind == "array" else HostTensor(array, "" if kind == "tensor" else kind)


def load_callable(name: str, what: str) -> Callable[..., Any]:
    """What "module:qualified.name" names."""
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


def _make(resident: Resident) -> Any:
    what = f"region {resident.name!r}"
    create = load_callable(resident.create, what)
    try:
        living = create(dict(resident.config), resident.device)
    except Exception as error:
        raise InvalidArgument(f"{what}: {resident.create} raised {type(error).__name__}: {error}") from error
    if not callable(getattr(living, "process_events", None)):
        raise InvalidArgument(
            f"{what}: {resident.create} made a {type(living).__name__} without process_events(now, events)"
        )
    return living


def _as_events(answer: Any) -> Iterable[Event]:
    """None, events, or ids that spike in the next step."""
    if answer is None:
        return []
    if isinstance(answer, Event):
        return [answer]
    if isinstance(answer, np.ndarray):
        return [Event(ids=answer)]
    events: list[Event] = list(answer)
    for one in events:
        if not isinstance(one, Event):
            raise InvalidArgument(f"process_events answered {one!r}; events, or an array of ids, are expected")
    return events
