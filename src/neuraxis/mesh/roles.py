"""Ask a role instead of a node: whoever is there and declares it answers, and others stand in for those that do not.

    answer, who = ask_role(node, "language", "parse", "take the cup", timeout=1.0, default_node="lang")

Nodes with the role are asked one after the other, in the order in which they came; then the default node. One that is
gone, leaves meanwhile, does not serve the topic or takes too long makes room for the next. So several may have begun to
answer (each that was too slow): where that must not be, ask a prompt (`neuraxis.mesh.prompts`).
"""

from __future__ import annotations

import time
from typing import Any

from neuraxis.errors import InvalidArgument, NobodyAnswered, NobodyServes, NodeGone, RequestTimeout
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.node import Node

__all__ = ["ABSENT", "ask_role", "check_timeout", "part", "untried"]

ABSENT = (NodeGone, NobodyServes, RequestTimeout)  # why the next one is asked


def ask_role(
    node: Node,
    role: str,
    topic: str,
    value: Any = None,
    timeout: float = 2.0,
    *,
    default_node: str | None = None,
    type: Any = None,
) -> tuple[Any, str]:
    """The answer of a live node that declares a role, and the name of that node.

    `timeout` is for all together. Each may take an equal part of what is left, so that one that is stuck leaves time
    for the others; what one does not need is theirs. Nodes that come meanwhile are asked, too. `node` itself is asked
    only as the default node. An error that a handler raised is its answer, and is raised here (RequestFailed).

    Raises NobodyAnswered, which says who was asked and why each has not answered.
    """
    deadline = time.monotonic() + check_timeout(timeout)
    tried: dict[str, str] = {}
    while names := untried(node, role, default_node, tried):
        left = deadline - time.monotonic()
        if left <= 0:
            tried.update(dict.fromkeys(names, "there was no time left to ask it"))
            break
        try:
            return node.request(names[0], topic, value, part(node, names, left), type=type), names[0]
        except ABSENT as error:
            tried[names[0]] = str(error)
    raise NobodyAnswered(role, topic, tried)


def untried(node: Node, role: str, default_node: str | None, tried: dict[str, str]) -> list[str]:
    """The names of those that can still be asked, in order: who is here and has the role, then the default node."""
    names = [peer.name for peer in node.with_role(check_name(role, "role"))]
    if default_node is not None:
        names.append(check_name(default_node, "default_node"))
    return [name for name in dict.fromkeys(names) if name not in tried]


def part(node: Node, names: list[str], left: float) -> float:
    """How much of the time that is left the first of these gets: none is kept for those that are not here."""
    here = sum(name == node.name or node.peer(name) is not None for name in names[1:])
    return left / (1 + here)


def check_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)
