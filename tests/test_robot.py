"""The robot of the examples: its parts, the brain in one process, its regions with real nodes, and the whole tour."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import Proposal
from arm import REST, hand_of, joints_for, towards, within_limits
from diary import read_diary, with_diary
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from regions import Language, Motor, Prefrontal, Vision
from scene import TABLE, connected_parts, find_objects, render
from sequential import COMMANDS, run
from words import parse

from neuraxis.brain import Brain, Event, read_spec
from neuraxis.brain.spec import BrainSpec
from neuraxis.mesh import Node
from tests.mesh.role_node import warm

ROBOT = Path(__file__).resolve().parents[1] / "examples" / "robot_brain"
LONG_S = 20.0


# --- parts ---


@settings(max_examples=30)
@given(now=st.integers(0, 100_000), seed=st.integers(0, 1000))
def test_objects_on_the_table_are_found_in_the_picture(now: int, seed: int):
    found = {one["colour"]: one for one in find_objects(render(now, seed))}
    assert sorted(found) == sorted(thing.colour for thing in TABLE)
    for thing in TABLE:
        x, y = thing.place(now)
        assert found[thing.colour]["shape"] == thing.shape
        assert abs(found[thing.colour]["x"] - x) < 0.02
        assert abs(found[thing.colour]["y"] - y) < 0.02


def test_an_empty_table_has_nothing_on_it():
    assert find_objects(render(0.0, 1, ())) == []


@settings(max_examples=30)
@given(mask=hnp.arrays(bool, (7, 9)))
def test_connected_parts_are_those_that_a_walk_finds(mask: Any):
    left = {tuple(place) for place in np.argwhere(mask)}
    walks = []
    while left:
        part, edge = set(), [min(left)]
        while edge:
            row, column = edge.pop()
            if (row, column) in left:
                left.remove((row, column))
                part.add((row, column))
                edge += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        walks.append(part)
    assert [{tuple(place) for place in np.argwhere(part)} for part in connected_parts(mask)] == walks


@given(x=st.floats(-1, 1), y=st.floats(0, 1.2))
def test_joints_bring_the_hand_where_it_is_to_go(x: float, y: float):
    joints = joints_for(x, y)
    if joints is not None:
        assert within_limits(joints)
        assert hand_of(joints) == pytest.approx((x, y), abs=1e-9)
    elif y > 0.3:
        assert math.hypot(x, y) > 0.95 - 1e-9  # straight, the arm is so long


def test_a_movement_is_no_faster_than_it_may_be():
    assert towards((0.0, 1.0), (1.0, 0.95), 0.1) == (0.1, 0.95)
    assert towards((0.0, 1.0), (-1.0, 1.0), 0.1) == (-0.1, 1.0)


@pytest.mark.parametrize(
    ("text", "intent", "colour", "shape"),
    [
        ("Take the red ball!", "take", "red", "ball"),
        ("look at blue", "look", "blue", ""),
        ("stop", "stop", "", ""),
        ("what is the green box?", "ask", "green", "box"),
        ("mumble", "ask", "", ""),
        ("", "ask", "", ""),
    ],
)
def test_commands_are_understood(text: str, intent: str, colour: str, shape: str):
    meant = parse(text)
    assert max(meant["intents"], key=lambda one: meant["intents"][one]) == intent
    assert sum(meant["intents"].values()) == pytest.approx(1.0)
    assert (meant["colour"], meant["shape"], meant["text"]) == (colour, shape, text)


# --- in one process ---


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[tuple[float, str, dict[str, Any]]]]:
    file = tmp_path_factory.mktemp("robot") / "diary"
    return run(file), read_diary(file)


def test_the_brain_names_the_keys_of_its_regions():
    spec = read_spec(ROBOT / "robot.toml")
    assert spec.default_node == "lang"
    topics = {name: region.topic for name, region in spec.regions.items()}
    assert [topics[name] for name in ("pfc", "lang", "vision", "motor")] == ["control", "features", "objects", "status"]
    assert [spec.roles_of(name) for name in ("motor", "motor-2", "motor-3")] == [("motor",)] * 3


def test_commands_lead_to_orders_and_orders_to_movements(diary: Any):
    _, lines = diary
    sent = [order for _, region, data in lines if region == "pfc" for order in data["orders"]]
    orders = list({order["id"]: order for order in sent}.values())
    assert len(sent) > 10 * len(orders)  # each is repeated, and obeyed once
    assert [order.get("text") for order in orders] == [*COMMANDS, None, None, "grab the green box"]
    assert [(order["to"], order["do"]) for order in orders] == [
        ("motor", "take"),
        ("vision", "look"),
        ("motor", "take"),
        ("vision", "look"),
        ("lang", "say"),
        ("motor", "stop"),
        ("lang", "say"),  # a sensor that was not there before
        ("motor", "stop"),  # it is too hot
        ("lang", "say"),
    ]
    assert orders[3]["entropy"] > 0.6 > 0.1 > orders[0]["entropy"]  # "look at the blue ball and take it"
    took = [
        data
        for _, region, data in lines
        if region == "motor" and data["order"] == orders[0]["id"] and not data["moving"]
    ]
    assert took[-1]["hand"] == pytest.approx(orders[0]["target"])
    assert any("out of reach" in data["refused"] for _, region, data in lines if region == "motor-2")
    assert [data["gaze"] for _, region, data in lines if region == "vision"][-1] == "blue"
    replies = [reply for _, region, data in lines if region == "lang" for reply in data["replies"]]
    assert replies[0] == "I know of a blue ball, a green box, a red ball, a yellow box"
    assert "too hot" in replies[-1]


def test_events_come_after_the_delays_of_their_pathways(diary: Any):
    _, lines = diary
    first = {
        region: now
        for now, region, data in reversed(lines)
        if region in ("lang", "pfc") and data.get("features", data.get("orders"))
    }
    # Sent at 200, received 10 later and answered in the next step; received by pfc 60 later.
    assert first == {"lang": 211.0, "pfc": 272.0}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_is_the_same_every_time(diary: Any, workers: int, tmp_path: Path):
    fingerprint, lines = diary
    assert run(tmp_path / "diary", workers) == fingerprint
    assert read_diary(tmp_path / "diary") == lines


def spec_with(file: Path) -> BrainSpec:
    return with_diary(read_spec(ROBOT / "robot.toml"), file)


def test_a_brain_continues_identically_from_a_checkpoint(tmp_path: Path):
    def first(brain: Brain) -> None:
        brain.run(200.0)
        brain.forward({"sensor/voice": {"text": "look at green"}}, 400)
        brain.forward({"sensor/voice": {"text": "take the red ball"}}, 250)  # while the arm is moving

    def second(brain: Brain) -> str:
        brain.forward({"sensor/voice": {"text": "what do you know"}}, 800)
        return brain.fingerprint()

    with Brain(spec_with(tmp_path / "whole")) as brain:
        first(brain)
        brain.save(tmp_path / "state")
        at = len(read_diary(tmp_path / "whole"))
        whole = second(brain)
    with Brain(spec_with(tmp_path / "whole")) as brain:  # its diary is part of its description
        (tmp_path / "whole").rename(tmp_path / "kept")
        brain.restore(tmp_path / "state")
        assert second(brain) == whole
    assert read_diary(tmp_path / "whole") == read_diary(tmp_path / "kept")[at:]


# --- regions with real nodes ---


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def mesh() -> str:
    return f"robot-{uuid.uuid4().hex[:8]}"


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.005)


def test_language_replaces_vision_when_vision_is_lost(stack: ExitStack, mesh: str):
    config = read_spec(ROBOT / "robot.toml").regions["pfc"].config
    pfc, alone = Prefrontal(config, "cpu"), Prefrontal(config, "cpu")
    node = stack.enter_context(Node("pfc", mesh=mesh))
    others = {
        name: stack.enter_context(Node(name, "region", mesh, roles=[name])) for name in ("lang", "vision", "motor")
    }
    assert node.wait_for(list(others), LONG_S) == []
    pfc.node = node
    seen = Event(source="vision", data={"objects": [{"colour": "red", "shape": "ball", "x": 0.1, "y": 0.4}]})

    numbers = itertools.count(1)

    def instruct(region: Prefrontal, now: float, text: str) -> dict[str, Any]:
        features = [{**parse(text), "number": next(numbers)}]
        events = [Event(source="lang", data={"features": features, "replies": []})]
        [event] = region.process_events(now, events)
        return event.data["orders"][-1]

    for region in (pfc, alone):
        assert region.process_events(101.0, [seen]) == []
        assert instruct(region, 150.0, "take the red ball")["to"] == "motor"
        assert instruct(region, 150.0, "look at red")["to"] == "vision"
    others["vision"].close()
    until(lambda: node.peer("vision") is None, "vision is gone")
    order = instruct(pfc, 200.0, "look at red")
    assert (order["to"], order["fallback"], order["say"]) == ("lang", True, "vision is not here")
    assert instruct(pfc, 300.0, "take the red ball")["to"] == "motor"  # it knows where that is
    assert instruct(pfc, 5000.0, "take the red ball")["to"] == "lang"  # and has forgotten it
    assert instruct(alone, 5000.0, "take the red ball")["to"] == "vision"
    others["motor"].close()
    until(lambda: node.peer("motor") is None, "motor is gone")
    assert instruct(pfc, 5000.0, "stop")["fallback"]


def test_missing_data_are_recorded_as_silence():
    config = read_spec(ROBOT / "robot.toml").regions
    assert Prefrontal(config["pfc"].config, "cpu").process_events(1.0, [Event(source="vision")]) == []
    assert Motor(config["motor"].config, "cpu").process_events(1.0, [Event(source="pfc")]) == []


def test_the_arm_moves_when_two_of_three_controllers_agree(stack: ExitStack, mesh: str):
    specs = read_spec(ROBOT / "robot.toml").regions
    names = ("motor", "motor-2", "motor-3")
    motors = {name: Motor(specs[name].config, "cpu") for name in names}
    pfc = stack.enter_context(Node("pfc", "region", mesh))
    nodes = {name: stack.enter_context(Node(name, "region", mesh, roles=["motor"])) for name in names}
    for name in names:
        assert nodes[name].wait_for([other for other in names if other != name], LONG_S) == []
        motors[name].node = nodes[name]

    def goals(number: int) -> list[Any]:
        target = [0.1, (0.3, 0.4, 0.5)[number - 1]]
        order = {"id": number, "to": "motor", "do": "take", "target": target, "text": "take it", "say": ""}
        pfc.publish("orders", {"orders": [order], "halt": ""}, "state")
        for name in reversed(names):  # the first by name proposes, in any order of calls
            if not nodes[name].closed:
                motor = motors[name]
                until(lambda motor=motor: motor._control and motor._control["orders"][0]["id"] == number, "the order")
                motor.process_events(1.0, [])
        return [motors[name].goal for name in names]

    wanted = joints_for(0.1, 0.3)
    assert goals(1)[0] == wanted
    assert motors["motor"].votes["needed"] == 2
    assert motors["motor-2"].votes == {}

    def followed(motor: Motor, order: int) -> bool:
        motor.process_events(1.0, [])
        return motor.order == order

    for name in names[1:]:
        until(lambda name=name: followed(motors[name], 1), f"{name} follows what was agreed")
        assert motors[name].goal == wanted

    nodes["motor"].close()
    motors["motor"].node = None
    until(lambda: nodes["motor-2"].peer("motor") is None, "motor is gone")
    assert goals(2)[1] == joints_for(0.1, 0.4)  # the next one proposes
    assert sorted(motors["motor-2"].votes["for"]) == ["motor-2", "motor-3"]

    nodes["motor-3"].close()
    until(lambda: nodes["motor-2"].peer("motor-3") is None, "motor-3 is gone")
    assert goals(3)[1] == joints_for(0.1, 0.4)
    assert motors["motor-2"].refused == "0 for it, 2 needed"


def say(controls: dict[str, Any]) -> list[Event]:
    return [Event(source="pfc", data=controls)]


def test_the_arm_stops_without_commands():
    motor = Motor(read_spec(ROBOT / "robot.toml").regions["motor"].config, "cpu")
    order = {"id": 1, "to": "motor", "do": "take", "target": [-0.6, 0.1], "text": "take it", "say": ""}
    control = {"orders": [order], "halt": ""}
    [first] = motor.process_events(50.0, say(control))
    assert first.data["moving"]
    heard = [motor.process_events(float(now), [])[0].data for now in range(100, 550, 50)]
    assert all(one["moving"] for one in heard)  # up to 500 ms after the last word
    joints = heard[-1]["joints"]
    silent = [motor.process_events(float(now), [])[0].data for now in range(600, 2000, 50)]
    assert {tuple(one["joints"]) for one in silent} == {tuple(joints)}
    assert not any(one["moving"] for one in silent)
    assert silent[0]["stopped"] == "nothing heard for 500 ms"
    [again] = motor.process_events(2000.0, say(control))  # the order is repeated: it goes on
    assert again.data["moving"]
    assert again.data["joints"] != joints


def test_heat_stops_the_arm_whichever_messages_are_lost():
    """Only one message of pfc in five arrives, and never the first that reports heat."""
    specs = read_spec(ROBOT / "robot.toml").regions
    pfc, motor = Prefrontal(specs["pfc"].config, "cpu"), Motor(specs["motor"].config, "cpu")
    order = {"id": 1, "to": "motor", "do": "take", "target": [-0.2, 0.4], "text": "take it", "say": ""}
    motor.process_events(50.0, say({"orders": [order], "halt": ""}))
    reported = []
    for number, now in enumerate(range(100, 1000, 50)):
        [event] = pfc.process_events(float(now), [Event(source="sensor/thermal", data={"celsius": 90.0})])
        reported += motor.process_events(float(now), say(event.data) if number % 5 == 4 else [])
    assert [one.data["stopped"] for one in reported[:4]] == [""] * 4
    assert all("too hot" in one.data["stopped"] and not one.data["moving"] for one in reported[4:])
    # A sensor that falls silent while it is hot has not become cool; one that measures so has.
    [event] = pfc.process_events(60_000.0, [])
    assert "too hot" in event.data["halt"]
    [event] = pfc.process_events(60_050.0, [Event(source="sensor/thermal", data={"celsius": 20.0})])
    assert event.data["halt"] == ""
    # The arm stays until it gets a new order.
    [status] = motor.process_events(60_050.0, say(event.data))
    assert (status.data["moving"], status.data["stopped"]) == (False, "")


def test_a_repeated_command_is_executed_once():
    specs = read_spec(ROBOT / "robot.toml").regions
    lang, vision = Language(specs["lang"].config, "cpu"), Vision(specs["vision"].config, "cpu")
    voice = [Event(source="sensor/voice", data={"text": "look at blue", "id": "1"})]
    [first] = lang.process_events(10.0, voice)
    assert lang.process_events(11.0, voice) == []
    [again] = lang.process_events(50.0, voice)
    assert first.data == again.data
    assert again.data["heard"] == "1"
    assert len(again.data["features"]) == 1
    order = {"id": 3, "to": "vision", "do": "look", "colour": "blue", "say": ""}
    vision.process_events(50.0, say({"orders": [order], "halt": ""}))
    assert vision.gaze == "blue"
    vision.gaze = "red"
    vision.process_events(100.0, say({"orders": [order], "halt": ""}))
    assert vision.gaze == "red"


def test_a_controller_is_against_joints_that_lead_elsewhere():
    motor = Motor(read_spec(ROBOT / "robot.toml").regions["motor"].config, "cpu")

    def judged(joints: Any, target: Any) -> bool:
        return motor.judge(Proposal("p", "motor", {"order": 1, "joints": list(joints), "target": list(target)}))

    assert judged(joints_for(0.1, 0.5), (0.1, 0.5))
    assert not judged(joints_for(0.1, 0.5), (0.15, 0.5))
    assert not judged((-0.5, 0.0), hand_of((-0.5, 0.0)))  # beyond what the shoulder can do
    assert judged(REST, hand_of(REST))


# --- the tour ---


@pytest.mark.timeout(240)
def test_the_tour(tmp_path: Path):
    picture = tmp_path / "tour.svg"
    done = subprocess.run(
        [sys.executable, str(ROBOT / "tour.py"), "--json", "--keep", str(tmp_path), "--picture", str(picture)],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    logs = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    reported = json.loads(done.stdout)
    assert reported["happened"]
    words = " ".join(entry["what"] for entry in reported["story"])
    for part in (
        "6 nodes are here",
        "vision was killed",
        "the other 5 go on",
        'says "vision is not here"',
        "lang answers, once",
        "still looks at blue",
        "sensor/thermal, which no file names, is heard",
        "pfc stops the arm",
        "the arm stopped by itself",
        "motor-2 was killed",
        "the arm stays",
        "were asked to leave, and left",
    ):
        assert part in words, words
    drawn = picture.read_text()
    for part in ("sensor/thermal", "motor-2", "killed", "stopped", "steps came late", "hand (m)"):
        assert part in drawn
