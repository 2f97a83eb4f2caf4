"""What shards answer, as plain data for the way between processes, where nothing is pickled."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.execution.executor import BuildReport, Counters, Recorded, Samples, WorkerStatus

__all__ = ["lowered_answer", "raised_answer"]

_KINDS = {kind.__name__: kind for kind in (BuildReport, Counters, Recorded, Samples, WorkerStatus)}
_ERRORS = {kind.__name__: kind for kind in (CheckpointError, InvalidArgument)}


def lowered_answer(value: Any) -> Any:
    """An answer (or an error of a file or argument) as dicts, lists, numbers and arrays."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **{f.name: lowered_answer(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, list):
        return [lowered_answer(one) for one in value]
    if isinstance(value, CheckpointError | InvalidArgument):
        kind = CheckpointError if isinstance(value, CheckpointError) else InvalidArgument
        return {"kind": kind.__name__, "text": str(value)}
    return value


def raised_answer(value: Any) -> Any:
    """What was lowered."""
    if isinstance(value, list):
        return [raised_answer(one) for one in value]
    if isinstance(value, dict) and value.get("kind") in _ERRORS:
        return _ERRORS[value["kind"]](value["text"])
    if isinstance(value, dict) and value.get("kind") in _KINDS:
        return _KINDS[value["kind"]](**{name: raised_answer(one) for name, one in value.items() if name != "kind"})
    return value
