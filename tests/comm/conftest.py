"""What the tests of this folder share: the nurseries that their ranks come from."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _nurseries(nurseries: None) -> None:
    """There before the first test, so that none of them leaves one behind."""
