"""The decoders that `fuzz.py` tries: for each a corpus from the real encoder, and the errors that it documents."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

Decode = Callable[[bytes], object]
Allowed = tuple[type[BaseException], ...]


@dataclass(frozen=True)
class Prepared:
    corpus: list[bytes]
    decode: Decode
    allowed: Allowed = ()


@dataclass(frozen=True)
class Target:
    """A decoder. `share` is its part of all cases; targets with the same `process` share a child."""

    name: str
    prepare: Callable[[Path], Prepared]
    share: int = 20
    process: str = "messages"


TARGETS: dict[str, Target] = {}


def target(name: str, share: int = 20, process: str = "messages") -> Callable[[Any], Any]:
    def register(prepare: Callable[[Path], Prepared]) -> Callable[[Path], Prepared]:
        TARGETS[name] = Target(name, prepare, share, process)
        return prepare

    return register


class Command(msgspec.Struct):
    joint: str
    angle: float
    more: list[int] = []


VALUES: list[Any] = [
    *(None, True, -5, 2**64 - 1, 2**80, 1.5, "text", b"bytes", [1, [2, [3]]], (1, "two"), {"a": {"b": [1]}}),
    *({1, 2}, frozenset({"x"}), {1: "one", (2, 3): 4}, 1 + 2j, np.float32(3), np.int64(-1), Command("elbow", 0.5)),
    *(np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((0, 3)), np.array("text"), np.array(3, "M8[s]")),
    np.zeros(2, [("a", "<f4"), ("b", "<i2", (2,))]),
    {"image": np.zeros((4, 4), np.uint8), "boxes": [(1, 2), np.ones(3)]},
]


# --- the mesh -----------------------------------------------------------------------------------------------


def _mesh_values(with_torch: bool) -> Prepared:
    from neuraxis.wire.codecs import Undecodable, decode, encode

    encodings = ["application/msgpack", "application/json", "application/x-neuraxis-array"]
    encodings += ["application/x-neuraxis-tensor", "text/plain", "zenoh/bytes", "application/python-serialized-object"]
    encodings += ["application/protobuf;google.protobuf.Struct", "application/protobuf", "nonsense"]
    types = [None, Command, dict, np.ndarray, list[int], bytes, dict[str, float], tuple[int, str]]
    made = [encode(value) for value in VALUES]
    made += [encode({"a": [1, None]}, "json"), encode(Command("elbow", 0.5), "json")]
    if with_torch:
        import torch
        from google.protobuf import struct_pb2

        message = struct_pb2.Struct()
        message.update({"a": [1.0, {"b": "text"}]})
        made += [encode(message), encode(torch.zeros(2, 3)), encode([torch.ones(3, dtype=torch.bfloat16)])]
    else:
        header = msgspec.msgpack.encode(["float32", [2, 3], "C"])
        start = struct.pack("<I", len(header)) + header
        made.append((start + bytes(-len(start) % 64) + bytes(24), "application/x-neuraxis-tensor"))

    def read(data: bytes) -> object:
        encoding = encodings[data[0] % len(encodings)] if data else ""
        kind = types[data[1] % len(types)] if len(data) > 1 else None
        return decode(data[2:], encoding, type=kind)

    corpus = [bytes([encodings.index(encoding), 0]) + payload for payload, encoding in made]
    corpus += [b"\0" + bytes([1]) + encode(Command("elbow", 0.5))[0]]
    return Prepared(corpus, read, (Undecodable,))


@target("mesh values", share=100)
def mesh_values(folder: Path) -> Prepared:
    return _mesh_values(with_torch=False)


@target("mesh values with torch", share=60, process="torch")
def mesh_values_with_torch(folder: Path) -> Prepared:
    return _mesh_values(with_torch=True)


@target("mesh messages", share=60)
def mesh_messages(folder: Path) -> Prepared:
    """Attachment, payload and encoding as a subscription opens them: whatever comes, it raises nothing."""
    import logging

    import zenoh

    from neuraxis.mesh.messages import Decoder
    from neuraxis.wire.codecs import encode

    logging.getLogger("neuraxis").setLevel(logging.CRITICAL)
    attachments = _attachments()
    decoder = Decoder("**", "neuraxis/fuzz/")

    def content(data: bytes) -> Any:
        return SimpleNamespace(to_bytes=lambda: data)

    def read(data: bytes) -> object:
        length = data[0] if data else 0
        sample = SimpleNamespace(
            attachment=content(data[1 : 1 + length]) if length else None,
            payload=content(data[1 + length :]),
            key_expr="neuraxis/fuzz/node/topic",
            kind=zenoh.SampleKind.PUT,
            encoding="application/msgpack",
            timestamp=None,
        )
        return decoder.decode(sample)

    payloads = [encode(value)[0] for value in ({"a": 1}, [1.5, "x"], Command("elbow", 0.5))]
    corpus = [bytes([len(one)]) + one + payload for one in attachments for payload in payloads]
    return Prepared(corpus, read)


def _attachments() -> list[bytes]:
    """Attachments of real messages: what a node publishes, as another Zenoh session on the same mesh sees it."""
    import os
    import queue

    import zenoh

    from neuraxis.mesh import Node
    from neuraxis.mesh.topology import seed_port

    mesh = f"fuzz-{os.getpid()}"
    seen: queue.Queue[bytes] = queue.Queue()
    with Node("node", mesh=mesh) as node:
        config = zenoh.Config()
        config.insert_json5("mode", '"peer"')
        config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{seed_port(mesh)}"]))
        config.insert_json5("listen/endpoints", '["tcp/127.0.0.1:0"]')
        config.insert_json5("scouting/multicast/enabled", "false")

        def record(sample: Any) -> None:
            if sample.attachment is not None:
                seen.put(sample.attachment.to_bytes())

        with zenoh.open(config) as session, session.declare_subscriber(f"neuraxis/{mesh}/node/**", record):
            found: list[bytes] = []
            deadline = time.monotonic() + 60
            step = 0
            while len(found) < 3:
                assert time.monotonic() < deadline, "no message of the node was heard"
                node.publish("topic", step, "state")
                step += 1
                try:
                    found.append(seen.get(timeout=0.1))
                except queue.Empty:
                    pass
    return found


@target("presence tokens", share=60)
def presence_tokens(folder: Path) -> Prepared:
    from neuraxis.mesh import membership as peers

    prefix = peers.presence_key("fuzz", "")
    keys = [
        peers.token_key("fuzz", peers.Peer("arm", "motor", "host", 42, 10**18, ("a", "b"))),
        peers.token_key("fuzz", peers.Peer("sensor/thermal", "", "", 0, 0), number=3),
    ]
    read = peers._read_token
    return Prepared([key.encode() for key in keys], lambda data: read(prefix, data.decode("latin-1")))


@target("keys and names", share=20)
def keys_and_names(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.mesh.keys import check_expression, check_name

    def read(data: bytes) -> object:
        text = data.decode("latin-1")[:4000]
        if data[:1] == b"\1":
            return check_name(text[1:], "name")
        return check_expression(text)

    return Prepared([b"vision/*", b"sensor/**/x", b"a/b/c", b"\1sensor/thermal"], read, (InvalidArgument,))


@target("region windows", share=60)
def region_windows(folder: Path) -> Prepared:
    from neuraxis.simulation.mesh.wire import Window, pack_window, unpack_window

    windows = [
        Window(1, 10, np.arange(3, dtype=np.uint16), np.arange(3, dtype=np.int32), 0, 2**63),
        Window(5, 5, np.zeros(0, np.uint16), np.zeros(0, np.int32), 10**18, 1),
    ]
    return Prepared([pack_window(one) for one in windows], unpack_window, (ValueError,))


@target("region status", share=30)
def region_status(folder: Path) -> Prepared:
    from neuraxis.simulation.mesh.upstream import Upstream
    from neuraxis.simulation.mesh.wire import RegionStatus
    from neuraxis.wire.codecs import Undecodable, decode, encode

    payload, encoding = encode(RegionStatus(12, 2**60, waiting_for=["a"], missing={"b": 3}, hold_s=1.5))
    upstream = Upstream("cortex", 1, 1.0)

    def read(data: bytes) -> object:
        return upstream.status(decode(data, encoding, type=RegionStatus), 1, time.monotonic())

    return Prepared([payload], read, (Undecodable,))


@target("region commands", share=30)
def region_commands(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.mesh.messages import Message
    from neuraxis.simulation.mesh.commands import CommandQueue
    from neuraxis.wire.codecs import Undecodable, decode, encode

    commands = CommandQueue("word", lambda command: command.done.set(), lambda name, arguments: None)
    corpus = [
        encode(["status"])[0],
        encode(["inject", [1, 2], np.arange(3)])[0],
        encode(["save", "word", "/tmp/x"])[0],
        encode(["set_level", "dopamine", 0.5])[0],
    ]

    def read(data: bytes) -> object:
        return commands.submit(Message(decode(data, "application/msgpack"), "key"))

    return Prepared(corpus, read, (Undecodable, InvalidArgument))


# --- calls --------------------------------------------------------------------------------------------------


@target("call frames", share=100)
def call_frames(folder: Path) -> Prepared:
    from neuraxis.errors import NotSerializable
    from neuraxis.rpc.messages import Kind, read_head, read_reply, read_request
    from neuraxis.rpc.transport import Endpoint
    from neuraxis.rpc.values import HandleData, Values
    from neuraxis.wire.exceptions import from_data, to_data
    from neuraxis.wire.objects import Unreadable

    class Handle:
        pass

    class Keeper:
        handle_type = Handle

        def describe(self, handle: Any) -> HandleData:
            return HandleData("owner", 1, 2, "kind")

        def retain_for(self, handles: Any, endpoint: Any) -> None:
            pass

        def adopt(self, data: HandleData) -> Any:
            return Handle()

        def detach(self, handle: Any) -> None:
            pass

        def release(self, data: HandleData) -> None:
            pass

    values = Values(False, Keeper())
    values.me = Endpoint("caller", 7)
    endpoint = Endpoint("callee", 8)
    requests = [[1, "add", [1, 2.5, np.arange(3)], {"key": "x"}], [3, "method", [5, Handle(), (1, 2)], {}]]
    requests.append([1, "large", [np.zeros(5000), np.ones((2, 4000), np.float32)], {}])
    failure = to_data(KeyError("x"), True)
    replies = [[True, {"a": 1}], [False, failure], [True, np.zeros(3000)]]
    corpus = [bytes(values.encode(Kind.CALL, 0, 3, 1, one, endpoint, (1, 2)).joined()) for one in requests]
    corpus += [bytes(values.encode(Kind.REPLY, 4, 3, 0, one, endpoint).joined()) for one in replies]

    def read(data: bytes) -> object:
        head = read_head(data)
        value = values.decode(bytes(data), head)
        if head.kind == Kind.REPLY:
            good, answer = read_reply(value)
            return answer if good else from_data(answer, "callee")
        return read_request(value)

    return Prepared(corpus, read, (Unreadable, NotSerializable))


@target("handles of shared buffers", share=20)
def buffer_handles(folder: Path) -> Prepared:
    from neuraxis.comm.backends.shm.zero_copy import BufferHandle
    from neuraxis.wire.objects import Unreadable

    corpus = [BufferHandle(1, 2, bytes(16), (3, 4)).pack(), BufferHandle(0, 0, bytes(16), ()).pack()]
    return Prepared(corpus, BufferHandle.unpack, (Unreadable,))


@target("handles of GPU arrays", share=20)
def gpu_handles(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.gpu.sharing import SharedHandle

    handle = SharedHandle(bytes(16), bytes(16), bytes(64), 4096, 0, (4, 8), "<f4")
    return Prepared([handle.packed()], SharedHandle.unpacked, (InvalidArgument,))


# --- ranks --------------------------------------------------------------------------------------------------


@target("objects between ranks", share=100)
def comm_objects(folder: Path) -> Prepared:
    from neuraxis.errors import NotSerializable
    from neuraxis.wire.objects import Unreadable, decode, encode

    values = [value for value in VALUES if not isinstance(value, msgspec.Struct)]
    return Prepared([encode(value) for value in values], decode, (Unreadable, NotSerializable))


@target("data between regions", share=40)
def region_data(folder: Path) -> Prepared:
    from neuraxis.errors import NotSerializable
    from neuraxis.wire.objects import Unreadable
    from neuraxis.wire.tensors import HostTensor, pack, to_sendable, unpack

    values = [{"a": np.arange(3.0), "b": [1, "x"]}, [1.5, None], HostTensor(np.zeros((2, 2), np.float32), "bfloat16")]
    return Prepared([pack(to_sendable(one)) for one in values], unpack, (Unreadable, NotSerializable))


@target("last messages of ranks", share=20)
def last_messages(folder: Path) -> Prepared:
    from neuraxis.comm.failures import LAST_MESSAGE_BYTES, LastMessage

    corpus = [LastMessage.because_of(error, 3, 7).packed().tobytes() for error in (None, KeyError("x"), SystemExit(2))]

    def read(data: bytes) -> object:
        return LastMessage.unpacked(np.frombuffer(data.ljust(LAST_MESSAGE_BYTES, b"\0")[:LAST_MESSAGE_BYTES], np.uint8))

    return Prepared(corpus, read)


def _through_socket(data: bytes, use: Callable[[socket.socket], object]) -> object:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.settimeout(5)
        mine.settimeout(5)
        mine.setblocking(False)
        try:
            mine.send(data)
        except BlockingIOError:
            pass
        mine.shutdown(socket.SHUT_WR)
        return use(theirs)


@target("rendezvous, rank 0", share=20, process="sockets")
def rendezvous_hello(folder: Path) -> Prepared:
    from neuraxis.comm import rendezvous

    frame = msgspec.msgpack.encode(rendezvous._Hello(1, 2, bytes(32)))

    def admit(data: bytes) -> object:
        """Rank 0 admits a stranger: it must go on, with or without it."""
        meeting = object.__new__(rendezvous.Rendezvous)
        meeting.address = rendezvous.RendezvousAddress("127.0.0.1", (1,), "job")
        meeting.size, meeting._connections = 2, {}

        class Listener:
            def accept(self) -> Any:
                return connection, ("127.0.0.1", 1)

        def use(given: socket.socket) -> object:
            nonlocal connection
            connection = _TcpLike(given)
            meeting._accept_rank(Listener())  # type: ignore[arg-type]
            return len(meeting._connections)

        connection: Any = None
        return _through_socket(data, use)

    return Prepared([struct.pack("!I", len(frame)) + frame], admit)


class _TcpLike:
    """A socket of a pair, which takes the options of TCP."""

    def __init__(self, given: socket.socket) -> None:
        self._given = given

    def setsockopt(self, *options: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)


@target("rendezvous, other ranks", share=20, process="sockets")
def rendezvous_response(folder: Path) -> Prepared:
    from neuraxis.comm import rendezvous
    from neuraxis.errors import RendezvousError

    responses = [rendezvous._Response(), rendezvous._Response("why", False, [1]), rendezvous._Response(contents=[b"a"])]
    frames = [msgspec.msgpack.encode(one) for one in responses]

    def read(data: bytes) -> object:
        meeting = object.__new__(rendezvous.Rendezvous)
        meeting.address = rendezvous.RendezvousAddress("127.0.0.1", (1,), "job")
        meeting.size, meeting._timeout, meeting._deadline = 2, 1.0, time.monotonic() + 1
        meeting._hub = None if data[:1] == b"\0" else socket.socket()
        try:
            return _through_socket(data, meeting._await_response)
        except (OSError, EOFError):
            if isinstance(meeting._hub, socket.socket):
                raise
            return None
        finally:
            if meeting._hub is not None:
                meeting._hub.close()

    class Refused(RendezvousError):
        pass

    corpus = [struct.pack("!I", len(one)) + one for one in frames]

    def quiet(data: bytes) -> object:
        try:
            return read(data)
        except RendezvousError as error:
            return error

    return Prepared(corpus, quiet)


@target("rendezvous file", share=5, process="sockets")
def rendezvous_file(folder: Path) -> Prepared:
    from neuraxis.comm import rendezvous

    path = folder / "meeting"
    meeting = object.__new__(rendezvous.Rendezvous)
    meeting.address = rendezvous.RendezvousAddress("127.0.0.1", (0,), "job", path)

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return [struct.pack("<H", port) for _, port in meeting._addresses()]

    return Prepared([b"127.0.0.1 12345\n"], read)


@target("worker messages", share=20, process="sockets")
def worker_messages(folder: Path) -> Prepared:
    """The framing alone: what a frame holds is a pickle, and comes from a child that this process started."""
    from neuraxis.errors import LineClosed
    from neuraxis.process import messages

    corpus = [b"".join(bytes(part) for part in messages.encode([1, np.zeros(4096), "x"]))]
    corpus.append(b"".join(bytes(part) for part in messages.encode(kind=messages.Kind.READY)))

    def read(data: bytes) -> object:
        def use(end: socket.socket) -> object:
            stream = messages.MessageStream(end)
            while stream.read_some():
                pass
            return len(stream.incoming)

        return _through_socket(data, use)

    return Prepared(corpus, read, (LineClosed,))


# --- files --------------------------------------------------------------------------------------------------


def _network() -> Any:
    from neuraxis.network import Network, PairwiseBernoulli
    from neuraxis.network.models import lif_delta

    network = Network(seed=3)
    cells = network.population("cells", 20, lif_delta)
    network.connect(cells, cells, PairwiseBernoulli(0.3), weight=0.1)
    network.current(cells, 900.0)
    return network


def _saved_simulation(folder: Path) -> tuple[Any, Path]:
    from neuraxis.simulation import Simulation

    network = _network()
    with Simulation(network, progress=False) as simulation:
        simulation.run(20.0)
        simulation.save(folder / "state")
    return network, folder / "state"


@target("simulation manifests", share=10, process="files")
def simulation_manifests(folder: Path) -> Prepared:
    from neuraxis.errors import CheckpointError
    from neuraxis.simulation.checkpoint import find_state, saved_note

    network, state = _saved_simulation(folder)
    path = state / "manifest.json"

    def read(data: bytes) -> object:
        path.write_bytes(_with_checksum(data))
        found = find_state(state, network)
        found.verify()
        return saved_note(found)

    body = json.loads(path.read_text())
    earlier = {
        "format": body["content"],
        "network": body["identity"],
        "state": body["data"],
        "files": list(body["files"]),
        "checksums": {name: crc for name, (_, crc) in body["files"].items()},
        "note": {},
    }
    return Prepared([*_manifests(path), json.dumps(earlier).encode()], read, (CheckpointError,))


def _manifests(path: Path) -> list[bytes]:
    """The manifest of a saved state as it is, and four times with a checksum that will fit whatever is changed."""
    body = json.loads(path.read_text())
    del body["crc32"]
    return [path.read_bytes(), *[b"c" + json.dumps(body).encode()] * 4]


def _with_checksum(data: bytes) -> bytes:
    """Give a manifest of `_manifests` its checksum: whoever can write the folder can write that, too."""
    from neuraxis.store.states import json_sum

    if data[:1] not in (b"c", b"e"):
        return data
    try:
        body = json.loads(data[1:])
        fields = body if data[:1] == b"c" else {"content": body}  # "e": a training's of release 0.1
        return json.dumps({**fields, "crc32": json_sum(body)}).encode()
    except (ValueError, TypeError, RecursionError):  # not JSON any more, or no mapping
        return data[1:]


@target("simulation states", share=20, process="files")
def simulation_states(folder: Path) -> Prepared:
    from neuraxis.errors import CheckpointError
    from neuraxis.simulation.checkpoint import SavedState, find_state

    network, state = _saved_simulation(folder)
    found = find_state(state, network)
    place, files = found.data, list(found.files)
    path = place / files[0]
    corpus = [path.read_bytes()]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        with SavedState(place, files) as saved:
            saved.check(network)
            others = [saved.sources(0), saved.python_populations()]
            return [len(saved.neurons(0, 0, 20)), len(saved.synapses(0, 0, 20)), *others]

    return Prepared(corpus, read, (CheckpointError,))


@target("region states", share=5, process="files")
def region_states(folder: Path) -> Prepared:
    import zlib

    from neuraxis.errors import CheckpointError
    from neuraxis.simulation.mesh.region_state import KIND, RegionStates
    from neuraxis.store.states import begin, commit, file_sum

    states = object.__new__(RegionStates)
    states._digest = 5
    now, earlier = folder / "now", folder / "earlier"
    tensors = begin(now) / "shard-0.safetensors"
    earlier.mkdir()
    for path in (tensors, earlier / tensors.name):
        path.write_bytes(b"no arrays")
    commit(tensors.parent, KIND, {tensors.name: file_sum(tensors)}, {"step": 3, "timeline": 0}, {"digest": 5})
    note = {"step": 3, "digest": 5, "timeline": 0, "file": tensors.name, "checksum": zlib.crc32(b"no arrays")}

    def read(data: bytes) -> object:
        if data[:1] == b"e":
            (earlier / "region.json").write_bytes(data[1:])
        else:
            (now / "manifest.json").write_bytes(_with_checksum(data))
        try:  # the arrays are none, so no runner is used
            return states._take(earlier if data[:1] == b"e" else now, None)  # type: ignore[arg-type]
        except CheckpointError as error:
            return error

    return Prepared([*_manifests(now / "manifest.json"), b"e" + json.dumps(note).encode()], read)


@target("spike files", share=10, process="recordings")
def spike_files(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.formats.sonata import SpikeFile
    from neuraxis.simulation import read_spikes

    path = folder / "spikes.h5"
    with SpikeFile(path, [("cells", 20), ("others", 5)], dt_ms=0.1) as file:
        file.append(np.array([1, 2, 5]), 0, np.array([3, 4, 19]))
        file.append(np.array([7]), 1, np.array([2]))
    corpus = [path.read_bytes()]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_spikes(path)

    return Prepared(corpus, read, (OSError, InvalidArgument))


@target("report files", share=10, process="recordings")
def report_files(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.formats.sonata import ReportFile
    from neuraxis.simulation import read_report

    path = folder / "report.h5"
    with ReportFile(path, "cells", np.arange(4), dt_ms=0.1, every_steps=2, state="v", unit="mV") as file:
        file.append(np.array([2, 4]), np.zeros((2, 4), np.float32))
    corpus = [path.read_bytes()]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_report(path)

    return Prepared(corpus, read, (OSError, InvalidArgument))


TOML = Path(__file__).parents[1] / "examples" / "robot_brain" / "robot.toml"


@target("brain files", share=10, process="files")
def brain_files(folder: Path) -> Prepared:
    from neuraxis.brain.files import read_spec
    from neuraxis.errors import SpecError

    path = folder / "brain.toml"
    small = b'[regions.cortex]\nkind = "cortex"\n[regions.cortex.config]\nneurons = 100\n'
    corpus = [TOML.read_bytes()]
    for text in (small,):
        path.write_bytes(text)
        try:
            read_spec(path)
        except SpecError:
            continue
        corpus.append(text)

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_spec(path)

    return Prepared(corpus, read, (SpecError,))


@target("models from text", share=20, process="files")
def models_from_text(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument, InvalidType
    from neuraxis.network import neuron_model_from_source

    model = b"""from neuraxis.network.arithmetic import exp
