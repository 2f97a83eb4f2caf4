"""The regions of the robot's brain: seeing, understanding, deciding and moving.

Each gets what others sent and answers with data of its own, in one process as on the mesh. There it also has a node,
through which it can be asked (prompts), see which nodes are present (where to send an order) and agree with others
(before the arm moves). Without one it takes all regions for present, and decides alone.

Between processes a message may get lost or come late. So what must arrive is repeated: a region sends the last commands
that it has given with every tick, each with a number, and the receiver obeys a number once. On the mesh orders are also
a topic of kind "state", of which a node that comes late or missed something gets the last. What stops the arm does not
depend on any single message: heat is reported for as long as it lasts, and a controller that hears nothing stops by
itself.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from agreement import Decision, Proposal, propose, vote
from arm import REST, Joints, hand_of, joints_for, towards, within_limits
from prompts import Prompt, Prompts
from routing import route
from scene import find_objects, render
from words import parse

from neuraxis.brain import Event
from neuraxis.brain.session import uniform
from neuraxis.mesh import Message, Node


class OnMesh:
    """A region that has a node while the brain runs on the mesh, and receives the orders of pfc there."""

    _node: Node | None = None
    _control: dict[str, Any] | None = None  # what pfc ordered last, and when by time.monotonic
    _control_at = -1e9

    @property
    def node(self) -> Node | None:
        return self._node

    @node.setter
    def node(self, node: Node | None) -> None:
        self._node = node
        if node is not None:
            self.joined(node)

    def joined(self, node: Node) -> None:
        """Serve the requests of this region and subscribe to its orders."""
        node.subscribe("pfc/orders", self._hear_control)

    def _hear_control(self, message: Message) -> None:
        self._control, self._control_at = message.value, time.monotonic() - message.age

    def control(self, events: list[Event]) -> list[dict[str, Any]]:
        """Return the orders of pfc: on the mesh the last received ones, in one process those of this step."""
        if self._node is not None:
            return [] if self._control is None else [self._control]
        return [event.data for event in events if event.source == "pfc" and isinstance(event.data, dict)]


# --- vision -------------------------------------------------------------------------------------------------


class Vision(OnMesh):
    """Takes a picture every `frame_ms`, finds the things in it, and says which of them it looks at.

    Sends {frame, objects: [{colour, shape, x, y}], gaze}.
    """

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.seed, self.frame_ms = config["seed"], config["frame_ms"]
        self.frames = 0
        self.gaze = ""
        self.order = 0
        self.objects: list[dict[str, Any]] = []

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        for order in orders_to("vision", self.control(events), self.order):
            self.order, self.gaze = order["id"], order["colour"]
        if now % self.frame_ms:
            return []  # called because something arrived, not because it is time for a picture
        self.frames += 1
        self.objects = find_objects(render(now, self.seed))
        return [Event(data={"frame": self.frames, "objects": self.objects, "gaze": self.gaze})]

    def joined(self, node: Node) -> None:
        super().joined(node)
        Prompts(node, self.answer)

    def answer(self, prompt: Prompt) -> str:
        return f"I see {in_words(self.objects)}"

    def get_state(self) -> dict[str, Any]:
        return kept([self.frames, self.gaze, self.order, self.objects])

    def set_state(self, state: dict[str, Any]) -> None:
        self.frames, self.gaze, self.order, self.objects = read_back(state)


# --- language -----------------------------------------------------------------------------------------------


class Language(OnMesh):
    """Understand commands, and speak. It answers requests that no other region does.

    Sends {features: [...], replies: [...], heard}: what the last commands mean, each with a number; its last reply;
    and the id of the last command, by which a microphone knows that it need not repeat it.
    """

    REPEATED = 3  # commands that are sent with every tick

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.tick_ms = config["tick_ms"]
        self.heard_of = "nothing yet"
        self.heard = ""
        self.order = 0
        self.number = 0
        self.features: list[dict[str, Any]] = []
        self.replies: list[str] = []

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        news = self.listen(now, events)
        for order in orders_to("lang", self.control(events), self.order):
            self.order, self.heard_of, self.replies = order["id"], order["seen"], [order["say"]]
            news = True
        if not news and now % self.tick_ms:
            return []
        return [Event(data={"features": self.features, "replies": self.replies, "heard": self.heard})]

    def listen(self, now: float, events: list[Event]) -> bool:
        """Accept commands; a command with an id counts once, however often it is repeated."""
        news = False
        for event in events:
            if event.source != "sensor/voice" or event.data is None:
                continue
            command = event.data if isinstance(event.data, dict) else {"text": str(event.data)}
            if command.get("id", "") and command["id"] == self.heard:
                continue
            # Numbers are taken from the clock, so that they keep increasing after a restart of this region.
            self.heard, self.number = command.get("id", ""), max(self.number + 1, int(now))
            self.features = [*self.features, {**parse(command["text"]), "number": self.number}][-self.REPEATED :]
            news = True
        return news

    def joined(self, node: Node) -> None:
        super().joined(node)
        Prompts(node, self.answer)

    def answer(self, prompt: Prompt) -> str:
        meant = parse(prompt.text)
        wish = max(meant["intents"], key=lambda intent: meant["intents"][intent])
        return f"I only have words: you {wish}; of things I last heard of {self.heard_of}"

    def get_state(self) -> dict[str, Any]:
        return kept([self.heard_of, self.heard, self.order, self.number, self.features, self.replies])

    def set_state(self, state: dict[str, Any]) -> None:
        self.heard_of, self.heard, self.order, self.number, self.features, self.replies = read_back(state)


# --- prefrontal ---------------------------------------------------------------------------------------------


class Prefrontal(OnMesh):
    """Route commands by entropy: weigh commands against the measurements of camera and sensors.

    Sends {orders: [{id, to, do, ...}], halt} with every tick, and at once when there is something new: the last order
    to each region, and why the arm must not move, if it must not.
    """

    TARGETS = ("lang", "motor", "vision")
    STRENGTH = 8.0  # how many units of score a certain wish is worth
    WEAKEST = 1.0  # a target with a lower score gets no command, even without competition

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.seed, self.fallback = config["seed"], config["default_node"]
        self.forgets_after_ms, self.too_hot = config["forgets_after_ms"], config["too_hot_celsius"]
        self.tick_ms = config["tick_ms"]
        self.orders = 0
        self.last_id = 0
        self.understood = 0  # the number of the last command
        self.latest: dict[str, dict[str, Any]] = {}  # the last order to each region
        self.seen: dict[str, tuple[str, float, float, float]] = {}  # colour → shape, x, y, when
        self.felt: dict[str, tuple[float, float]] = {}  # sensor → celsius, when

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        orders: list[dict[str, Any]] = []
        for event in events:
            data = event.data
            if not isinstance(data, dict):
                continue  # its data did not come in time
            if event.source == "vision":
                for one in data["objects"]:
                    self.seen[one["colour"]] = (one["shape"], one["x"], one["y"], now)
            elif event.source == "lang":
                for features in data["features"]:
                    if features["number"] > self.understood:
                        self.understood = features["number"]
                        orders.append(self.decide(now, features))
            elif "celsius" in data:
                orders += self.feel(now, event.source, float(data["celsius"]))
        if not orders and now % self.tick_ms:
            return []
        self.latest |= {order["to"]: order for order in orders if order["to"] is not None}
        # Of several at once to one region all are sent, and the last one is repeated.
        repeated = [order for order in self.latest.values() if order not in orders]
        control = {"orders": repeated + orders, "halt": self._hot()}
        if self.node is not None:
            self.node.publish("orders", control, "state")
        return [Event(data=control)]

    def joined(self, node: Node) -> None:
        """Subscribe to nothing: this region gives orders."""

    def decide(self, now: float, meant: dict[str, Any]) -> dict[str, Any]:
        """Choose the region that executes a command."""
        thing = self._thing(meant)
        age_ms = now - thing[3] if thing else self.forgets_after_ms
        sure = max(0.0, 1.0 - age_ms / self.forgets_after_ms)  # of where the thing is
        hot = self._hot()
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
            now,
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
        """Return the orders that follow from a measurement: a new sensor is announced, and heat stops the arm.

        The order ends the present movement; it is repeated as long as the arm is hot.
        """
        orders = []
        cool = not self._hot()
        if now - self.felt.get(sensor, (0.0, -1e9))[1] > self.forgets_after_ms:
            orders.append(self._order(now, "lang", "say", say=f"there is {sensor}: {celsius:.0f} °C", sensor=sensor))
        self.felt[sensor] = (celsius, now)
        if cool and self._hot():
            orders.append(self._order(now, "motor", "stop", say=self._hot(), sensor=sensor))
        return orders

    def _order(self, now: float, to: str | None, do: str, **rest: Any) -> dict[str, Any]:
        # Ids are taken from the clock, so that they keep increasing after a restart of this region.
        self.orders, self.last_id = self.orders + 1, max(self.last_id + 1, int(now))
        return {"id": self.last_id, "to": to, "do": do, "seen": self._things(), **rest}

    def _things(self) -> str:
        return in_words([{"colour": colour, "shape": thing[0]} for colour, thing in sorted(self.seen.items())])

    def _thing(self, meant: dict[str, Any]) -> tuple[str, float, float, float] | None:
        """Return the object that a command names by colour or shape; of several, the one seen last."""
        found = [
            thing
            for colour, thing in self.seen.items()
            if meant["colour"] in ("", colour) and meant["shape"] in ("", thing[0])
        ]
        return max(found, key=lambda thing: thing[3], default=None) if meant["colour"] or meant["shape"] else None

    def _hot(self) -> str:
        """Return why it is too hot to move, or "". A hot sensor that stopped sending still counts as hot."""
        hot = {sensor: celsius for sensor, (celsius, _) in self.felt.items() if celsius >= self.too_hot}
        return "".join(f"{sensor}: it is too hot ({celsius:.0f} °C)" for sensor, celsius in list(hot.items())[:1])

    def _live(self) -> list[str]:
        if self.node is None:
            return list(self.TARGETS)
        return [name for name in self.TARGETS if self.node.with_role(name)]

    def get_state(self) -> dict[str, Any]:
        return kept([self.orders, self.last_id, self.understood, self.latest, self.seen, self.felt])

    def set_state(self, state: dict[str, Any]) -> None:
        self.orders, self.last_id, self.understood, self.latest, seen, felt = read_back(state)
        self.seen = {colour: tuple(thing) for colour, thing in seen.items()}
        self.felt = {sensor: tuple(measured) for sensor, measured in felt.items()}


# --- motor --------------------------------------------------------------------------------------------------


class Motor(OnMesh):
    """One of several controllers of an arm. Before it moves, enough of them must find the movement right.

    On the mesh the first of those that are here proposes the joints for an order, and the others check them by their
    own reckoning; what was agreed is published (`<name>/agreed`), and all follow it. Alone, a controller follows
    itself.

    It moves only while it is allowed to (a dead-man rule): what it last heard from the prefrontal region must have been
    sent less than `deadman_ms` ago, and must not give a reason to halt. An arm that stopped because nothing came goes
    on when the prefrontal region repeats its order; one that was halted needs a new order.
    Sends {joints, hand, moving, order, votes, refused, stopped}.
    """

    SPEED = 2.0  # radians a second
    TOLERANCE = 0.02  # metres
    TIMEOUT_S = 0.5

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.name, self.controllers, self.share = config["name"], config["controllers"], config["share"]
        self.tick_ms, self.deadman_ms = config["tick_ms"], config["deadman_ms"]
        self.heard_at = -1e9  # when anything came from the prefrontal region
        self.halt = ""
        self.considered = 0
        self.joints: Joints = REST
        self.goal: Joints = REST
        self.order = 0
        self.votes: dict[str, Any] = {}
        self.refused = ""
        self._agreed: dict[str, Any] | None = None

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        controls = self.control(events)
        if controls:
            self.heard_at, self.halt = now, controls[-1].get("halt", "")
        if self.node is not None:
            self.heard_at = now - 1000 * (time.monotonic() - self._control_at)
        for order in orders_to("motor", controls, max(self.order, self.considered)):
            self.considered = order["id"]  # once: an order that was refused is not taken up much later
            self.obey(order)
        agreed = self._agreed
        if agreed is not None and agreed["order"] > self.order:
            self.order, self.refused = agreed["order"], ""
            self.goal = (agreed["joints"][0], agreed["joints"][1])
        if self.halt and self.goal != self.joints:
            self.goal, self.refused = self.joints, f"stopped: {self.halt}"
        if now % self.tick_ms:
            return []
        silent = now - self.heard_at > self.deadman_ms
        if not silent:
            self.joints = towards(self.joints, self.goal, self.SPEED * self.tick_ms / 1000)
        return [
            Event(
                data={
                    "joints": list(self.joints),
                    "hand": list(hand_of(self.joints)),
                    "moving": self.joints != self.goal and not silent,
                    "order": self.order,
                    "votes": self.votes,
                    "refused": self.refused,
                    "stopped": self.halt or (f"nothing heard for {self.deadman_ms:.0f} ms" if silent else ""),
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
        """Return True if this controller proposes movements: it is the first by name of those present."""
        return self.name == min([self.name, *(peer.name for peer in node.with_role("motor"))])

    def judge(self, proposal: Proposal) -> bool:
        """Return True if the joints of a movement are within limits and bring the hand to its target."""
        shoulder, elbow = proposal.value["joints"]
        (x, y), (to_x, to_y) = hand_of((shoulder, elbow)), proposal.value["target"]
        return within_limits((shoulder, elbow)) and abs(x - to_x) + abs(y - to_y) < self.TOLERANCE

    def joined(self, node: Node) -> None:
        super().joined(node)
        vote(node, "move", self.judge)
        node.subscribe("*/agreed", self._hear)

    def _hear(self, message: Message) -> None:
        known = self._agreed
        if known is None or message.value["order"] > known["order"]:
            self._agreed = message.value

    def get_state(self) -> dict[str, Any]:
        return kept([self.joints, self.goal, self.order, self.votes, self.refused, self.halt, self.heard_at])

    def set_state(self, state: dict[str, Any]) -> None:
        joints, goal, self.order, self.votes, self.refused, self.halt, self.heard_at = read_back(state)
        self.joints, self.goal = tuple(joints), tuple(goal)


# --- what they share ----------------------------------------------------------------------------------------


def orders_to(name: str, controls: list[dict[str, Any]], after: int) -> list[dict[str, Any]]:
    """Return the orders of the prefrontal region for one receiver that are newer than the last executed one."""
    found = {
        order["id"]: order
        for control in controls
        for order in control["orders"]
        if order["to"] == name and order["id"] > after
    }
    return [found[number] for number in sorted(found)]


def kept(state: Any) -> dict[str, Any]:
    """Return the state of a region as an array for a checkpoint: the bytes of its JSON text."""
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
