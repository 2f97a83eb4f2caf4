"""Input that claims more than it has, or is malformed in ways that mutation seldom produces: refused cheaply."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest

from neuraxis.comm.failures import LAST_MESSAGE_BYTES, LastMessage
from neuraxis.comm.rendezvous import Rendezvous, rendezvous_address
from neuraxis.errors import CheckpointError, InvalidArgument, LineClosed, SpecError
from neuraxis.gpu.sharing import SharedHandle
from neuraxis.network import Network
from neuraxis.network.models import lif_delta
from neuraxis.process import messages
from neuraxis.process.environment import Launch
from neuraxis.simulation import Simulation, read_report, read_spikes
from neuraxis.store.states import json_sum
from neuraxis.wire import objects
from neuraxis.wire.codecs import Undecodable, decode
from neuraxis.wire.objects import Unreadable
from neuraxis.wire.tensors import HostTensor, pack, unpack

HUGE = 2**60


def ext(code: int, content: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, content))


@pytest.mark.parametrize("name", ["<f4", "float32", [["a"], [["<f4", [HUGE]]], [0], 4]])
@pytest.mark.parametrize("shape", [[HUGE], [HUGE, HUGE], [2**32, 2**32], [0, HUGE, HUGE], [1] * 100])
def test_an_array_that_claims_more_than_came(name: Any, shape: list[int]) -> None:
    header = msgspec.msgpack.encode([name, shape, "C"])
    start = struct.pack("<I", len(header)) + header
    frame = start + bytes(-len(start) % 64) + bytes(16)
    for encoding in ("application/x-neuraxis-array", "application/x-neuraxis-tensor"):
        with pytest.raises(Undecodable):
            decode(frame, encoding)
    for code in (6, 7, 9):
        with pytest.raises(Unreadable):
            objects.decode(ext(code, msgspec.msgpack.encode([name, shape, bytes(16)])))


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc9\xff\xff\xff\xff\x01",
            b"\x91" * 100_000,
            b"",
            b"\xc1",
        ),
        *(
            ext(4, b"\x92\x01"),
            ext(5, b"\xcb\x7f\xf0\0\0\0\0\0\0"),
            ext(2, b"\x91\x90"),
            ext(8, b"\x91\x01"),
            ext(99, b""),
        ),
        ext(5, msgspec.msgpack.encode("9" * 5000)),
    ],
)
def test_objects_between_ranks_have_one_error(content: bytes) -> None:
    with pytest.raises(Unreadable):
        objects.decode(content)


def test_data_between_regions_have_one_error() -> None:
    for value in ((1, 2, 3), ("x", ""), (np.zeros(2), "float99")):
        with pytest.raises(Unreadable, match="not an array"):
            unpack(objects.encode(value))
    refused = []
    for depth in range(10, 1000, 10):  # of some of these msgpack's reader has enough, and of some the walk in Python
        try:
            unpack(b"\x91" * depth + b"\x01")
        except Unreadable as error:
            refused.append(str(error))
    assert refused
    assert all("nested" in reason for reason in refused)
    kept = unpack(pack({"a": HostTensor(np.ones(2), "bfloat16")}))
    assert kept["a"].values.tolist() == [1, 1]


def test_an_unreadable_last_message_has_an_unknown_reason() -> None:
    room = np.zeros(LAST_MESSAGE_BYTES, np.uint8)
    room[-1] = 1
    room[1] = 3
    room[2:5] = 0xFF
    message = LastMessage.unpacked(room)
    assert message is not None
    assert (message.rank, message.failed) == (-1, True)


def test_a_handle_that_is_no_text() -> None:
    with pytest.raises(InvalidArgument, match="no handle"):
        SharedHandle.unpacked(b"\x98\xae\xff\xff")


# --- sockets ------------------------------------------------------------------------------------------------


def meeting_at(port: int) -> Any:
    return rendezvous_address(f"tcp://127.0.0.1:{port}", Launch("none", 0, 2, 0, 2, None, None, "job"))


def test_a_stranger_that_sends_byte_by_byte_does_not_keep_rank_0(free_port: int) -> None:
    done = threading.Event()
    began = threading.Event()

    def trickle() -> None:
        while not done.is_set():
            try:
                with socket.create_connection(("127.0.0.1", free_port), timeout=5) as stranger:
                    stranger.sendall(struct.pack("!I", 4000))
                    while not done.wait(0.2):
                        began.set()
                        stranger.sendall(b"x")
            except OSError:
                began.set()
                if done.wait(0.05):
                    return

    met: list[list[bytes]] = []

    def meet(rank: int) -> None:
        with Rendezvous(meeting_at(free_port), rank, 2, 60.0) as meeting:
            met.append(meeting.exchange(b"%d" % rank))

    first = threading.Thread(target=meet, args=(0,))
    first.start()
    stranger = threading.Thread(target=trickle)
    stranger.start()
    assert began.wait(60)
    second = threading.Thread(target=meet, args=(1,))
    second.start()
    first.join(90)
    second.join(90)
    done.set()
    stranger.join(30)
    assert met == [[b"0", b"1"]] * 2


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\5\xc1\xc1\xc1\xc1\xc1", b"\0\0\0\2\xa1\xff", b"\xff\xff\xff\xff"])
def test_whoever_answers_nonsense_is_not_rank_0(free_port: int, answer: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", free_port))

    def answer_all() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"neuraxis rendezvous 1\n" + bytes(16) + answer)

    thread = threading.Thread(target=answer_all)
    thread.start()
    try:
        with pytest.raises(TimeoutError, match="rank 0 did not listen"):
            Rendezvous(meeting_at(free_port), 1, 2, 0.5)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


@pytest.mark.parametrize("text", ["127.0.0.1 99999999", "127.0.0.1 x", "127.0.0.1", "a b c", "127.0.0.1 " + "9" * 5000])
def test_a_meeting_file_with_nonsense(tmp_path: Path, text: str) -> None:
    place = rendezvous_address(f"file://{tmp_path}/meeting", Launch("none", 1, 2, 1, 2, None, None, "job"))
    (tmp_path / "meeting").write_text(text)
    with pytest.raises(TimeoutError, match="rank 0 did not listen"):
        Rendezvous(place, 1, 2, 0.1)


@pytest.mark.parametrize("start", [(0, HUGE), (0, 1, HUGE), (77, 0)])
def test_a_worker_message_that_claims_too_much(start: tuple[int, ...]) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        stream = messages.MessageStream(mine)
        theirs.sendall(struct.pack(f"<{len(start)}Q", *start))
        with pytest.raises(LineClosed):
            stream.read_some()


# --- files --------------------------------------------------------------------------------------------------


def test_recordings_that_claim_more_than_their_file(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    with h5py.File(path, "w") as file:
        for name in ("timestamps", "node_ids"):
            file.create_dataset(f"spikes/cells/{name}", shape=(2**45,), chunks=(1024,), dtype="<f8")
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match="too small for it"):
        read_spikes(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("spikes/cells/timestamps", data="text")
    with pytest.raises(InvalidArgument, match="not an array of numbers"):
        read_spikes(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("spikes/cells/timestamps", data=[1.0])
    with pytest.raises(InvalidArgument, match="damaged"):
        read_spikes(path)
    report = tmp_path / "report.h5"
    with h5py.File(report, "w") as file:
        group = file.create_group("report/cells")
        group.create_dataset("data", data=np.zeros((2, 3), np.float32))
        group.create_dataset("mapping/time", data=[0.0, 1.0, 0.5])
        group.create_dataset("mapping/node_ids", data=[0, 1, 2])
        group.create_dataset("mapping/index_pointers", data=[0, 2**50, 2**51, 3])
    with pytest.raises(InvalidArgument, match="mapping"):
        read_report(report)
    assert time.monotonic() - began < 60


def test_files_that_are_nested_too_deeply(tmp_path: Path) -> None:
    from neuraxis.brain.files import read_spec

    path = tmp_path / "brain.toml"
    for text, reason in (("a = " + "[" * 5000, "nested"), ("a = " + "1" * 5000, "cannot be read")):
        path.write_text(text)
        with pytest.raises(SpecError, match=reason):
            read_spec(path)


def test_a_simulation_state_with_a_hostile_manifest(tmp_path: Path) -> None:
    network = Network()
    network.population("cells", 3, lif_delta)
    with Simulation(network, progress=False) as simulation:
        simulation.save(tmp_path)
        path = tmp_path / "manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["crc32"]
        hostile = [
            {**manifest, **change}
            for change in (
                {"data": "state-\ud800"},
                {"files": {"\0": [0, 0]}},
                {"files": {"../x": [0, 0]}},
                {"files": 5},
                {"files": {"shard-0.safetensors": [1e400, 1]}},
                {"identity": 5},
                {"metadata": {"note": 5}},
            )
        ]
        for text in (
            *(json.dumps({**body, "crc32": json_sum(body)}) for body in hostile),
            "[" * 100_000,
            "1" * 5000,
        ):
            path.write_text(text)
            with pytest.raises(CheckpointError):
                simulation.restore(tmp_path)


def test_a_training_state_with_a_hostile_manifest(tmp_path: Path) -> None:
    """The checksum is valid: a process that can write the folder can write that, too."""
    import torch

    from neuraxis.training import Checkpointer

    model = torch.nn.Linear(4, 3)
    checkpointer = Checkpointer(tmp_path, model=model)
    checkpointer.save(1)
    path = tmp_path / "step-00000001" / "manifest.json"
    body = json.loads(path.read_text())
    del body["crc32"]
    content = body["metadata"]
    name = next(iter(content["tensors"]))
    for change in (
        {"tensors": {**content["tensors"], name: ["float32", [HUGE], None]}},
        {"tensors": {**content["tensors"], name: ["float32", [3, 4], [2**40, 1]]}},
        {"tensors": {**content["tensors"], name: ["float32", "x", 5]}},
        {"random": [{"torch": "?"}]},
        {"pieces": [[1]]},
        {"parts": []},
        {"size": "x"},
    ):
        changed = {**body, "metadata": {**content, **change}}
        path.write_text(json.dumps({**changed, "crc32": json_sum(changed)}))
        with pytest.raises(CheckpointError):
            checkpointer.restore(1)


def test_as_many_seeds_as_fit() -> None:
    from neuraxis.sweep.plan import parse_seeds, parse_setting

    assert parse_seeds("3", 5) == (5, 6, 7)
    with pytest.raises(InvalidArgument, match="--seeds"):
        parse_seeds("99999999999", 0)
    assert parse_setting("a=" + "1" * 5000).values
