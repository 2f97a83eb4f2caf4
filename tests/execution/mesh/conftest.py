"""What the tests of brains over the mesh share."""

from __future__ import annotations

import pytest

from tests.execution.mesh.meshes import fresh_mesh
from tests.mesh.conftest import child, join, zenoh_is_warm

__all__ = ["child", "join", "mesh", "zenoh_is_warm"]


@pytest.fixture
def mesh() -> str:
    """A name that nobody else uses."""
    return fresh_mesh()
