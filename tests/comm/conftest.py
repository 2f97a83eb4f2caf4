"""Fixtures of the tests of collectives: the fork servers of the ranks."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _fork_servers(fork_servers: None) -> None:
    """Start the fork servers before the first test, so that the leak check ignores them."""
