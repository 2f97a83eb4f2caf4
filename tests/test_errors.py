"""Every error travels between processes with its text, attributes and notes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from neuraxis import errors

KINDS = [kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), errors.NeuraxisError)]


def example(kind: type[errors.NeuraxisError]) -> errors.NeuraxisError:
    """Return an error whose constructor arguments all differ from their defaults."""
    if not inspect.isfunction(kind.__init__):
        return kind("text")
    values: dict[str, Any] = {"tried": {"node": "reason"}}
    for name, parameter in inspect.signature(kind).parameters.items():
        text = str(parameter.annotation)
        plain = (7,) if "tuple" in text else 7 if "int" in text else 2.5 if "float" in text else name
        values.setdefault(name, plain)
    accepted = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in values.items() if name in accepted})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_and_copying(kind: type[errors.NeuraxisError]) -> None:
    error = example(kind)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.args == error.args
        assert vars(again) == vars(error)
        assert getattr(again, "name", None) == getattr(error, "name", None)  # ImportError has it outside vars()
