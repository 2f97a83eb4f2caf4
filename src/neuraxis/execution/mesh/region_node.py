"""The node of one region: its shard, run by one loop, and what it hears and says on the mesh.

**One loop.** Everything that comes (windows, data, words on how others are, commands) comes to one inbox, and is taken
from there by the loop that runs the shard. So there is no lock around the engine, and who is stuck says nothing, which
is how others notice.

**Lockstep.** The shard runs until it needs a step that it has not heard; then the loop says what is done so far, and
waits. It publishes once a window: the shortest delay of anybody who hears it.

**By the wall clock.** A window is run when its time has come, with what is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from neuraxis.engine.outboxes import LONGEST_LAG, Outboxes, links_between
from neuraxis.errors import CheckpointError, MeshError, ShardFailed
from neuraxis.execution.mesh.commands import LONG, Commands, Stopped
from neuraxis.execution.mesh.inbox import MOST_WAITING, Inbox
from neuraxis.execution.mesh.mail import MeshMail
from neuraxis.execution.mesh.region_state import RegionStates
from neuraxis.execution.mesh.setup import RegionSetup, digest_of
from neuraxis.execution.mesh.speaker import Speaker
from neuraxis.execution.mesh.upstream import LIVE, MISSING, Upstream
from neuraxis.execution.mesh.upstreams import Upstreams
from neuraxis.execution.mesh.vigil import Vigil
from neuraxis.execution.mesh.wall_clock import WallClock
from neuraxis.execution.mesh.wire import COMMAND, HEALTH, REPLAY, SPIKES, WHERE, RegionStatus, Window
from neuraxis.execution.resident import Resident, listeners, load_callable
from neuraxis.execution.runner import ShardRunner
from neuraxis.execution.tensors import lowered
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.peers import Peer
from neuraxis.mesh.topology import Topology
from neuraxis.network.network import LARGEST_STEP

__all__ = ["RegionNode"]

_log = logging.getLogger("neuraxis.region")

_TICK_S = 0.05  # how often the loop looks around while it waits
_POLL_S = 2e-4  # so long a window that is awaited is looked for again and again, giving way to others in between;
_SHORTEST_NAP_S = 5e-5  # then after naps that grow with the time waited
_LONGEST_NAP_S = 2e-3
_STOP_S = 0.01  # how often to ask whether to end, which may be a call of the system
_PIECE_STEPS = 2000  # a node that runs by itself looks around after so many
_AHEAD_STEPS = 20_000  # a region that waits for nobody stays so near to those that hear it
_WHERE_S = 1.0
_FARTHEST_LETTER = 2**20  # steps from now; what says it is for later, nobody will need
_FIRST_CALL_S = 60.0
_FARTHEST_EPOCH_NS = 24 * 3600 * 10**9


class RegionNode:
    """A region on the mesh. `run` is its whole life.

    Args:
        setup: what it runs, and how.
        progress: told of synapses as they are built.
        stopped: asked now and then whether to end; besides `stop`.
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
        links = links_between(network, placement, listeners(setup.residents, placement))
        boxes = Outboxes.private(network, placement, np.where(links == 0, 1, links))
        marks = {
            name: one.mark
            for one in setup.residents
            for name, populations in setup.units.populations.items()
            if one.mark in populations
        }
        self._marks = marks
        self._mail = MeshMail(marks, lambda letter: self._speaker.send(letter))
        self._runner = ShardRunner(network, placement, me, boxes, progress, (0, 0), setup.residents, self._mail)
        self._shard = self._runner.shard
        self._runner.residents.around_first_call = self._around_first_call
        self.digest = digest_of(network, setup.residents)
        self._upstreams = Upstreams(setup, self.digest, self._shard, boxes, links)
        hears_me = [index for index in range(len(names)) if index != me and links[index, me]]
        window = min((int(links[index, me]) for index in hears_me), default=LONGEST_LAG)
        self._farthest = max((int(links[index, me]) for index in hears_me), default=0)
        self._speaker = Speaker(setup, self.digest, self._shard, boxes, window)
        # Of those that hear this region: the last step each said it had completed, and when it said so.
        self._downstream: dict[str, tuple[int, float]] = {names[index]: (-1, 0.0) for index in hears_me}
        self._feeds = [
            (feed, load_callable(feed.convert, f"feed {feed.expression!r}"))
            for feed in setup.units.feeds.get(setup.name, ())
        ]
        self._states = RegionStates(setup, self.digest)
        self._driven, self._until = setup.driven, setup.until
        self._commands = Commands(setup.word, lambda question: self._inbox.put("command", question), self._do)
        self._inbox = Inbox(setup.name, self._handlers(), self._upstreams.check)
        self._vigil = Vigil(setup, self._upstreams, self._mail, self._shard, self._inbox)
        self._timeline = 0  # which past this is: another one after each restored state
        self._say_soon = False
        self._rival: Peer | None = None  # a later node of the same name
        self._driver_left_at: float | None = None
        self.node: Node | None = None
        self.clock = WallClock(network.dt_ms) if setup.clock == "realtime" else None
        wait = None if self.clock is not None else self._wait_a_moment
        self._mail.connect(self.upstream, wait, self._vigil.recover, self._vigil.is_gone)

    @property
    def upstream(self) -> dict[str, Upstream]:
        """What is known of the regions that this one hears, by name."""
        return self._upstreams.by_name

    # --- to live ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `run` soon; for signal handlers and other threads."""
        self._stop = True

    def run(self) -> None:
        """Join the mesh, run until stopped (or until `until`), and leave."""
        setup = self.setup
        topology = Topology.from_data(setup.topology)
        roles = tuple(setup.units.roles.get(setup.name, ()))
        begin, self._timeline = self._states.resume(self._runner) if setup.resume else (0, 0)
        self._resumed = begin > 0
        with Node(setup.name, "region", setup.mesh, topology=topology, roles=roles, announce=False) as node:
            self.node = self._speaker.node = node
            self._vigil.begin(node)
            try:
                self._listen(node)
                node.announce()
                self._runner.residents.introduce(node)
                if begin:
                    self._begin_at(begin, known=True)
                    self._publish(whole=True)
                    self._come_back(node, begin)
                else:
                    self._join(node)
                self._say(force=True)
                self._live()
            except Stopped:
                pass
            finally:
                self._runner.residents.introduce(None)
                if not self._failed:
                    self._say(force=True, leaving=True)
                self._vigil.end()
                self.node = self._speaker.node = None
                self._refuse_rest()

    def _live(self) -> None:
        while True:
            self._check_stop()
            if self._commands:
                self._commands.carry_out_next()
            elif self._driven:
                self._look_around(_TICK_S)
            elif self._until is not None and self._shard.step >= self._until:
                self._publish(whole=True)
                self._save_if_due(always=True)
                if not self.setup.stays:
                    self._linger()
                    return
                self._look_around(_TICK_S)
            elif self.clock is not None:
                self._run_with_clock(self.clock)
            else:
                self._advance(self._next_goal())
                self._save_if_due()

    def _next_goal(self) -> int:
        step = self._shard.step
        goal = step + _PIECE_STEPS
        if self._until is not None:
            goal = min(goal, self._until)
        if self._states.every:
            goal = min(goal, (step // self._states.every + 1) * self._states.every)
        return goal

    def _linger(self) -> None:
        """It has run as far as it should; those that hear it, and are on their way, may still need what it said."""
        deadline, seen = time.monotonic() + self.setup.start_wait_s, -1
        while time.monotonic() < deadline:
            self._check_stop()
            step = self._shard.step
            behind = [at for name, (at, _) in self._downstream.items() if at < step and self._vigil.is_here(name)]
            if not behind:
                return
            if sum(behind) != seen:
                deadline, seen = time.monotonic() + self.setup.start_wait_s, sum(behind)
            self._look_around(_TICK_S)

    # --- in lockstep --------------------------------------------------------------------------------------------

    def _advance(self, until: int) -> Any:
        """Run to a step in lockstep; what was recorded."""
        try:
            recorded = self._runner.advance(until, fetch=self._wait, publish=self._between)
        except ShardFailed:
            self._failed = True
            raise
        self._publish(whole=True)
        return recorded

    def _between(self) -> int:
        """Called between pieces of a run: publish a full window, take in what has come; where to stop next."""
        self._check_stop()
        self._publish()
        self._inbox.take_all()
        self._upstreams.place()
        self._say()
        self._stay_near()
        return self._speaker.published + self._speaker.window

    def _wait(self) -> None:
        """Wait until what the next step needs has been heard, or is known to be silence."""
        self._publish(whole=True)  # somebody may wait for it
        begun = listening_since = looked = time.monotonic()
        while True:
            self._check_stop()
            self._inbox.take_all()
            self._upstreams.place()
            if not (blocking := self._upstreams.blocking()):
                return
            waited = time.monotonic() - begun
            if waited < _POLL_S:
                self._inbox.poll(begun + _POLL_S)
                continue
            self._look_around(min(_LONGEST_NAP_S, max(_SHORTEST_NAP_S, waited / 8)))
            now = time.monotonic()
            if now - looked > self.setup.patience_s / 4:
                listening_since = now  # it was this process that did not listen
            self._vigil.watch(blocking, listening_since)
            looked = time.monotonic()

    def _wait_a_moment(self) -> None:
        self._check_stop()
        self._look_around(_TICK_S / 5)

    def _stay_near(self) -> None:
        """Wait while those that hear this region are so far behind that all it says would pile up with them."""
        while not self._driven:
            now, step = time.monotonic(), self._shard.step
            if not any(
                0 <= at < step - _AHEAD_STEPS and now - said < self.setup.patience_s
                for at, said in self._downstream.values()
            ):
                return
            self._check_stop()
            self._look_around(_TICK_S)

    # --- by the wall clock ----------------------------------------------------------------------------------------

    def _run_with_clock(self, clock: WallClock) -> None:
        """One window by the wall clock: wait for its time, take what has come, run it, and say what was emitted."""
        step = self._shard.step
        target = step + max(1, self._speaker.window // 2)  # so the other half of the delay is there for the way
        if self._until is not None:
            target = min(target, self._until)
        while (left := clock.time_of(target) - clock.now()) > 0:
            self._check_stop()
            self._inbox.take_one(min(left, _TICK_S))
            if self._commands or self._shard.step != step:  # (another epoch was adopted)
                return
        while self._inbox.take_one(0.0):
            if self._shard.step != step:
                return
        if target > LARGEST_STEP:
            self._failed = True
            raise ShardFailed(
                f"a brain has {LARGEST_STEP:,} steps at most: start its nodes again", shard=self.setup.name
            )
        behind = clock.note(target, self._speaker.window)
        for one in self._upstreams:
            if one.state == LIVE and (why := one.is_gone(time.monotonic())):
                self._vigil.give_up(one, why)
        self._upstreams.fill_in(target)
        try:
            self._runner.advance(target)
        except ShardFailed:
            self._failed = True
            raise
        self._publish(whole=True)
        self._say()
        self._save_if_due()
        if behind > clock.resync_s:
            clock.skipped += clock.step_now() - self._shard.step
            self._jump(clock.step_now())

    def _adopt_epoch(self, clock: WallClock, epoch_ns: int) -> None:
        """Of two clocks that were started apart, the earlier one counts; a clock that is far off does not."""
        if not 0 < epoch_ns < clock.epoch_ns or self._driven:
            return
        if clock.epoch_ns - epoch_ns > _FARTHEST_EPOCH_NS:
            raise ValueError("a clock that is off by more than a day")
        clock.epoch_ns = epoch_ns
        self._jump(clock.step_now())

    # --- to join and to come back ---------------------------------------------------------------------------------

    def _join(self, node: Node) -> None:
        """Begin where the others are.

        In lockstep that is step 0, however far they have come, if they wait for this region and still have what they
        said: then it catches up. If they have gone on without it, it begins in the middle of their run.
        """
        setup = self.setup
        if not setup.driven:
            self._rest_feeds()
            if self.clock is not None:
                self.clock.start()
        deadline = time.monotonic() + setup.start_wait_s
        others = {*self.upstream, *self._downstream}
        while True:
            self._check_stop()
            missing = others - {peer.name for peer in node.peers(ask=False)}
            step = max((self._must_begin_at(node, name) for name in others - missing), default=0)
            if step or not missing or setup.driven or self.clock is not None or time.monotonic() > deadline:
                break
            self._look_around(0.1)
        if self.clock is not None and not setup.driven:
            self._set_clock(self.clock, bool(others - missing))
            return
        if missing and not step and not setup.driven:
            _log.warning("%s: starts without %s", setup.name, ", ".join(sorted(missing)))
        if step:
            _log.info("%s: joins at step %d", setup.name, step)
            self._jump(step)

    def _must_begin_at(self, node: Node, name: str) -> int:
        """The step at which another region is, if this one cannot begin before it; else 0."""
        try:
            where = node.request(name, WHERE, timeout=_WHERE_S)
            self._timeline = max(self._timeline, int(where["timeline"]))
            gone_on = self.setup.name in where["missing"]
            forgotten = name in self.upstream and where["oldest"] is not None and where["oldest"] > 1
            return int(where["step"]) if gone_on or forgotten else 0
        except (MeshError, KeyError, TypeError, ValueError) as error:
            _log.info("%s: %s did not say where it is: %s", self.setup.name, name, error)
            return 0

    def _say_where(self, message: Message) -> dict[str, Any]:
        """Where this region is; called by a thread of the service."""
        missing = [one.name for one in self._upstreams if one.state == MISSING]
        return {
            "step": self._shard.step,
            "missing": missing,
            "oldest": self._speaker.oldest(),
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
        """This region goes on after `step`, with another past than it had.

        `known`: its last spikes are those of a state, and are said again for those that have not felt them yet.
        """
        self._speaker.begin_at(max(0, step - self._farthest) if known else step)
        if known:
            for letter in self._mail.own(self.setup.name):
                self._speaker.remember(letter)
        self._shard.publish()
        self._upstreams.begin_at(step)

    def _set_clock(self, clock: WallClock, somebody: bool) -> None:
        """Go to where the wall clock is. Words of the others, if there is anybody, tell when their brain began."""
        quiet = time.monotonic() + (1.5 * self.setup.patience_s / 5 if somebody else 0.0)
        while time.monotonic() < quiet:
            self._inbox.take_one(0.02)
        self._jump(clock.step_now())

    def _come_back(self, node: Node, step: int) -> None:
        """After a state was taken: get from the others what they have said since, or go where the clock is."""
        missing = node.wait_for({*self.upstream, *self._downstream}, 1.0)
        if self.clock is not None:
            self.clock.start(step)
            self._set_clock(self.clock, len(missing) < len({*self.upstream, *self._downstream}))
            return
        for one in self._upstreams:
            if node.peer(one.name) is not None:
                self._vigil.recover(one)

    def _save_if_due(self, always: bool = False) -> None:
        if self._states.is_due(self._shard.step, always):
            self._say(force=True, hold_s=60.0)
            self._say_soon = True
            try:
                self._states.save(self._runner, self._timeline)
            except CheckpointError as error:
                self._states.put_off(self._shard.step)
                _log.warning("%s: the state could not be saved: %s", self.setup.name, error)

    # --- to say -----------------------------------------------------------------------------------------------

    def _publish(self, whole: bool = False) -> None:
        self._speaker.publish(whole, self._timeline if self.clock is None else self.clock.epoch_ns)

    def _say(self, force: bool = False, leaving: bool = False, hold_s: float = 0.0) -> None:
        self._speaker.say(lambda: self._status(leaving, hold_s), force or self._say_soon)
        self._say_soon = False

    def _around_first_call(self, begins: bool) -> None:
        """A resident is called for the first time, and may import who knows what."""
        self._say(force=True, hold_s=_FIRST_CALL_S if begins else 0.0)

    def _status(self, leaving: bool, hold_s: float) -> RegionStatus:
        clock = self.clock
        return RegionStatus(
            step=self._speaker.published,  # nobody is to wait for what was not said
            digest=self.digest,
            epoch_ns=self._timeline if clock is None else clock.epoch_ns,
            waiting_for=[one.name for one in self._upstreams.blocking()] if clock is None else [],
            hold_s=hold_s,
            leaving=leaving,
            missing={one.name: one.silences[-1].first for one in self._upstreams if one.state == MISSING},
            late=sum(one.late for one in self._upstreams),
            missed_deadlines=0 if clock is None else clock.missed,
            jitter_ms=0.0 if clock is None else clock.jitter_ms(99),
        )

    # --- to hear ----------------------------------------------------------------------------------------------

    def _listen(self, node: Node) -> None:
        units = self.setup.units
        for name in self.upstream:
            if self.clock is None:
                self._inbox.look_for_windows(name, node.poll(f"{name}/{SPIKES}", capacity=MOST_WAITING))
            else:
                node.subscribe(f"{name}/{SPIKES}", self._inbox.put_windows_of(name), recover=False)
            if name in self._marks:
                node.subscribe(f"{name}/{units.topic(name)}", self._inbox.put_from("letter", name), recover=False)
        for name in {*self.upstream, *self._downstream}:
            node.subscribe(f"{name}/{HEALTH}", self._inbox.put_from("health", name), recover=False)
        for resident in self.setup.residents:
            if resident.population in units.populations[self.setup.name]:
                for expression in {one.expression for one in resident.admits}:
                    for key in _keys_of(expression):
                        node.subscribe(key, self._inbox.put_from("data", resident), recover=False)
        for feed, convert in self._feeds:
            for key in _keys_of(feed.expression):
                node.subscribe(key, self._inbox.put_from("feed", (feed, convert)))
        node.serve(COMMAND, self._commands.ask, threads=4)
        node.serve(REPLAY, self._speaker.again, threads=2)
        node.serve(WHERE, self._say_where, threads=1)
        node.on_leave(lambda peer: self._inbox.put("leave", peer))
        node.on_join(lambda peer: self._inbox.put("join", peer))

    def _handlers(self) -> dict[str, Callable[..., None]]:
        """What the loop does with what comes, by its kind."""
        return {
            "command": self._commands.take,
            "window": self._hear_window,
            "health": self._hear_health,
            "letter": self._hear_letter,
            "data": self._hear_data,
            "feed": self._hear_feed,
            "join": self._hear_join,
            "leave": self._hear_leave,
            "again": lambda *answer: self._vigil.hear_again(*answer),
        }

    def _look_around(self, timeout_s: float) -> None:
        """Take in what comes within some time and what is there already, and say how this region is."""
        self._inbox.take_one(timeout_s)
        self._inbox.take_all()
        self._say()

    def _hear_window(self, name: str, incarnation: int, window: Window) -> None:
        one, now = self.upstream[name], time.monotonic()
        if not self._vigil.is_its_life(one, incarnation) or not one.sign(incarnation, now, window.last):
            return
        if one.state != LIVE:
            self._upstreams.welcome(one, self.clock is None)
        if self.clock is not None:
            self._adopt_epoch(self.clock, window.epoch_ns)
            if window.epoch_ns == self.clock.epoch_ns:  # else it has not adopted ours yet
                self.clock.note_arrival(window.first + one.lag)
                self._upstreams.take_in_time(one, window)
            return
        if window.epoch_ns == self._timeline and not one.take(window, now):
            self._vigil.recover(one)

    def _hear_health(self, name: str, message: Message) -> None:
        status = msgspec.convert(message.value, RegionStatus)
        if status.digest != self.digest:
            raise ValueError(f"{name} runs another brain")
        now = time.monotonic()
        if name in self._downstream:
            self._downstream[name] = (status.step, 0.0 if status.leaving else now)
        if self.clock is not None:
            self._adopt_epoch(self.clock, status.epoch_ns)
        one = self.upstream.get(name)
        if one is None or not self._vigil.is_its_life(one, message.incarnation):
            return
        if self.clock is None and status.epoch_ns != self._timeline:
            status.step = 0  # it speaks of another past
        if one.status(status, message.incarnation, now) and not one.left and one.state == MISSING:
            self._upstreams.welcome(one, self.clock is None)

    def _hear_letter(self, name: str, message: Message) -> None:
        if self._shard.step - self._shard.slots < message.step < self._shard.step + _FARTHEST_LETTER:
            self._mail.keep(name, message.step, message.value)

    def _hear_data(self, resident: Resident, message: Message) -> None:
        for source in (message.node, message.key):
            if source and any(one.includes(source) for one in resident.admits):
                self._runner.give(resident.name, lowered(message.value), source)
                return

    def _hear_feed(self, how: tuple[Any, Callable[..., Any]], message: Message) -> None:
        feed, convert = how
        self._runner.write_state(feed.population, feed.state, convert(message.value, feed.config))

    def _hear_join(self, peer: Peer) -> None:
        if peer.name == self.setup.name and self.node is not None and peer.incarnation > self.node.incarnation:
            self._rival = peer

    def _hear_leave(self, peer: Peer) -> None:
        if peer.role == "driver" and not self.setup.word and self._shard.step:
            self._driver_left_at = time.monotonic()
        if peer.name in self._downstream:
            self._downstream[peer.name] = (self._downstream[peer.name][0], 0.0)
        one = self.upstream.get(peer.name)
        if one is not None and peer.incarnation == one.incarnation:
            one.hold_until = 0.0

    def _rest_feeds(self) -> None:
        """Before anything came: what a driver would set, this node sets itself."""
        for feed, convert in self._feeds:
            self._runner.write_state(feed.population, feed.state, convert(None, feed.config))

    # --- commands -------------------------------------------------------------------------------------------------

    def _do(self, name: str, arguments: list[Any]) -> Any:
        if name == "advance":
            # Before: who asks has the answer to the last one, so no state is newer than what was recorded and told.
            self._save_if_due()
            return self._advance(int(arguments[0]))
        if name == "start":
            return self._start(*arguments)
        if name == "story":
            return self.story()
        if name == "publish":  # after all have taken the state
            return self._publish(whole=True)
        if name in LONG:
            self._say(force=True, hold_s=600.0)
            self._say_soon = True
        if name == "restore":
            folder, files, timeline = arguments
            self._runner.restore(folder, files)
            self._timeline = int(timeline)
            self._states.begin_again()
            return self._begin_at(self._shard.step, known=True)
        return getattr(self._runner, name)(*arguments)

    def _start(self, until: int | None, epoch_ns: int) -> None:
        """From now on nobody drives this region: it runs by itself, to a step or without end."""
        goal, epoch_ns = None if until is None else int(until), int(epoch_ns)
        if not self._driven:
            return  # it runs already, as whoever started it wants
        self._driven, self._until = False, goal
        if self.clock is not None:
            self.clock.epoch_ns = epoch_ns
            self._jump(self.clock.step_now())
        self._rest_feeds()

    def story(self) -> dict[str, Any]:
        """What this region has seen of the others, and how it kept time."""
        return {
            "region": self.setup.name,
            "step": self._shard.step,
            "refused": self._inbox.refused,
            "overrun": self._inbox.overrun,
            "data_lost": self._mail.lost,
            "upstream": {
                one.name: {
                    "state": one.state,
                    "heard": one.heard,
                    "recovered": one.recovered,
                    "lost": one.lost,
                    "late": one.late,
                    "silences": [[silence.first, silence.last, silence.why] for silence in one.silences],
                }
                for one in self._upstreams
            },
            "clock": None if self.clock is None else self.clock.report(),
        }

    # --- helpers --------------------------------------------------------------------------------------------------

    def _check_stop(self) -> None:
        now = time.monotonic()
        if now - self._stop_checked < _STOP_S:
            return
        self._stop_checked = now
        if self._rival is not None:
            self._failed = True
            where = f"process {self._rival.pid} on {self._rival.host}"
            raise ShardFailed(f"another node runs region {self.setup.name!r} now: {where}", shard=self.setup.name)
        if self._stop or self._stopped():
            raise Stopped
        if self._driven and self._driver_left_at is not None:
            if any(self.node.with_role("driver")) if self.node is not None else False:
                self._driver_left_at = None
            elif time.monotonic() - self._driver_left_at > self.setup.reconnect_s:
                _log.warning("%s: whoever drove it has left, so it leaves, too", self.setup.name)
                raise Stopped

    def _refuse_rest(self) -> None:
        """Answer those whose commands will not be carried out any more."""
        questions = [what[0] for kind, what in self._inbox.rest() if kind == "command"]
        self._commands.refuse_all(f"{self.setup.name} has left", questions)


def _keys_of(expression: str) -> tuple[str, ...]:
    """The keys on which data of nodes come that an expression admits: the nodes' own, and all their topics."""
    return (expression if expression.endswith("**") else f"{expression}/**",)
