"""Nodes that all publish at once: lost messages, and the latency of the others.

    python benchmarks/mesh_load.py                        5 nodes at 1 kHz with 10 KB each
    python benchmarks/mesh_load.py --hears all --raw      every node hears all others; Zenoh without neuraxis as well

Every node is a separate process on this machine's mesh. The latency of a message is the time from the call of `publish`
to the call of the handler in the other process; both read the same clock.
"""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from neuraxis.mesh import Message, Node, Topology
from neuraxis.mesh.messages import declare_publisher
from neuraxis.mesh.topology import open_session

START_S = 60.0
WARM_S = 1.0  # what is sent in the first second does not count

Hears = Literal["next", "all"]
app = App(help=__doc__, help_format="plaintext", version_flags=[])


def measure_load(
    nodes: int = 5,
    rate_hz: float = 1000.0,
    size: int = 10_000,
    seconds: float = 10.0,
    hears: Hears = "next",
    raw: bool = False,
) -> dict[str, Any]:
    """Let nodes publish messages of `size` bytes for some seconds; return counts and latencies.

    Args:
        hears: the nodes that each node subscribes to: the next one, or all others.
        raw: without neuraxis: Zenoh's own sessions, publishers and subscribers with the same settings.

    Returns:
        sent, received, lost: messages, of those that somebody hears. p50_ms, p99_ms, worst_ms: their times.
        late_ms: the 99th percentile of how late messages were sent, which tells how busy the machine was.
    """
    names = [f"node-{number}" for number in range(nodes)]
    mesh = f"load-{os.getpid()}-{time.time_ns()}"
    with ExitStack() as stack:
        processes = []
        for number, name in enumerate(names):
            others = names[:number] + names[number + 1 :]
            heard = others if hears == "all" else [names[number - 1]]
            options = {
                "mesh": mesh, "name": name, "others": others, "heard": heard, "rate_hz": rate_hz, "size": size,
                "seconds": seconds + WARM_S, "raw": raw,
            }  # fmt: skip
            processes.append(_Process(json.dumps(options)))
            stack.callback(processes[-1].kill)
        for word in ("open", "ready", "done"):  # all have come this far before any goes on
            for process in processes:
                assert process.receive(START_S + seconds) == word
            for process in processes:
                process.proceed()
        found = [process.receive(START_S) for process in processes]
    times_ms = np.concatenate([np.frombuffer(bytes.fromhex(one["times_us"]), np.float32) for one in found]) * 1e-3
    late_ms = np.concatenate([np.frombuffer(bytes.fromhex(one["late_us"]), np.float32) for one in found]) * 1e-3
    sent = sum(one["sent"] * (nodes - 1 if hears == "all" else 1) for one in found)
    received = sum(one["received"] for one in found)
    return {
        "nodes": nodes, "rate_hz": rate_hz, "size": size, "hears": hears, "raw": raw, "sent": sent,
        "received": received, "lost": sent - received, "p50_ms": float(np.percentile(times_ms, 50)),
        "p99_ms": float(np.percentile(times_ms, 99)), "worst_ms": float(times_ms.max()),
        "late_ms": float(np.percentile(late_ms, 99)), "load": os.getloadavg()[0],
    }  # fmt: skip


