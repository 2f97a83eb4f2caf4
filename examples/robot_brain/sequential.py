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
    """Say a few things to the robot, then warm it; what its regions sent is in the file."""
    with Brain(with_diary(read_spec(HERE / "robot.toml"), file), workers=workers) as brain:
        brain.run(200.0)
        for command in COMMANDS:
            brain.forward({"sensor/voice": {"text": command}}, 1000)
        brain.forward({"sensor/thermal": {"celsius": 75.0}}, 300)
        brain.forward({"sensor/voice": {"text": "grab the green box"}}, 300)
        return brain.fingerprint()


def tell(now: float, region: str, data: dict[str, Any]) -> list[str]:
    """What is worth a line of what a region sent."""
    if region == "lang":
        said = [f"understands {one['text']!r}: {_likely(one['intents'])}" for one in data["features"]]
        return said + [f"says: {one}" for one in data["replies"]]
    if region == "pfc":
        return [f"{one['do']} to {one['to']}" + _why(one) for one in data["orders"]]
    return []


def _likely(intents: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in intents.items() if share >= 0.01)


def _why(order: dict[str, Any]) -> str:
    return f" (entropy {order['entropy']:.2f}, alpha {order['alpha']:.2f})" if "entropy" in order else ""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "diary"
        fingerprint = run(file)
        refused, hand = "", [0.0, 0.0]
        for now, region, data in read_diary(file):
            lines = tell(now, region, data)
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
