"""Requests to a role instead of a node: any live node that declares the role may reply.

    answer, name = request_role(node, "language", "parse", "take the cup", timeout=1.0, default_node="lang")

`request_role` asks the nodes with the role one after the other, in the order in which they joined, and then the default
node. It moves on when a node is gone, leaves, does not serve the topic or exceeds its share of the time. A node that
was too slow may still carry out the request, so several nodes may have started. Use a prompt (`prompts`) where a
request must take effect at most once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from neuraxis.arguments import is_number
from neuraxis.errors import InvalidArgument, NobodyAnswered, NobodyServes, NodeGone, RequestTimeout
from neuraxis.mesh.keys import check_name
from neuraxis.mesh.node import Node

__all__ = [
    "REMEMBERED",
    "UNAVAILABLE",
    "Deduplicator",
    "Outcome",
    "candidates",
    "check_timeout",
    "request_in_background",
    "request_role",
    "time_share",
]

UNAVAILABLE = (NodeGone, NobodyServes, RequestTimeout)  # errors after which the next node is asked
REMEMBERED = 10_000  # results that a Deduplicator keeps per owner
_MOST_OWNERS = 1000


def request_role(
    node: Node,
    role: str,
    topic: str,
    value: Any = None,
    timeout: float = 2.0,
    *,
    default_node: str | None = None,
    type: Any = None,
) -> tuple[Any, str]:
    """Return the answer of a live node that declares a role, and the name of that node.

    Parameters
    ----------
    timeout : float
        Seconds for all nodes together. Each may take an equal share of the remaining time, so that a node that hangs
        leaves time for the others. Nodes that join meanwhile are asked as well.
    default_node : str, optional
        The node to ask last; `node` itself is asked only as the default node.

    Raises
    ------
    NobodyAnswered
        Names the nodes that were asked, and why each has not answered.
    RequestFailed
        The handler of a node raised; no other node is asked.
    RouterLost
        This node has lost its connection to the router; no other node is asked, since none can be reached.
    """
    deadline = time.monotonic() + check_timeout(timeout)
    tried: dict[str, str] = {}
    while names := candidates(node, role, default_node, tried):
        left = deadline - time.monotonic()
        if left <= 0:
            tried.update(dict.fromkeys(names, "there was no time left to ask it"))
            break
        try:
            return node.request(names[0], topic, value, time_share(node, names, left), type=type), names[0]
        except UNAVAILABLE as error:
            tried[names[0]] = str(error)
    node.check_connected(f"request to the role {role!r}")  # a node that is cut off sees none
    raise NobodyAnswered(role, topic, tried)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a request to a node: its answer, or the error."""

    node: str
    answer: Any = None
    error: Exception | None = None


def request_in_background(
    node: Node, name: str, topic: str, value: Any, timeout: float, done: Callable[[Outcome], Any], *, type: Any = None
) -> threading.Thread:
    """Send a request from a new daemon thread, which calls `done` with the outcome within `timeout` seconds."""

    def send() -> None:
        try:
            outcome = Outcome(name, node.request(name, topic, value, timeout, type=type))
        except Exception as error:
            outcome = Outcome(name, error=error)
        done(outcome)

    thread = threading.Thread(target=send, name=f"neuraxis request to {name}", daemon=True)
    thread.start()
    return thread


def candidates(node: Node, role: str, default_node: str | None, tried: dict[str, str]) -> list[str]:
    """Return the names of the nodes that can still be asked, in order: live nodes with the role, then the default."""
    names = [peer.name for peer in node.with_role(check_name(role, "role"))]
    if default_node is not None:
        names.append(check_name(default_node, "default_node"))
    return [name for name in dict.fromkeys(names) if name not in tried]


def time_share(node: Node, names: list[str], left: float) -> float:
    """Return the first node's share of the remaining seconds; absent nodes get no share."""
    here = sum(name == node.name or node.peer(name) is not None for name in names[1:])
    return left / (1 + here)


def check_timeout(timeout: float) -> float:
    if not is_number(timeout) or not 0 < timeout < 1e6:
        raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)


class Deduplicator:
    """Call a function at most once per id; repeated calls get the result of the first.

    An exception is a result as well, and is raised again. Ids belong to an owner, the node that sends them, so that no
    node can use up an id of another or evict its results. Each owner's latest `remembered` results are kept.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        self._results: OrderedDict[str, OrderedDict[str, Future[Any]]] = OrderedDict()  # by owner, latest last

    def call(self, id: str, function: Callable[[], Any], timeout: float, owner: str = "") -> Any:
        """Return the function's result; TimeoutError if another thread still computes it after `timeout` seconds."""
        with self._lock:
            results = self._results.setdefault(owner, OrderedDict())
            self._results.move_to_end(owner)
            known = results.get(id)
            if known is None:
                mine: Future[Any] = Future()
                results[id] = mine
                self._evict(results)
        if known is not None:
            return known.result(timeout)
        try:
            mine.set_result(function())
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()

    def __len__(self) -> int:
        return sum(map(len, self._results.values()))

    def _evict(self, results: OrderedDict[str, Future[Any]]) -> None:
        """Drop the oldest results. Calls in progress stay: each occupies a thread, so there are few."""
        while len(results) > self._remembered:
            oldest = next((id for id, one in results.items() if one.done()), None)
            if oldest is None:
                break
            del results[oldest]
        if len(self._results) > _MOST_OWNERS:
            idle = (owner for owner, ids in self._results.items() if all(one.done() for one in ids.values()))
            if (least := next(idle, None)) is not None:
                del self._results[least]
