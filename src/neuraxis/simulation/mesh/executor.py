"""Run a network as mesh nodes, one for each region, driven by the process that has the `Simulation`.

`MeshExecutor` is the executor. `RegionTeam` starts the nodes of this machine, one process each, waits for nodes that
are started elsewhere, sends commands to all of them, and detects lost ones.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neuraxis.deprecation import renamed_arguments, renamed_members
from neuraxis.engine.placement import Placement
from neuraxis.errors import (
    CheckpointError,
    InvalidArgument,
    LineClosed,
    LineTimeout,
    MeshError,
    RequestFailed,
    ShardFailed,
    WorkerFailed,
)
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology
from neuraxis.network import Network
from neuraxis.process import Team
from neuraxis.process.pickling import main_objects
from neuraxis.simulation.executor import (
    BuildReport,
    Counters,
    Recorded,
    ShardedExecutor,
    decode_reply,
    merge_recorded,
    merge_reports,
)
from neuraxis.simulation.mesh.inbox import DEPTH
from neuraxis.simulation.mesh.setup import RECONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S, RegionSetup, Units, digest_of
from neuraxis.simulation.mesh.wall_clock import CLOCKS_AGREE_S
from neuraxis.simulation.mesh.wire import COMMAND, HEALTH, WHERE
from neuraxis.simulation.mesh.worker import serve_region
from neuraxis.simulation.python_populations import PythonPopulation

__all__ = ["MeshExecutor", "RegionTeam"]

_log = logging.getLogger("neuraxis.mesh")

_POLL_S = 0.05
_COMMAND_S = 600.0
_WHERE_S = 10.0
_ENDS_S = 2.0
_KEPT_ACTIONS = 20_000
_MOST_REFUSALS = 10
_SETTINGS = frozenset({"write_state", "silence", "freeze", "set_level"})
_ERRORS = {"CheckpointError": CheckpointError, "InvalidArgument": InvalidArgument}
_START_S = 300.0
_ACTIONS = frozenset({"write_state", "inject", "silence", "freeze", "set_level", "give"})


@renamed_arguments(patience_s="silence_timeout", reconnect_s="reconnect_timeout", start_timeout_s="start_timeout")
@renamed_members(stories="statistics")
class MeshExecutor(ShardedExecutor):
    """Runs a network as nodes that exchange spikes over the mesh, in lockstep.

    The process with the `Simulation` is the driver: it sends commands to advance, sets inputs and reads results. Spikes
    travel between the nodes. If a node is lost, the others continue without its spikes (`on_loss="silence"`), and
    results for it are those of its last report; with `on_loss="raise"` the simulation ends.

    Parameters
    ----------
    units : Units
        Populations of each node.
    mesh : str
        Name of the mesh.
    topology : Topology, optional
        Connection to the mesh; by default peers on this machine.
    topologies : mapping, optional
        Topologies of single nodes, for example with other certificates.
    remote : collection of str
        Nodes that are started elsewhere with `neuraxis node`; `start` waits for them.
    on_loss : {"silence", "raise"}
        Reaction to a lost node.
    silence_timeout : float
        Timeout of the failure detector: a node without a sign of life for so many seconds is lost.
    reconnect_timeout : float
        Time in seconds that a node waits for the mesh when it is cut off.
    checkpoint : path, optional
        Folder in which each node saves its own states, to be restarted from.
    checkpoint_every : int
        Steps between two saved states.
    start_timeout : float
        Time in seconds to wait for all nodes.

    Raises
    ------
    InvalidArgument
        An argument is invalid.

    Examples
    --------
    >>> MeshExecutor(Units({"eye": [0], "arm": [1]})).units.names
    ('eye', 'arm')

    Each node is a process of its own, which the simulation starts::

        with Simulation(network, executor=MeshExecutor(units)) as simulation:
            simulation.run(1000.0)
    """

    def __init__(
        self,
        units: Units,
        *,
        mesh: str = "default",
        topology: Topology | None = None,
        topologies: Mapping[str, Topology] | None = None,
        remote: Collection[str] = (),
        on_loss: str = "silence",
        silence_timeout: float = SILENCE_TIMEOUT_S,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 10_000,
        start_timeout: float = _START_S,
    ) -> None:
        if on_loss not in ("silence", "raise"):
            raise InvalidArgument(f"on_loss={on_loss!r}: expected silence or raise")
        unknown = set(remote) - set(units.names)
        if unknown:
            raise InvalidArgument(f"remote: no region {', '.join(sorted(unknown))}; there are {', '.join(units.names)}")
        self.units = units
        self.workers = len(units.names)
        self.placement: Placement = ()
        self.team: RegionTeam | None = None
        self._network: Network | None = None
        self._remote = tuple(remote)
        self._on_loss = on_loss
        self._start_timeout = start_timeout
        self._token = secrets.token_hex(16)  # sent to the nodes through their pipe, never over the mesh
        self._options: dict[str, Any] = {
            "mesh": mesh,
            "topology": (topology or Topology.local()).as_data(),
            "silence_timeout": silence_timeout,
            "reconnect_timeout": reconnect_timeout,
            "checkpoint": None if checkpoint is None else str(Path(checkpoint).resolve()),
            "checkpoint_every": checkpoint_every,
            "token": self._token,
        }
        self._reached = 0
        self._topologies = {name: one.as_data() for name, one in (topologies or {}).items()}
        self._timeline = 0
        self._last_counters: dict[str, Counters] = {}
        self._last_counts: dict[int, Any] = {}

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        if self.team is not None:
            raise InvalidArgument("this executor already runs a simulation. Make one executor per simulation")
        self._network = network
        self.placement = self.units.placement(network)
        setups = {
            name: RegionSetup(
                name,
                self.units,
                network,
                tuple(python_populations),
                **{**self._options, "topology": self._topologies.get(name, self._options["topology"])},
            )
            for name in self.units.names
        }
        topology_used = Topology.from_data(self._options["topology"])
        self.team = RegionTeam(setups, topology=topology_used, remote=self._remote)
        try:
            self.team.wait(self._start_timeout)
            self.team.check_fresh(digest_of(network, python_populations))
            reports = self.ask("report")
        except BaseException:
            self.close()
            raise
        report = merge_reports(reports)
        progress(report.synapses)
        return report

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        if self.team is None:
            raise ShardFailed("the nodes of this simulation have stopped. Make a new simulation")
        before = set(self.team.lost)
        token = (self._token,) if command in ("save", "restore") else ()
        replies = self.team.ask(command, *token, *arguments, include_joining=command == "advance")
        if not replies:
            self.close()
            raise ShardFailed("every node of this brain is lost. Make a new simulation")
        new = set(self.team.lost) - before
        if new and self._on_loss == "raise":
            name = sorted(new)[0]
            why = self.team.lost[name]
            self.close()
            raise ShardFailed(f"region {name!r} is lost: {why}", shard=name)
        if command in _ACTIONS:
            self.team.log_action(self._reached, command, arguments)
        elif command == "counters":
            self._last_counters |= replies
        elif command == "read_counts":
            for found in replies.values():
                self._last_counts |= {i: one for i, one in zip(arguments[0], found, strict=True) if one is not None}
        return [
            replies[name] if name in replies else self._default_reply(name, command, arguments)
            for name in self.units.names
        ]

    def advance(self, until: int, check_last: bool = False) -> Recorded:
        # A node that resumed from an older state has repeated some steps.
        pieces = [_after(one, self._reached) for one in self.ask("advance", until, check_last)]
        self._reached = until
        return merge_recorded(pieces)

    def restore(self, folder: Path, files: list[str]) -> None:
        self._timeline += 1  # messages that are still in flight belong to the previous timeline
        self.ask("restore", str(folder), files, self._timeline)
        self.ask("publish")
        if self.team is not None:
            self.team.forget_actions()
        self._reached = self.counters().step

    def status(self) -> list[Any]:
        return [one for one in self.ask("status") if one is not None]

    def counters(self) -> Counters:
        found = super().counters()
        steps = [one.step for one in self._last_counters.values()]
        return Counters(
            max(steps, default=found.step), found.spike_counts, found.events, found.hash, found.peak_memory_bytes
        )

    def statistics(self) -> dict[str, Any]:
        """Return statistics of each region: outages of others, steps recovered and lost."""
        return {} if self.team is None else self.team.ask("statistics")

    def close(self) -> None:
        team, self.team = self.team, None
        if team is not None:
            team.close()

    def _default_reply(self, name: str, command: str, arguments: tuple[Any, ...]) -> Any:
        """Return the reply that stands in for that of a lost node."""
        assert self._network is not None
        populations = self._network.populations
        if command == "advance":
            return Recorded(np.zeros(0, np.int64), np.zeros(0, np.int64))
        if command == "counters":
            nothing = Counters(0, np.zeros(len(populations), np.int64), 0, 0, 0)
            return self._last_counters.get(name, nothing)
        if command == "state_hash":
            return 0
        if command == "report":
            return BuildReport(0, 0, 0, 0)
        if command == "read_state":
            mine = arguments[0] in self.units.populations[name]
            return np.zeros(populations[arguments[0]].n, np.float32) if mine else None
        if command == "read_counts":
            return [
                self._last_counts.get(index, np.zeros(populations[index].n, np.int64))
                if index in self.units.populations[name]
                else None
                for index in arguments[0]
            ]
        if command in ("read_synapses", "read_rate_synapses"):
            none = np.zeros(0, np.int64)
            return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}
        if command in ("save", "restore"):
            raise CheckpointError(
                f"region {name!r} is lost, so a saved state would be incomplete. Restart its node first"
            )
        return None


def _after(recorded: Recorded, step: int) -> Recorded:
    """Return the recordings after a step."""
    kept = recorded.steps > step
    samples = [
        replace(one, steps=one.steps[one.steps > step], values=one.values[one.steps > step]) for one in recorded.samples
    ]
    return replace(
        recorded, steps=recorded.steps[kept], ids=recorded.ids[kept], samples=[one for one in samples if len(one.steps)]
    )


class RegionTeam:
    """The nodes of a brain: those started here, each in a process of its own, and those that run elsewhere.

    Parameters
    ----------
    setups : dict
        Configuration of each region's node, by name.
    topology : Topology, optional
        Connection of this process to the mesh; by default that of the first node.
    remote : collection of str
        Regions that are started elsewhere (`neuraxis node`).
    driver : str
        Name of this process's own node.
    """

    def __init__(
        self,
        setups: dict[str, RegionSetup],
        *,
        topology: Topology | None = None,
        remote: Collection[str] = (),
        driver: str = "driver",
    ) -> None:
        first = next(iter(setups.values()))
        self.names = tuple(setups)
        self.silence_timeout = first.silence_timeout
        self._dt_ms = first.network.dt_ms
        self.lost: dict[str, str] = {}  # by name: how a lost node ended
        self._processes = threading.RLock()  # a thread may start a node again while another notices its death
        self._setups = setups
        self._reconnect_timeout = first.reconnect_timeout
        self._cut_off_since: float | None = None
        self._teams: dict[str, Team] = {}
        self._heartbeats: dict[str, float] = {}
        self._holds: dict[str, float] = {}
        self._incarnations: dict[str, int] = {}  # by name: the incarnation that got the last command
        self._actions: deque[tuple[int, str, tuple[Any, ...]]] = deque(maxlen=_KEPT_ACTIONS)
        self._pool = ThreadPoolExecutor(len(setups) + 2, thread_name_prefix="neuraxis requests")
        self._closed = False
        try:
            topology_used = topology or Topology.from_data(first.topology)
            self.node = Node(driver, "driver", first.mesh, topology=topology_used)
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        try:
            for name in self.names:
                self.node.subscribe(f"{name}/{HEALTH}", self._on_status, recover=False, depth=DEPTH)
            for name in self.names:
                if name not in remote:
                    self.start(name)
        except BaseException:
            self.close()
            raise

    # --- Starting and closing -----------------------------------------------------------------------------------

    def start(self, name: str, **changes: Any) -> None:
        """Start the node of a region on this machine, with `changes` to its setup, such as resume=True."""
        with self._processes:
            old = self._teams.pop(name, None)
            if old is not None:
                old.close()
            team = Team(serve_region, 1, grace=1.0)
            self._teams[name] = team
            setup = replace(self._setups[name], **changes)
            feeds = (feed.convert for feed in setup.units.feeds.get(name, ()))
            team.send(0, main_objects([*(one.create for one in setup.python_populations), *feeds]))
            team.send(0, setup)
            self.lost.pop(name, None)

    def wait(self, timeout_s: float, names: Collection[str] | None = None) -> None:
        """Wait until all nodes (or these) are on the mesh; raise if one dies or does not join in time."""
        wanted = self.names if names is None else tuple(names)
        deadline = time.monotonic() + timeout_s
        while True:
            missing = self.node.wait_for(wanted, _POLL_S)
            if not missing:
                break
            for name in missing:
                try:
                    self._raise_if_dead(name)
                except ShardFailed as error:
                    failed = error.__cause__
                    if failed is not None and isinstance(failed.__cause__, InvalidArgument):
                        raise failed.__cause__ from failed  # as if the region were built in this process
                    raise
            if time.monotonic() > deadline:
                self.node.check_connected("waiting for regions")
                here = "" if missing[0] in self._teams else ". Start it with: neuraxis node … --region " + missing[0]
                raise MeshError(f"region {', '.join(missing)} did not join within {timeout_s:g} s{here}")
        now = time.monotonic()
        for name in wanted:
            self._heartbeats[name] = max(now, self._heartbeats.get(name, 0.0))

    def check_fresh(self, digest: int) -> None:
        """Raise unless every node runs this brain and is at step 0."""
        for name in self.names:
            where = self.node.request(name, WHERE, timeout=_WHERE_S)
            if where["digest"] != digest:
                raise MeshError(f"region {name!r}: its node runs another brain. Give it the same file and seed")
            if where["step"]:
                raise MeshError(f"region {name!r}: its node is at step {where['step']:,} of an earlier run. Restart it")

    def epochs_ns(self) -> list[int]:
        """Return the wall-clock time of step 0 on the nodes that already run in realtime.

        Raises
        ------
        MeshError
            The clock of a node differs from this machine's.
        """
        epochs = []
        for name in self.names:
            where = self.node.request(name, WHERE, timeout=_WHERE_S)
            epoch_ns = int(where["epoch_ns"])
            if not epoch_ns:
                continue
            behind_s = (time.time_ns() - epoch_ns) * 1e-9 - int(where["step"]) * self._dt_ms * 1e-3
            if abs(behind_s) > CLOCKS_AGREE_S + _WHERE_S:
                raise MeshError(
                    f"region {name!r}: its clock is {abs(behind_s):,.0f} s "
                    f"{'behind' if behind_s > 0 else 'ahead of'} this machine's. Synchronize both clocks (NTP)"
                )
            epochs.append(epoch_ns)
        return epochs

    def kill(self, name: str) -> None:
        """Kill a node that was started here, for tests of failures."""
        os.kill(self._teams[name].pids[0], signal.SIGKILL)

    @property
    def pids(self) -> dict[str, int]:
        return {name: team.pids[0] for name, team in self._teams.items()}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            for team in self._teams.values():  # stop all before waiting for any
                try:
                    team.send(0, None, timeout=1.0)
                except (WorkerFailed, LineClosed, LineTimeout):
                    pass
            self.node.close()  # before the regions have left, else it would warn that it is alone
            for team in self._teams.values():
                team.close()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self.node.close()

    def __enter__(self) -> RegionTeam:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- Sending commands ---------------------------------------------------------------------------------------

    def ask(self, command: str, *arguments: Any, include_joining: bool = False) -> dict[str, Any]:
        """Send a command to all live nodes and return their replies, by name; nodes that leave meanwhile have none.

        `include_joining` also sends it to nodes that join while the others execute it.
        """
        pending: dict[str, Future[Any]] = {}
        replies: dict[str, Any] = {}
        refusals: Counter[str] = Counter()  # failed requests to nodes that are present
        numbers: dict[str, int] = {}  # request ids: a retry after a cut is deduplicated
        wanted = {name for name in self.names if self.is_live(name)}
        for name in self._incarnations.keys() - wanted:
            self._record_loss(name, "it left the mesh")
        while True:
            if include_joining:
                wanted |= {name for name in self.names if self.is_live(name) and refusals[name] < _MOST_REFUSALS}
            for name in wanted - pending.keys() - replies.keys():
                number = numbers.setdefault(name, self.node.next_request_number())
                pending[name] = self._pool.submit(self._ask_one, name, command, arguments, number)
            for name, future in list(pending.items()):
                try:
                    replies[name] = future.result(timeout=_POLL_S)
                    del pending[name]
                    self.lost.pop(name, None)
                except ShardFailed as error:
                    del pending[name]
                    wanted.discard(name)
                    self._record_loss(name, str(error), _ENDS_S)
                except MeshError as error:
                    del pending[name]
                    failed = isinstance(error, RequestFailed)
                    if self.node.connected and self.node.peer(name) is not None:
                        refusals[name] += _MOST_REFUSALS if failed else 1
                    if failed or refusals[name] >= _MOST_REFUSALS or not self.is_live(name):
                        self._record_loss(name, str(error))
                        wanted.discard(name)
                except TimeoutError:
                    if not self.is_live(name):
                        self._record_loss(name, "it sends no sign of life")
                        del pending[name]
                        wanted.discard(name)
            if wanted <= replies.keys():
                return {name: replies[name] for name in self.names if name in replies}

    def log_action(self, step: int, command: str, arguments: tuple[Any, ...]) -> None:
        """Log an action at `step`, to replay it to a node that resumes from an older state."""
        self._actions.append((step, command, arguments))

    def forget_actions(self) -> None:
        self._actions.clear()

    def is_live(self, name: str) -> bool:
        """Return True if a node is on the mesh and sent a sign of life recently.

        With a router, presence disappears when the router restarts, so only the timeout `silence_timeout` counts. While
        this process itself is cut off, no node is lost.
        """
        now = time.monotonic()
        if not self._is_connected(now):
            self._heartbeats.update(dict.fromkeys(self._heartbeats.keys() - self.lost.keys(), now))
            return name not in self.lost
        here = self.node.peer(name) is not None
        if name not in self._heartbeats:
            if here:
                self._heartbeats[name] = now
            return here
        if not here and self.node.topology.mode_in_use != "client":
            return False
        silence_timeout = 2 * self.silence_timeout if here else self.silence_timeout
        return now - self._heartbeats[name] < silence_timeout or now < self._holds.get(name, 0.0)

    def _is_connected(self, now: float) -> bool:
        if self.node.connected:
            self._cut_off_since = None
            return True
        if self._cut_off_since is None:
            self._cut_off_since = now
            _log.warning("cut off from the mesh; waiting")
        return now - self._cut_off_since > self._reconnect_timeout

    def _ask_one(self, name: str, command: str, arguments: tuple[Any, ...], number: int) -> Any:
        peer = self.node.peer(name)
        if peer is not None and self._incarnations.get(name) != peer.incarnation:
            if name in self._incarnations:
                self._replay_actions(name)
            self._incarnations[name] = peer.incarnation
        return self._request(name, command, arguments, number)

    def _replay_actions(self, name: str) -> None:
        """Replay the actions that a returned node missed, each at its step."""
        where = self.node.request(name, WHERE, timeout=_WHERE_S)
        step = int(where["step"])
        actions = list(self._actions)
        if len(actions) == _KEPT_ACTIONS and actions[0][0] > step:
            _log.warning("region %s: actions before step %d are no longer known", name, actions[0][0])
        if not where["resumed"]:
            settings = {_target(one): one for one in actions if one[0] < step and one[1] in _SETTINGS}
            for _, command, arguments in settings.values():
                self._request(name, command, arguments)
        for at, command, arguments in actions:
            if at >= step:
                if at > step:
                    self._request(name, "advance", (at,))
                    step = at
                self._request(name, command, arguments)

    def _request(self, name: str, command: str, arguments: tuple[Any, ...], number: int | None = None) -> Any:
        try:
            reply = self.node.request(name, COMMAND, [command, *arguments], timeout=_COMMAND_S, again=number)
        except RequestFailed as error:
            if error.kind in _ERRORS:
                raise _ERRORS[error.kind](str(error)) from None
            if error.kind == "ShardFailed":
                raise ShardFailed(str(error), shard=name) from None
            raise
        return decode_reply(reply)

    def _on_status(self, message: Message) -> None:
        now = time.monotonic()
        leaving = isinstance(message.value, dict) and message.value.get("leaving") is True
        self._heartbeats[message.node] = -math.inf if leaving else now
        hold_s = message.value.get("hold_s", 0.0) if isinstance(message.value, dict) else 0.0
        self._holds[message.node] = now + min(float(hold_s), 600.0) if isinstance(hold_s, int | float) else 0.0

    def _record_loss(self, name: str, why: str, ends_within_s: float = 0.0) -> None:
        """Record and log the loss of a node, with the error of its process if that is known within `ends_within_s`."""
        with self._processes:
            if name in self.lost:
                return
            try:
                self._raise_if_dead(name, ends_within_s)
            except ShardFailed as error:
                why = str(error)
            self.lost[name] = why
        _log.warning("region %s is lost: %s; the others continue without it", name, why)

    def _raise_if_dead(self, name: str, within_s: float = 0.0) -> None:
        """Raise ShardFailed if the process of a node started here has ended, or ends within `within_s`."""
        with self._processes:
            team = self._teams.get(name)
            if team is None:
                return
            try:
                team.receive(timeout=within_s)
            except LineTimeout:
                return
            except (WorkerFailed, LineClosed) as error:
                self._teams.pop(name, None)
                team.close()
                cause = getattr(error, "traceback", "") or str(error)
                raise ShardFailed(f"the node of region {name!r} ended: {cause}", shard=name) from error


def _target(action: tuple[int, str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return what an action sets; of actions with the same target only the last one counts."""
    _, command, arguments = action
    return (command, *arguments[: {"write_state": 2, "set_level": 1}.get(command, 0)])
