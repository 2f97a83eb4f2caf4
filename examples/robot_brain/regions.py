"""The regions of the robot's brain: seeing, understanding, deciding and moving.

Each gets what others sent and answers with data of its own, in one process as on the mesh. There it also has a node,
through which it can be asked (prompts), see who is here (where to send an order) and agree with others (before the arm
moves). Without one it takes everybody for present, and decides alone.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from arm import REST, Joints, hand_of, joints_for, towards, within_limits
from scene import find_objects, render
from words import parse

from neuraxis.brain import Event
from neuraxis.brain.choice import uniform
from neuraxis.brain.routing import route
from neuraxis.mesh import Message, Node
from neuraxis.mesh.agreement import Decision, Proposal, propose, vote
from neuraxis.mesh.prompts import Prompt, Prompts


class OnMesh:
    """A region that knows its node while the brain runs on the mesh."""

    _node: Node | None = None

    @property
    def node(self) -> Node | None:
        return self._node

    @node.setter
    def node(self, node: Node | None) -> None:
        self._node = node
        if node is not None:
            self.joined(node)

    def joined(self, node: Node) -> None:
        """Say what this region can be asked."""


# --- vision -------------------------------------------------------------------------------------------------


class Vision(OnMesh):
    """Takes a picture every `frame_ms`, finds the things in it, and says which of them it looks at.

    Sends {frame, objects: [{colour, shape, x, y}], gaze}.
    """

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.seed, self.frame_ms = config["seed"], config["frame_ms"]
        self.frames = 0
        self.gaze = ""
        self.objects: list[dict[str, Any]] = []

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        for order in orders_to("vision", events):
            self.gaze = order["colour"]
        if now % self.frame_ms:
            return []  # called because something arrived, not because it is time for a picture
        self.frames += 1
        self.objects = find_objects(render(now, self.seed))
        return [Event(data={"frame": self.frames, "objects": self.objects, "gaze": self.gaze})]

    def joined(self, node: Node) -> None:
        Prompts(node, self.answer)

    def answer(self, prompt: Prompt) -> str:
        return f"I see {in_words(self.objects)}"

    def get_state(self) -> dict[str, Any]:
        return kept([self.frames, self.gaze, self.objects])

    def set_state(self, state: dict[str, Any]) -> None:
        self.frames, self.gaze, self.objects = read_back(state)


# --- language -----------------------------------------------------------------------------------------------


class Language(OnMesh):
    """Understands what is said, and speaks. It answers whatever nobody else does.

    Sends {features: [...], replies: [...]}: what commands mean, and what it says itself.
    """

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.heard_of = "nothing yet"

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        features = [
            parse(one.data["text"] if isinstance(one.data, dict) else str(one.data))
            for one in events
            if one.source == "sensor/voice" and one.data is not None
        ]
        replies = []
        for order in orders_to("lang", events):
            self.heard_of = order["seen"]
            replies.append(order["say"])
        return [Event(data={"features": features, "replies": replies})] if features or replies else []

    def joined(self, node: Node) -> None:
        Prompts(node, self.answer)

    def answer(self, prompt: Prompt) -> str:
        meant = parse(prompt.text)
        wish = max(meant["intents"], key=lambda intent: meant["intents"][intent])
        return f"I only have words: you {wish}; of things I last heard of {self.heard_of}"

    def get_state(self) -> dict[str, Any]:
        return kept(self.heard_of)

    def set_state(self, state: dict[str, Any]) -> None:
        self.heard_of = read_back(state)


# --- prefrontal ---------------------------------------------------------------------------------------------


class Prefrontal(OnMesh):
    """Decides who gets what: it weighs what was said against what was seen and felt, and routes by entropy.

    Sends {orders: [{id, to, do, ...}]}.
    """

    TARGETS = ("lang", "motor", "vision")
    STRENGTH = 8.0  # how many units of score a certain wish is worth
    WEAKEST = 1.0  # whom less than this speaks for, does not get it even if nobody else is there

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.seed, self.fallback = config["seed"], config["default_node"]
        self.forgets_after_ms, self.too_hot = config["forgets_after_ms"], config["too_hot_celsius"]
        self.orders = 0
        self.seen: dict[str, tuple[str, float, float, float]] = {}  # colour → shape, x, y, when
        self.felt: dict[str, tuple[float, float]] = {}  # sensor → celsius, when

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        orders = []
        for event in events:
            data = event.data
            if not isinstance(data, dict):
                continue  # its data did not come in time
            if event.source == "vision":
                for one in data["objects"]:
                    self.seen[one["colour"]] = (one["shape"], one["x"], one["y"], now)
            elif event.source == "lang":
                orders += [self.decide(now, features) for features in data["features"]]
            elif "celsius" in data:
                orders += self.feel(now, event.source, float(data["celsius"]))
        return [Event(data={"orders": orders})] if orders else []

    def decide(self, now: float, meant: dict[str, Any]) -> dict[str, Any]:
        """Whom a command goes to."""
        thing = self._thing(meant)
        age_ms = now - thing[3] if thing else self.forgets_after_ms
        sure = max(0.0, 1.0 - age_ms / self.forgets_after_ms)  # of where the thing is
        hot = self._hot(now)
        take, look, stop, ask = (self.STRENGTH * meant["intents"][one] for one in ("take", "look", "stop", "ask"))
        scores = {
            "motor": (0.0 if hot else take * sure) + stop,
            "vision": look + take * (1 - sure),  # what it does not see, it looks for
            "lang": ask + (take if hot else 0.0),
        }
        able = [name for name in self._live() if scores[name] >= self.WEAKEST]
        chosen = route(scores, able, uniform(self.seed, self.orders), self.fallback)
        wanted = max(scores, key=lambda name: scores[name])
        do = {"motor": "stop" if stop > take else "take", "vision": "look"}.get(str(chosen.target), "say")
        return self._order(
            chosen.target,
            do,
            text=meant["text"],
            colour=meant["colour"],
            say=f"{wanted} is not here" if chosen.is_fallback else hot or f"I know of {self._things()}",
            target=list(thing[1:3]) if thing else None,
            age_ms=age_ms,
            fallback=chosen.is_fallback,
            scores=scores,
            entropy=chosen.entropy,
            alpha=chosen.alpha,
            temperature=chosen.temperature,
        )

    def feel(self, now: float, sensor: str, celsius: float) -> list[dict[str, Any]]:
        """What follows from a measurement: a sensor that is new is spoken of, and heat stops the arm."""
        orders = []
        cool = not self._hot(now)
        if now - self.felt.get(sensor, (0.0, -1e9))[1] > self.forgets_after_ms:
            orders.append(self._order("lang", "say", say=f"there is {sensor}: {celsius:.0f} °C", sensor=sensor))
        self.felt[sensor] = (celsius, now)
        if cool and self._hot(now):
            orders.append(self._order("motor", "stop", say=self._hot(now), sensor=sensor))
        return orders

    def _order(self, to: str | None, do: str, **rest: Any) -> dict[str, Any]:
        self.orders += 1
        return {"id": self.orders, "to": to, "do": do, "seen": self._things(), **rest}

    def _things(self) -> str:
        return in_words([{"colour": colour, "shape": thing[0]} for colour, thing in sorted(self.seen.items())])

    def _thing(self, meant: dict[str, Any]) -> tuple[str, float, float, float] | None:
        """The thing that is meant, by its colour or else its shape; of several the one seen last."""
        found = [
            thing
            for colour, thing in self.seen.items()
            if meant["colour"] in ("", colour) and meant["shape"] in ("", thing[0])
        ]
        return max(found, key=lambda thing: thing[3], default=None) if meant["colour"] or meant["shape"] else None

    def _hot(self, now: float) -> str:
        hot = {
            sensor: celsius
            for sensor, (celsius, when) in self.felt.items()
            if celsius >= self.too_hot and now - when < self.forgets_after_ms
        }
        return "".join(f"{sensor}: it is too hot ({celsius:.0f} °C)" for sensor, celsius in list(hot.items())[:1])

    def _live(self) -> list[str]:
        if self.node is None:
            return list(self.TARGETS)
        return [name for name in self.TARGETS if self.node.with_role(name)]

    def get_state(self) -> dict[str, Any]:
        return kept([self.orders, self.seen, self.felt])

    def set_state(self, state: dict[str, Any]) -> None:
        self.orders, seen, felt = read_back(state)
        self.seen = {colour: tuple(thing) for colour, thing in seen.items()}
        self.felt = {sensor: tuple(measured) for sensor, measured in felt.items()}


# --- motor --------------------------------------------------------------------------------------------------


class Motor(OnMesh):
    """One of several controllers of an arm. Before it moves, enough of them must find the movement right.

    On the mesh the first of those that are here proposes the joints for an order, and the others check them by their
    own reckoning; what was agreed is published (`<name>/agreed`), and all follow it. Alone, a controller follows
    itself.
    Sends {joints, hand, moving, order, votes, refused}.
    """

    SPEED = 2.0  # radians a second
    TOLERANCE = 0.02  # metres
    TIMEOUT_S = 0.5

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.name, self.controllers, self.share = config["name"], config["controllers"], config["share"]
        self.tick_ms = config["tick_ms"]
        self.joints: Joints = REST
        self.goal: Joints = REST
        self.order = 0
        self.votes: dict[str, Any] = {}
        self.refused = ""
        self._agreed: dict[str, Any] | None = None

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        for order in orders_to("motor", events):
            self.obey(order)
        agreed = self._agreed
        if agreed is not None and agreed["order"] > self.order:
            self.order, self.refused = agreed["order"], ""
            self.goal = (agreed["joints"][0], agreed["joints"][1])
        if now % self.tick_ms:
            return []
        self.joints = towards(self.joints, self.goal, self.SPEED * self.tick_ms / 1000)
        return [
            Event(
                data={
                    "joints": list(self.joints),
                    "hand": list(hand_of(self.joints)),
                    "moving": self.joints != self.goal,
                    "order": self.order,
                    "votes": self.votes,
                    "refused": self.refused,
                }
            )
        ]

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "stop":
            self.order, self.goal, self.refused = (
                order["id"],
                self.joints,
                f"stopped: {order.get('text', order['say'])}",
            )
            return
        joints = joints_for(*order["target"])
        if joints is None:
            self.order, self.refused = order["id"], f"{order['text']}: out of reach"
        elif self.node is None:
            self.order, self.goal, self.refused = order["id"], joints, ""
        elif self._first(self.node):
            self._propose(self.node, order, joints)

    def _propose(self, node: Node, order: dict[str, Any], joints: Joints) -> None:
        movement = {"order": order["id"], "target": order["target"], "joints": list(joints)}
        decision = propose(node, "move", movement, "motor", self.share, self.TIMEOUT_S, of=self.controllers)
        self.order, self.votes = order["id"], in_numbers(decision)
        if decision:
            self.goal, self.refused = joints, ""
            node.publish("agreed", movement, "state")
        else:
            self.refused = f"{len(decision.votes_for)} for it, {decision.needed} needed"

    def _first(self, node: Node) -> bool:
        """Whether this is the controller that proposes: the first by name of those that are here."""
        return self.name == min([self.name, *(peer.name for peer in node.with_role("motor"))])

    def judge(self, proposal: Proposal) -> bool:
        """Whether the joints of a movement are within limits, and bring the hand where it is to go."""
        shoulder, elbow = proposal.value["joints"]
        (x, y), (to_x, to_y) = hand_of((shoulder, elbow)), proposal.value["target"]
        return within_limits((shoulder, elbow)) and abs(x - to_x) + abs(y - to_y) < self.TOLERANCE

    def joined(self, node: Node) -> None:
        vote(node, "move", self.judge)
        node.subscribe("*/agreed", self._hear)

    def _hear(self, message: Message) -> None:
        known = self._agreed
        if known is None or message.value["order"] > known["order"]:
            self._agreed = message.value

    def get_state(self) -> dict[str, Any]:
        return kept([self.joints, self.goal, self.order, self.votes, self.refused])

    def set_state(self, state: dict[str, Any]) -> None:
        joints, goal, self.order, self.votes, self.refused = read_back(state)
        self.joints, self.goal = tuple(joints), tuple(goal)


# --- what they share ----------------------------------------------------------------------------------------


def orders_to(name: str, events: list[Event]) -> list[dict[str, Any]]:
    """The orders of the prefrontal region for somebody."""
    return [
        order
        for event in events
        if event.source == "pfc" and isinstance(event.data, dict)
        for order in event.data["orders"]
        if order["to"] == name
    ]


def kept(state: Any) -> dict[str, Any]:
    """What a region remembers, as the array of numbers that a checkpoint takes: the text of it in JSON."""
    return {"json": np.frombuffer(json.dumps(state).encode(), np.uint8)}


def read_back(state: dict[str, Any]) -> Any:
    return json.loads(np.asarray(state["json"]).tobytes())


def in_words(things: list[dict[str, Any]]) -> str:
    return ", ".join(f"a {one['colour']} {one['shape']}" for one in things) or "nothing"


def in_numbers(decision: Decision) -> dict[str, Any]:
    return {
        "for": list(decision.votes_for),
        "against": list(decision.votes_against),
        "missing": list(decision.missing),
        "needed": decision.needed,
    }


def create_vision(config: dict[str, Any], device: str) -> Vision:
    return Vision(config, device)


def create_lang(config: dict[str, Any], device: str) -> Language:
    return Language(config, device)


def create_pfc(config: dict[str, Any], device: str) -> Prefrontal:
    return Prefrontal(config, device)


def create_motor(config: dict[str, Any], device: str) -> Motor:
    return Motor(config, device)