@app.default
def main(
    *,
    nodes: Annotated[int, Parameter(help="How many.")] = 5,
    rate_hz: Annotated[float, Parameter(help="Messages a second, of each.")] = 1000.0,
    size: Annotated[int, Parameter(help="Bytes of a message.")] = 10_000,
    seconds: Annotated[float, Parameter(help="How long.")] = 10.0,
    hears: Annotated[Hears, Parameter(help="Nodes that each node subscribes to.")] = "next",
    raw: Annotated[bool, Parameter(negative=(), help="Measure Zenoh without neuraxis as well.")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON.")] = False,
) -> None:
    found = [measure_load(nodes, rate_hz, size, seconds, hears, one) for one in (False, True)[: 1 + raw]]
    if as_json:
        print(json.dumps(found))
        return
    table = Table(title=f"{nodes} nodes, {rate_hz:g} Hz, {size:,} B, each hears {hears}", box=None, pad_edge=False)
    table.add_column("")
    for name in ("sent", "received", "lost", "p50 ms", "p99 ms", "worst ms", "sent late p99 ms", "load"):
        table.add_column(name, justify="right")
    for one in found:
        numbers = [f"{one[name]:,}" for name in ("sent", "received", "lost")]
        numbers += [f"{one[name]:.2f}" for name in ("p50_ms", "p99_ms", "worst_ms", "late_ms", "load")]
        table.add_row("zenoh" if one["raw"] else "neuraxis", *numbers)
    Console(width=None if Console().is_terminal else 120).print(table)


# --- a node ---


class _Process:
    def __init__(self, options: str) -> None:
        self._rest = b""
        self._popen = subprocess.Popen(
            [sys.executable, __file__, "--node", options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def receive(self, limit_s: float) -> Any:
        assert self._popen.stdout is not None
        deadline = time.monotonic() + limit_s
        while not self._rest.endswith(b"\n"):  # it sends nothing more until it gets the signal to continue
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._popen.stdout], [], [], left)
            piece = os.read(self._popen.stdout.fileno(), 2**20) if ready else b""
            if not piece:
                raise RuntimeError("a node sent nothing in time, or has ended")
            self._rest += piece
        line, self._rest = self._rest, b""
        return json.loads(line)

    def proceed(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(b"\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate()


def _run_node(options: dict[str, Any]) -> None:
    times_us: list[float] = []

    def hear(payload: bytes) -> None:
        sent, counts = _STAMP.unpack_from(payload)
        if counts:
            times_us.append((time.monotonic_ns() - sent) * 1e-3)

    with ExitStack() as stack:
        publish = (_open_raw if options["raw"] else _open_node)(options, hear, stack)
        _say("ready")
        rest = bytes(options["size"] - _STAMP.size)
        late: list[float] = []
        sent = 0
        begun = time.monotonic_ns()
        counted = begun + int(WARM_S * 1e9)
        period, end = int(1e9 / options["rate_hz"]), begun + int(options["seconds"] * 1e9)
        due = begun
        while due < end:
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait * 1e-9)
            now = time.monotonic_ns()
            publish(_STAMP.pack(now, now >= counted) + rest)
            if now >= counted:
                sent += 1
                late.append((now - due) * 1e-3)
            due += period
        _say("done")
        time.sleep(0.2)  # until the last messages have arrived
        found = np.array(times_us, np.float32)
        answer = {"sent": sent, "received": len(found), "times_us": found.tobytes().hex()}
        print(json.dumps(answer | {"late_us": np.array(late, np.float32).tobytes().hex()}), flush=True)
        sys.stdin.readline()


_STAMP = struct.Struct("<QQ")  # when it was sent, and whether it counts


def _say(word: str) -> None:
    """Report that this node reached a point, and wait until all have."""
    print(json.dumps(word), flush=True)
    sys.stdin.readline()


def _open_node(options: dict[str, Any], hear: Callable[[bytes], None], stack: ExitStack) -> Callable[[bytes], None]:
    node = stack.enter_context(Node(options["name"], mesh=options["mesh"]))

    def handle(message: Message) -> None:
        hear(message.value)

    for name in options["heard"]:
        node.subscribe(f"{name}/load", handle, recover=False, depth=1000)
    _say("open")
    missing = node.wait_for(options["others"], START_S)
    if missing or any(peer.topics is None for peer in node.peers(START_S)):
        raise SystemExit(f"{', '.join(missing) or 'somebody'} did not come")
    return lambda payload: node.publish("load", payload)


def _open_raw(options: dict[str, Any], hear: Callable[[bytes], None], stack: ExitStack) -> Callable[[bytes], None]:
    import zenoh

    session = stack.enter_context(open_session(Topology.local(), options["mesh"]))
    for name in options["heard"]:
        ring: Any = zenoh.handlers.RingChannel(1000)
        subscriber = session.declare_subscriber(f"{options['mesh']}/{name}", ring)

        def read(subscriber: Any = subscriber) -> None:
            try:
                while True:
                    hear(bytes(subscriber.recv().payload))
            except zenoh.ZError:  # undeclared
                pass

        thread = threading.Thread(target=read)
        thread.start()
        stack.callback(thread.join)
        stack.callback(subscriber.undeclare)
    publisher = declare_publisher(session, f"{options['mesh']}/{options['name']}", "stream")
    _say("open")
    deadline = time.monotonic() + START_S
    while len(list(session.info.peers_zid())) < len(options["others"]) or not publisher.matching_status.matching:
        if time.monotonic() > deadline:
            raise SystemExit("the others did not come")
        time.sleep(0.01)
    return publisher.put


if __name__ == "__main__":
    if sys.argv[1:2] == ["--node"]:
        _run_node(json.loads(sys.argv[2]))
    else:
        app()
