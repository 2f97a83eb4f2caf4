"""Two minutes of fault injection; its attacks reach real receivers, and its harness detects violations."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zenoh

import tests.chaos.__main__  # noqa: F401  (registers all scenarios)
from neuraxis.mesh import Node
from neuraxis.mesh.keys import presence_key
from neuraxis.mesh.membership import Peer, _read_token
from neuraxis.rpc import RpcContext
from neuraxis.rpc.messages import read_head
from neuraxis.wire.envelope import open_envelope
from neuraxis.wire.objects import Unreadable
from tests.chaos import hostile
from tests.chaos.storm import PARTS, ROOT, SCENARIOS, Room, Scenario, run_storm

SECONDS = 120


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_two_minutes_of_faults(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    command = [sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", "17", "--json-to", str(counts)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=590)
    assert done.returncode == 0, done.stdout[-8000:]
    found = json.loads(counts.read_text())
    assert found["failures"] == []
    assert set(found["rounds_of"]) == set(found["parts"])
    assert all(faults for faults in found["faults"].values())


def test_every_part_has_faults_that_need_no_namespaces() -> None:
    assert {one.part for one in SCENARIOS if not one.isolated} == set(PARTS)


# --- the attacks ---


@pytest.fixture(scope="module")
def receivers() -> Iterator[dict[str, list[str]]]:
    """Real receivers of each kind, as the nodes of the scenarios have them; the key expressions that they declared."""
    name = f"chaos-keys-{os.getpid()}"
    with (
        Node("alpha", mesh=name) as node,
        RpcContext(name="server", mesh=name) as server,
        RpcContext(name="client", mesh=name) as client,
    ):
        server.register_function("work", lambda: 1)
        assert client.call("server", "work", timeout=20.0) == 1  # opens a reply channel
        subscription = node.subscribe(f"*/{hostile.TOPIC}")
        service = node.serve(hostile.SERVICE, lambda message: message.value)
        links: list[Any] = [one._transport._link for one in (server, client)]  # type: ignore[union-attr]
        assert node._status is not None
        declared: dict[str, list[Any]] = {
            "subscription": [subscription._declaration],
            "service": [service._declaration],
            "inbox": [link._inbox for link in links],
            "reply channel": [one._subscriber for one in links[1]._reply_channels._channels],
            "presence": [node._membership._declaration],
            "status": [node._status._declaration],
        }
        yield {kind: [str(one.key_expr) for one in ones] for kind, ones in declared.items()}


@pytest.fixture
def frames(receivers: dict[str, list[str]]) -> dict[str, list[hostile.Hostile]]:
    """Two hundred hostile frames for each kind of receiver."""
    mesh = receivers["status"][0].split("/")[1]
    peers = {
        kind: [Peer(name, "", "here", 1, 1_700_000_000_000_000_000) for name in names]
        for kind, names in {"rpc": ("server", "client"), "node": ("alpha",)}.items()
    }
    forged = {}
    for kind in hostile.RECIPES:
        attacked = peers["rpc" if kind in ("inbox", "reply channel") else "node"]
        forger = hostile.Forger(mesh, attacked, random.Random(kind))
        forged[kind] = [forger.forge(kind) for _ in range(200)]
    return forged


def test_every_hostile_key_reaches_a_real_receiver(
    receivers: dict[str, list[str]], frames: dict[str, list[hostile.Hostile]]
) -> None:
    assert receivers.keys() == frames.keys()
    for kind, forged in frames.items():
        expressions = [zenoh.KeyExpr(one) for one in receivers[kind]]
        keys = {one.key: zenoh.KeyExpr(one.key) for one in forged}
        missed = [key for key, made in keys.items() if not any(known.intersects(made) for known in expressions)]
        assert missed == [], f"{kind}: receivers listen on {receivers[kind]}"


def test_hostile_frames_are_partly_well_formed(frames: dict[str, list[hostile.Hostile]]) -> None:
    """Noise from the first byte on would test only the first check of a receiver."""

    def share(read: list[bool]) -> float:
        return sum(read) / len(read)

    for kind in ("subscription", "service"):
        attached = [one.attachment for one in frames[kind] if one.attachment is not None]
        assert 0.25 < share([open_envelope(one) is not None for one in attached]) < 0.9, kind
    for kind in ("inbox", "reply channel"):
        assert 0.25 < share([_is_readable(one.payload) for one in frames[kind]]) < 0.9, kind
    mesh = frames["presence"][0].key.split("/")[1]
    assert 0.25 < share([_read_token(presence_key(mesh, ""), one.key) is not None for one in frames["presence"]]) < 0.9
    for kind, forged in frames.items():
        expected = {one.counter for one in forged if one.counter}
        assert expected or kind == "status", f"{kind}: no counter shows that an attack has reached its receiver"


def _is_readable(frame: bytes) -> bool:
    try:
        read_head(frame)
    except Unreadable:
        return False
    return True


# --- the harness ---


def _storm(function, tmp_path: Path, seconds: float = 0.0):  # type: ignore[no-untyped-def]
    reported: list[str] = []
    scenarios = [Scenario("mesh", "one", function)]
    return run_storm(5, seconds, scenarios=scenarios, isolated=False, tell=reported.append), reported


def test_a_round_that_fails_is_reported_with_the_command_to_repeat_it(tmp_path: Path) -> None:
    def one(room: Room, chance: random.Random) -> None:
        room.fault("kill")
        raise AssertionError("the survivors hung")

    report, reported = _storm(one, tmp_path)
    assert len(report.failures) == 1
    assert report.failures[0]["again"] == "python -m tests.chaos --seed 5 --only one:0"
    assert "the survivors hung" in report.failures[0]["problem"]
    assert report.faults["mesh"] == {"kill": 1}
    assert "FAILED" in reported[0]


def test_a_process_that_is_left_is_noticed_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.storm.LEAVE_S", 0.5)
    sleeper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"

    def one(room: Room, chance: random.Random) -> None:
        command = [sys.executable, "-c", sleeper]
        subprocess.run(command, env=room.environment(), check=True, timeout=60, start_new_session=True)

    report, _ = _storm(one, tmp_path)
    assert len(report.failures) == 1
    assert "left behind:\nprocess" in report.failures[0]["problem"]
    assert "time.sleep(600)" in report.failures[0]["problem"]


def test_the_same_seed_draws_the_same_faults(tmp_path: Path) -> None:
    drawn: list[float] = []

    def one(room: Room, chance: random.Random) -> None:
        drawn.append(chance.random())

    _storm(one, tmp_path)
    _storm(one, tmp_path)
    assert drawn[0] == drawn[1]
