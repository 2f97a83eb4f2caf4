"""The mesh as one more executor: to the bit what one process gives, for networks, for what is done to them, for Python.

The checks of the other executors are made here as well, with a node for each population or for several.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.execution import Simulation
from neuraxis.execution.mesh import MeshExecutor, RegionSetup, Units
from neuraxis.execution.resident import Event, Hearing, Resident
from neuraxis.network import STDP, FixedInDegree, Network, Uniform
from neuraxis.network.models import lif_delta, spike_source
from tests.execution import test_acting
from tests.execution.mesh.meshes import fresh_mesh, in_units, on_the_mesh, one_each
from tests.execution.networks import NETWORKS, driven
from tests.execution.test_conformance import (
    SEED,
    Outcome,
    assert_same,
    look,
    states_folder,
    test_a_run_in_one_piece,
    test_a_state_of_another_executor_over_one_that_ran_further,
    test_a_state_saved_here_goes_on_in_the_reference,
    test_back_to_the_start_and_in_uneven_pieces,
)

__all__ = [
    "states_folder",
    "test_a_run_in_one_piece",
    "test_a_state_of_another_executor_over_one_that_ran_further",
    "test_a_state_saved_here_goes_on_in_the_reference",
    "test_back_to_the_start_and_in_uneven_pieces",
]

HERE = "tests.execution.mesh.test_executor"

# Processes take the time here: few of them in the usual run, one for each population in the long one.
PAIRS = [
    ("mixed models", 3),
    ("reward and fatigue", 0),
    ("rhythms and maps", 0),
    ("every neuron learns", 0),
    ("regions far apart", 0),
    pytest.param(("mixed models", 0), marks=pytest.mark.slow),
    pytest.param(("tiny populations", 0), marks=pytest.mark.slow),
    pytest.param(("inputs alone", 2), marks=pytest.mark.slow),
    pytest.param(("shortest delay 15", 0), marks=pytest.mark.slow),
    pytest.param(("one long delay", 0), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[str, Simulation]]:
    """The name of a network, and a simulation of it over the mesh; alive for all tests of the pair."""
    name, nodes = request.param
    network = NETWORKS[name].make(SEED)
    with on_the_mesh(network, in_units(network, nodes) if nodes else one_each(network)) as simulation:
        yield name, simulation
