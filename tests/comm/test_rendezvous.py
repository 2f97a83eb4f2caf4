"""Rendezvous of the ranks, and its failures."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm.rendezvous import Rendezvous, RendezvousAddress, rendezvous_address
from neuraxis.errors import BackendUnavailable, RendezvousError, RendezvousTimeout
from neuraxis.process.environment import detect_launch
from tests.mesh.namespaces import skip_without_namespaces
from tests.ranks.processes import Ranks, free_port, run_ranks


def _meet(place: RendezvousAddress, rank: int, size: int, timeout: float, results: dict[int, object]) -> None:
    try:
        with Rendezvous(place, rank, size, timeout) as rendezvous:
            results[rank] = [rendezvous.exchange(f"{rank}.{turn}".encode() * (turn * 1000 + 1)) for turn in range(3)]
    except RendezvousError as error:
        results[rank] = error


def _meet_all(places: dict[int, RendezvousAddress], sizes: dict[int, int], timeout: float) -> dict[int, object]:
    results: dict[int, object] = {}
    threads = [
        threading.Thread(target=_meet, args=(place, rank % 100, sizes[rank], timeout, results))
        for rank, place in places.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _place(job: str = "job", *ports: int) -> RendezvousAddress:
    return RendezvousAddress("127.0.0.1", ports or (free_port(),), job)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_everybody_gets_everybodys_bytes_in_rank_order(size: int) -> None:
    place = _place()
    results = _meet_all(dict.fromkeys(range(size), place), dict.fromkeys(range(size), size), 20)
    expected = [[f"{rank}.{turn}".encode() * (turn * 1000 + 1) for rank in range(size)] for turn in range(3)]
    assert results == dict.fromkeys(range(size), expected)


def test_missing_ranks_are_named_to_everybody() -> None:
    place = _place()
    results = _meet_all({0: place, 2: place}, {0: 4, 2: 4}, 1.0)
    for rank in (0, 2):
        error = results[rank]
        assert isinstance(error, RendezvousTimeout)
        assert isinstance(error, TimeoutError)
        assert error.missing == (1, 3)
        assert "missing ranks 1, 3" in str(error)


def test_a_rank_that_connected_is_not_said_to_be_unconnected() -> None:
    """Rank 2 connects and does nothing more: it is slow or stuck, and was started with the right address."""
    place, errors = _place(), {}

    def meet(rank: int) -> None:
        with Rendezvous(place, rank, 3, 2.0) as rendezvous:
            if rank == 2:
                done.wait(30.0)
                return
            try:
                rendezvous.exchange(b"")
            except RendezvousTimeout as error:
                errors[rank] = error

    done = threading.Event()
    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    done.set()
    threads[2].join()
    assert sorted(errors) == [0, 1]
    for error in errors.values():
        assert error.missing == (2,)
        assert "connected to" in str(error)
        assert "missing rank 2. Allow more time" in str(error)


def test_without_rank_0_the_others_raise() -> None:
    results = _meet_all({1: _place()}, {1: 2}, 0.5)
    error = results[1]
    assert isinstance(error, RendezvousTimeout)
    assert error.missing == (0,)


def test_two_world_sizes_do_not_fit_together() -> None:
    place = _place()
    results = _meet_all({0: place, 1: place}, {0: 3, 1: 2}, 10)
    for error in results.values():
        assert isinstance(error, RendezvousError)
        assert "world size 2, rank 0 with 3" in str(error)


def test_strangers_on_the_port_are_passed_over() -> None:
    """A silent client, one with another protocol, and one of another job."""
    place = _place()
    stop = threading.Event()

    def bother() -> None:
        while not stop.is_set():
            for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 300):
                try:
                    with socket.create_connection(("127.0.0.1", place.ports[0]), timeout=0.2) as stranger:
                        stranger.sendall(words)
                except OSError:
                    pass

    nuisance = threading.Thread(target=bother)
    nuisance.start()
    try:
        results: dict[int, object] = {}
        hub = threading.Thread(target=_meet, args=(place, 0, 2, 20, results))
        hub.start()
        other_job: dict[int, object] = {}
        _meet(RendezvousAddress(place.host, place.ports, "another job"), 1, 2, 0.5, other_job)
        assert isinstance(other_job[1], RendezvousTimeout)
        _meet(place, 1, 2, 20, results)
        hub.join()
    finally:
        stop.set()
        nuisance.join()
    assert all(isinstance(results[rank], list) for rank in (0, 1))


def test_a_used_port_is_skipped_under_a_launcher_and_an_error_otherwise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = _place("job", port, free_port())
        results = _meet_all({0: place, 1: place}, {0: 2, 1: 2}, 10)
        assert all(isinstance(result, list) for result in results.values())
        with pytest.raises(RendezvousError, match="in use"):
            Rendezvous(_place("job", port), 0, 2, 1.0)


def test_master_port_itself_is_never_used() -> None:
    launch = detect_launch({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    place = rendezvous_address(None, launch)
    assert 29500 not in place.ports
    assert len(set(place.ports)) > 8


def _name_the_missing() -> tuple[int, ...]:
    with pytest.raises(RendezvousTimeout) as caught:
        dist.init_distributed("shm", timeout=2.0)
    assert not dist.is_initialized()
    return caught.value.missing


def test_a_context_that_waits_in_vain() -> None:
    with Ranks(_name_the_missing, 3, only=[0, 1]) as ranks:
        assert [outcome.value for outcome in ranks.outcomes()] == [(2,), (2,)]


def _whom_do_i_meet() -> list[bytes]:
    place = rendezvous_address(None, detect_launch())
    with Rendezvous(place, int(os.environ["RANK"]), 2, 30) as rendezvous:
        return rendezvous.exchange(str(os.getuid()).encode())


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can be two users")
def test_two_users_never_meet() -> None:
    """Both have the same port and no job name, like two people who run the same script."""
    port = free_port()

    def as_user(number: int) -> dict[str, Any]:
        command = ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]
        return {"command": lambda rank: command, "env": {"HOME": "/nonexistent"}, "port": port, "job": ""}

    with (
        Ranks(_whom_do_i_meet, 2, **as_user(54321)) as first,
        Ranks(_whom_do_i_meet, 2, **as_user(54322)) as second,
    ):
        assert [outcome.value for outcome in first.outcomes()] == [[b"54321", b"54321"]] * 2, first.output(0)
        assert [outcome.value for outcome in second.outcomes()] == [[b"54322", b"54322"]] * 2, second.output(0)


# --- several hosts, as network namespaces ---

HOSTS = {"neuraxis-a": "10.77.0.1", "neuraxis-b": "10.77.0.2"}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        skip_without_namespaces("network namespaces need root and the ip command")
    try:
        _ip("netns", "add", "neuraxis-probe")
        _ip("netns", "delete", "neuraxis-probe")
    except subprocess.CalledProcessError as error:
        skip_without_namespaces(f"network namespaces are not permitted here: {error.stderr!r}")
    names = list(HOSTS)
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "nxa0", "netns", names[0], "type", "veth", "peer", "name", "nxb0", "netns", names[1])
        for name, device in zip(names, ("nxa0", "nxb0"), strict=True):
            _ip("-n", name, "addr", "add", f"{HOSTS[name]}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _across_hosts(backend: str) -> tuple[float, str]:
    with dist.DistributedContext(backend, timeout=30) as context:
        data = np.full(300_000, float(context.rank + 1))
        dist.all_reduce(data)
        group = dist.new_group([0, 3])
        if group:
            dist.broadcast(data, src=3, group=group)
        assert (data == 10).all()
        return float(data[0]), context.backend


def test_auto_is_gloo_across_hosts(two_hosts: list[str]) -> None:
    """Four ranks on two hosts: gloo over the network between them."""

    def command(rank: int) -> list[str]:
        return ["ip", "netns", "exec", two_hosts[rank // 2]]

    variables = {"MASTER_ADDR": HOSTS["neuraxis-a"], "LOCAL_WORLD_SIZE": "2"}
    assert run_ranks(_across_hosts, 4, "auto", env=variables, command=command) == [(10.0, "gloo")] * 4


def _refused_across_hosts() -> str:
    with pytest.raises(BackendUnavailable) as caught:
        dist.init_distributed("shm", timeout=20)
    return str(caught.value)


def test_shm_across_hosts_is_refused(two_hosts: list[str]) -> None:
    def command(rank: int) -> list[str]:
        return ["ip", "netns", "exec", two_hosts[rank]]

    variables = {"MASTER_ADDR": HOSTS["neuraxis-a"], "LOCAL_WORLD_SIZE": "1"}
    for text in run_ranks(_refused_across_hosts, 2, env=variables, command=command):
        assert "several hosts" in text
        assert "gloo" in text