SCALE = 0.5
STEPS = 2 ** 3
TABLE = -2.5

def rate(v, slope=-(1 + 2) / 2):
    return exp(v * slope) + TABLE if v < 3 and not v == SCALE else max(v, 1.0)

def stepped(v_mv, n, leak, current_pa):
    v_mv = v_mv * leak + rate(v_mv) + current_pa * SCALE
    for k in range(STEPS):
        v_mv += 0.25 ** k
    fired = v_mv > 5.0
    return fired, 0.0 if fired else v_mv, n + 1
"""
    constant = b"exp(-dt_ms / tau_ms) ** 2 if tau_ms > 0 else min(1, tau_ms // 3)"

    warnings.simplefilter("ignore", SyntaxWarning)  # of Python's parser

    def read(data: bytes) -> object:
        text, _, expression = data.decode("utf-8", "replace").partition("\0")
        try:
            return neuron_model_from_source(
                text, states={"v_mv": 0.25, "n": 0}, parameters={"tau_ms": 5.0}, constants={"leak": expression}
            ).constants_for({"tau_ms": 5.0}, 0.1)
        except InvalidArgument as error:
            if "nested too deeply" in str(error):
                error.__context__ = None  # Python's parser raises MemoryError for it, and has not used up any
            raise

    return Prepared([model + b"\0" + constant], read, (InvalidArgument, InvalidType))


@target("stimulus files", share=20, process="files")
def stimulus_files(folder: Path) -> Prepared:
    from neuraxis.brain.stimulus_file import read_stimulus
    from neuraxis.errors import InvalidArgument

    sensors = {"cue": SimpleNamespace(groups=3, neurons=30)}
    spec: Any = SimpleNamespace(sensors=sensors, dt_ms=0.1)
    path = folder / "stimulus.csv"
    corpus = [b"start_ms,stop_ms,sensor,group,value\n0,250,cue,2,1.0\n600,850,cue,,0.5\n870,,reward,,1\n"]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_stimulus(path, spec).steps

    return Prepared(corpus, read, (InvalidArgument,))


@target("sweep results", share=20, process="files")
def sweep_results(folder: Path) -> Prepared:
    from neuraxis.sweep.run import SweepFolder

    cell: Any = SimpleNamespace(key="cell", settings={"a": 1}, seed=3)
    results = SweepFolder(folder)
    results.write(cell, {"answer": {"accuracy": 0.5}})
    path = folder / "cell.json"
    corpus = [path.read_bytes()]
    results.write(cell, {"error": "it failed"})
    corpus.append(path.read_bytes())

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return results.read(cell)

    return Prepared(corpus, read)


@target("settings of sweeps", share=20, process="files")
def sweep_settings(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.sweep.plan import parse_seeds, parse_setting

    def read(data: bytes) -> object:
        text = data.decode("latin-1")
        return parse_seeds(text[1:], 0) if data[:1] == b"\1" else parse_setting(text)

    return Prepared([b"regions.a.config.n=1,2,3", b'a.b="x"', b"\0013", b"\0013,5,8"], read, (InvalidArgument,))


@target("keys of an authority", share=5, process="files")
def authority(folder: Path) -> Prepared:
    from neuraxis.errors import InvalidArgument
    from neuraxis.mesh import certificates

    certificates.make_authority(folder)
    pem, key = folder / "ca.pem", folder / "ca.key"
    both = pem.read_bytes() + b"\0" + key.read_bytes()

    def read(data: bytes) -> object:
        first, _, second = data.partition(b"\0")
        for path, content in ((pem, first), (key, second)):
            path.chmod(0o600)
            path.write_bytes(content)
        return certificates._read_authority(folder)

    return Prepared([both], read, (InvalidArgument,))


def _saved_training(folder: Path) -> Path:
    import torch

    from neuraxis.training import Checkpointer

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    Checkpointer(folder, model=model, optimizer=optimizer).save(7)
    return folder / "step-00000007"


@target("training manifests", share=10, process="torch")
def training_manifests(folder: Path) -> Prepared:
    import torch

    from neuraxis.errors import CheckpointError
    from neuraxis.training import Checkpointer

    state = _saved_training(folder)
    path = state / "manifest.json"
    body = json.loads(path.read_text())
    (shard,) = state.glob("state-*/*")
    flat = "shard-0-of-1-00000000.safetensors"
    shutil.copy(shard, state / flat)
    earlier = {"format": 1, "files": {flat: body["files"][shard.name]}, **body["metadata"]}
    corpus = [*_manifests(path), b"e" + json.dumps(earlier).encode()]
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())
    checkpointer = Checkpointer(folder, model=model, optimizer=optimizer)

    def read(data: bytes) -> object:
        path.write_bytes(_with_checksum(data))
        return checkpointer.restore(7)

    return Prepared(corpus, read, (CheckpointError,))


@target("training shards", share=10, process="torch")
def training_shards(folder: Path) -> Prepared:
    from neuraxis.errors import CheckpointError
    from neuraxis.store.states import SavedFolder
    from neuraxis.training.checkpoint.checkpointer import KIND
    from neuraxis.training.checkpoint.shared_state import StoredState
    from neuraxis.training.checkpoint.tree import tensor_names, unflatten

    state = SavedFolder.read(_saved_training(folder), KIND)
    (name,) = state.files
    path = state.data / name
    corpus = [path.read_bytes()]
    trees = state.metadata["parts"][0]
    names = tensor_names(list(trees.values()))

    def read(data: bytes) -> object:
        path.write_bytes(data)
        tensors = StoredState(state).read(names, 0)
        return [unflatten(tree, tensors) for tree in trees.values()]

    return Prepared(corpus, read, (CheckpointError,))
