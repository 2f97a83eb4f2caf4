"""A tour of the robot's brain on the mesh: every region is a process of its own, and things happen to them.

    python examples/robot_brain/tour.py [--json] [--picture robot-tour.svg]

The robot gets commands; vision is killed and comes back; a sensor is added; the decision maker is stopped while
the arm moves; controllers of the arm die. What happened is printed with its time, and drawn: which node was alive when,
what was lost, what the robot did. The exit status is 0 if all of it happened, else 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prompts import Answer, Prompt, Prompts
from timeline import Timeline

from neuraxis.brain import read_spec
from neuraxis.mesh import Message, Node

HERE = Path(__file__).resolve().parent
BRAIN = HERE / "robot.toml"
START_S, STEP_S, END_S = 90.0, 15.0, 20.0
AGAIN_S = 3.0  # a command without effect is repeated
REPEAT_S = 0.1  # a microphone repeats a command until it is understood
NEAR_M = 0.03


class DidNotHappen(Exception):
    """Something that the tour shows has not happened in time."""


class Processes:
    """The nodes of the brain, each in its own process, on a separate mesh."""

    def __init__(self, folder: Path) -> None:
        self.mesh = f"robot-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start_region(self, region: str, *options: str) -> None:
        self._start(
            region,
            *("-m", "neuraxis", "node", str(BRAIN), "--region", region, "--mesh-name", self.mesh),
            *(
                "--clock",
                "realtime",
                "--checkpoint",
                str(self.folder / "states"),
                "--checkpoint-every-ms",
                "500",
                *options,
            ),
        )

    def start_sensor(self, *options: str) -> None:
        self._start("sensor/thermal", str(HERE / "sensor_thermal.py"), "--mesh", self.mesh, *options)

    def _start(self, name: str, *arguments: str) -> None:
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        self.running[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running.pop(name).wait()

    def end(self, name: str) -> int:
        """End a process and return its exit status."""
        self.running[name].terminate()
        return self._left(name)

    def end_all(self) -> dict[str, int]:
        for process in self.running.values():
            process.terminate()
        return {name: self._left(name) for name in list(self.running)}

    def _left(self, name: str) -> int:
        process = self.running.pop(name)
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def states(self, region: str) -> set[str]:
        """Return the saved states of a region."""
        return {path.name for path in (self.folder / "states" / region).glob("step-*")}

    def log(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.log"


class Tour:
    """Actions and observations of the tour, with times since its start.

    The tour itself is a node, too: the microphone ("sensor/voice") that the robot's language region listens to.
    """

    def __init__(self, node: Node, processes: Processes, quiet: bool = False) -> None:
        spec = read_spec(BRAIN)
        self.node, self.processes, self.quiet = node, processes, quiet
        self.regions = list(spec.regions)
        self.motor_key = f"motor/{spec.regions['motor'].topic}"
        self.begun = time.monotonic()
        self.story: list[dict[str, Any]] = []
        self.seen: list[tuple[float, Message]] = []
        self._came = threading.Condition()
        self.prompts = Prompts(node)
        self.timeline = Timeline(self.begun)
        self.spoken = 0
        for region in self.regions:
            node.subscribe(f"{region}/{spec.regions[region].topic}", self._note, depth=1000)
            node.subscribe(f"{region}/health", self.timeline.health, depth=1000)
        node.subscribe("**/prompt/answered", self._note, type=Answer)
        node.subscribe("sensor/thermal/data", self.timeline.temperature)
        node.on_join(lambda peer: self.timeline.presence(peer.name, True))
        node.on_leave(lambda peer: self.timeline.presence(peer.name, False))

    # --- to note, to wait, to say ---

    def _note(self, message: Message) -> None:
        if message.key == self.motor_key:
            self.timeline.motor(message)
        with self._came:
            self.seen.append((self.now(), message))
            self._came.notify_all()

    def now(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, what: str, at: float | None = None, **facts: Any) -> None:
        entry = {"at_s": round(self.now() if at is None else at, 3), "what": what, **facts}
        self.story.append(entry)
        if not self.quiet:
            print(_line(entry), flush=True)

    def wait(
        self, key: str, wanted: Callable[[Any], Any], what: str, since: float, timeout: float = STEP_S
    ) -> tuple[float, Any]:
        """Wait for the first message on a key that satisfies a condition; return it and its time."""
        deadline = time.monotonic() + timeout
        looked = 0
        with self._came:
            while True:
                for at, message in self.seen[looked:]:
                    if at >= since and message.key == key and (found := wanted(message.value)):
                        return at, found
                looked = len(self.seen)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DidNotHappen(what)
                self._came.wait(left)

    def until(self, condition: Callable[[], Any], what: str, timeout: float = STEP_S) -> Any:
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise DidNotHappen(what)
            time.sleep(0.005)
        return found

    def command(self, text: str, key: str, wanted: Callable[[Any], Any]) -> tuple[float, dict[str, Any], float, Any]:
        """Send a command, wait for its effect; return the time of sending, the order, the time of the effect, data."""
        reason: DidNotHappen | None = None
        for _ in range(4):
            if reason is not None:
                self.tell(f'"{text}" is repeated; this did not happen: {reason}')
            sent, before = self.now(), self.last_order()
            self.timeline.command(text)
            self.say(text)
            try:
                at, order = self.wait(
                    "pfc/control",
                    lambda data, before=before: _order(data, text, before),
                    f"{text!r} is decided on",
                    sent,
                    AGAIN_S,
                )
                done = self.wait(key, lambda data, order=order: wanted(data, order), f"{text!r} is done", at, AGAIN_S)
                return sent, order, *done
            except DidNotHappen as error:
                reason = error
        raise DidNotHappen(f"sent four times: {reason}")

    def say(self, text: str) -> None:
        """Send a command, and repeat it until lang acknowledges it: a single message may get lost."""
        self.spoken += 1
        id = f"{self.node.incarnation}-{self.spoken}"
        begun = self.now()
        while True:
            self.node.publish("data", {"text": text, "id": id})
            try:
                self.wait("lang/features", lambda data: data["heard"] == id, "", begun, REPEAT_S)
                return
            except DidNotHappen:
                if self.now() - begun > AGAIN_S:
                    return

    def last_order(self) -> int:
        with self._came:
            controls = [message.value for _, message in self.seen if message.key == "pfc/control"]
        return max((order["id"] for data in controls[-20:] for order in data["orders"]), default=0)

    # --- the stations ---

    def start(self) -> None:
        for region in self.regions:
            self.processes.start_region(region)
        missing = self.node.wait_for(self.regions, START_S)
        if missing:
            raise DidNotHappen(f"{', '.join(missing)} came within {START_S:.0f} s")
        self.wait("vision/objects", bool, "vision sends what it sees", 0.0, START_S)
        self.wait(self.motor_key, bool, "motor says where the arm is", 0.0, START_S)
        self.node.wait_for_subscribers("data", START_S)
        self.tell(f"{len(self.regions)} nodes are here and see each other: {', '.join(self.regions)}")

    def take(self) -> None:
        self._take("take the red ball", ["motor", "motor-2", "motor-3"])

    def _take(self, text: str, able: list[str]) -> None:
        """Give a command that ends with the hand at an object."""

        def arrived(data: Any, order: dict[str, Any]) -> Any:
            done = data["order"] == order["id"] and not (data["moving"] or data["refused"] or data["stopped"])
            return data if done else None

        sent, order, at, data = self.command(text, self.motor_key, arrived)
        votes = data["votes"]
        off = max(abs(a - b) for a, b in zip(data["hand"], order["target"], strict=True))
        if (
            off > NEAR_M
            or order["to"] != "motor"
            or not set(votes["for"]) <= set(able)
            or len(votes["for"]) < votes["needed"]
        ):
            raise DidNotHappen(f"{text!r} brings the hand there: {data}, {order}")
        self.tell(
            f'"{text}": pfc sends it to motor (entropy {order["entropy"]:.2f}), {len(votes["for"])} of 3 controllers '
            f"agree ({votes['needed']} needed), and the hand is there {1000 * (at - sent):.0f} ms after the word",
            at, command=text, order=order, votes=votes,
        )  # fmt: skip

    def look(self) -> None:
        sent, order, at, _ = self.command(
            "look at blue", "vision/objects", lambda data, order: data if data["gaze"] == "blue" else None
        )
        if order["to"] != "vision":
            raise DidNotHappen(f"'look at blue' goes to vision: {order}")
        self.tell(f'"look at blue": pfc sends it to vision, which looks there after {1000 * (at - sent):.0f} ms', at)
        states = self.processes.states("vision")
        self.until(lambda: self.processes.states("vision") - states, "vision saves its state")

    def lose_vision(self) -> None:
        before = self.now()
        self.last_frame = self.wait("vision/objects", lambda data: data, "vision sees", before)[1]["frame"]
        killed = self.now()
        self.kill("vision")
        self.until(lambda: self.node.peer("vision") is None, "the others notice that vision is gone")
        noticed = self.now()
        self.tell(
            f"vision was killed (SIGKILL) at picture {self.last_frame}; "
            f"the others noticed after {1000 * (noticed - killed):.0f} ms",
            killed,
        )
        steps = {peer.name: peer.step or 0 for peer in self.node.peers() if peer.name in self.regions}
        others = [name for name in self.regions if name != "vision"]
        time.sleep(1.2)  # what is shown is that time goes by, and longer than pfc trusts what it saw
        now = {peer.name: peer.step or 0 for peer in self.node.peers() if peer.name in self.regions}
        stuck = [name for name in others if now.get(name, 0) <= steps.get(name, 0)]
        if stuck:
            raise DidNotHappen(f"{', '.join(stuck)} went on without vision")
        went = min(now[name] - steps[name] for name in others)
        self.tell(f"the other {len(others)} go on: each made at least {went} more steps", steps=now)

    def decide_without_vision(self) -> None:
        _, order, at, reply = self.command(
            "take the red ball",
            "lang/features",
            lambda data, order: next((one for one in data["replies"] if one == order["say"]), None),
        )
        if not order["fallback"] or order["to"] != "lang":
            raise DidNotHappen(f"without vision lang gets it: {order}")
        self.tell(
            f'"take the red ball": last seen {order["age_ms"]:.0f} ms ago, so it would go to vision; '
            f'lang gets it instead and says "{reply}"',
            at, order=order,
        )  # fmt: skip

    def prompt_role_that_is_gone(self) -> None:
        prompt = Prompt.new("what do you see?")
        answer = self.prompts.ask(prompt, "vision", STEP_S, default_node="lang")
        again = self.prompts.ask(prompt, "vision", STEP_S, default_node="lang")
        if answer.by != "lang" or again != answer:
            raise DidNotHappen(f"lang answers once for vision: {answer}, {again}")
        self.wait("lang/prompt/answered", lambda one: one.id == prompt.id, "the answer is made known", 0.0)
        answers = [one for _, one in self.seen if one.topic == "prompt/answered" and one.value.id == prompt.id]
        if len(answers) != 1:
            raise DidNotHappen(f"the prompt is answered once: {answers}")
        self.tell(
            f'prompt for the role vision: "{prompt.text}"; {answer.by} answers, once: "{answer.value}"',
            answer=answer.value,
        )

    def vision_returns(self) -> None:
        started = self.now()
        self.processes.start_region("vision", "--resume")
        at, data = self.wait("vision/objects", lambda data: data, "vision is back", started, START_S)
        if not 1 < data["frame"] <= self.last_frame + 1 or data["gaze"] != "blue":
            raise DidNotHappen(f"vision goes on from its last state: picture {data['frame']}, gaze {data['gaze']!r}")
        self.tell(
            f"vision is back {at - started:.1f} s after it was started with --resume: it goes on with picture "
            f"{data['frame']}, and still looks at blue",
            at, frame=data["frame"],
        )  # fmt: skip
        answer = self.prompts.ask(Prompt.new("what do you see?"), "vision", STEP_S, default_node="lang")
        if answer.by != "vision":
            raise DidNotHappen(f"vision answers for itself again: {answer}")
        self.tell(f'the same prompt again; {answer.by} answers: "{answer.value}"')
        first = data["frame"]
        self.wait("vision/objects", lambda data: data["frame"] > first + 5, "vision goes on", at)  # so pfc knows, too
        self._take("take the red ball", ["motor", "motor-2", "motor-3"])

    def kill(self, name: str) -> None:
        self.timeline.mark(name, "killed")
        self.processes.kill(name)

    def stop_the_decider(self) -> None:
        """Stop pfc while the arm moves: the controllers receive nothing and stop the arm themselves."""
        self.command(
            "take the blue ball",
            self.motor_key,
            lambda data, order: data if data["order"] == order["id"] and data["moving"] else None,
        )
        stopped_at = self.now()
        self.timeline.mark("pfc", "stopped")
        self.processes.signal("pfc", signal.SIGSTOP)
        try:
            at, data = self.wait(
                self.motor_key, lambda data: data["stopped"] and data, "the arm stops by itself", stopped_at
            )
        finally:
            self.processes.signal("pfc", signal.SIGCONT)
            self.timeline.mark("pfc", "continued")
        self.tell(
            f"pfc was stopped (SIGSTOP) while the arm moved: {data['stopped']}, so the arm stopped by itself after "
            f"{1000 * (at - stopped_at):.0f} ms",
            at,
        )
        done, _ = self.wait(
            self.motor_key, lambda data: not (data["moving"] or data["stopped"]), "the arm ends its movement", at
        )
        self.tell(
            f"pfc goes on and repeats its order: the arm ends its movement {1000 * (done - at):.0f} ms later", done
        )
        _, data = self.wait("vision/objects", lambda data: data, "vision sees", done)
        first = data["frame"]
        self.wait("vision/objects", lambda data: data["frame"] > first + 5, "vision goes on", done)  # so pfc knows, too

    def add_sensor(self) -> None:
        started = self.now()
        self.processes.start_sensor("--celsius", "24", "--heats-to", "95", "--after-s", "0.5", "--for-s", "2")
        at, order = self.wait(
            "pfc/control",
            lambda data: _about(data, "sensor/thermal", "say"),
            "pfc notices the sensor",
            started,
            START_S,
        )
        self.tell(
            f'sensor/thermal, which no file names, is heard {at - started:.1f} s after its start: "{order["say"]}"', at
        )
        at, order = self.wait(
            "pfc/control", lambda data: _about(data, "sensor/thermal", "stop"), "heat stops the arm", at
        )
        stopped, _ = self.wait(self.motor_key, lambda data: "too hot" in data["stopped"], "the arm stops", at)
        self.tell(
            f'it heats up: "{order["say"]}"; pfc stops the arm, which obeys after {1000 * (stopped - at):.0f} ms', at
        )
        cool, _ = self.wait(self.motor_key, lambda data: not data["stopped"], "the arm may move again", stopped)
        self.tell(f"it cools down: the arm may move again, {cool - stopped:.1f} s later", cool)
        status = self.processes.end("sensor/thermal")
        if status:
            raise DidNotHappen(f"the sensor leaves in good order, not with status {status}")

    def lose_controllers(self) -> None:
        self.kill("motor-2")
        self.until(lambda: self.node.peer("motor-2") is None, "motor-2 is gone")
        self.tell("motor-2 was killed: two of three controllers are left")
        self._take("take the green box", ["motor", "motor-3"])
        self.kill("motor-3")
        self.until(lambda: self.node.peer("motor-3") is None, "motor-3 is gone")
        _, _, at, data = self.command(
            "take the blue ball",
            self.motor_key,
            lambda data, order: data if data["order"] == order["id"] and data["refused"] else None,
        )
        self.tell(f'motor-3 was killed, too; "take the blue ball": the arm stays ({data["refused"]})', at)

    def end(self) -> None:
        statuses = self.processes.end_all()
        if any(statuses.values()):
            raise DidNotHappen(f"all leave in good order: {statuses}")
        self.until(lambda: not self.node.peers(ask=False), "nobody is left")
        self.tell(f"the other {len(statuses)} were asked to leave, and left")

    def stations(self) -> list[Callable[[], None]]:
        return [
            self.start, self.take, self.look, self.lose_vision, self.decide_without_vision,
            self.prompt_role_that_is_gone, self.vision_returns, self.add_sensor, self.stop_the_decider,
            self.lose_controllers, self.end,
        ]  # fmt: skip


def _order(data: Any, text: str, after: int) -> dict[str, Any] | None:
    return next((one for one in data["orders"] if one.get("text") == text and one["id"] > after), None)


def _about(data: Any, sensor: str, do: str) -> dict[str, Any] | None:
    return next((one for one in data["orders"] if one.get("sensor") == sensor and one["do"] == do), None)


def _line(entry: dict[str, Any]) -> str:
    return f"{entry['at_s']:7.2f} s  {entry['what']}"


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="robot-") as folder:
            yield Path(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print what happened as a JSON object")
    parser.add_argument("--keep", type=Path, help="a folder for logs and states, kept afterwards")
    parser.add_argument(
        "--picture", type=Path, default=Path("robot-tour.svg"), help="a file for the picture (SVG, PNG)"
    )
    options = parser.parse_args()
    failed = ""
    with ExitStack() as stack:
        folder = stack.enter_context(_place(options.keep))
        processes = Processes(folder)
        stack.callback(processes.end_all)
        node = stack.enter_context(Node("sensor/voice", role="sensor", mesh=processes.mesh))
        tour = Tour(node, processes, quiet=options.json)
        for station in tour.stations():
            try:
                station()
            except Exception as error:  # whatever it is, the processes are ended and the story is printed
                failed = (
                    f"{station.__name__}: did not happen: {error}" if isinstance(error, DidNotHappen) else repr(error)
                )
                tour.tell(failed)
                break
        tour.timeline.lost(node.counts())
        if failed and not options.json:
            for name in tour.regions:
                print(f"--- {name}\n{processes.log(name).read_text()[-1500:]}", file=sys.stderr)
    tour.timeline.draw(options.picture, tour.story, "A tour of the robot's brain" + " (it failed)" * bool(failed))
    if options.json:
        print(json.dumps({"happened": not failed, "failed": failed, "story": tour.story}))
    else:
        print(f"\nThe picture of it: {options.picture}")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
