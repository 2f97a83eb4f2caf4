"""Fixtures of the tests of remote calls: ranks that call each other, over each backend."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from neuraxis.rpc import RpcContext
from tests.ranks import RankGroup

SIZE = 3
BACKENDS = ["zenoh", "shm", "gloo", "tensorpipe", "mpi"]


class Callers(RankGroup):
    """A rank group whose ranks have an RPC context, with one serving thread, instead of a distributed context."""

    program = "tests.rpc.caller"


@pytest.fixture(scope="session", autouse=True)
def _ready(fork_servers: None) -> None:
    """The fork_servers are there, and Zenoh has opened what it keeps for the life of a process."""
    mesh = f"warm-{os.getpid()}"
    with RpcContext(name="first", mesh=mesh) as first, RpcContext(name="second", mesh=mesh) as second:
        first.register_function("nothing", print)
        assert second.wait_for(["first"], 10) == []
        second.rpc_sync("first", "nothing")


@pytest.fixture(scope="session", params=BACKENDS)
def rank_group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    """Three ranks that call each other, alive from test to test."""
    rank_group = Callers(request.param, SIZE)
    yield rank_group
    rank_group.close()
