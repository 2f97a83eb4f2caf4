"""Regions of a brain as nodes of the mesh: their populations, equal learning, and sensors that join during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from neuraxis.brain import Brain, BrainBuilder, default_brain
from neuraxis.brain.lowering import lower
from neuraxis.brain.mesh import mesh_executor, region_setups, sensor_thresholds, units_of
from neuraxis.brain.regions.sources import thresholds
from neuraxis.brain.spec import BrainSpec
from neuraxis.brain.tasks import CueActionTask, Timing
from neuraxis.errors import InvalidArgument, NeuraxisError, SpecError
from neuraxis.mesh import Node, Topology
from neuraxis.simulation.mesh import Units
from neuraxis.simulation.mesh.executor import RegionTeam
from tests.brain.mesh_regions import Reporter
from tests.brain.python_regions import Log
from tests.brain.test_brain import small
from tests.mesh.conftest import initialized_zenoh
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, until

__all__ = ["initialized_zenoh"]

SHORT = Timing(cue_ms=20, decision_ms=15, action_ms=15, outcome_ms=5, rest_ms=10)


def units(spec: BrainSpec) -> Units:
    return units_of(spec, lower(spec, 1, "a test"))


# --- placement ---


@pytest.mark.parametrize("spec", [small().spec(), default_brain(1)], ids=["small", "default"])
def test_every_region_is_a_node_and_every_population_has_one(spec: BrainSpec) -> None:
    found = units(spec)
    assert list(found.names) == list(spec.regions)
    network = lower(spec, 1, "a test").network
    held = sorted(index for indices in found.populations.values() for index in indices)
    assert held == list(range(len(network.populations)))
    for name, indices in found.populations.items():
        own = {network.populations[index].name.split(".")[0] for index in indices}
        assert name in own
        assert own - {name} <= set(spec.sensors) | set(spec.effectors)
    assert len(found.placement(network)) == len(spec.regions)


def test_ends_of_nerves_are_where_they_lead() -> None:
    spec = small().sensor("lost", 6, groups=2).spec()
    found, network = units(spec), lower(spec, 1, "a test").network
    homes = {network.populations[i].name.split(".")[0]: name for name, some in found.populations.items() for i in some}
    assert homes["cue"] == "thalamus"
    assert homes["motor"] == "striatum"
    assert homes["lost"] == "thalamus"  # it leads nowhere: the first region has it


def test_topics_roles_and_feeds_are_those_of_the_description() -> None:
    spec = (
        small()
        .sensor("skin", 6, groups=2, key="sensor/skin/*")
        .python_region("vision", Log, neurons=20, topic="objects", roles=["see", "vision"])
        .pathway("vision", "cortex", 2.0)
        .pathway("skin", "cortex", 2.0)
        .spec()
    )
    found = units(spec)
    assert found.topic("vision") == "objects"
    assert found.topic("cortex") == "data"
    assert tuple(found.roles["vision"]) == ("see", "vision")
    assert tuple(found.roles["cortex"]) == ("cortex",)
    feeds = {feed.expression: name for name, feeds in found.feeds.items() for feed in feeds}
    assert feeds == {"sensor/cue": "thalamus", "sensor/skin/*": "cortex"}


def test_a_brain_without_regions_has_nothing_to_run() -> None:
    with pytest.raises(SpecError, match="regions: is empty; add a region"):
        mesh_executor(BrainBuilder("empty").sensor("cue", 4, groups=2).spec())


def test_the_setups_of_free_nodes_know_the_same_brain() -> None:
    setups = region_setups(small().spec(), mesh="m", topology=Topology.local().as_data(), driven=False)
    assert list(setups) == ["thalamus", "cortex", "striatum"]
    assert len({id(one.network) for one in setups.values()}) == 1
    with pytest.raises(InvalidArgument, match="clock"):
        region_setups(small().spec(), mesh="m", topology={}, clock="sundial")


# --- what sets a sensor ---

CONFIG = {"name": "cue", "neurons": 8, "groups": 4, "rate_hz": 100.0, "background_hz": 2.0, "dt_ms": 0.1}


def test_a_message_sets_the_rates_of_groups_or_of_neurons() -> None:
    rest = sensor_thresholds(None, CONFIG)
    assert np.array_equal(rest, thresholds(np.full(8, 2.0), 0.1))
    groups = sensor_thresholds([0, 1, 0, 0], CONFIG)
    assert groups.shape == (8,)
    assert (groups[2:4] > rest[2:4]).all()
    assert len(set(groups[2:4].tolist())) == 1
    assert np.array_equal(sensor_thresholds(np.array([0.0, 1, 0, 0]), CONFIG), groups)
    each = sensor_thresholds([0, 0, 1, 1, 0, 0, 0, 0], CONFIG)
    assert np.array_equal(each, groups)


@pytest.mark.parametrize(
    "value", ["bright", [1, 2, 3], {"a": 1}, [[1, 2], [3, 4]], [float("nan")] * 4, [float("inf")] * 4, [-1, 0, 0, 0],
              b"bytes"], ids=str,
)  # fmt: skip
def test_a_message_that_is_no_stimulus_is_refused(value: Any) -> None:
    with pytest.raises((NeuraxisError, ValueError, TypeError)):
        sensor_thresholds(value, CONFIG)


# --- it learns the same ---


def learn(brain: Brain, trials: int) -> dict[str, Any]:
    task = CueActionTask(brain, timing=SHORT)
    done = [task.run_trial() for _ in range(trials)]
    return {
        "cues": [one.cue for one in done],
        "actions": [one.action for one in done],
        "rewards": [one.reward for one in done],
        "rates": {name: brain.rates_hz()[name] for name in brain.spec.regions} if hasattr(brain, "rates_hz") else {},
        "fingerprint": brain.fingerprint(),
    }


def test_the_default_brain_learns_the_same_over_the_mesh() -> None:
    spec = default_brain(3)
    with Brain(spec) as brain:
        expected = learn(brain, 3)
    executor = mesh_executor(spec, mesh=fresh_mesh())
    with Brain(spec, executor=executor) as brain:
        assert brain.workers == len(spec.regions)
        assert learn(brain, 3) == expected
        stories = executor.statistics()
        assert list(stories) == list(spec.regions)
        heard = [one for reported in stories.values() for one in reported["upstream"].values()]
        assert heard
        assert not any(one["silences"] or one["lost"] for one in heard)


# --- sensors ---


@contextmanager
def free(spec: BrainSpec, clock: str) -> Iterator[RegionTeam]:
    """The regions of a brain, without a driver."""
    setups = region_setups(
        spec, mesh=fresh_mesh(), topology=Topology.local().as_data(), clock=clock, driven=False, start_timeout=LIMIT_S
    )
    with RegionTeam(setups) as team:
        team.wait(LIMIT_S)
        yield team


def watching() -> BrainSpec:
    return (
        BrainBuilder("watching", seed=3)
        .sensor("cue", 40, groups=4, rate_hz=200.0)
        .region("thalamus", "thalamus", relay=40)
        .python_region("reporter", Reporter, neurons=4)
        .pathway("cue", "thalamus", 2.0, topographic=True)
        .pathway("reporter", "thalamus", 2.0)
        .pathway("sensor/*", "reporter", 5.0)
        .spec()
    )


@pytest.mark.parametrize("clock", ["lockstep", "realtime"])
def test_a_sensor_that_joins_during_a_run_is_received(clock: str) -> None:
    """Received by a Python region with a pathway for it, and by the neurons of a sensor with its key."""
    spec = watching()
    network = lower(spec, 1, "a test").network
    (cells,) = (one for one in network.populations if one.name.startswith("cue"))
    with free(spec, clock) as team, Node("watcher", mesh=team.node.mesh) as watcher:

        def counts() -> np.ndarray:
            found: np.ndarray = team.ask("read_counts", [cells.index])["thalamus"][0]
            return found.reshape(4, -1).sum(axis=1)

        heard = watcher.subscribe("reporter/seen")
        with watcher.subscribe("reporter/health") as health:
            first = last = health.get(LIMIT_S)
            while last.step < first.step + 300:
                last = health.get(LIMIT_S)
        # A region that was not called yet says how it is no more often than others: five times a second.
        assert last.sequence - first.sequence < (last.step - first.step) / 4
        until(lambda: team.ask("statistics")["thalamus"]["step"] > 100, "they run")
        with Node("sensor/thermal", "sensor", team.node.mesh) as sensor:
            assert sensor.wait_for(["thalamus", "reporter"], LIMIT_S) == []
            assert sensor.wait_for_subscribers("heat", LIMIT_S)
            seen = None
            for attempt in range(50):
                sensor.publish("heat", np.array([1.0, 2.5, float(attempt)]))
                try:
                    seen = heard.get(2.0).value
                    break
                except TimeoutError:
                    continue
            assert seen is not None
            assert seen["source"] in ("sensor/thermal", "sensor/thermal/heat")
            assert seen["sum"] >= 3.5
            # Not a stimulus for cells: nothing happened to them.
            sensor.publish("heat", "not a number")
        with Node("sensor/cue", "sensor", team.node.mesh) as sensor:
            assert sensor.wait_for(["thalamus"], LIMIT_S) == []
            assert sensor.wait_for_subscribers("light", LIMIT_S)
            before = counts()

            def bright() -> bool:
                sensor.publish("light", [0.0, 0.0, 1.0, 0.0])
                grown = counts() - before
                return bool(grown[2] > 50 and grown[2] > 3 * (grown[0] + 1))

            until(bright, "the third group of cells follows the light")
            sensor.publish("light", {"no": "stimulus"})
            until(lambda: team.ask("statistics")["thalamus"]["refused"] > 0, "what is no stimulus is refused")
        reported = team.ask("statistics")
        assert reported["thalamus"]["upstream"]["reporter"]["state"] == "live"
        assert not reported["thalamus"]["upstream"]["reporter"]["silences"]
