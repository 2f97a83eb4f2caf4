"""Docstrings of collectives and messages: what they have in common is written once, here.

`complete_docstring` adds the descriptions of arguments, of the result and of errors that a docstring leaves out. A
function that calls a method of the same name (`comm/functions.py`) has the descriptions of the method's arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["complete_docstring"]

Function = TypeVar("Function", bound=Callable[..., Any])

_ARRAY = "numpy.ndarray or torch.Tensor"
_ARGUMENTS = {
    "tensor": f"{_ARRAY}\n    Same dtype and number of elements on every rank.",
    "op": "ReduceOp, default ReduceOp.SUM\n    The reduction.",
    "group": "Communicator, optional\n    The group, by default all ranks.",
    "async_op": "bool, default False\n    Return a `Work` at once instead of waiting.",
    "src": "int, optional\n    World rank of the root, by default 0.",
    "dst": "int, optional\n    World rank of the root, by default 0.",
    "group_src": "int, optional\n    Rank of the root within the group, instead of `src`.",
    "group_dst": "int, optional\n    Rank of the root within the group, instead of `dst`.",
    "obj": "object",
    **dict.fromkeys(("device", "device_ids", "use_batch"), "any\n    Ignored; accepted for compatibility with torch."),
}
_MESSAGE_ARGUMENTS = _ARGUMENTS | {
    "tensor": _ARRAY,
    "object_list": "list",
    "src": "int, optional\n    World rank of the sender, by default any rank.",
    "dst": "int, optional\n    World rank of the receiver.",
    "tag": "int, default 0\n    Send and receive must have the same tag.",
    "group_src": "int, optional\n    Rank of the sender within the group, instead of `src`.",
    "group_dst": "int, optional\n    Rank of the receiver within the group, instead of `dst`.",
    "timeout": "float, optional\n    Deadline in seconds, by default the group's.",
}
_RETURNS = {
    "Work | None": "Work or None\n    None after the operation has completed; a `Work` if `async_op` is True.",
    "Work": "Work\n    Completes with the transfer.",
    "int": "int\n    World rank of the sender.",
}
_ERRORS = "PeerLost, CollectiveTimeout, CollectiveMismatch\n    See `Communicator`."
_RAISES = f"InvalidArgument, InvalidType, {_ERRORS}"
_OBJECT_RAISES = f"NotSerializable\n    An object is not plain data.\nInvalidArgument, {_ERRORS}"
_PICKLE = "Objects are serialized without pickle unless the context has `allow_pickle=True`."

_SECTION = re.compile(r"^(Parameters|Returns|Raises|Examples)\n-+\n", re.MULTILINE)


def complete_docstring(owner: type | None = None) -> Callable[[Function], Function]:
    """Return a decorator that completes a docstring; arguments of the same method of `owner` are described as there."""

    def decorate(function: Function) -> Function:
        if function.__doc__ is None:  # python -OO
            return function
        name, objects = function.__name__, "object" in function.__name__
        head, sections = _parse(function.__doc__)
        method = getattr(owner, name, None)
        entries = _entries(_parse(method.__doc__ or "")[1].get("Parameters", "")) if method else {}
        entries |= _entries(sections.get("Parameters", ""))
        common = _MESSAGE_ARGUMENTS if name.lstrip("i").startswith(("send", "recv")) else _ARGUMENTS
        code = function.__code__
        described: dict[str, None] = {}  # in the order of the signature; one entry may describe several arguments
        for argument in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if argument != "self":
                described[entries.get(argument) or f"{argument} : {common[argument]}"] = None
        sections["Parameters"] = "\n".join(described)
        result = _RETURNS.get(str(function.__annotations__.get("return")))
        if result is not None:
            sections.setdefault("Returns", result)
        sections.setdefault("Raises", _OBJECT_RAISES if objects else _RAISES)
        parts = [head, _PICKLE] if objects else [head]
        for title in ("Parameters", "Returns", "Raises", "Examples"):
            if sections.get(title):
                parts.append(f"{title}\n{'-' * len(title)}\n{sections[title]}")
        function.__doc__ = "\n\n".join(parts)
        return function

    return decorate


def _parse(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text before the sections of a docstring, and the content of each section."""
    head, *parts = _SECTION.split(inspect.cleandoc(docstring))
    return head.strip(), {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}


def _entries(section: str) -> dict[str, str]:
    """Return the description of each argument in the content of a Parameters section."""
    found = {}
    for entry in re.split(r"\n(?=\S)", section) if section else ():
        for name in entry.partition(" : ")[0].split(", "):
            found[name] = entry
    return found
