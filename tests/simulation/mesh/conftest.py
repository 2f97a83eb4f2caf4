"""Fixtures of the tests of brains on the mesh."""

from __future__ import annotations

import pytest

from tests.mesh.conftest import child, initialized_zenoh, join
from tests.simulation.mesh.meshes import fresh_mesh

__all__ = ["child", "initialized_zenoh", "join", "mesh"]


@pytest.fixture
def mesh() -> str:
    """A mesh name that no other test uses."""
    return fresh_mesh()
