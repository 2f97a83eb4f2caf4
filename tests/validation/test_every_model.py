"""Each built-in model is compared with another simulator, or with float64."""

from __future__ import annotations

from neuraxis.network.models.catalogue import built_in_models
from tests.validation.test_against_nest import MEMBRANES, RATES
from tests.validation.test_networks_against_nest import ADAPTIVE, EXACT, FAST
from tests.validation.test_networks_in_float64 import QUADRATIC
from tests.validation.test_sources_against_nest import TRAINS

# `parrot` in the test of relays; `spike_source` gives the inputs of all networks.
SOURCES = {"parrot", "spike_source"}


def test_every_built_in_model_is_compared() -> None:
    """A new model needs a network here, or its trains, and without an equivalent in NEST an oracle."""
    networks = {one.model.name for one in (*EXACT.values(), *ADAPTIVE.values(), FAST, QUADRATIC)}
    random = {one.model.name for one in TRAINS.values()}
    rates = {one.model.name for one in RATES.values()}
    assert networks | random | rates | SOURCES == {model.name for model in built_in_models().values()}
    assert {one.model.name for one in MEMBRANES.values()} <= networks
