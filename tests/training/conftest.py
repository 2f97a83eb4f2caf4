"""What the tests of this folder share: the nurseries that their ranks come from."""

from __future__ import annotations

import pytest

from tests.crew.nursery import nursery


@pytest.fixture(scope="session", autouse=True)
def _nurseries(nurseries: None) -> None:
    """There before the first test, with what torch loads only when an optimizer or an operator is first used."""
    nursery(torch=True).load("torch._dynamo")
