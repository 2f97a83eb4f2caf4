"""`neuraxis nodes` and `neuraxis topics`: the nodes of a mesh, and their topics."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from neuraxis.cli.errors import FAILURE
from neuraxis.cli.mesh_options import ConnectionWatch, MeshToolOptions, check_positive, run_tool, wait_for_others

if TYPE_CHECKING:
    from rich.console import Console

    from neuraxis.mesh import Node, Peer

__all__ = ["nodes", "topics"]

_TOPICS_HELP = "List the topics of the mesh: publisher, encoding, rate."

_TOPICS_EPILOGUE = """Nodes announce their topics, and the command subscribes to everything for a
second: so it lists topics that are idle, and topics of programs that
are not nodes (any Zenoh program that publishes below neuraxis/MESH/).

Examples:

  All keys of the mesh on this machine:
    neuraxis topics

  Subscribe for longer, for rare messages:
    neuraxis topics --seconds 10

  For a program:
    neuraxis topics --json | jq '.[] | select(.lost > 0)'

"-" stands for an unknown value: kind and node if no node announces them,
encoding if no message arrived. "lost" counts messages that were sent while
this command was subscribed and did not arrive.

Exit codes: 0; 1 when the mesh cannot be reached, 2 for wrong usage, 130 at
Ctrl-C."""

_EVERYTHING = "**"

topics = App(
    name="topics", help=_TOPICS_HELP, help_epilogue=_TOPICS_EPILOGUE, help_format="plaintext", version_flags=()
)


@topics.default
def _topics(
    *,
    seconds: float = 1.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """List the topics of the mesh.

    Parameters
    ----------
    seconds
        Seconds to subscribe.
    as_json
        Print a JSON list.
    """

    def look(node: Node) -> int:
        from rich.console import Console

        from neuraxis.mesh.monitor import Monitor
        from neuraxis.report.mesh import TOPICS, gather_topics, print_table, topic_rows

        with Monitor(node, _EVERYTHING) as listener:
            wait_for_others(node)
            listener.take()  # the time starts when all are connected
            time.sleep(seconds)
            messages = listener.take()
        rows = gather_topics(node.peers(), messages, seconds)
        if not rows:
            node.check_connected()
        if as_json:
            print(json.dumps([row.as_data() for row in rows], indent=1))
        elif rows:
            print_table(TOPICS, topic_rows(rows), Console())
        else:
            print(f"no topics on the mesh {node.mesh!r}; list its nodes with neuraxis nodes", file=sys.stderr)
        return 0

    return run_tool("topics", mesh, look, check=lambda: check_positive(seconds, "--seconds"), interrupted=130)


_NODES_HELP = "List the nodes of the mesh: name, role, host, process, uptime, last step."

_NODES_EPILOGUE = """A node is listed while its process runs and is reachable; one that does not
reply (stopped or overloaded) has "no answer" in place of its step. "sees" is
the number of other nodes that it sees; a warning names nodes that do not see all.

Examples:

  Nodes on the mesh of this machine:
    neuraxis nodes

  Watch nodes join and leave, until Ctrl-C:
    neuraxis nodes --watch

  On a robot, through its router, with keys:
    neuraxis nodes --connect tls/robot.local:7447 --tls keys/

  For a program: a list; with --watch, one object per line for each node that
  joins or leaves:
    neuraxis nodes --json | jq -r '.[].name'
    neuraxis nodes --watch --json

