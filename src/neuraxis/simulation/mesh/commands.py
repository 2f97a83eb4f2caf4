"""Commands from other processes to a region: service threads queue them, and the region's loop executes them in order.

Only a node with the role "driver" may send commands; any node may send read-only ones. The sender's name and role are
in keys, which the access rules of a router bind to certificates; without a router, every node on the mesh can take that
role. An invalid command is answered with an error and changes nothing. Commands that contain a path on this machine
need a token that only the parent process knows.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from neuraxis.errors import InvalidArgument, MeshError, ShardFailed
from neuraxis.mesh.messages import Message
from neuraxis.simulation.executor import encode_reply

__all__ = ["SLOW", "Command", "CommandQueue", "Stopped"]

_LONGEST_S = 24 * 3600.0
_KNOWN = frozenset(
    (
        "report", "counters", "status", "give", "state_hash", "read_state", "read_synapses", "read_rate_synapses",
        "level", "set_level", "read_counts", "write_state", "inject", "silence", "freeze", "advance", "publish",
        "start", "statistics",
    )
)  # fmt: skip
_WITH_PATHS = frozenset({"save", "restore"})
_READ_ONLY = frozenset({"statistics", "counters", "status"})  # executed at once, by the loop
SLOW = frozenset(
    {"save", "restore", "read_synapses", "read_rate_synapses", "state_hash"}
)  # the region announces a hold before it executes them


class Stopped(Exception):
    """Raised in the loop of a region that must stop."""


@dataclass
class Command:
    """A queued command and its reply."""

    name: str
    arguments: list[Any]
    done: threading.Event = field(default_factory=threading.Event)
    reply: Any = None
    error: BaseException | None = None


class CommandQueue:
    """The queue of commands to one region.

    Parameters
    ----------
    token : str
        Token that commands with a path must contain; "" refuses all of them.
    put : callable
        Passes a command to the loop, which calls `add`.
    handler : callable
        Executes a command: handler(name, arguments).
    may_drive : callable
        Returns whether the node of this name may send commands.
    """

    def __init__(
        self,
        token: str,
        put: Callable[[Command], None],
        handler: Callable[[str, list[Any]], Any],
        may_drive: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._token = token
        self._may_drive = may_drive
        self._put = put
        self._handler = handler
        self._waiting: deque[Command] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def submit(self, message: Message) -> Any:
        """Queue the command of a message and wait for its reply; called by service threads."""
        if not isinstance(message.value, list) or not message.value or not isinstance(message.value[0], str):
            raise InvalidArgument("expected a command and its arguments")
        name, *arguments = message.value
        if name in _WITH_PATHS:
            token, *arguments = arguments or [None]
            known = isinstance(token, str) and self._token and hmac.compare_digest(token.encode(), self._token.encode())
            if not known:
                raise InvalidArgument(
                    f"{name!r}: only the process that started this region may give a path. A region that was started "
                    "alone saves its own states (neuraxis node --checkpoint)"
                )
        elif name not in _KNOWN:
            raise InvalidArgument(f"{name!r}: unknown command of a region")
        if name not in _READ_ONLY and not self._may_drive(message.node):
            raise InvalidArgument(
                f"{name!r}: {message.node!r} is not the driver of this brain. Use a node with the role driver"
            )
        command = Command(name, arguments)
        self._put(command)
        if not command.done.wait(_LONGEST_S):
            raise TimeoutError(f"{name!r} was not answered")
        if command.error is not None:
            raise command.error
        return command.reply

    def add(self, command: Command) -> None:
        """Queue a command; execute a read-only one at once."""
        if command.name in _READ_ONLY:
            self._execute(command)
        else:
            self._waiting.append(command)

    def execute_next(self) -> None:
        self._execute(self._waiting.popleft())

    def reject_all(self, why: str, more: Iterable[Command]) -> None:
        """Answer all waiting commands, and `more`, with an error."""
        self._waiting.extend(more)
        while self._waiting:
            command = self._waiting.popleft()
            command.error = MeshError(why)
            command.done.set()

    def _execute(self, command: Command) -> None:
        try:
            command.reply = encode_reply(self._handler(command.name, command.arguments))
        except (Stopped, ShardFailed) as error:
            command.error = MeshError("the region is leaving") if isinstance(error, Stopped) else error
            raise
        except Exception as error:  # an invalid command must not stop the region
            command.error = error
        finally:
            command.done.set()
