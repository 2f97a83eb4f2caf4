"""Nodes of a brain's regions that this machine starts: one process each, none of which the others need."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

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
from neuraxis.execution.answers import raised_answer
from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.mesh.wire import COMMAND, HEALTH, WHERE
from neuraxis.execution.mesh.worker import serve_region
from neuraxis.launch import Team
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.mesh.topology import Topology

__all__ = ["RegionTeam"]

_log = logging.getLogger("neuraxis.mesh")

_LOOK_S = 0.05
_COMMAND_S = 600.0
_WHERE_S = 10.0
_ENDS_S = 2.0
_KEPT_ACTIONS = 20_000
_MOST_REFUSALS = 10
_SETTINGS = frozenset({"write_state", "silence", "freeze", "set_level"})
_ERRORS = {"CheckpointError": CheckpointError, "InvalidArgument": InvalidArgument}


class RegionTeam:
    """The nodes of a brain: those started here, each in a team of its own, and those that run elsewhere.

    Args:
        setups: what each region's node runs, by its name.
        topology: how this process reaches the mesh; by default as the first of the nodes does.
        remote: the regions that are started elsewhere (`neuraxis node`), and waited for.
        driver: the name of this process's own node.
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
        self.patience_s = first.patience_s
        self.lost: dict[str, str] = {}  # by name: how a node that is not here any more ended
        self._setups = setups
        self._reconnect_s = first.reconnect_s
        self._cut_off_since: float | None = None
        self._teams: dict[str, Team] = {}
        self._signs: dict[str, float] = {}
        self._holds: dict[str, float] = {}
        self._lives: dict[str, int] = {}  # by name: which life of it was asked last
        self._actions: deque[tuple[int, str, tuple[Any, ...]]] = deque(maxlen=_KEPT_ACTIONS)
        self._pool = ThreadPoolExecutor(len(setups) + 2, thread_name_prefix="neuraxis asks")
        self._closed = False
        try:
            way = topology or Topology.from_data(first.topology)
            self.node = Node(driver, "driver", first.mesh, topology=way)
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        try:
            for name in self.names:
                self.node.subscribe(f"{name}/{HEALTH}", self._note_sign, recover=False)
            for name in self.names:
                if name not in remote:
                    self.start(name)
        except BaseException:
            self.close()
            raise

    # --- to start and to end ------------------------------------------------------------------------------------

    def start(self, name: str, **changes: Any) -> None:
        """Start the node of a region here; `changes` to its setup, such as resume=True."""
        old = self._teams.pop(name, None)
        if old is not None:
            old.close()
        team = Team(serve_region, 1, grace_s=1.0)
        self._teams[name] = team
        team.send(0, replace(self._setups[name], **changes))
        self.lost.pop(name, None)

    def wait(self, timeout_s: float, names: Collection[str] | None = None) -> None:
        """Wait until all (or these) are on the mesh; raises if one of them dies on the way, or does not come."""
        wanted = self.names if names is None else tuple(names)
        deadline = time.monotonic() + timeout_s
        while True:
            missing = self.node.wait_for(wanted, _LOOK_S)
            if not missing:
                break
            for name in missing:
                self._raise_if_dead(name)
            if time.monotonic() > deadline:
                here = "" if missing[0] in self._teams else "; start it with: neuraxis node … --region " + missing[0]
                raise MeshError(f"region {', '.join(missing)} did not come within {timeout_s:g} s{here}")
        now = time.monotonic()
        for name in wanted:
            self._signs[name] = max(now, self._signs.get(name, 0.0))

    def check_fresh(self, digest: int) -> None:
        """Raise unless every node runs this brain, and none of them has begun."""
        for name in self.names:
            where = self.node.request(name, WHERE, timeout=_WHERE_S)
            if where["digest"] != digest:
                raise MeshError(f"region {name!r}: its node runs another brain: give it the same file and seed")
            if where["step"]:
                raise MeshError(
                    f"region {name!r}: its node is at step {where['step']:,} of an earlier run: start it again"
                )

    def epochs_ns(self) -> list[int]:
        """When step 0 was, by the nodes that follow the wall clock already."""
        said = [self.node.request(name, WHERE, timeout=_WHERE_S)["epoch_ns"] for name in self.names]
        return [int(one) for one in said if one]

    def kill(self, name: str) -> None:
        """Kill a node that was started here, as if it had crashed."""
        os.kill(self._teams[name].pids[0], signal.SIGKILL)

    @property
    def pids(self) -> dict[str, int]:
        return {name: team.pids[0] for name, team in self._teams.items()}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            for team in self._teams.values():  # all are told before any is waited for
                try:
                    team.send(0, None, timeout=1.0)
                except (WorkerFailed, LineClosed, LineTimeout):
                    pass
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

    # --- to ask -------------------------------------------------------------------------------------------------

    def ask(self, command: str, *arguments: Any, late_too: bool = False) -> dict[str, Any]:
        """Have all nodes that are here do the same; their answers, by name. Who leaves meanwhile has none.

        `late_too`: those who come while the others are at it are asked as well.
        """
        pending: dict[str, Future[Any]] = {}
        answers: dict[str, Any] = {}
        refused: Counter[str] = Counter()  # how often one that is here could not be asked
        numbers: dict[str, int] = {}  # a question that is asked again after a cut has its number, and is done once
        wanted = {name for name in self.names if self.is_live(name)}
        for name in self._lives.keys() - wanted:
            self._note_loss(name, "it has left")
        while True:
            if late_too:
                wanted |= {name for name in self.names if self.is_live(name) and refused[name] < _MOST_REFUSALS}
            for name in wanted - pending.keys() - answers.keys():
                number = numbers.setdefault(name, self.node.next_question())
                pending[name] = self._pool.submit(self._ask_one, name, command, arguments, number)
            for name, future in list(pending.items()):
                try:
                    answers[name] = future.result(timeout=_LOOK_S)
                    del pending[name]
                    self.lost.pop(name, None)
                except ShardFailed as error:
                    del pending[name]
                    wanted.discard(name)
                    self._note_loss(name, str(error), _ENDS_S)
                except MeshError as error:
                    del pending[name]
                    failed = isinstance(error, RequestFailed)
                    if self.node.connected and self.node.peer(name) is not None:
                        refused[name] += _MOST_REFUSALS if failed else 1
                    if failed or refused[name] >= _MOST_REFUSALS or not self.is_live(name):
                        self._note_loss(name, str(error))
                        wanted.discard(name)
                except TimeoutError:
                    if not self.is_live(name):
                        self._note_loss(name, "it says nothing any more")
                        del pending[name]
                        wanted.discard(name)
            if wanted <= answers.keys():
                return {name: answers[name] for name in self.names if name in answers}

    def note_action(self, step: int, command: str, arguments: tuple[Any, ...]) -> None:
        """All were told at `step` to do this; one that comes back from an older state is told again."""
        self._actions.append((step, command, arguments))

    def forget_actions(self) -> None:
        self._actions.clear()

    def is_live(self, name: str) -> bool:
        """Whether a node is on the mesh and has given a sign of life not long ago.

        Presence comes and goes with a router; so where there is one, a node is gone when it has been silent for the
        time that it is given, and not while this process is cut off itself.
        """
        now = time.monotonic()
        if not self._is_connected(now):
            self._signs.update(dict.fromkeys(self._signs.keys() - self.lost.keys(), now))
            return name not in self.lost
        here = self.node.peer(name) is not None
        if name not in self._signs:
            if here:
                self._signs[name] = now
            return here
        if not here and self.node.topology.mode_in_use != "client":
            return False
        patience_s = 2 * self.patience_s if here else self.patience_s
        return now - self._signs[name] < patience_s or now < self._holds.get(name, 0.0)

    def _is_connected(self, now: float) -> bool:
        if self.node.connected:
            self._cut_off_since = None
            return True
        if self._cut_off_since is None:
            self._cut_off_since = now
            _log.warning("cut off from the mesh; waiting")
        return now - self._cut_off_since > self._reconnect_s

    def _ask_one(self, name: str, command: str, arguments: tuple[Any, ...], number: int) -> Any:
        peer = self.node.peer(name)
        if peer is not None and self._lives.get(name) != peer.incarnation:
            if name in self._lives:
                self._bring_up_to_date(name)
            self._lives[name] = peer.incarnation
        return self._request(name, command, arguments, number)

    def _bring_up_to_date(self, name: str) -> None:
        """A node has come back: let it live through what all were told while it was away, each at its step."""
        where = self.node.request(name, WHERE, timeout=_WHERE_S)
        step = int(where["step"])
        told = list(self._actions)
        if len(told) == _KEPT_ACTIONS and told[0][0] > step:
            _log.warning("region %s: what it was told before step %d is not known any more", name, told[0][0])
        if not where["resumed"]:
            settings = {_what(one): one for one in told if one[0] < step and one[1] in _SETTINGS}
            for _, command, arguments in settings.values():
                self._request(name, command, arguments)
        for at, command, arguments in told:
            if at >= step:
                if at > step:
                    self._request(name, "advance", (at,))
                    step = at
                self._request(name, command, arguments)

    def _request(self, name: str, command: str, arguments: tuple[Any, ...], number: int | None = None) -> Any:
        try:
            answer = self.node.request(name, COMMAND, [command, *arguments], timeout=_COMMAND_S, again=number)
        except RequestFailed as error:
            if error.kind in _ERRORS:
                raise _ERRORS[error.kind](str(error)) from None
            if error.kind == "ShardFailed":
                raise ShardFailed(str(error), shard=name) from None
            raise
        return raised_answer(answer)

    def _note_sign(self, message: Message) -> None:
        now = time.monotonic()
        leaving = isinstance(message.value, dict) and message.value.get("leaving") is True
        self._signs[message.node] = -math.inf if leaving else now
        hold_s = message.value.get("hold_s", 0.0) if isinstance(message.value, dict) else 0.0
        self._holds[message.node] = now + min(float(hold_s), 600.0) if isinstance(hold_s, int | float) else 0.0

    def _note_loss(self, name: str, why: str, ends_within_s: float = 0.0) -> None:
        """Keep how a node was lost: what its process ended with, if that is known (soon)."""
        if name not in self.lost:
            try:
                self._raise_if_dead(name, ends_within_s)
            except ShardFailed as error:
                why = str(error)
            self.lost[name] = why
            _log.warning("region %s is lost: %s; the others go on without it", name, why)

    def _raise_if_dead(self, name: str, within_s: float = 0.0) -> None:
        """Raise what a node's process ended with, if it was started here and has ended, or does so soon."""
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


def _what(action: tuple[int, str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """What an action sets: of those that set the same, the last one counts."""
    _, command, arguments = action
    return (command, *arguments[: {"write_state": 2, "set_level": 1}.get(command, 0)])
