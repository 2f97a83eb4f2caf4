"""The nodes of the soak: `soak_nodes.py speak|hear MESH NAME OTHERS [COUNTS]`, each a process that can be killed.

A speaker publishes a small message at 1 kHz ("tick", a stream) and another at 100 Hz ("mode", a state), once the OTHERS
are there. It keeps in the file COUNTS how many it has sent, which is there after it was killed. A hearer counts what it
hears of whom, by the life of the sender. Both answer lines on stdin with lines of JSON.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from neuraxis.mesh import Message, Node

TOPICS = {"tick": ("stream", 1000.0), "mode": ("event", 100.0)}
SIZE = 64
START_S = 60.0

# For each topic: how many messages were begun, and how many were sent. The two differ where a kill came in between.
_SENT = struct.Struct("<QQ")
COUNTS_SIZE = 8 + len(TOPICS) * _SENT.size


def main() -> None:
    role, mesh, name, others, *counts = sys.argv[1:]
    with Node(name, "soak", mesh) as node:
        heard = Hearing(node)
        say("open")
        if role == "hear":
            for _ in sys.stdin:
                say(heard.report())
            return
        missing = node.wait_for(others.split(","), START_S)
        # What the others have subscribed to is known here when they have answered.
        if missing or any(peer.topics is None for peer in node.peers(START_S)):
            raise SystemExit(f"{name}: {', '.join(missing) or 'somebody'} did not come")
        speech = Speech(node, Path(counts[0]))
        try:
            say("ready")
            for line in sys.stdin:
                if line == "stop\n":
                    speech.stop()
                else:  # one more of each, which shows whether the last ones arrived
                    speech.say_all()
                say(node.sent())
        finally:
            speech.stop()


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


class Speech:
    """A thread that publishes at the rates of the topics, and counts in a file what it has sent."""

    def __init__(self, node: Node, counts: Path) -> None:
        counts.write_bytes(struct.pack("<Q", node.incarnation) + bytes(len(TOPICS) * _SENT.size))
        with counts.open("r+b") as file:
            self._counts = mmap.mmap(file.fileno(), COUNTS_SIZE)
        self._node = node
        self._sent = dict.fromkeys(TOPICS, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def say_all(self) -> None:
        for number, topic in enumerate(TOPICS):
            self._say(number, topic)

    def _speak(self) -> None:
        begun = time.monotonic()
        due = dict.fromkeys(TOPICS, begun)
        while not self._ended.is_set():
            for number, (topic, (_, rate_hz)) in enumerate(TOPICS.items()):
                while time.monotonic() >= due[topic]:
                    self._say(number, topic)
                    due[topic] += 1.0 / rate_hz
            time.sleep(max(0.0, min(due.values()) - time.monotonic()))

    def _say(self, number: int, topic: str) -> None:
        sent = self._sent[topic]
        place = 8 + number * _SENT.size
        _SENT.pack_into(self._counts, place, sent + 1, sent)
        self._node.publish(topic, bytes(SIZE), TOPICS[topic][0], step=sent)
        _SENT.pack_into(self._counts, place, sent + 1, sent + 1)
        self._sent[topic] = sent + 1


def read_counts(path: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """The life of a speaker, and by topic how many messages it had begun and sent; (0, {}) if it never spoke."""
    if not path.exists():
        return 0, {}
    content = path.read_bytes()
    (incarnation,) = struct.unpack_from("<Q", content)
    return incarnation, {
        topic: _SENT.unpack_from(content, 8 + number * _SENT.size) for number, topic in enumerate(TOPICS)
    }


class Hearing:
    """Received messages: first and last number of each stream, and counts of received and reported-lost messages."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._streams: dict[tuple[str, str, int], list[int]] = {}
        for topic in TOPICS:
            node.subscribe(f"*/{topic}", self._hear, depth=1000)

    def _hear(self, message: Message) -> None:
        stream = self._streams.get((message.node, message.topic, message.incarnation))
        if stream is None:
            stream = self._streams[message.node, message.topic, message.incarnation] = [message.sequence, -1, 0, 0, 0]
        stream[4] += message.sequence <= stream[1] or message.step != message.sequence
        stream[1] = message.sequence
        stream[2] += 1
        stream[3] += message.lost

    def report(self) -> dict[str, Any]:
        """Return by stream [first, last, received, lost, out of order], and the node's own counts by key."""
        # A message tells of all that are missing before it: lost on the way, or dropped here for newer ones.
        counts = {key: [one.received, one.lost + one.dropped, one.repeated] for key, one in self._node.counts().items()}
        return {"streams": [[*stream, *found] for stream, found in self._streams.copy().items()], "counts": counts}


if __name__ == "__main__":
    main()
