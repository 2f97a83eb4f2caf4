"""A stranger on a mesh: a plain Zenoh session that sends what no node would send.

python -m tests.chaos.hostile ADDRESS MESH SEED COUNT
"""

from __future__ import annotations

import json
import random
import struct
import sys

import zenoh

ENCODINGS = (
    "application/x-neuraxis-tensor", "application/x-neuraxis-array", "application/msgpack", "application/json",
    "application/python-serialized-object", "text/plain", "zenoh/bytes", "", "application/x-neuraxis-nothing",
)  # fmt: skip
NAMES = ("alpha", "beta", "gamma", "delta", "server", "client", "nobody")
TOPICS = ("count", "@serve/rpc/0", "@serve/rpc/7", "@serve/work", "x")


def main(address: str, mesh: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    config = {
        "mode": "client",
        "connect": {"endpoints": [address], "timeout_ms": 20_000, "exit_on_failure": True},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
    }
    session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    tokens = []
    for number in range(count):
        name, topic = chance.choice(NAMES), chance.choice(TOPICS)
        key = f"neuraxis/{mesh}/{name}/{topic}"
        kind = chance.random()
        if kind < 0.1:
            facts = "".join(chance.choice("ABCdef012_-") for _ in range(chance.randint(1, 200)))
            tokens.append(session.liveliness().declare_token(f"neuraxis/{mesh}/@presence/ghost{number}/{facts}"))
        elif kind < 0.2:
            for _ in session.get(key, payload=_noise(chance), timeout=0.05):
                pass
        elif kind < 0.3:
            session.delete(key)
        else:
            session.put(key, _noise(chance), encoding=chance.choice(ENCODINGS), attachment=_head(chance, name))
    print(json.dumps({"sent": count}), flush=True)
    session.close()


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 7, 68, 1000, 100_000)))


def _head(chance: random.Random, name: str) -> bytes | None:
    """Return a forged envelope: a known version, extreme numbers, a name; or noise, or none."""
    kind = chance.random()
    if kind < 0.2:
        return None
    if kind < 0.4:
        return chance.randbytes(chance.randint(0, 60))
    extreme = (0, 1, 2**62, 2**63 - 1, 2**64 - 1)
    version = chance.choice((0, 1, 2, 3, 255))
    return struct.pack("<BQQq", version, chance.choice(extreme), chance.choice(extreme), -1) + name.encode()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
