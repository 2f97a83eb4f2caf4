"""The mesh node of one region: one loop runs its shard and handles all messages.

**One loop.** All messages (spike windows, payloads, statuses of other regions, commands) go to one inbox, and the loop
that runs the shard takes them from there. So the engine needs no lock, and a stuck region sends no status, which is how
the others detect it.

**Lockstep.** The shard runs until it needs a step that was not received; then the loop publishes what is done and
waits. It publishes once a window, which is the shortest delay to a downstream region.

**Realtime.** Each window runs when its time has come, with the spikes that have arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import numpy as np

from neuraxis.deprecation import renamed_members
from neuraxis.engine.spikes import LONGEST_LAG, SpikeBuffers, links_between
from neuraxis.errors import CheckpointError, InvalidArgument, MeshError, ShardFailed
from neuraxis.mesh.membership import Peer
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology
from neuraxis.network.network import LARGEST_STEP
from neuraxis.simulation.executor import Recorded, instability
from neuraxis.simulation.mesh.commands import SLOW, CommandQueue, Stopped
from neuraxis.simulation.mesh.inbox import DEPTH, MOST_WAITING, Inbox
from neuraxis.simulation.mesh.payloads import MeshPayloads
from neuraxis.simulation.mesh.publisher import Publisher
from neuraxis.simulation.mesh.region_state import RegionStates
from neuraxis.simulation.mesh.setup import RegionSetup, digest_of
from neuraxis.simulation.mesh.upstream import LIVE, MISSING, Upstream
from neuraxis.simulation.mesh.upstreams import FailureDetector, Upstreams
from neuraxis.simulation.mesh.wall_clock import CLOCKS_AGREE_S, SharedEpoch, WallClock
from neuraxis.simulation.mesh.wire import COMMAND, HEALTH, REPLAY, SPIKES, WHERE, RegionStatus, Window
from neuraxis.simulation.python_populations import PythonPopulation, listeners, load_callable
from neuraxis.simulation.runner import ShardRunner
from neuraxis.wire.tensors import to_sendable

__all__ = ["RegionNode"]

_log = logging.getLogger("neuraxis.region")

_TICK_S = 0.05  # longest sleep of a waiting loop
_SPIN_S = 2e-4  # poll so long for an awaited window, yielding the core;
_SHORTEST_SLEEP_S = 5e-5  # then sleep between polls, longer the longer it takes
_LONGEST_SLEEP_S = 2e-3
_STOP_S = 0.01  # interval of the stop check, which may be a system call
_PIECE_STEPS = 2000  # a node without a driver handles messages after so many steps
_AHEAD_STEPS = 20_000  # largest lead over downstream regions
_WHERE_S = 1.0
_FARTHEST_PAYLOAD = 2**20  # steps from now; a payload for a later step is invalid
_FIRST_CALL_S = 60.0
_DRIVER = "driver"
_DRIVER_S = 0.5
_LONGEST_AGO_NS = 24 * 3600 * 10**9


@renamed_members(story="statistics")
class RegionNode:
    """The node of one region on the mesh; building it builds the shard, `run` runs it.

    Parameters
    ----------
    setup : RegionSetup
        Configuration of the node.
    progress : callable
        Called with numbers of synapses as they are built.
    stopped : callable
        Called regularly; the node stops when it returns True. See also `stop`.

    Examples
    --------
    ::

        region = RegionNode(setup)
        signal.signal(signal.SIGTERM, lambda number, frame: region.stop())
        region.run()
    """

    def __init__(
        self,
        setup: RegionSetup,
        progress: Callable[[int], None] = lambda synapses: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.setup = setup
        self._stopped = stopped
        self._stop = self._failed = self._resumed = False
        self._stop_checked = 0.0
        network, names = setup.network, setup.units.names
        placement = setup.units.placement(network)
        me = names.index(setup.name)
        links = links_between(network, placement, listeners(setup.python_populations, placement))
        buffers = SpikeBuffers.private(network, placement, np.where(links == 0, 1, links))
        markers = {
            name: one.marker
            for one in setup.python_populations
            for name, populations in setup.units.populations.items()
            if one.marker in populations
        }
        self._markers = markers
        self._transport = MeshPayloads(markers, lambda payload: self._publisher.publish_payload(payload))
        self._runner = ShardRunner(
            network, placement, me, buffers, progress, (0, 0), setup.python_populations, self._transport
        )
        self._shard = self._runner.shard
        self._runner.python_populations.around_first_call = self._around_first_call
        self.digest = digest_of(network, setup.python_populations)
        self._upstreams = Upstreams(setup, self.digest, self._shard, buffers, links)
        downstream = [index for index in range(len(names)) if index != me and links[index, me]]
        window = min((int(links[index, me]) for index in downstream), default=LONGEST_LAG)
        self._farthest = max((int(links[index, me]) for index in downstream), default=0)
        self._publisher = Publisher(setup, self.digest, self._shard, buffers, window)
        # By downstream region: its last completed step, and when its status arrived.
        self._downstream: dict[str, tuple[int, float]] = {names[index]: (-1, 0.0) for index in downstream}
        self._feeds = [
            (feed, load_callable(feed.convert, f"feed {feed.expression!r}"))
            for feed in setup.units.feeds.get(setup.name, ())
        ]
        self._states = RegionStates(setup, self.digest)
        self._driven, self._until = setup.driven, setup.until
        self._commands = CommandQueue(
            setup.token, lambda command: self._inbox.put("command", command), self._execute, self._may_drive
        )
        self._inbox = Inbox(setup.name, self._handlers(), self._upstreams.check)
        self._detector = FailureDetector(setup, self._upstreams, self._transport, self._shard, self._inbox)
        self._timeline = 0  # incremented by each restored state
        self._status_due = False
        self._successor: Peer | None = None  # a later node of the same name, which replaces this one
        self._driver_left_at: float | None = None
        self.node: Node | None = None
        self.clock = WallClock(network.dt_ms) if setup.clock == "realtime" else None
        self._epoch = None if self.clock is None else SharedEpoch(setup.name, self.clock)
        wait = None if self.clock is not None else self._wait_a_moment
        self._transport.connect(self.upstream, wait, self._detector.request_replay, self._detector.should_give_up)

    @property
    def upstream(self) -> dict[str, Upstream]:
        """State of the upstream regions, by name."""
        return self._upstreams.by_name

    # --- The loop -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Make `run` return soon; signal handlers and other threads may call this."""
        self._stop = True

    def run(self) -> None:
        """Join the mesh, run until stopped or until step `until`, and leave."""
        setup = self.setup
        topology = Topology.from_data(setup.topology)
        roles = tuple(setup.units.roles.get(setup.name, ()))
        begin, self._timeline = self._states.restore(self._runner) if setup.resume else (0, 0)
        self._resumed = begin > 0
        with Node(setup.name, "region", setup.mesh, topology=topology, roles=roles, announce=False) as node:
            self.node = self._publisher.node = node
            self._detector.begin(node)
            try:
                self._listen(node)
                node.announce()
                self._runner.python_populations.set_node(node)
                if begin:
                    self._begin_at(begin, known=True)
                    self._publish(whole=True)
                    self._rejoin(node, begin)
                else:
                    self._join(node)
                self._publish_status(force=True)
                self._loop()
            except Stopped:
                pass
            finally:
                self._runner.python_populations.set_node(None)
                if not self._failed:
                    self._publish_status(force=True, leaving=True)
                self._detector.end()
                self.node = self._publisher.node = None
                self._reject_remaining()

    def _loop(self) -> None:
        while True:
            self._check_stop()
            if self._commands:
                self._commands.execute_next()
            elif self._driven:
                self._handle_messages(_TICK_S)
            elif self._until is not None and self._shard.step >= self._until:
                self._publish(whole=True)
                self._save_if_due(always=True)
                if not self.setup.stays:
                    self._wait_for_subscribers()
                    return
                self._handle_messages(_TICK_S)
            elif self.clock is not None:
                self._run_with_clock(self.clock)
            else:
                self._advance(self._next_goal(), check_last=True)
                self._save_if_due()

    def _next_goal(self) -> int:
        step = self._shard.step
        goal = step + _PIECE_STEPS
        if self._until is not None:
            goal = min(goal, self._until)
        if self._states.every:
            goal = min(goal, (step // self._states.every + 1) * self._states.every)
        return goal

    def _wait_for_subscribers(self) -> None:
        """Wait for downstream regions that are still running and may need a replay."""
        deadline, seen = time.monotonic() + self.setup.start_timeout, -1
        while time.monotonic() < deadline:
            self._check_stop()
            step = self._shard.step
            behind = [at for name, (at, _) in self._downstream.items() if at < step and self._detector.is_present(name)]
            if not behind:
                return
            if sum(behind) != seen:
                deadline, seen = time.monotonic() + self.setup.start_timeout, sum(behind)
            self._handle_messages(_TICK_S)

    # --- Lockstep -----------------------------------------------------------------------------------------------

    def _advance(self, until: int, check_last: bool) -> Any:
        """Run to a step in lockstep and return the recordings; `check_last` checks there that states are finite."""
        try:
            recorded = self._runner.advance(
                until, fetch=self._wait, publish=self._between_pieces, check_last=check_last
            )
        except ShardFailed:
            self._failed = True
            raise
        self._publish(whole=True)
        if recorded.unstable and not self._driven:
            self._stop_unstable(recorded)
        return recorded

    def _stop_unstable(self, recorded: Recorded) -> NoReturn:
        """Stop a node without a driver whose state became infinite or NaN."""
        self._failed = True
        raise instability(self._shard.network, recorded.unstable)

    def _between_pieces(self) -> int:
        """Publish a full window and handle messages between pieces of a run; return the step of the next call."""
        self._check_stop()
        self._publish()
        self._inbox.handle_all()
        self._upstreams.write_ready()
        self._publish_status()
        self._limit_lead()
        return self._publisher.published + self._publisher.window

    def _wait(self) -> None:
        """Wait until the spikes for the next step were received, or their senders are known to be missing."""
        self._publish(whole=True)  # a downstream region may wait for it
        begun = listening_since = checked = time.monotonic()
        while True:
            self._check_stop()
            self._inbox.handle_all()
            self._upstreams.write_ready()
            if not (blocking := self._upstreams.blocking()):
                return
            waited = time.monotonic() - begun
            if waited < _SPIN_S:
                self._inbox.spin(begun + _SPIN_S)
                continue
            self._handle_messages(min(_LONGEST_SLEEP_S, max(_SHORTEST_SLEEP_S, waited / 8)))
            now = time.monotonic()
            if now - checked > self.setup.silence_timeout / 4:
                listening_since = now  # this process itself was suspended
            self._detector.check(blocking, listening_since)
            checked = time.monotonic()

    def _wait_a_moment(self) -> None:
        self._check_stop()
        self._handle_messages(_TICK_S / 5)

    def _limit_lead(self) -> None:
        """Wait while a downstream region is far behind (backpressure)."""
        while not self._driven:
            now, step = time.monotonic(), self._shard.step
            if not any(
                0 <= at < step - _AHEAD_STEPS and now - received < self.setup.silence_timeout
                for at, received in self._downstream.values()
            ):
                return
            self._check_stop()
            self._handle_messages(_TICK_S)

    # --- Realtime -----------------------------------------------------------------------------------------------

    def _run_with_clock(self, clock: WallClock) -> None:
        """Run one window by the wall clock: wait for its time, take the spikes that have arrived, run, publish."""
        step = self._shard.step
        if moved_s := clock.follow_setting():
            _log.warning(
                "%s: this machine's clock was set by %.0f s; continuing at step %d", self.setup.name, moved_s, step
            )
        target = step + max(1, self._publisher.window // 2)  # leaves half of the delay for the network
        if self._until is not None:
            target = min(target, self._until)
        while (left := clock.time_of(target) - clock.now()) > 0:
            self._check_stop()
            self._inbox.handle_one(min(left, _TICK_S))
            if self._commands or self._shard.step != step:  # another epoch was adopted
                return
        while self._inbox.handle_one(0.0):
            if self._shard.step != step:
                return
        if target > LARGEST_STEP:
            self._failed = True
            raise ShardFailed(f"a brain has {LARGEST_STEP:,} steps at most. Restart its nodes", shard=self.setup.name)
        behind = clock.record_start(target, self._publisher.window)
        for one in self._upstreams:
            if one.state == LIVE and (why := one.why_missing(time.monotonic())):
                self._detector.give_up(one, why)
        self._upstreams.fill_gaps(target)
        try:
            recorded = self._runner.advance(target, check_last=True)
        except ShardFailed:
            self._failed = True
            raise
        if recorded.unstable:
            self._stop_unstable(recorded)
        self._publish(whole=True)
        self._publish_status()
        self._save_if_due()
        if behind > clock.resync_s:
            clock.skipped += clock.step_now() - self._shard.step
            self._jump(clock.step_now())

    def _on_epoch(self, name: str, epoch_ns: int, step: int) -> None:
        """Handle the epoch of a neighbour: jump to the resulting step if it was adopted."""
        if self._epoch is not None and not self._driven and self._epoch.receive(name, epoch_ns, step):
            self._jump(self._epoch.clock.step_now())

    # --- Joining and rejoining ----------------------------------------------------------------------------------

    def _join(self, node: Node) -> None:
        """Begin at the step that fits the other regions.

        In lockstep that is step 0 if they wait for this region and can replay everything; it then catches up. If they
        have continued without it, it begins at their present step.
        """
        setup = self.setup
        if not setup.driven:
            self._apply_resting_feeds()
            if self.clock is not None:
                self.clock.start()
        deadline = time.monotonic() + setup.start_timeout
        others = {*self.upstream, *self._downstream}
        while True:
            self._check_stop()
            missing = others - {peer.name for peer in node.peers(ask=False)}
            step = max((self._must_begin_at(node, name) for name in others - missing), default=0)
            if step or not missing or setup.driven or self.clock is not None or time.monotonic() > deadline:
                break
            self._handle_messages(0.1)
        if self.clock is not None and not setup.driven:
            self._set_clock(self.clock, bool(others - missing))
            return
        if missing and not step and not setup.driven:
            _log.warning("%s: starts without %s", setup.name, ", ".join(sorted(missing)))
        if step:
            _log.info("%s: joins at step %d", setup.name, step)
            self._jump(step)

    def _must_begin_at(self, node: Node, name: str) -> int:
        """Return the step of another region if this one cannot begin before it, else 0."""
        try:
            where = node.request(name, WHERE, timeout=_WHERE_S)
            self._timeline = max(self._timeline, int(where["timeline"]))
            continued_alone = self.setup.name in where["missing"]
            dropped = name in self.upstream and where["oldest"] is not None and where["oldest"] > 1
            return int(where["step"]) if continued_alone or dropped else 0
        except (MeshError, KeyError, TypeError, ValueError) as error:
            _log.info("%s: %s did not report its step: %s", self.setup.name, name, error)
            return 0

    def _serve_where(self, message: Message) -> dict[str, Any]:
        """Return the step and timeline of this region; called by a service thread."""
        missing = [one.name for one in self._upstreams if one.state == MISSING]
        return {
            "step": self._shard.step,
            "missing": missing,
            "oldest": self._publisher.oldest(),
            "resumed": self._resumed,
            "digest": self.digest,
            "epoch_ns": 0 if self.clock is None else self.clock.epoch_ns,
            "timeline": self._timeline,
        }

    def _jump(self, step: int) -> None:
        if step > self._shard.step:
            self._runner.jump(step)
            self._begin_at(step)

    def _begin_at(self, step: int, known: bool = False) -> None:
        """Continue after `step`, with a new past.

        `known`: the last spikes are those of a restored state, and are published again for downstream regions.
        """
        self._publisher.begin_at(max(0, step - self._farthest) if known else step)
        if known:
            for payload in self._transport.own(self.setup.name):
                self._publisher.log_payload(payload)
        self._shard.publish()
        self._upstreams.begin_at(step)

    def _set_clock(self, clock: WallClock, has_neighbours: bool) -> None:
        """Jump to the step of the wall clock, after statuses of other regions had time to arrive with their epoch."""
        quiet = time.monotonic() + (1.5 * self.setup.silence_timeout / 5 if has_neighbours else 0.0)
        while time.monotonic() < quiet:
            self._inbox.handle_one(0.02)
        self._jump(clock.step_now())

    def _rejoin(self, node: Node, step: int) -> None:
        """After a restored state: request replays from upstream regions, or jump to the step of the clock."""
        missing = node.wait_for({*self.upstream, *self._downstream}, 1.0)
        if self.clock is not None:
            self.clock.start(step)
            self._set_clock(self.clock, len(missing) < len({*self.upstream, *self._downstream}))
            return
        for one in self._upstreams:
            if node.peer(one.name) is not None:
                self._detector.request_replay(one)

    def _save_if_due(self, always: bool = False) -> None:
        if self._states.is_due(self._shard.step, always):
            self._publish_status(force=True, hold_s=60.0)
            self._status_due = True
            try:
                self._states.save(self._runner, self._timeline)
            except CheckpointError as error:
                self._states.postpone(self._shard.step)
                _log.warning("%s: the state could not be saved: %s", self.setup.name, error)

    # --- Publishing ---------------------------------------------------------------------------------------------

    def _publish(self, whole: bool = False) -> None:
        self._publisher.publish(whole, self._timeline if self.clock is None else self.clock.epoch_ns)

    def _publish_status(self, force: bool = False, leaving: bool = False, hold_s: float = 0.0) -> None:
        self._publisher.publish_status(lambda: self._status(leaving, hold_s), force or self._status_due)
        self._status_due = False

    def _around_first_call(self, begins: bool) -> None:
        """Announce a hold around the first call of a Python population, which may import a lot."""
        self._publish_status(force=True, hold_s=_FIRST_CALL_S if begins else 0.0)

    def _status(self, leaving: bool, hold_s: float) -> RegionStatus:
        clock = self.clock
        return RegionStatus(
            step=self._publisher.published,  # only what is published can be waited for
            digest=self.digest,
            epoch_ns=self._timeline if clock is None else clock.epoch_ns,
            waiting_for=[one.name for one in self._upstreams.blocking()] if clock is None else [],
            hold_s=hold_s,
            leaving=leaving,
            missing={one.name: one.outages[-1].first for one in self._upstreams if one.state == MISSING},
            late=sum(one.late for one in self._upstreams),
            missed_deadlines=0 if clock is None else clock.missed,
            jitter_ms=0.0 if clock is None else clock.jitter_ms(99),
        )

    # --- Receiving ----------------------------------------------------------------------------------------------

    def _listen(self, node: Node) -> None:
        units = self.setup.units
        for name in self.upstream:
            if self.clock is None:
                self._inbox.poll_windows(name, node.poll(f"{name}/{SPIKES}", depth=MOST_WAITING))
            else:
                node.subscribe(f"{name}/{SPIKES}", self._inbox.window_handler_for(name), recover=False, depth=DEPTH)
            if name in self._markers:
                node.subscribe(
                    f"{name}/{units.topic(name)}", self._inbox.handler_for("payload", name), recover=False, depth=DEPTH
                )
        for name in {*self.upstream, *self._downstream}:
            node.subscribe(f"{name}/{HEALTH}", self._inbox.handler_for("health", name), recover=False, depth=DEPTH)
        for spec in self.setup.python_populations:
            if spec.population in units.populations[self.setup.name]:
                for expression in {one.expression for one in spec.data_subscriptions}:
                    for key in _keys_of(expression):
                        node.subscribe(key, self._inbox.handler_for("data", spec), recover=False, depth=DEPTH)
        for feed, convert in self._feeds:
            for key in _keys_of(feed.expression):
                node.subscribe(key, self._inbox.handler_for("feed", (feed, convert)), depth=DEPTH)
        node.serve(COMMAND, self._commands.submit, threads=4)
        node.serve(REPLAY, self._publisher.replay, threads=2)
        node.serve(WHERE, self._serve_where, threads=1)
        node.on_leave(lambda peer: self._inbox.put("leave", peer))
        node.on_join(lambda peer: self._inbox.put("join", peer))

    def _handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handler of each kind of message."""
        return {
            "command": self._commands.add,
            "window": self._on_window,
            "health": self._on_health,
            "payload": self._on_payload,
            "data": self._on_data,
            "feed": self._on_feed,
            "join": self._on_join,
            "leave": self._on_leave,
            "replay": lambda *answer: self._detector.handle_replay(*answer),
        }

    def _handle_messages(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for a message, handle all that have arrived, and publish the status if due."""
        self._inbox.handle_one(timeout_s)
        self._inbox.handle_all()
        self._publish_status()

    def _on_window(self, name: str, incarnation: int, window: Window) -> None:
        one, now = self.upstream[name], time.monotonic()
        if not self._detector.is_current(one, incarnation) or not one.heartbeat(incarnation, now, window.last):
            return
        if one.state != LIVE:
            self._upstreams.mark_live(one, self.clock is None)
        if self.clock is not None:
            self._on_epoch(name, window.epoch_ns, window.last)
            if window.epoch_ns == self.clock.epoch_ns:  # else it has not yet adopted our epoch
                self.clock.record_arrival(window.first + one.lag)
                self._upstreams.write_realtime(one, window)
            return
        if window.epoch_ns == self._timeline and not one.take(window, now):
            self._detector.request_replay(one)

    def _on_health(self, name: str, message: Message) -> None:
        status = msgspec.convert(message.value, RegionStatus)
        if status.digest != self.digest:
            raise ValueError(f"{name} runs another brain")
        now = time.monotonic()
        if not self._detector.is_present_as(name, message.incarnation):
            return  # an earlier incarnation, or a node that is not present
        if name in self._downstream:
            self._downstream[name] = (status.step, 0.0 if status.leaving else now)
        if self.clock is not None:
            self._on_epoch(name, status.epoch_ns, status.step)
        one = self.upstream.get(name)
        if one is None or not self._detector.is_current(one, message.incarnation):
            return
        if self.clock is None and status.epoch_ns != self._timeline:
            status.step = 0  # a step of another timeline
        if one.status(status, message.incarnation, now) and not one.left and one.state == MISSING:
            self._upstreams.mark_live(one, self.clock is None)

    def _on_payload(self, name: str, message: Message) -> None:
        if self._shard.step - self._shard.slots < message.step < self._shard.step + _FARTHEST_PAYLOAD:
            self._transport.keep(name, message.step, message.value)

    def _on_data(self, spec: PythonPopulation, message: Message) -> None:
        for source in (message.node, message.key):
            if source and any(one.includes(source) for one in spec.data_subscriptions):
                self._runner.give(spec.name, to_sendable(message.value), source)
                return

    def _on_feed(self, how: tuple[Any, Callable[..., Any]], message: Message) -> None:
        feed, convert = how
        self._runner.write_state(feed.population, feed.state, convert(message.value, feed.config))

    def _on_join(self, peer: Peer) -> None:
        if peer.name == self.setup.name and self.node is not None and peer.incarnation > self.node.incarnation:
            self._successor = peer

    def _on_leave(self, peer: Peer) -> None:
        if peer.role == _DRIVER and not self.setup.token and self._shard.step:
            self._driver_left_at = time.monotonic()
        if self._epoch is not None:
            self._epoch.forget(peer.name)
        if peer.name in self._downstream:
            self._downstream[peer.name] = (self._downstream[peer.name][0], 0.0)
        one = self.upstream.get(peer.name)
        if one is not None and peer.incarnation == one.incarnation:
            one.hold_until = 0.0

    def _apply_resting_feeds(self) -> None:
        """Set the states of feeds to their values without messages, as a driver would."""
        for feed, convert in self._feeds:
            self._runner.write_state(feed.population, feed.state, convert(None, feed.config))

    # --- Commands -----------------------------------------------------------------------------------------------

    def _execute(self, name: str, arguments: list[Any]) -> Any:
        if name == "advance":
            # Before advancing: the driver has all recordings up to here, so no saved state is newer than they are.
            self._save_if_due()
            return self._advance(int(arguments[0]), bool(arguments[1]) if len(arguments) > 1 else False)
        if name == "start":
            return self._start(*arguments)
        if name == "statistics":
            return self.statistics()
        if name == "publish":  # sent after all regions have restored the state
            return self._publish(whole=True)
        if name in SLOW:
            self._publish_status(force=True, hold_s=600.0)
            self._status_due = True
        if name == "restore":
            folder, files, timeline = arguments
            self._runner.restore(folder, files)
            self._timeline = int(timeline)
            self._states.begin_again()
            return self._begin_at(self._shard.step, known=True)
        return getattr(self._runner, name)(*arguments)

    def _may_drive(self, name: str) -> bool:
        """Return True if a node is a driver.

        The command of a new driver may arrive before its presence, so wait a moment for that. Other drivers may be
        present meanwhile: the liveliness token of one that died stays for a moment.
        """
        deadline = time.monotonic() + _DRIVER_S
        while (node := self.node) is not None:
            if any(peer.name == name for peer in node.with_role(_DRIVER)):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_TICK_S / 5)
        return False

    def _start(self, until: int | None, epoch_ns: int) -> None:
        """Run without a driver from now on, to step `until` or without end."""
        goal, epoch_ns = None if until is None else int(until), int(epoch_ns)
        if not self._driven:
            return  # already running
        if self.clock is not None and not 0 <= time.time_ns() - epoch_ns + CLOCKS_AGREE_S * 1e9 < _LONGEST_AGO_NS:
            raise InvalidArgument(
                f"epoch_ns={epoch_ns}: the brain would have begun in the future or more than a day ago. Synchronize "
                "the clocks of both machines (NTP)"
            )
        self._driven, self._until = False, goal
        if self.clock is not None:
            self.clock.epoch_ns = epoch_ns
            self.clock.start()
            self._jump(self.clock.step_now())
        self._apply_resting_feeds()

    def statistics(self) -> dict[str, Any]:
        """Return statistics: messages refused and lost, outages of upstream regions, lateness."""
        return {
            "region": self.setup.name,
            "step": self._shard.step,
            "refused": self._inbox.refused,
            "overrun": self._inbox.overrun,
            "data_lost": self._transport.lost,
            "upstream": {
                one.name: {
                    "state": one.state,
                    "heard": one.received,
                    "recovered": one.recovered,
                    "lost": one.lost,
                    "late": one.late,
                    "silences": [[silence.first, silence.last, silence.why] for silence in one.outages],
                }
                for one in self._upstreams
            },
            "clock": None if self.clock is None else self.clock.report(),
            "clock_refused": {} if self._epoch is None else self._epoch.refusals.counts(),
        }

    # --- Helpers ------------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        now = time.monotonic()
        if now - self._stop_checked < _STOP_S:
            return
        self._stop_checked = now
        if self._successor is not None:
            self._failed = True
            where = f"process {self._successor.pid} on {self._successor.host}"
            raise ShardFailed(f"another node took over region {self.setup.name!r}: {where}", shard=self.setup.name)
        if self._stop or self._stopped():
            raise Stopped
        if self._driven and self._driver_left_at is not None:
            if any(self.node.with_role(_DRIVER)) if self.node is not None else False:
                self._driver_left_at = None
            elif time.monotonic() - self._driver_left_at > self.setup.reconnect_timeout:
                _log.warning("%s: the driver has left, so this region stops", self.setup.name)
                raise Stopped

    def _reject_remaining(self) -> None:
        """Answer the remaining commands with an error."""
        commands = [what[0] for kind, what in self._inbox.drain() if kind == "command"]
        self._commands.reject_all(f"{self.setup.name} has left", commands)


def _keys_of(expression: str) -> tuple[str, ...]:
    """Return the key expressions of the data that a subscription matches: the nodes' keys and all their topics."""
    return (expression if expression.endswith("**") else f"{expression}/**",)
