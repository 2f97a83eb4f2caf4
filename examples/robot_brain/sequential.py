"""The robot's brain in one process, without the mesh: the same run every time.

python examples/robot_brain/sequential.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # robot.toml names modules of this folder

from diary import read_diary, with_diary  # noqa: E402

from neuraxis.brain import Brain, read_spec  # noqa: E402

COMMANDS = (
    "take the red ball",
    "look at blue",
    "take the yellow box",
    "look at the blue ball and take it",
    "what do you see",
    "stop",
)


def run(file: Path, workers: int = 1) -> str:
    """Give the robot a few commands, then heat it; the messages of its regions are written to the file."""
    with Brain(with_diary(read_spec(HERE / "robot.toml"), file), workers=workers) as brain:
        brain.run(200.0)
        for command in COMMANDS:
            brain.forward({"sensor/voice": {"text": command}}, 1000)
        brain.forward({"sensor/thermal": {"celsius": 75.0}}, 300)
        brain.forward({"sensor/voice": {"text": "grab the green box"}}, 300)
        return brain.fingerprint()


class Teller:
    """Format the messages of regions as lines; repeated messages are printed once."""

    def __init__(self) -> None:
        self.number = self.order = 0
        self.replies: list[str] = []

    def tell(self, region: str, data: dict[str, Any]) -> list[str]:
        """Return the events of a region that deserve a line of output."""
        lines: list[str] = []
        if region == "lang":
            new = [one for one in data["features"] if one["number"] > self.number]
            lines = [f"understands {one['text']!r}: {_likely(one['intents'])}" for one in new]
            self.number = max([self.number, *(one["number"] for one in new)])
            if data["replies"] != self.replies:
                self.replies = data["replies"]
                lines += [f"says: {one}" for one in self.replies]
        if region == "pfc":
            orders = [one for one in data["orders"] if one["id"] > self.order]
            lines = [f"{one['do']} to {one['to']}" + _why(one) for one in orders]
            self.order = max([self.order, *(one["id"] for one in orders)])
        return lines


def _likely(intents: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in intents.items() if share >= 0.01)


def _why(order: dict[str, Any]) -> str:
    return f" (entropy {order['entropy']:.2f}, alpha {order['alpha']:.2f})" if "entropy" in order else ""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "diary"
        fingerprint = run(file)
        refused, hand, teller = "", [0.0, 0.0], Teller()
        for now, region, data in read_diary(file):
            lines = teller.tell(region, data)
            if region == "motor":
                if data["refused"] != refused and data["refused"]:
                    lines.append(data["refused"])
                if not data["moving"] and data["hand"] != hand:
                    lines.append(f"hand at {data['hand'][0]:+.2f}, {data['hand'][1]:.2f}")
                    hand = data["hand"]
                refused = data["refused"]
            for line in lines:
                print(f"{now:7.0f} ms  {region:6}  {line}")
    print(f"fingerprint {fingerprint}")


if __name__ == "__main__":
    main()
