"""Options of the mesh commands, and a runner that opens their node and handles errors and signals."""

from __future__ import annotations

import importlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, NameTaken, NeuraxisError

if TYPE_CHECKING:
    from neuraxis.mesh import Node, Topology

__all__ = [
    "OBSERVER",
    "ConnectionWatch",
    "MeshOptions",
    "MeshToolOptions",
    "check_listening",
    "check_positive",
    "run_tool",
    "wait_for_others",
]

OBSERVER = "observer"  # the role whose keys the tools use

_SEVERAL = Parameter(negative=())
_LOOK_S = 0.25  # interval at which a tool looks for its router and for other nodes
_DISCOVERY_S = 1.2  # nodes that lost their seed look for a new one every half second
_QUIET_S = 0.15

# Imported while signals are deferred: some packages swallow exceptions during their import, KeyboardInterrupt included.
_IMPORTED = (
    "rich.console",
    "rich.live",
    "neuraxis.mesh.node",
    "neuraxis.mesh.monitor",
    "neuraxis.report.mesh",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """Options that connect a command to the mesh.

    Parameters
    ----------
    mesh_name
        Name of the mesh: nodes with the same mesh name discover each other.
    connect
        A router, such as tcp/127.0.0.1:7447; can be repeated. Default: the mesh of this machine.
    listen
        Address to listen on, as a peer of those that --connect names.
    tls
        Folder with the keys, from neuraxis mesh keys init.
    role
        Role whose keys in that folder are used.
    insecure
        Allow addresses beyond this machine without TLS.
    zenoh_config
        A native Zenoh configuration (JSON5), used unchanged in place of all options but --mesh-name.
    """

    mesh_name: str = "default"
    connect: Annotated[tuple[str, ...], _SEVERAL, Parameter(show_default=False)] = ()
    listen: Annotated[tuple[str, ...], _SEVERAL, Parameter(show_default=False)] = ()
    tls: Path | None = None
    role: str | None = None
    insecure: Annotated[bool, Parameter(negative=())] = False
    zenoh_config: Path | None = None

    def topology(self, role: str = OBSERVER) -> Topology:
        """Return the topology of the options; `role` is the default of --role."""
        from neuraxis.mesh import Tls, Topology

        if self.zenoh_config is not None:
            if self.connect or self.listen or self.tls or self.role or self.insecure:
                raise InvalidArgument(
                    "--zenoh-config is used unchanged; leave out --connect, --listen, --tls, --role and --insecure"
                )
            if not self.zenoh_config.is_file():
                raise InvalidArgument(f"--zenoh-config {self.zenoh_config}: there is no such file")
        if self.role is not None and self.tls is None:
            raise InvalidArgument(f"--role {self.role}: the keys are missing; name their folder with --tls")
        tls = None if self.tls is None else Tls.from_folder(self.tls, self.role or role)
        return Topology.from_options(
            self.connect, self.listen, tls=tls, insecure=self.insecure, zenoh_config=self.zenoh_config
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeshToolOptions(MeshOptions):
    """Options that connect a tool to the mesh; the default role is observer."""

    role: Annotated[str | None, Parameter(help="Role whose keys in that folder are used; default: observer.")] = None


def check_positive(value: float | None, option: str) -> None:
    """Raise `InvalidArgument` if a number is given that is not positive and finite."""
    if value is not None and not 0 < value < math.inf:
        raise InvalidArgument(f"{option}={value}: not a positive number; give a number above 0")


def check_listening(key: str, **numbers: float | None) -> None:
    """Raise `InvalidArgument` if a key expression or a number of an option is invalid."""
    from neuraxis.mesh.keys import check_keys_of_nodes

    check_keys_of_nodes(key, "KEY")
    for name, number in numbers.items():
        check_positive(number, f"--{name}")


# --- a tool, from its node to its exit code ---


class _Ended(BaseException):
    """A signal asked the tool to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()

    def status(self, interrupted: int) -> int:
        return interrupted if self.number == signal.SIGINT else 128 + self.number


def run_tool(
    command: str,
    options: MeshOptions,
    work: Callable[[Node], int],
    *,
    check: Callable[[], object] = lambda: None,
    place: Callable[[Node], tuple[str, bool]] | None = None,
    interrupted: int = 0,
) -> int:
    """Open a node that is invisible to others, call `work(node)`, close the node, and return the exit code.

    Ctrl-C and SIGTERM interrupt `work`. Errors are printed in one line.

    Args:
        check: raises if an option is invalid; called before anything is opened.
        place: is given a first node to look for others, and returns the name of the node for `work` and whether others
            see it.
        interrupted: the exit code at Ctrl-C, 0 for commands that end that way; SIGTERM gives 143.
    """
    # The tools print missing and malformed messages themselves.
    logging.getLogger("neuraxis.mesh").addHandler(logging.NullHandler())
    try:
        with _EndingSignals() as signals:
            with signals.deferred():
                check()
                topology = options.topology()
                for module in _IMPORTED:
                    importlib.import_module(module)
            name, visible = OBSERVER, False
            if place is not None:
                with _node(signals, options, topology, name, visible, interrupted) as node:
                    name, visible = place(node)
            with _node(signals, options, topology, name, visible, interrupted) as node:
                if node.silent_ports:
                    print(f"neuraxis {command}: {_silent_ports_warning(node)}", file=sys.stderr)
                return work(node)
    except _Ended as ended:
        if ended.number == signal.SIGINT and sys.stderr.isatty():
            print(file=sys.stderr)  # after the terminal's ^C
        return ended.status(interrupted)
    except BrokenPipeError:
        raise
    except (NeuraxisError, OSError) as error:
        return fail(command, error)


def _silent_ports_warning(node: Node) -> str:
    ports = ", ".join(map(str, node.silent_ports))
    return (
        f"something listens on port {ports} of the mesh {node.mesh!r} and does not answer as a node: another program, "
        "or a node that is stopped or overloaded; find it with ss -ltnp"
    )


def wait_for_others(node: Node) -> None:
    """Wait until no more nodes are discovered for a moment."""
    deadline = time.monotonic() + _DISCOVERY_S
    count, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = len(node.peers(ask=False))
        if now != count:
            count, since = now, time.monotonic()
        if count and time.monotonic() - since > _QUIET_S:
            return
        time.sleep(0.01)


class ConnectionWatch:
    """Prints a line on stderr when the node of a tool has lost its router or all other nodes, and when it is back.

    A tool that only waits for messages would otherwise look as if nothing was published.
    """

    def __init__(self, command: str, node: Node) -> None:
        self._command = command
        self._node = node
        self._trouble = ""
        self._next_look = 0.0

    def look(self) -> None:
        """Print a line if something has changed; cheap enough for every message."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        trouble = self.trouble()
        if trouble != self._trouble:
            again = "connected to the router again" if self._node.topology.connect else "there are nodes again"
            print(f"neuraxis {self._command}: {trouble or again}", file=sys.stderr, flush=True)
        self._trouble = trouble

    def sleep_until(self, moment: float) -> None:
        """Sleep until a moment of `time.monotonic`, and look meanwhile."""
        self.look()
        while (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))
            self.look()

    def trouble(self) -> str:
        """Return what keeps messages from arriving; "" if nothing is known to."""
        if not self._node.connected:
            routers = ", ".join(self._node.topology.connect) or "of the Zenoh configuration"
            return f"the connection to the router ({routers}) is lost; it is retried, start the router again"
        return "no nodes: all have left, or this machine is disconnected" if self._node.alone else ""


class _EndingSignals:
    """While entered, Ctrl-C and SIGTERM raise `_Ended` in the main thread; within `deferred`, at its end."""

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}
        self._deferring = False
        self._received: int | None = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals during a short operation that must not be interrupted."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._received is not None:
            raise _Ended(self._received)

    def __enter__(self) -> _EndingSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
                    self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._deferring = True
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring:
            raise _Ended(number)
        self._received = number


@contextmanager
def _node(
    signals: _EndingSignals, options: MeshOptions, topology: Topology, name: str, visible: bool, interrupted: int
) -> Iterator[Node]:
    """Open a node, in a thread: Zenoh may look for a router for ten seconds, in which Ctrl-C has no effect."""
    from neuraxis.mesh import Node

    made: list[Node | BaseException] = []

    def make() -> None:
        try:
            try:
                made.append(Node(name, mesh=options.mesh_name, topology=topology, visible=visible))
            except NameTaken:
                # Another node took the name at the same moment; an invisible one can publish as well.
                made.append(Node(name, mesh=options.mesh_name, topology=topology, visible=False))
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=make, name="neuraxis opens", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
    except _Ended as ended:
        # The thread cannot be interrupted and would block the exit; there is nothing to close yet.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.status(interrupted))
    (node,) = made
    if isinstance(node, BaseException):
        raise node
    try:
        yield node
    finally:
        with signals.deferred():  # close() has its own deadline
            node.close()
