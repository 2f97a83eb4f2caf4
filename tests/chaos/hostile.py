"""A stranger on a mesh: a plain Zenoh session that sends what no node would send.

python -m tests.chaos.hostile ADDRESS MESH SEED COUNT RECEIVER,... NAME...

It reads the presence tokens, as any program on the mesh can, and so knows the names and incarnations of the nodes. Then
it forges frames for the *receivers* in these nodes: subscriptions, services, the inboxes and reply channels of remote
calls, membership and status. Keys, envelopes, heads and tokens are made with the functions of neuraxis itself and then
damaged, so that the attack follows the wire format when that changes.

Each recipe says which counter of its receiver has to grow. The stranger prints how many frames it has sent to each
receiver and by how much each counter has to grow at least; the scenarios compare that with the nodes. Frames in the
name of a present node, with its incarnation, use numbers that the node itself does not use at that time: a mesh without
access rules does not prove who sends, so a stranger can use up a node's numbers (docs/security.md).
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import zenoh

from neuraxis.comm.backends.shm.zero_copy import BufferHandle
from neuraxis.mesh.keys import LONGEST_KEY, call_key, message_key, presence_key, serve_key, status_key
from neuraxis.mesh.membership import Peer, _read_token, token_key
from neuraxis.rpc.messages import Kind, Operation, pack_head
from neuraxis.rpc.server import MAX_AHEAD
from neuraxis.rpc.transport import INBOX, Endpoint
from neuraxis.wire.envelope import LONGEST_ATTACHMENT, LONGEST_NAME, NO_STEP, seal_envelope

TOPIC = "count"  # what the nodes of the scenarios publish,
SERVICE = "echo"  # and what they serve
ENCODINGS = (
    "application/x-neuraxis-tensor", "application/x-neuraxis-array", "application/json",
    "application/python-serialized-object",
)  # fmt: skip
MSGPACK = "application/msgpack"
_EXTREME = (0, 1, 2**31, 2**62, 2**63 - 1, 2**64 - 1)
_SKEWED_NS = (0, 1, -1, -(2**63), 2**63 - 1)
_YEAR_NS = 365 * 86_400 * 10**9


@dataclass(frozen=True)
class Hostile:
    """One forged frame.

    Attributes
    ----------
    verb : str
        "put", "delete" or "get" of the key, or "token" to declare it.
    counter : str
        The counter of its receiver that must grow; "" if the receiver takes the frame for a genuine one.
    times : int
        How often it is sent.
    """

    verb: str
    key: str
    payload: bytes = b""
    encoding: str = ""
    attachment: bytes | None = None
    counter: str = ""
    times: int = 1


class Forger:
    """Forges frames for the nodes of a mesh.

    Parameters
    ----------
    mesh : str
        The name of the mesh.
    peers : sequence of Peer
        The nodes to attack. With remote calls the first one is the callee, the others are callers.
    chance : random.Random
        What everything is drawn from.
    """

    def __init__(self, mesh: str, peers: Sequence[Peer], chance: random.Random) -> None:
        self._mesh = mesh
        self._peers = list(peers)
        self._chance = chance
        self._made: Counter[str] = Counter()

    def forge(self, receiver: str) -> Hostile:
        """Return a frame for a kind of receiver. Its recipes take turns, so that a few dozen frames contain each."""
        recipes = RECIPES[receiver]
        recipe = recipes[self._made[receiver] % len(recipes)]
        self._made[receiver] += 1
        return recipe(self, self._chance.choice(self._peers))

    # --- publications: received by subscriptions ---------------------------------------------------------------

    def _publication(self, peer: Peer, attachment: bytes | None, counter: str = "", times: int = 1) -> Hostile:
        key = message_key(self._mesh, peer.name, TOPIC)
        return Hostile("put", key, _FORGED, MSGPACK, attachment, counter, times)

    def publication_of_another_life(self, peer: Peer) -> Hostile:
        return self._publication(peer, self._envelope(peer.name, self._other_life(peer)))

    def publication_far_ahead(self, peer: Peer) -> Hostile:
        """A number that the node has not reached; sent twice, so that one of the two is a repeat."""
        number = 10**5 + self._chance.randrange(10**5)
        envelope = seal_envelope(peer.name.encode(), peer.incarnation, number, NO_STEP)
        return self._publication(peer, envelope, "subscription repeated", times=2)

    def publication_with_an_impossible_number(self, peer: Peer) -> Hostile:
        number = self._chance.choice((2**40, 2**62, 2**63, 2**64 - 1))
        envelope = seal_envelope(peer.name.encode(), peer.incarnation, number, NO_STEP)
        return self._publication(peer, envelope, "subscription misnumbered")

    def publication_by_a_wrong_clock(self, peer: Peer) -> Hostile:
        sent = self._chance.choice((*_SKEWED_NS, time.time_ns() + _YEAR_NS))
        envelope = seal_envelope(peer.name.encode(), self._other_life(peer), 0, NO_STEP, sent_ns=sent)
        return self._publication(peer, envelope, "subscription skewed")

    def publication_of_another_node(self, peer: Peer) -> Hostile:
        name = self._chance.choice(("", "nobody", f"{peer.name}/below", "x" * LONGEST_NAME))
        return self._publication(peer, self._envelope(name, peer.incarnation), "subscription malformed")

    def publication_of_an_unknown_kind(self, peer: Peer) -> Hostile:
        envelope = self._envelope(peer.name, peer.incarnation, kind=self._chance.choice((4, 77, 255)))
        return self._publication(peer, envelope, "subscription malformed")

    def publication_of_another_version(self, peer: Peer) -> Hostile:
        envelope = bytearray(self._envelope(peer.name, peer.incarnation))
        envelope[2] = self._chance.choice((0, 1, 3, 255))
        return self._publication(peer, bytes(envelope), "subscription malformed")

    def publication_with_a_damaged_envelope(self, peer: Peer) -> Hostile:
        whole = self._envelope(peer.name, peer.incarnation)
        cut = self._chance.randint(3, len(whole) - len(peer.name) - 1)
        damaged = self._chance.choice((whole[:cut], whole[:-1] + b"\xff", whole + b"x" * LONGEST_NAME))
        return self._publication(peer, damaged, "subscription malformed")

    def publication_with_a_long_attachment(self, peer: Peer) -> Hostile:
        whole = self._envelope(peer.name, peer.incarnation) + b"x" * LONGEST_ATTACHMENT
        return self._publication(peer, whole, "subscription oversized")

    def publication_of_noise(self, peer: Peer) -> Hostile:
        """Bytes that claim to be an array, text, or a pickle, by a life that nobody knows."""
        key, envelope = message_key(self._mesh, peer.name, TOPIC), self._envelope(peer.name, self._other_life(peer))
        payload = b"\xc1" + self._noise()  # a byte that begins nothing
        return Hostile("put", key, payload, self._chance.choice(ENCODINGS), envelope, "subscription malformed")

    def publication_by_no_node(self, peer: Peer) -> Hostile:
        return self._publication(peer, self._chance.choice((None, b"", self._chance.randbytes(40).replace(b"n", b"m"))))

    def deletion(self, peer: Peer) -> Hostile:
        key = message_key(self._mesh, peer.name, TOPIC)
        return Hostile("delete", key, attachment=None, counter="subscription malformed")

    # --- requests: received by services ------------------------------------------------------------------------

    def _request(self, peer: Peer, sender: str, attachment: bytes | None, counter: str, times: int = 1) -> Hostile:
        key = serve_key(self._mesh, peer.name, SERVICE, sender)
        return Hostile("get", key, _FORGED, MSGPACK, attachment, counter, times)

    def request_of_another_sender(self, peer: Peer) -> Hostile:
        envelope = self._envelope("nobody", self._other_life(peer))
        return self._request(peer, self._chance.choice(self._peers).name, envelope, "service refused")

    def request_by_wildcard(self, peer: Peer) -> Hostile:
        return self._request(peer, self._chance.choice(("*", "**", "a/*")), None, "service refused")

    def request_sent_again(self, peer: Peer) -> Hostile:
        envelope = self._envelope("nobody", self._chance.choice(_EXTREME), number=self._chance.randint(1, 2**63))
        return self._request(peer, "nobody", envelope, "service repeated", times=2)

    def request_of_another_version(self, peer: Peer) -> Hostile:
        envelope = bytearray(self._envelope("nobody", 1))
        envelope[2] = self._chance.choice((0, 1, 3, 255))
        return self._request(peer, "nobody", bytes(envelope), "service malformed")

    def request_of_noise(self, peer: Peer) -> Hostile:
        key = serve_key(self._mesh, peer.name, SERVICE, "nobody")
        payload = b"\xc1" + self._noise()
        return Hostile("get", key, payload, self._chance.choice(ENCODINGS), None, "service malformed")

    # --- calls: received by the inboxes of callees and callers -------------------------------------------------

    def _call(self, peer: Peer, sender: str, frame: bytes, counter: str = "", times: int = 1) -> Hostile:
        key = call_key(self._mesh, peer.name, INBOX, sender)
        return Hostile("put", key, frame, counter=counter, times=times)

    def _frame(self, kind: int, peer: Peer, sender: Endpoint, number: int, body: bytes, settled: int = 0) -> bytes:
        return pack_head(kind, self._channel(), number, settled, peer.incarnation, sender, len(body)) + body

    def call_sent_again(self, peer: Peer) -> Hostile:
        """A call that is in order, by a caller that nobody knows. The record of the callee shows that it ran once."""
        frame = self._frame(Kind.CALL, peer, self._stranger(), 1, self._work())
        return self._call(peer, "nobody", frame, times=3)

    def call_far_ahead(self, peer: Peer) -> Hostile:
        """A number that a present caller will not reach, but which is allowed: that caller has to skip to it."""
        sender = self._of(self._chance.choice(self._peers))
        number = MAX_AHEAD - 1
        return self._call(
            peer, sender.name, self._frame(Kind.CALL, peer, sender, number, self._work(), settled=number), times=2
        )

    def call_with_an_impossible_number(self, peer: Peer) -> Hostile:
        sender = self._of(self._chance.choice(self._peers))
        frame = self._frame(Kind.CALL, peer, sender, self._chance.choice((2**40, 2**64 - 1)), self._work())
        return self._call(peer, sender.name, frame, "a call beyond the limits of its caller")

    def call_of_an_earlier_number(self, peer: Peer) -> Hostile:
        sender = self._of(self._chance.choice(self._peers))
        return self._call(peer, sender.name, self._frame(Kind.CALL, peer, sender, 0, self._work()))

    def call_of_another_sender(self, peer: Peer) -> Hostile:
        frame = self._frame(Kind.CALL, peer, self._of(peer), 1, self._work())
        return self._call(peer, "nobody", frame, "a frame whose content and key name different senders")

    def call_by_wildcard(self, peer: Peer) -> Hostile:
        frame = self._frame(Kind.CALL, peer, Endpoint("**", 1), 1, self._work())
        return self._call(peer, "**", frame, "a frame whose content and key name different senders")

    def call_of_an_unknown_kind(self, peer: Peer) -> Hostile:
        frame = self._frame(self._chance.choice((0, 5, 77, 255)), peer, self._stranger(), 1, self._work())
        return self._call(peer, "nobody", frame, "a malformed frame")

    def call_without_its_end(self, peer: Peer) -> Hostile:
        sender = self._stranger()
        body = self._work()
        frame = self._frame(Kind.CALL, peer, sender, 1, body)
        return self._call(peer, "nobody", frame[: -self._chance.randint(1, len(body))], "a malformed frame")

    def call_that_claims_open_numbers(self, peer: Peer) -> Hostile:
        """The head announces 65,535 numbers, and the frame has none."""
        frame = bytearray(pack_head(Kind.CALL, INBOX, 1, 0, peer.incarnation, self._stranger()))
        frame[4:6] = b"\xff\xff"
        return self._call(peer, "nobody", bytes(frame), "a malformed frame")

    def call_without_a_head(self, peer: Peer) -> Hostile:
        noise = self._chance.randbytes(self._chance.choice((1, 3, 20, 100)))
        return self._call(peer, "nobody", noise, "a frame whose content and key name different senders")

    def call_with_arrays_elsewhere(self, peer: Peer) -> Hostile:
        """A handle of shared memory that is none: of no process, a descriptor that is no memory, or noise."""
        pid = self._chance.choice((0, 1, peer.pid, 2**22))
        handle = BufferHandle(pid, self._chance.randrange(64), bytes(16), (2**40,) * self._chance.randint(0, 3)).pack()
        attachment = self._chance.choice((handle, handle[:-1], b"x" * 100_000, b""))
        key = call_key(self._mesh, peer.name, INBOX, "nobody")
        frame = self._frame(Kind.CALL, peer, self._stranger(), 1, self._work())
        return Hostile("put", key, frame, attachment=attachment)

    def control(self, peer: Peer) -> Hostile:
        sender = self._stranger()
        operation = self._chance.choice((*Operation, 0, 99))
        args = self._chance.choice(([], [2**63], [1, "nobody", 2], ["x"], [1, peer.name, peer.incarnation]))
        body = msgspec.msgpack.encode([operation, "", args, {}])
        return self._call(peer, sender.name, self._frame(Kind.CONTROL, peer, sender, 1, body))

    def goodbye(self, peer: Peer) -> Hostile:
        """A present node says that it leaves, and stays."""
        sender = self._of(self._chance.choice(self._peers))
        return self._call(peer, sender.name, pack_head(Kind.BYE, INBOX, 0, 0, 0, sender))

    # --- replies: received by the reply channels of callers ----------------------------------------------------

    def _reply(self, peer: Peer, frame: bytes, counter: str = "") -> Hostile:
        caller = peer if peer != self._peers[0] else self._peers[-1]
        callee = self._peers[0].name
        return Hostile("put", call_key(self._mesh, caller.name, INBOX + 1, callee), frame, counter=counter)

    def reply_to_no_call(self, peer: Peer) -> Hostile:
        caller = peer if peer != self._peers[0] else self._peers[-1]
        body = msgspec.msgpack.encode([True, "forged"])
        number = self._chance.choice((0, 2**40, 2**64 - 1))
        return self._reply(peer, self._frame(Kind.REPLY, caller, self._of(self._peers[0]), number, body))

    def reply_without_its_end(self, peer: Peer) -> Hostile:
        frame = self._frame(Kind.REPLY, peer, self._of(self._peers[0]), 0, b"12345678")
        return self._reply(peer, frame[: -self._chance.randint(1, 8)], "a malformed reply")

    def reply_of_another_sender(self, peer: Peer) -> Hostile:
        frame = self._frame(Kind.REPLY, peer, self._stranger(), 0, b"")
        return self._reply(peer, frame, "a frame whose content and key name different senders")

    # --- presence tokens and status ----------------------------------------------------------------------------

    def token_of_a_ghost(self, peer: Peer) -> Hostile:
        ghost = Peer(f"ghost-{self._chance.randrange(2**32)}", "rpc", "nowhere", 1, self._chance.choice(_EXTREME[:-1]))
        return Hostile("token", token_key(self._mesh, ghost))

    def token_of_another_life(self, peer: Peer) -> Hostile:
        """A present node seems to have been started again, or to have an earlier process."""
        life = self._chance.choice((0, peer.incarnation - 1, peer.incarnation + 1, 2**62))
        return Hostile("token", token_key(self._mesh, replace(peer, incarnation=life)))

    def token_with_a_role_beside_its_key(self, peer: Peer) -> Hostile:
        whole = token_key(self._mesh, Peer(f"ghost-{self._chance.randrange(2**32)}", "rpc", "nowhere", 1, 1))
        return Hostile("token", whole.replace("/~rpc/", "/~other/"), counter="presence malformed")

    def token_of_noise(self, peer: Peer) -> Hostile:
        facts = "".join(self._chance.choice("ABCdef012_-") for _ in range(self._chance.randint(1, 200)))
        key = presence_key(self._mesh, f"ghost-{self._chance.randrange(2**32)}/{facts}")
        return Hostile("token", key, counter="presence malformed")

    def token_that_is_long(self, peer: Peer) -> Hostile:
        key = presence_key(self._mesh, f"ghost-{self._chance.randrange(2**32)}/{'x' * LONGEST_KEY}")
        return Hostile("token", key, counter="presence malformed")

    def question_for_the_status(self, peer: Peer) -> Hostile:
        key = status_key(self._mesh, self._chance.choice((peer.name, "**")))
        envelope = self._envelope(peer.name, peer.incarnation, number=self._chance.choice(_EXTREME))
        return Hostile("get", key, self._noise(), self._chance.choice(ENCODINGS), envelope)

    # --- parts -------------------------------------------------------------------------------------------------

    def _envelope(self, name: str, incarnation: int, *, number: int | None = None, kind: int = 0) -> bytes:
        number = self._chance.choice(_EXTREME) if number is None else number
        step = self._chance.choice((NO_STEP, 0, -(2**63), 2**63 - 1))
        return seal_envelope(name.encode(), incarnation, number, step, kind)

    def _other_life(self, peer: Peer) -> int:
        """Return the incarnation of a life that this node has not had."""
        return self._chance.choice((*_EXTREME, peer.incarnation + 1, self._chance.getrandbits(64)))

    def _noise(self) -> bytes:
        return self._chance.randbytes(self._chance.choice((0, 1, 7, 68, 1000, 100_000)))

    def _work(self) -> bytes:
        """Return the body of a call that the callee of the scenario runs."""
        label = f"forged-{self._chance.getrandbits(64)}"
        return msgspec.msgpack.encode([int(Operation.CALL), "work", [label, 7], {}])

    def _channel(self) -> int:
        return self._chance.choice((INBOX, INBOX + 1, 2**32 - 1))

    def _stranger(self) -> Endpoint:
        return Endpoint("nobody", self._chance.choice((*_EXTREME, self._chance.getrandbits(64))))

    def _of(self, peer: Peer) -> Endpoint:
        return Endpoint(peer.name, peer.incarnation)


_FORGED = msgspec.msgpack.encode("forged")

Recipe = Callable[[Forger, Peer], Hostile]
RECIPES: dict[str, tuple[Recipe, ...]] = {
    "subscription": (
        Forger.publication_of_another_life, Forger.publication_far_ahead, Forger.publication_with_an_impossible_number,
        Forger.publication_by_a_wrong_clock, Forger.publication_of_another_node, Forger.publication_of_an_unknown_kind,
        Forger.publication_of_another_version, Forger.publication_with_a_damaged_envelope,
        Forger.publication_with_a_long_attachment, Forger.publication_of_noise, Forger.publication_by_no_node,
        Forger.deletion,
    ),
    "service": (
        Forger.request_of_another_sender, Forger.request_by_wildcard, Forger.request_sent_again,
        Forger.request_of_another_version, Forger.request_of_noise,
    ),
    "inbox": (
        Forger.call_sent_again, Forger.call_far_ahead, Forger.call_with_an_impossible_number,
        Forger.call_of_an_earlier_number, Forger.call_of_another_sender, Forger.call_by_wildcard,
        Forger.call_of_an_unknown_kind, Forger.call_without_its_end, Forger.call_that_claims_open_numbers,
        Forger.call_without_a_head, Forger.call_with_arrays_elsewhere, Forger.control, Forger.goodbye,
    ),
    "reply channel": (Forger.reply_to_no_call, Forger.reply_without_its_end, Forger.reply_of_another_sender),
    "presence": (
        Forger.token_of_a_ghost, Forger.token_of_another_life, Forger.token_with_a_role_beside_its_key,
        Forger.token_of_noise, Forger.token_that_is_long,
    ),
    "status": (Forger.question_for_the_status,),
}  # fmt: skip


def main(address: str, mesh: str, seed: int, count: int, receivers: Sequence[str], names: Sequence[str]) -> None:
    """Send `count` frames, in turn to each kind of receiver; print what was sent and what must be counted."""
    config = {
        "mode": "client",
        "connect": {"endpoints": [address], "timeout_ms": 20_000, "exit_on_failure": True},
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
    }
    sent: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        forger = Forger(mesh, _present(session, mesh, names), random.Random(seed))
        tokens = []
        for number in range(count):
            receiver = receivers[number % len(receivers)]
            frame = forger.forge(receiver)
            for _ in range(frame.times):
                if frame.verb == "token":
                    tokens.append(session.liveliness().declare_token(frame.key))
                else:
                    _send(session, frame)
            sent[receiver] += frame.times
            if frame.counter:
                expected[frame.counter] += max(1, frame.times - 1)
        for _ in session.get(f"neuraxis/{mesh}-nowhere", timeout=20.0):  # ends after all that was sent before it
            pass
    print(json.dumps({"sent": sent, "expected": expected}), flush=True)


def _present(session: zenoh.Session, mesh: str, names: Sequence[str]) -> list[Peer]:
    """Return the nodes of these names, as their presence tokens describe them."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        found = {}
        for reply in session.liveliness().get(presence_key(mesh), timeout=5.0):
            token = None if reply.ok is None else _read_token(presence_key(mesh, ""), str(reply.ok.key_expr))
            if token is not None:
                found[token[0].name] = token[0]
        if found.keys() >= set(names):
            return [found[name] for name in names]
    raise SystemExit(f"of {', '.join(names)} only {', '.join(found)} are on the mesh {mesh}")


def _send(session: zenoh.Session, frame: Hostile) -> None:
    block = zenoh.CongestionControl.BLOCK
    if frame.verb == "get":
        replies = session.get(
            frame.key, payload=frame.payload, encoding=frame.encoding, attachment=frame.attachment, timeout=2.0,
            congestion_control=block,
        )  # fmt: skip
        for _ in replies:
            pass
    elif frame.verb == "delete":
        session.delete(frame.key, attachment=frame.attachment, congestion_control=block)
    else:
        session.put(
            frame.key, frame.payload, encoding=frame.encoding or None, attachment=frame.attachment,
            congestion_control=block,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(","), sys.argv[6:])