Exit codes: 0, also when the mesh is empty and when Ctrl-C ends --watch; 1
when the mesh cannot be reached, or another program has its port; 2 for wrong
usage."""

_REDRAW_S = 1.0
_LOOK_S = 0.25
_ANSWER_S = 0.5
_SETTLE_S = 2.0

nodes = App(name="nodes", help=_NODES_HELP, help_epilogue=_NODES_EPILOGUE, help_format="plaintext", version_flags=())


@nodes.default
def _nodes(
    *,
    watch: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """List the nodes of the mesh.

    Parameters
    ----------
    watch
        Run until Ctrl-C and show nodes that join or leave; if the output is not a terminal, one line each.
    as_json
        Print JSON.
    """

    def look(node: Node) -> int:
        from rich.console import Console

        console = Console()
        if watch and console.is_terminal and not console.is_dumb_terminal and not as_json:
            return _watch_table(node, console)
        if watch:
            return _watch_lines(node, as_json)
        wait_for_others(node)
        return _show(node, console, as_json)

    return run_tool("nodes", mesh, look, interrupted=0 if watch else 130)


def _show(node: Node, console: Console, as_json: bool) -> int:
    from neuraxis.report.mesh import NODES, node_data, node_rows, print_table

    here = node.peers(_ANSWER_S)
    deadline = time.monotonic() + _SETTLE_S
    while (warning := _partition_warning(here)) and time.monotonic() < deadline:  # new nodes are not yet seen by all
        time.sleep(0.1)
        here = node.peers(_ANSWER_S)
    if warning:
        print(f"neuraxis nodes: {warning}", file=sys.stderr)
    if not here:
        node.check_connected()  # a mesh that cannot be reached is not an empty one
    if as_json:
        print(json.dumps([node_data(peer) for peer in here], indent=1))
    elif here:
        print_table(NODES, node_rows(here), console)
    elif not node.silent_ports:
        print(_empty(node), file=sys.stderr)
    return FAILURE if node.silent_ports and not here else 0  # a program that does not answer may be a node


def _partition_warning(here: list[Peer]) -> str:
    """Return a warning that names the nodes that do not see all others."""
    others = len(here) - 1
    blind = [f"{peer.name} ({peer.sees} of {others})" for peer in here if peer.sees is not None and peer.sees < others]
    return f"these nodes do not see all others: {', '.join(blind)}" if blind else ""


def _watch_table(node: Node, console: Console) -> int:
    """Draw the table every second, and when a node joins or leaves."""
    from rich.live import Live
    from rich.text import Text

    from neuraxis.report.mesh import NODES, node_rows, rich_table
    from neuraxis.threads import Empty, TimedQueue

    connection = ConnectionWatch("nodes", node)
    changes: TimedQueue[Peer] = TimedQueue()
    node.on_join(changes.put)
    node.on_leave(changes.put)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            here = node.peers(_ANSWER_S)
            empty = connection.trouble() or "no nodes yet"
            live.update(rich_table(NODES, node_rows(here)) if here else Text(empty), refresh=True)
            try:
                changes.get(timeout=_REDRAW_S)
                while True:  # draw once for nodes that joined at the same time
                    changes.get_nowait()
            except Empty:
                pass


def _watch_lines(node: Node, as_json: bool) -> int:
    """Print a line for each node that joins or leaves."""
    from neuraxis.report.mesh import node_data, printable
    from neuraxis.threads import Empty, TimedQueue

    changes: TimedQueue[tuple[str, Peer]] = TimedQueue()
    node.on_leave(lambda peer: changes.put(("leave", peer)))
    node.on_join(lambda peer: changes.put(("join", peer)))
    connection = ConnectionWatch("nodes", node)
    while True:
        connection.look()
        try:
            event, peer = changes.get(timeout=_LOOK_S)
        except Empty:
            continue
        if as_json:
            data = node_data(peer)
            # Fields that need a request, which is not sent to a node that has just joined or left.
            for name in ("step", "topics", "answers"):
                del data[name]
            print(json.dumps({"event": event, **data}), flush=True)
        else:
            words = [event.ljust(5), peer.name, peer.role or "-", peer.host, str(peer.pid)]
            print("  ".join(map(printable, words)), flush=True)


def _empty(node: Node) -> str:
    where = f"the mesh {node.mesh!r}"
    if node.topology.mode == "local":
        return (
            f"no nodes: {where} on this machine is empty; name another mesh with --mesh-name NAME, or connect to other "
            "machines through a router (--connect tls/ROBOT:7447 --tls FOLDER)"
        )
    return f"no nodes: {where} is connected and has no nodes that this command may see; check --mesh-name and --role"
