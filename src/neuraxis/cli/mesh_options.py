"""What the mesh commands have in common: how they reach the mesh, and how they end."""

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
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from neuraxis.errors import InvalidArgument, NameTaken, NeuraxisError

if TYPE_CHECKING:
    from neuraxis.mesh import Node, Topology

__all__ = [
    "OBSERVER",
    "MeshOptions",
    "MeshToolOptions",
    "check_listening",
    "check_positive",
    "run_tool",
    "wait_for_others",
]

OBSERVER = "observer"  # whose keys the tools use

_SEVERAL = Parameter(negative=())
_PATIENCE_S = 1.2  # nodes that lost their seed look for a new one every half second
_QUIET_S = 0.15

# Loaded while signals are held: some packages swallow whatever is raised in the midst of their import, Ctrl-C included.
_USED = (
    "rich.console",
    "rich.live",
    "neuraxis.mesh.node",
    "neuraxis.observe.mesh_listening",
    "neuraxis.observe.mesh_pace",
    "neuraxis.observe.mesh_tables",
    "neuraxis.observe.mesh_values",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """How a command reaches the mesh.

    Parameters
    ----------
    mesh_name
        Which mesh: nodes of one name see each other.
    connect
        A router, such as tcp/127.0.0.1:7447; may be said several times. By default the mesh of this machine.
    listen
        Where to listen, as a peer of those that --connect names.
    tls
        The folder with the keys, from neuraxis mesh keys init.
    role
        Whose keys of that folder.
    insecure
        Accept addresses beyond this machine without TLS.
    zenoh_config
        A native Zenoh configuration (JSON5), used as it is, in place of all but the name.
    """

    mesh_name: str = "default"
    connect: Annotated[tuple[str, ...], _SEVERAL, Parameter(show_default=False)] = ()
    listen: Annotated[tuple[str, ...], _SEVERAL, Parameter(show_default=False)] = ()
    tls: Path | None = None
    role: str | None = None
    insecure: Annotated[bool, Parameter(negative=())] = False
    zenoh_config: Path | None = None

    def topology(self, role: str = OBSERVER) -> Topology:
        """What the options mean; `role` is whose keys are used where --role says nothing."""
        from neuraxis.mesh import Tls, Topology

        if self.zenoh_config is not None:
            if self.connect or self.listen or self.tls or self.role or self.insecure:
                raise InvalidArgument(
                    "--zenoh-config: is used as it is: not with --connect, --listen, --tls, --role or --insecure"
                )
            if not self.zenoh_config.is_file():
                raise InvalidArgument(f"--zenoh-config {self.zenoh_config}: there is no such file")
        if self.role is not None and self.tls is None:
            raise InvalidArgument(f"--role {self.role}: says whose keys are used: say with --tls where they are")
        tls = None if self.tls is None else Tls.from_folder(self.tls, self.role or role)
        return Topology.from_options(
            self.connect, self.listen, tls=tls, insecure=self.insecure, zenoh_config=self.zenoh_config
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeshToolOptions(MeshOptions):
    """The same for tools and nodes, where `--mesh local` may be said; in `neuraxis run`, `--mesh` is a flag."""

    mesh: Annotated[
        Literal["local"] | None,
        Parameter(help="local: the mesh of this machine, which is the default.", show_default=False),
    ] = None
    role: Annotated[str | None, Parameter(help="Whose keys of that folder; by default those of the role observer.")] = (
        None
    )

    def topology(self, role: str = OBSERVER) -> Topology:
        if self.mesh == "local" and (self.connect or self.listen or self.zenoh_config):
            raise InvalidArgument(
                "--mesh local: is the mesh of this machine: not with --connect, --listen or --zenoh-config"
            )
        return super().topology(role)


def check_positive(value: float | None, option: str) -> None:
    """Raise if a number that was given is not above zero, or has no end."""
    if value is not None and not 0 < value < math.inf:
        raise InvalidArgument(f"{option}={value}: a number above 0 is expected")


def check_listening(key: str, **numbers: float | None) -> None:
    """Raise where a key or the numbers of options, by name, make no sense."""
    from neuraxis.mesh.keys import check_expression

    check_expression(key, "KEY")
    for name, number in numbers.items():
        check_positive(number, f"--{name}")


# --- a tool, from its node to its exit status ---


class _Ended(BaseException):
    """Somebody asked for an end."""

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
    """Open a node that nobody sees, let `work(node)` do what the command is for, and close it; the exit status.

    Ctrl-C and SIGTERM end `work` wherever it is. Errors are told in one line, with status 2.

    Args:
        check: raises, before anything is opened, if what was asked for makes no sense.
        place: given a first node that looks who is here, the name of the one for `work` and whether others see it.
        interrupted: the status at Ctrl-C, 0 where that is how a command ends; SIGTERM gives 143.
    """
    # What is missing or malformed on the mesh, the tools tell themselves.
    logging.getLogger("neuraxis.mesh").addHandler(logging.NullHandler())
    try:
        with _EndingSignals() as signals:
            with signals.held():
                check()
                topology = options.topology()
                for module in _USED:
                    importlib.import_module(module)
            name, visible = OBSERVER, False
            if place is not None:
                with _node(signals, options, topology, name, visible, interrupted) as node:
                    name, visible = place(node)
            with _node(signals, options, topology, name, visible, interrupted) as node:
                return work(node)
    except _Ended as ended:
        if ended.number == signal.SIGINT and sys.stderr.isatty():
            print(file=sys.stderr)  # after the terminal's ^C
        return ended.status(interrupted)
    except BrokenPipeError:
        raise
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis {command}: {error}", file=sys.stderr)
        return 2


def wait_for_others(node: Node) -> None:
    """Wait a moment until the nodes that are there have been seen."""
    deadline = time.monotonic() + _PATIENCE_S
    count, since = 0, time.monotonic()
    while time.monotonic() < deadline:
        now = len(node.peers(ask=False))
        if now != count:
            count, since = now, time.monotonic()
        if count and time.monotonic() - since > _QUIET_S:
            return
        time.sleep(0.01)


class _EndingSignals:
    """While entered, Ctrl-C and SIGTERM raise `_Ended` in the main thread; within `held`, at its end."""

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}
        self._holds = False
        self._came: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """For what should not be broken into, and ends soon by itself."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
        if self._came is not None:
            raise _Ended(self._came)

    def __enter__(self) -> _EndingSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
                    self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._holds = True
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._holds:
            raise _Ended(number)
        self._came = number


@contextmanager
def _node(
    signals: _EndingSignals, options: MeshOptions, topology: Topology, name: str, visible: bool, interrupted: int
) -> Iterator[Node]:
    """A node for a while. It is opened by a thread: Zenoh may look for a router for ten seconds, deaf to Ctrl-C."""
    from neuraxis.mesh import Node

    made: list[Node | BaseException] = []

    def make() -> None:
        try:
            try:
                made.append(Node(name, mesh=options.mesh_name, topology=topology, visible=visible))
            except NameTaken:
                # Somebody else came with it at the same moment; what is to be said can be said without being seen.
                made.append(Node(name, mesh=options.mesh_name, topology=topology, visible=False))
        except BaseException as error:
            made.append(error)

    thread = threading.Thread(target=make, name="neuraxis opens", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
    except _Ended as ended:
        # The thread cannot be called back, and would be in the way of an orderly exit; there is nothing to close yet.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.status(interrupted))
    (node,) = made
    if isinstance(node, BaseException):
        raise node
    try:
        yield node
    finally:
        with signals.held():  # closing has deadlines of its own
            node.close()
