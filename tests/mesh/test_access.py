"""Access rules as data, evaluated by an oracle that decides as Zenoh's routers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import zenoh
from hypothesis import given

from neuraxis.brain import default_brain
from neuraxis.brain.mesh import DRIVER, OBSERVER, grants_of, roles_of, sensor_keys
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
from neuraxis.mesh.access import Grant, access_control, without_revoked, write_access

ROOT = "neuraxis/m"


def allows(rules: dict[str, Any], role: str, flow: str, message: str, key: str) -> bool:
    """Return True if a router forwards a message: an allow rule includes the whole key, and no deny rule does."""
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


def may_publish(rules: dict[str, Any], role: str, key: str) -> bool:
    return allows(rules, role, "ingress", "put", key)


def may_subscribe(rules: dict[str, Any], role: str, key: str, declared: str | None = None) -> bool:
    declares = allows(rules, role, "ingress", "declare_subscriber", declared or key)
    return declares and allows(rules, role, "egress", "put", key)


def may_query(rules: dict[str, Any], role: str, node: str, topic: str) -> bool:
    key = f"{node}/@serve/{topic}/@from/{role}"
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


SENSORS = {"sensor-camera": "sensor/camera", "sensor-lab-probe": "lab/probe", "sensor-thermal": "sensor/thermal"}


@pytest.fixture(scope="module")
def robot() -> dict[str, Any]:
    return access_control("m", grants_of(ROBOT, ["sensor/thermal"]))


# --- the robot's graph ---


def test_a_region_publishes_its_own_topics(robot: dict[str, Any]) -> None:
    for role in ROBOT.regions:
        for name in (*ROBOT.regions, "driver", "sensor/camera", "x"):
            assert may_publish(robot, role, f"{name}/spikes") == (role == name)
            assert allows(robot, role, "ingress", "liveliness_token", f"@presence/{name}/facts") == (role == name)
            assert allows(robot, role, "ingress", "declare_queryable", f"{name}/@serve/replay/@from/**") == (
                role == name
            )
            assert allows(robot, role, "ingress", "reply", f"@status/{name}") == (role == name)
        for wide in ("**", "*/spikes", f"{role}$*/spikes", "@presence/**", f"@presence/{role}x/facts"):
            assert not may_publish(robot, role, wide)
            assert not allows(robot, role, "ingress", "liveliness_token", wide)


def test_a_region_receives_its_inputs(robot: dict[str, Any]) -> None:
    receives = {
        role: {name for name in ROBOT.regions if may_subscribe(robot, role, f"{name}/spikes")} for role in ROBOT.regions
    }
    # Two of one role agree among themselves.
    assert receives == {"pfc": {"vision"}, "lang": set(), "vision": set(), "left": {"pfc", "right"}, "right": {"left"}}
    health = {
        role: {name for name in ROBOT.regions if may_subscribe(robot, role, f"{name}/health")} for role in ROBOT.regions
    }
    assert health == {
        "pfc": {"vision", "left"}, "lang": set(), "vision": {"pfc"}, "left": {"pfc", "right"}, "right": {"left"},
    }  # fmt: skip
    assert [role for role in ROBOT.regions if may_subscribe(robot, role, "left/agreed", declared="*/agreed")] == [
        "left",
        "right",
    ]
    assert not may_subscribe(robot, "pfc", "vision/spikes", declared="**")
    assert may_subscribe(robot, "pfc", "vision/spikes", declared="vision/*")
    for sensor in ("sensor/camera", "sensor/thermal", "sensor/thermal/frame"):
        assert [role for role in ROBOT.regions if may_subscribe(robot, role, sensor)] == ["vision"]
    assert may_subscribe(robot, "vision", "sensor/thermal", declared="sensor/*")
    assert [role for role in ROBOT.regions if may_subscribe(robot, role, "lab/probe")] == ["lang"]


def test_a_region_asks_its_neighbours_and_those_that_stand_in_for_them(robot: dict[str, Any]) -> None:
    asked = {role: {name for name in ROBOT.regions if may_query(robot, role, name, "ask")} for role in ROBOT.regions}
    assert asked == {
        "pfc": {"vision", "left", "right", "lang"}, "lang": set(), "vision": {"pfc", "lang"},
        "left": {"pfc", "right", "lang"}, "right": {"left", "lang"},
    }  # fmt: skip
    for role in ROBOT.regions:
        # A prompt is answered once: nodes that may be asked can claim it and receive the claims of others.
        assert may_query(robot, role, "driver", "prompt/claim")
        assert may_subscribe(robot, role, "pfc/prompt/answered", declared="**/prompt/answered")
        assert not any(may_query(robot, role, name, "command") for name in (*ROBOT.regions, "*", "**"))


def test_rules_of_driver_observer_and_sensor(robot: dict[str, Any]) -> None:
    for name in ROBOT.regions:
        assert may_query(robot, DRIVER, name, "command")
        assert may_query(robot, DRIVER, name, "replay")
        assert may_subscribe(robot, DRIVER, f"{name}/health")
        assert not may_publish(robot, DRIVER, f"{name}/spikes")
        assert may_subscribe(robot, OBSERVER, f"{name}/spikes", declared="**")
        assert not may_query(robot, OBSERVER, name, "command")
        for sensor in SENSORS:
            assert not may_subscribe(robot, sensor, f"{name}/spikes")
            assert not may_query(robot, sensor, name, "replay")
    for role, own in SENSORS.items():
        for key in SENSORS.values():
            for below in (key, f"{key}/frame"):
                assert may_publish(robot, role, below) == (key == own)
                assert not may_publish(robot, OBSERVER, below)
            for token in (f"{key}/facts", f"{key}/~sensor/facts"):
                assert allows(robot, role, "ingress", "liveliness_token", f"@presence/{token}") == (key == own)
        assert not may_publish(robot, role, "vision/objects")
        assert not may_publish(robot, role, "sensor/new")
    assert not may_publish(robot, OBSERVER, "observer/x")


def test_each_sensor_has_a_role_of_its_own() -> None:
    assert sensor_keys(ROBOT, ["sensor/thermal"]) == SENSORS
    assert [role for role in roles_of(ROBOT) if role.startswith("sensor")] == ["sensor-camera", "sensor-lab-probe"]
    with pytest.raises(SpecError, match="no sensor of the brain has the key 'other/thermal'"):
        grants_of(ROBOT, ["other/thermal"])
    with pytest.raises(SpecError, match="would have the same role"):
        grants_of(ROBOT, ["sensor/a.b", "sensor/a-b"])


def test_a_node_declares_only_roles_that_it_is_granted(robot: dict[str, Any]) -> None:
    """Votes and requests go to the nodes of a role, so a role is authenticated like a name."""
    granted = {"left": ["", "~motor/", "~region/", "~motor/~region/"], "driver": ["", "~driver/"], "pfc": ["", "~pfc/"]}
    for role, allowed in granted.items():
        for roles in ("", "~motor/", "~region/", "~motor/~region/", "~driver/", "~pfc/", "~motor/~rpc/", "*/", "**/"):
            token = f"@presence/{role}/{roles}facts"
            expected = roles in allowed or (role == "pfc" and roles == "~region/")
            assert allows(robot, role, "ingress", "liveliness_token", token) == expected, token


def test_every_role_sees_presence(robot: dict[str, Any]) -> None:
    for role in roles_of(ROBOT):
        for message in ("liveliness_query", "declare_liveliness_subscriber"):
            assert allows(robot, role, "ingress", message, "@presence/**")
        assert allows(robot, role, "egress", "liveliness_token", "@presence/vision/facts")
        assert allows(robot, role, "ingress", "query", "@status/**")
        assert allows(robot, role, "egress", "reply", "@status/vision")
        # This grants no subscription to messages.
        assert not allows(robot, role, "ingress", "declare_subscriber", "@presence/**")


def test_subscribers_of_a_state_may_recover_it(robot: dict[str, Any]) -> None:
    for role, expected in (("pfc", True), ("observer", True), ("lang", False), ("sensor-camera", False)):
        for message in ("query", "liveliness_query", "declare_liveliness_subscriber", "declare_subscriber"):
            assert allows(robot, role, "ingress", message, "vision/objects/@adv/**") == expected
        for message in ("put", "reply", "liveliness_token"):
            assert allows(robot, role, "egress", message, "vision/objects/@adv/pub/1/2/_") == expected
        assert allows(robot, role, "egress", "reply", "vision/objects") == expected
    for message in ("put", "declare_queryable", "liveliness_token"):
        assert allows(robot, "vision", "ingress", message, "vision/objects/@adv/pub/1/2/_")
        assert not allows(robot, "pfc", "ingress", message, "vision/objects/@adv/pub/1/2/_")


def test_an_unknown_client_is_denied_everything_and_a_router_allowed_everything(robot: dict[str, Any]) -> None:
    keys = (
        "vision/spikes",
        "@presence/vision/x",
        "@status/vision",
        "vision/@serve/command/@from/driver",
        "vision/a/@adv/pub/1/2/_",
    )
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
            assert may_publish(rules, one, f"{other}/spikes") == (one == other)
            if one != other:
                near = (one, other) in edges or (other, one) in edges
                assert may_subscribe(rules, other, f"{one}/spikes") == ((one, other) in edges)
                assert may_subscribe(rules, other, f"{one}/health") == near
                assert may_query(rules, other, one, "replay") == near


def test_modulators_and_effectors_reach_their_targets() -> None:
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
    assert may_subscribe(rules, "cortex", "vta/spikes")
    assert may_subscribe(rules, "striatum", "vta/spikes")
    assert may_subscribe(rules, "cortex", "striatum/spikes")
    assert may_subscribe(rules, "cortex", "hand/spikes")
    assert may_publish(rules, "striatum", "hand/spikes")
    assert not may_publish(rules, "cortex", "hand/spikes")
    assert may_subscribe(rules, "driver", "striatum/spikes")
    assert not may_subscribe(rules, "driver", "cortex/spikes")


def test_the_default_brain_has_rules(tmp_path: Path) -> None:
    file = tmp_path / "acl.json5"
    write_access(file, "default", grants_of(default_brain()))
    config = zenoh.Config.from_file(str(file))
    assert json.loads(config.get_json("access_control/default_permission")) == "deny"
    assert [entry.name for entry in tmp_path.iterdir()] == ["acl.json5"]


# --- what cannot be ---


def test_names_that_mean_something_else_are_refused() -> None:
    for name in ("driver", "observer", "sensor", "sensor-x", "router", "ca"):
        with pytest.raises(SpecError, match=rf"regions\.{name}: .* rename the region"):
            grants_of(BrainSpec(name="b", regions=regions(name)))
    with pytest.raises(InvalidArgument, match="has two grants"):
        access_control("m", [Grant("a"), Grant("a")])
    for role in ("router", ""):
        with pytest.raises(InvalidArgument, match="cannot be the role of a node"):
            access_control("m", [Grant(role)])
    with pytest.raises(InvalidArgument, match="publishes"):
        access_control("m", [Grant("a", publishes=("a//b",))])
    with pytest.raises(InvalidArgument, match="requests"):
        access_control("m", [Grant("a", requests=(("a", "#"),))])
    with pytest.raises(InvalidArgument, match="mesh"):
        access_control("**", [Grant("a")])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("arm", "arm/left"),
        ("arm", "arm/left/finger"),
        ("arm", "arm"),
        ("arm/*", "arm/left"),
        ("arm/**", "arm/left"),
        ("arm/*", "arm/left/finger"),
        ("*/left", "arm/left"),
        ("**", "arm"),
    ],
)
def test_roles_whose_node_names_nest_are_refused(mine: str, theirs: str) -> None:
    """On the key arm/left/angle the role of arm/left could name arm as the sender, and the other way round."""
    for names in ((mine, theirs), (theirs, mine)):
        grants = [Grant(role, nodes=(name,)) for role, name in zip(("one", "two"), names, strict=True)]
        with pytest.raises(InvalidArgument, match=r"roles .* overlap: .* Use names with different first parts"):
            access_control("m", grants)
    access_control("m", [Grant("one", nodes=(mine, theirs))])
    access_control("m", [Grant("one", nodes=(theirs,)), Grant("two", nodes=("army", "left/arm"))])


def test_a_role_that_sends_in_the_name_of_another_is_refused() -> None:
    arm = Grant("arm", nodes=("arm",), publishes=("arm/**",))
    for publishes in ("arm/left/**", "arm", "**", "*/stop", "arm/*"):
        with pytest.raises(InvalidArgument, match=r"role 'b': it publishes .* node 'arm' of the role 'arm'"):
            access_control("m", [arm, Grant("b", nodes=("b",), publishes=(publishes,))])
    for serves in (("arm", "move"), ("**", "**"), ("*", "move")):
        with pytest.raises(InvalidArgument, match=r"role 'b': it serves .* node 'arm' of the role 'arm'"):
            access_control("m", [Grant("b", nodes=("b",), serves=(serves,)), arm])
    with pytest.raises(InvalidArgument, match="'arm' and 'arm' overlap: "):
        access_control("m", [Grant("arm"), Grant("other", nodes=("arm",))])  # a role without nodes sends as itself
    b = Grant("b", nodes=("b",), publishes=("b/**", "army/**"), serves=(("b", "**"),), requests=(("arm", "**"),))
    access_control("m", [arm, b])


def test_rules_hold_for_the_newest_certificate_of_a_revoked_role_alone(robot: dict[str, Any]) -> None:
    assert without_revoked(robot, ()) == robot
    changed = without_revoked(robot, {"pfc", "pfc.2", "router"})
    names = {one["id"]: one["cert_common_names"] for one in changed["subjects"]}
    assert (names["pfc"], names["router"], names["lang"]) == (["pfc.3"], ["router.2"], ["lang"])
    assert changed | {"subjects": robot["subjects"]} == robot
    by_hand = {"subjects": [{"id": "a", "cert_common_names": ["arm.2", "leg.2"]}, {"id": "b", "interfaces": ["lo"]}]}
    assert without_revoked(by_hand, {"arm.2"})["subjects"] == [
        {"id": "a", "cert_common_names": ["arm.3", "leg.2"]},
        {"id": "b", "interfaces": ["lo"]},
    ]
