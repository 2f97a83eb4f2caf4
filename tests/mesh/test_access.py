"""Rules of access as data: what they allow, asked of an oracle that decides as Zenoh's routers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import zenoh
from hypothesis import given

from neuraxis.brain import default_brain
from neuraxis.brain.access import DRIVER, OBSERVER, SENSOR, grants_of, roles_of
from neuraxis.brain.spec import (
    BrainSpec,
    EffectorSpec,
    ModulatorSource,
    ModulatorSpec,
    PathwaySpec,
    RegionSpec,
    SensorSpec,
)
from neuraxis.errors import InvalidArgument, SpecError
from neuraxis.mesh.access import Grant, access_control, write_access

ROOT = "neuraxis/m"


def allows(rules: dict[str, Any], role: str, flow: str, message: str, key: str) -> bool:
    """Whether a router lets a message through: some rule includes the whole key, and none that denies does."""
    assert rules["enabled"]
    assert rules["default_permission"] == "deny"
    subjects = {one["id"] for one in rules["subjects"] if role in one["cert_common_names"]}
    ids = {rule for one in rules["policies"] if subjects & set(one["subjects"]) for rule in one["rules"]}
    fitting = [
        rule["permission"]
        for rule in rules["rules"]
        if rule["id"] in ids
        and flow in rule["flows"]
        and message in rule["messages"]
        and any(zenoh.KeyExpr(one).includes(f"{ROOT}/{key}") for one in rule["key_exprs"])
    ]
    return "allow" in fitting and "deny" not in fitting


def says(rules: dict[str, Any], role: str, key: str) -> bool:
    return allows(rules, role, "ingress", "put", key)


def hears(rules: dict[str, Any], role: str, key: str, declared: str | None = None) -> bool:
    declares = allows(rules, role, "ingress", "declare_subscriber", declared or key)
    return declares and allows(rules, role, "egress", "put", key)


def asks(rules: dict[str, Any], role: str, node: str, topic: str) -> bool:
    key = f"{node}/@serve/{topic}"
    question, answer = allows(rules, role, "ingress", "query", key), allows(rules, role, "egress", "reply", key)
    return question and answer


def regions(*names: str, **roles: tuple[str, ...]) -> dict[str, RegionSpec]:
    return {name: RegionSpec(kind="python", create="a:b", roles=roles.get(name, ())) for name in names}


def path(source: str, target: str) -> PathwaySpec:
    return PathwaySpec(source=source, target=target, delay_ms=1.0)


ROBOT = BrainSpec(
    name="robot",
    default_node="lang",
    regions=regions("pfc", "lang", "vision", "left", "right", left=("motor",), right=("motor",)),
    sensors={"camera": SensorSpec(neurons=10), "odd": SensorSpec(neurons=10, key="lab/probe")},
    pathways=(
        path("vision.out", "pfc"), path("pfc", "left.in"), path("sensor/*", "vision"), path("camera", "vision"),
        path("odd", "lang"),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def robot() -> dict[str, Any]:
    return access_control("m", grants_of(ROBOT))


# --- the robot's graph ---


def test_a_region_says_what_is_its_own(robot: dict[str, Any]) -> None:
    for role in ROBOT.regions:
        for name in (*ROBOT.regions, "driver", "sensor/camera", "x"):
            assert says(robot, role, f"{name}/spikes") == (role == name)
            assert allows(robot, role, "ingress", "liveliness_token", f"@presence/{name}/facts") == (role == name)
            assert allows(robot, role, "ingress", "declare_queryable", f"{name}/@serve/replay") == (role == name)
            assert allows(robot, role, "ingress", "reply", f"@status/{name}") == (role == name)
        for wide in ("**", "*/spikes", f"{role}$*/spikes", "@presence/**", f"@presence/{role}x/facts"):
            assert not says(robot, role, wide)
            assert not allows(robot, role, "ingress", "liveliness_token", wide)


def test_a_region_hears_what_leads_to_it(robot: dict[str, Any]) -> None:
    heard = {role: {name for name in ROBOT.regions if hears(robot, role, f"{name}/spikes")} for role in ROBOT.regions}
    # Two of one role agree among themselves.
    assert heard == {"pfc": {"vision"}, "lang": set(), "vision": set(), "left": {"pfc", "right"}, "right": {"left"}}
    told = {role: {name for name in ROBOT.regions if hears(robot, role, f"{name}/health")} for role in ROBOT.regions}
    assert told == {
        "pfc": {"vision", "left"}, "lang": set(), "vision": {"pfc"}, "left": {"pfc", "right"}, "right": {"left"},
    }  # fmt: skip
    assert [role for role in ROBOT.regions if hears(robot, role, "left/agreed", declared="*/agreed")] == [
        "left",
        "right",
    ]
    assert not hears(robot, "pfc", "vision/spikes", declared="**")
    assert hears(robot, "pfc", "vision/spikes", declared="vision/*")
    for sensor in ("sensor/camera", "sensor/thermal", "sensor/thermal/frame"):
        assert [role for role in ROBOT.regions if hears(robot, role, sensor)] == ["vision"]
    assert hears(robot, "vision", "sensor/thermal", declared="sensor/*")
    assert [role for role in ROBOT.regions if hears(robot, role, "lab/probe")] == ["lang"]


def test_a_region_asks_its_neighbours_and_those_that_stand_in_for_them(robot: dict[str, Any]) -> None:
    asked = {role: {name for name in ROBOT.regions if asks(robot, role, name, "ask")} for role in ROBOT.regions}
    assert asked == {
        "pfc": {"vision", "left", "right", "lang"}, "lang": set(), "vision": {"pfc", "lang"},
        "left": {"pfc", "right", "lang"}, "right": {"left", "lang"},
    }  # fmt: skip
    for role in ROBOT.regions:
        # A prompt is answered once: who may be asked can claim it, and hears who has answered.
        assert asks(robot, role, "driver", "prompt/claim")
        assert hears(robot, role, "pfc/prompt/answered", declared="**/prompt/answered")
        assert not any(asks(robot, role, name, "command") for name in (*ROBOT.regions, "*", "**"))


def test_who_drives_watches_and_feeds(robot: dict[str, Any]) -> None:
    for name in ROBOT.regions:
        assert asks(robot, DRIVER, name, "command")
        assert asks(robot, DRIVER, name, "replay")
        assert hears(robot, DRIVER, f"{name}/health")
        assert not says(robot, DRIVER, f"{name}/spikes")
        assert hears(robot, OBSERVER, f"{name}/spikes", declared="**")
        assert not asks(robot, OBSERVER, name, "command")
        assert not hears(robot, SENSOR, f"{name}/spikes")
        assert not asks(robot, SENSOR, name, "replay")
    for key in ("sensor/thermal", "sensor/camera/frame", "lab/probe"):
        assert says(robot, SENSOR, key)
        assert not says(robot, OBSERVER, key)
    assert not says(robot, OBSERVER, "observer/x")
    assert not says(robot, SENSOR, "vision/objects")


def test_all_see_who_is_here(robot: dict[str, Any]) -> None:
    for role in roles_of(ROBOT):
        for message in ("liveliness_query", "declare_liveliness_subscriber"):
            assert allows(robot, role, "ingress", message, "@presence/**")
        assert allows(robot, role, "egress", "liveliness_token", "@presence/vision/facts")
        assert allows(robot, role, "ingress", "query", "@status/**")
        assert allows(robot, role, "egress", "reply", "@status/vision")
        # What it may not hear, it does not hear here either.
        assert not allows(robot, role, "ingress", "declare_subscriber", "@presence/**")


def test_states_are_recovered_by_those_who_hear_them(robot: dict[str, Any]) -> None:
    for role, expected in (("pfc", True), ("observer", True), ("lang", False), ("sensor", False)):
        for message in ("query", "liveliness_query", "declare_liveliness_subscriber", "declare_subscriber"):
            assert allows(robot, role, "ingress", message, "vision/objects/@adv/**") == expected
        for message in ("put", "reply", "liveliness_token"):
            assert allows(robot, role, "egress", message, "vision/objects/@adv/pub/1/2/_") == expected
        assert allows(robot, role, "egress", "reply", "vision/objects") == expected
    for message in ("put", "declare_queryable", "liveliness_token"):
        assert allows(robot, "vision", "ingress", message, "vision/objects/@adv/pub/1/2/_")
        assert not allows(robot, "pfc", "ingress", message, "vision/objects/@adv/pub/1/2/_")


def test_a_stranger_is_allowed_nothing_and_a_router_everything(robot: dict[str, Any]) -> None:
    keys = ("vision/spikes", "@presence/vision/x", "@status/vision", "vision/@serve/command", "vision/a/@adv/pub/1/2/_")
    messages = {message for rule in robot["rules"] for message in rule["messages"]}
    assert len(messages) == 9
    for flow in ("ingress", "egress"):
        for message in messages:
            for key in (*keys, "**"):
                assert not allows(robot, "guest", flow, message, key)
            for key in keys:
                assert allows(robot, "router", flow, message, key)


def test_rules_are_for_one_mesh(robot: dict[str, Any]) -> None:
    everywhere = [zenoh.KeyExpr(key) for rule in robot["rules"] for key in rule["key_exprs"]]
    assert all(zenoh.KeyExpr(f"{ROOT}/**").includes(key) or str(key).startswith(f"{ROOT}/") for key in everywhere)
    assert not any(key.intersects("neuraxis/other/vision/spikes") for key in everywhere)


# --- any graph ---


@st.composite
def brains(draw: st.DrawFn) -> BrainSpec:
    names = [f"r{index}" for index in range(draw(st.integers(1, 6)))]
    ends = st.sampled_from(names)
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=12, unique=True))
    return BrainSpec(name="b", regions=regions(*names), pathways=tuple(path(*pair) for pair in pairs))


@given(brains())
def test_the_rules_are_the_graph(spec: BrainSpec) -> None:
    rules = access_control("m", grants_of(spec))
    zenoh.Config.from_json5(json.dumps({"access_control": rules}))  # Zenoh takes them
    edges = {(one.source, one.target) for one in spec.pathways if one.source != one.target}
    for one in spec.regions:
        for other in spec.regions:
            assert says(rules, one, f"{other}/spikes") == (one == other)
            if one != other:
                near = (one, other) in edges or (other, one) in edges
                assert hears(rules, other, f"{one}/spikes") == ((one, other) in edges)
                assert hears(rules, other, f"{one}/health") == near
                assert asks(rules, other, one, "replay") == near


def test_modulators_and_effectors_reach_whom_they_must() -> None:
    spec = BrainSpec(
        name="b",
        regions=regions("vta", "cortex", "striatum"),
        neuromodulators={
            "da": ModulatorSpec(sources=(ModulatorSource(population="vta.da", amount=1.0, delay_ms=1.0),))
        },
        effectors={"hand": EffectorSpec(region="striatum", actions=2)},
        pathways=(path("hand", "cortex"),),
    )
    rules = access_control("m", grants_of(spec))
    assert hears(rules, "cortex", "vta/spikes")
    assert hears(rules, "striatum", "vta/spikes")
    assert hears(rules, "cortex", "striatum/spikes")
    assert hears(rules, "cortex", "hand/spikes")
    assert says(rules, "striatum", "hand/spikes")
    assert not says(rules, "cortex", "hand/spikes")
    assert hears(rules, "driver", "striatum/spikes")
    assert not hears(rules, "driver", "cortex/spikes")


def test_the_default_brain_has_rules(tmp_path: Path) -> None:
    file = tmp_path / "acl.json5"
    write_access(file, "default", grants_of(default_brain()))
    config = zenoh.Config.from_file(str(file))
    assert json.loads(config.get_json("access_control/default_permission")) == "deny"
    assert [entry.name for entry in tmp_path.iterdir()] == ["acl.json5"]


# --- what cannot be ---


def test_names_that_mean_something_else_are_refused() -> None:
    for name in ("driver", "observer", "sensor", "router", "ca"):
        with pytest.raises(SpecError, match=rf"regions\.{name}: .* call the region otherwise"):
            grants_of(BrainSpec(name="b", regions=regions(name)))
    with pytest.raises(InvalidArgument, match="is granted twice"):
        access_control("m", [Grant("a"), Grant("a")])
    for role in ("router", ""):
        with pytest.raises(InvalidArgument, match="is no role of a node"):
            access_control("m", [Grant(role)])
    with pytest.raises(InvalidArgument, match="publishes"):
        access_control("m", [Grant("a", publishes=("a//b",))])
    with pytest.raises(InvalidArgument, match="requests"):
        access_control("m", [Grant("a", requests=(("a", "#"),))])
    with pytest.raises(InvalidArgument, match="mesh"):
        access_control("**", [Grant("a")])
