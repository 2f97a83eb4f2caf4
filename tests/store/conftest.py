"""The processes from which ranks of these tests are forked."""

from __future__ import annotations

import pytest

from tests.ranks.fork_server import fork_server


@pytest.fixture(scope="session", autouse=True)
def _fork_servers(fork_servers: None) -> None:
    """Start them before the first test, with what torch loads only when an optimizer is first used."""
    fork_server(torch=True).load("torch._dynamo")
