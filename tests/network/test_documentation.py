"""Docstrings of neuraxis.network: every public name has one, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

from neuraxis import arguments, network
from neuraxis.network import library

MODULES = [one.name for one in pkgutil.walk_packages(network.__path__, "neuraxis.network.")]


@pytest.mark.parametrize("name", ["neuraxis.network", *MODULES, arguments.__name__])
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("module", [network, library], ids=lambda one: one.__name__)
def test_every_public_name_has_a_summary_and_its_arguments(module: object) -> None:
    for name in module.__all__:
        public = getattr(module, name)
        if not inspect.isclass(public) and not inspect.isfunction(public):
            continue
        text = inspect.getdoc(public) or ""
        assert text.splitlines()[0].endswith((".", ":")), name
        takes = [one for one in inspect.signature(public).parameters if one not in ("args", "kwargs")]
        assert not takes or "Parameters\n----------" in text, name
        assert all(one in text for one in takes), name


def test_methods_that_add_parts_document_their_arguments() -> None:
    for name in (
        "population",
        "connect",
        "poisson",
        "spikes",
        "current",
        "record",
        "neuromodulator",
        "rhythm",
        "modulate",
    ):
        method = getattr(network.Network, name)
        assert all(one in method.__doc__ for one in inspect.signature(method).parameters if one != "self"), name
