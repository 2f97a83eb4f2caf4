"""A node of a neuraxis mesh in plain Zenoh: python client.py ROUTER MESSAGES"""

import base64
import json
import os
import socket
import struct
import sys
import time

import zenoh

NAME, MESH, PEER = "plain", "neuraxis/default", "robot"
STARTED = time.time_ns()  # the incarnation: tells a restarted node from its predecessor
KINDS = {"stream": 0, "state": 1, "event": 2, "bulk": 3}


def envelope(sequence: int, kind: str = "stream", step: int = -1) -> bytes:
    head = struct.pack("<2sBBQQqq", b"nx", 2, KINDS[kind], STARTED, sequence, step, time.time_ns())
    return head + NAME.encode()


def text(value: str) -> bytes:  # MessagePack: str 8
    return b"\xd9" + bytes([len(value.encode())]) + value.encode()


def presence() -> str:
    """Return the key of the presence token: role, host, process, incarnation and further roles, as MessagePack."""
    facts = b"\x95" + text("") + text(socket.gethostname())
    facts += struct.pack(">BQBQ", 0xCF, os.getpid(), 0xCF, STARTED) + b"\x90"
    return f"{MESH}/@presence/{NAME}/{base64.urlsafe_b64encode(facts).decode().rstrip('=')}"


def add(query: zenoh.Query) -> None:
    numbers = json.loads(query.payload.to_bytes())
    query.reply(query.key_expr, json.dumps(sum(numbers)), encoding="application/json")


def received(sample: zenoh.Sample) -> None:
    print("received", sample.key_expr, sample.payload.to_string(), flush=True)


config = zenoh.Config()
config.insert_json5("mode", '"client"')
config.insert_json5("connect/endpoints", json.dumps(sys.argv[1:2]))
with zenoh.open(config) as session:
    token = session.liveliness().declare_token(presence())
    service = session.declare_queryable(f"{MESH}/{NAME}/@serve/add/@from/**", add)
    subscriber = session.declare_subscriber(f"{MESH}/{PEER}/pose", received)
    key = f"{MESH}/{PEER}/@serve/double/@from/{NAME}"
    for reply in session.get(key, payload="21", encoding="application/json", attachment=envelope(0), timeout=5):
        print("answer", (reply.ok or reply.err).payload.to_string(), flush=True)
    for number in range(int(sys.argv[2])):
        message = json.dumps({"count": number})
        session.put(f"{MESH}/{NAME}/count", message, encoding="application/json", attachment=envelope(number))
        time.sleep(0.1)
