"""A node for each region, over the mesh, driven by the process that has the simulation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.engine.placement import Placement
from neuraxis.errors import CheckpointError, InvalidArgument, ShardFailed
from neuraxis.execution.executor import BuildReport, Counters, Recorded, merge_recorded
from neuraxis.execution.mesh.setup import PATIENCE_S, RECONNECT_S, RegionSetup, Units, digest_of
from neuraxis.execution.mesh.team import RegionTeam
from neuraxis.execution.resident import Resident
from neuraxis.execution.together import ShardsTogether, merge_reports
from neuraxis.mesh.topology import Topology
from neuraxis.network import Network

__all__ = ["MeshExecutor"]

_START_S = 300.0
_ACTIONS = frozenset({"write_state", "inject", "silence", "freeze", "set_level", "give"})


class MeshExecutor(ShardsTogether):
    """Runs a network as nodes that exchange spikes over the mesh, in lockstep.

    The process that has the simulation says how far to run, sets inputs and reads results; spikes go from node to
    node. A node that is lost is silence to the others, who go on (`on_loss="silence"`): what it would have answered is
    answered for it as if it had not spiked since. With `on_loss="raise"` the simulation ends.

    Args:
        units: which node has which populations.
        mesh: the name of the mesh.
        topology: how to reach it; by default peers on this machine. `topologies`: by node, where they differ (in keys).
        remote: nodes that are started elsewhere (`neuraxis node`); they are waited for.
        patience_s: who has said nothing for so long is taken for gone.
        reconnect_s: how long a node waits for the mesh itself when it is cut off.
        checkpoint: a folder in which each node keeps states of its own, to be started again from;
            `checkpoint_every` steps between them.
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
        patience_s: float = PATIENCE_S,
        reconnect_s: float = RECONNECT_S,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 10_000,
        start_timeout_s: float = _START_S,
    ) -> None:
        if on_loss not in ("silence", "raise"):
            raise InvalidArgument(f"on_loss={on_loss!r}: silence or raise is expected")
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
        self._start_timeout_s = start_timeout_s
        self._word = secrets.token_hex(16)  # it goes to the nodes by their parent's line, not over the mesh
        self._options: dict[str, Any] = {
            "mesh": mesh,
            "topology": (topology or Topology.local()).as_data(),
            "patience_s": patience_s,
            "reconnect_s": reconnect_s,
            "checkpoint": None if checkpoint is None else str(Path(checkpoint).resolve()),
            "checkpoint_every": checkpoint_every,
            "word": self._word,
        }
        self._reached = 0
        self._topologies = {name: one.as_data() for name, one in (topologies or {}).items()}
        self._timeline = 0
        self._last_counters: dict[str, Counters] = {}
        self._last_counts: dict[int, Any] = {}

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        if self.team is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        self._network = network
        self.placement = self.units.placement(network)
        setups = {
            name: RegionSetup(
                name,
                self.units,
                network,
                tuple(residents),
                **{**self._options, "topology": self._topologies.get(name, self._options["topology"])},
            )
            for name in self.units.names
        }
        way = Topology.from_data(self._options["topology"])
        self.team = RegionTeam(setups, topology=way, remote=self._remote)
        try:
            self.team.wait(self._start_timeout_s)
            self.team.check_fresh(digest_of(network, residents))
            reports = self.ask("report")
        except BaseException:
            self.close()
            raise
        report = merge_reports(reports)
        progress(report.synapses)
        return report

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        if self.team is None:
            raise ShardFailed("the nodes of this simulation have ended")
        before = set(self.team.lost)
        words = (self._word,) if command in ("save", "restore") else ()
        answers = self.team.ask(command, *words, *arguments, late_too=command == "advance")
        if not answers:
            self.close()
            raise ShardFailed("every node of this brain is gone")
        new = set(self.team.lost) - before
        if new and self._on_loss == "raise":
            name = sorted(new)[0]
            why = self.team.lost[name]
            self.close()
            raise ShardFailed(f"region {name!r} is lost: {why}", shard=name)
        if command in _ACTIONS:
            self.team.note_action(self._reached, command, arguments)
        elif command == "counters":
            self._last_counters |= answers
        elif command == "read_counts":
            for found in answers.values():
                self._last_counts |= {i: one for i, one in zip(arguments[0], found, strict=True) if one is not None}
        return [
            answers[name] if name in answers else self._silence(name, command, arguments) for name in self.units.names
        ]

    def advance(self, until: int) -> Recorded:
        # A node that came back from an older state has run some steps again.
        pieces = [_after(one, self._reached) for one in self.ask("advance", until)]
        self._reached = until
        return merge_recorded(pieces)

    def restore(self, folder: Path, files: list[str]) -> None:
        self._timeline += 1  # what was said before, and is still on its way, is of another past
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

    def stories(self) -> dict[str, Any]:
        """What each region has seen of the others: silences, steps recovered and lost."""
        return {} if self.team is None else self.team.ask("story")

    def close(self) -> None:
        team, self.team = self.team, None
        if team is not None:
            team.close()

    def _silence(self, name: str, command: str, arguments: tuple[Any, ...]) -> Any:
        """What stands in for the answer of a node that is gone."""
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
        if command == "read_synapses":
            none = np.zeros(0, np.int64)
            return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}
        if command in ("save", "restore"):
            raise CheckpointError(f"region {name!r} is missing: a state without it would not be complete")
        return None


def _after(recorded: Recorded, step: int) -> Recorded:
    """What was recorded after a step."""
    kept = recorded.steps > step
    samples = [
        replace(one, steps=one.steps[one.steps > step], values=one.values[one.steps > step]) for one in recorded.samples
    ]
    return replace(
        recorded, steps=recorded.steps[kept], ids=recorded.ids[kept], samples=[one for one in samples if len(one.steps)]
    )
