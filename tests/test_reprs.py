"""Texts and HTML of the main objects at a prompt and in a notebook; names from outside cannot add tags to a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import neuraxis
from neuraxis.brain import Brain, BrainBuilder
from neuraxis.network.models import lif_delta
from neuraxis.notebook import html_table

HOSTILE = "<script>alert('&amp;')</script>"
ALLOWED = {"p", "table", "caption", "thead", "tbody", "tr", "th", "td"}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes = 0
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes += len(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def text_of(shown: Any) -> str:
    """Return the text of an object's HTML, which has tags of tables only."""
    page = _Tags()
    page.feed(shown._repr_html_())
    assert page.tags <= ALLOWED
    assert page.attributes == 0
    return page.text


@pytest.fixture(scope="module")
def simulation() -> Iterator[neuraxis.Simulation]:
    network = neuraxis.Network(dt_ms=0.1, seed=1)
    network.population(HOSTILE, 10, lif_delta())
    network.record(HOSTILE)
    with neuraxis.Simulation(network, progress=False) as running:
        yield running


def test_a_network_and_its_simulation(simulation: neuraxis.Simulation) -> None:
    assert "Network: 10 neurons in 1 population," in repr(simulation.network)
    assert HOSTILE in text_of(simulation.network)
    assert repr(simulation).startswith("<Simulation of 10 neurons at ")
    text = text_of(simulation)
    for part in (HOSTILE, "lif_delta", "spikes", "1 worker (cpu)"):
        assert part in text


def test_a_summary_shows_only_a_compilation_that_took_time(simulation: neuraxis.Simulation) -> None:
    summary = simulation.run(1.0)
    assert "compiled" not in str(replace(summary, compile_seconds=0.01))  # only looked for what is missing
    assert "compiled in 2.5 s" in str(replace(summary, compile_seconds=2.5))


def test_a_summary(simulation: neuraxis.Simulation) -> None:
    summary = simulation.run(1.0)
    assert repr(summary).startswith("<Summary of 1.0 ms of model time in ")
    assert summary.fingerprint in repr(summary)
    assert len(repr(summary).splitlines()) > 3
    text = text_of(summary)
    for part in (HOSTILE, "0.00", f"fingerprint {summary.fingerprint}"):
        assert part in text


def test_a_brain_and_its_diagnostics() -> None:
    spec = BrainBuilder("seeing", seed=1).region("cortex", "cortex", neurons=160).spec()
    with Brain(spec, progress=False) as brain:
        brain.run(1.0)
        diagnostics = brain.diagnostics()
        assert repr(brain).startswith("<Brain 'seeing': ")
        assert "cortex" in text_of(brain)
        assert repr(diagnostics).startswith("<Diagnostics at 1 ms: 1 regions")
        assert "cortex" in text_of(diagnostics)


def test_a_distributed_context_shows_its_groups() -> None:
    context = neuraxis.DistributedContext("local")
    assert "backend 'local'" in text_of(context)
    with context:
        group = context.new_group([0])
        text = text_of(context)
        for part in ("rank 0 of 1, backend 'local'", "world", group.name, "1800"):
            assert part in text
    assert repr(context) == "<DistributedContext rank 0 of 1, backend 'local', closed>"


def test_tables_escape_captions_headers_and_cells() -> None:
    class Shown:
        def _repr_html_(self) -> str:
            return html_table(HOSTILE, (HOSTILE,), [(HOSTILE,)])

    assert text_of(Shown()).count(HOSTILE) == 3
