"""Fixtures of the tests of the torch backend: the fork servers of the ranks."""

from __future__ import annotations

import pytest

from tests.ranks.fork_server import fork_server


@pytest.fixture(scope="session", autouse=True)
def _fork_servers(fork_servers: None) -> None:
    """Start the fork servers before the first test, with the modules that torch imports lazily."""
    fork_server(torch=True).load("torch._dynamo")
