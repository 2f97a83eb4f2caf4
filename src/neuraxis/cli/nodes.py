"""`neuraxis nodes`: who is on the mesh."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import MeshToolOptions, run_tool, wait_for_others

if TYPE_CHECKING:
    from rich.console import Console

    from neuraxis.mesh import Node, Peer

__all__ = ["nodes"]

_HELP = "See who is on the mesh: name, role, host, process, how long, last step."

_EPILOGUE = """A node is here while its process lives and is reached; one that does not
answer (stopped, or too busy to) has "no answer" in place of its step.

Examples:

  Who is on the mesh of this machine:
    neuraxis nodes

  Watch them come and go, until Ctrl-C:
    neuraxis nodes --watch

  On a robot, through its router, with keys:
    neuraxis nodes --connect tls/robot.local:7447 --tls keys/

  For a program: a list; with --watch, an object a line for each that joins
  or leaves:
    neuraxis nodes --json | jq -r '.[].name'
    neuraxis nodes --watch --json

Exit status: 0, also when nobody is here and when Ctrl-C ends --watch; 2
when the mesh cannot be reached as asked."""

_REDRAW_S = 1.0
_ANSWER_S = 0.5

nodes = App(name="nodes", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@nodes.default
def _nodes(
    *,
    watch: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Show who is on the mesh.

    Parameters
    ----------
    watch
        Go on until Ctrl-C; who joins or leaves is seen at once. Where the output is no terminal, a line each.
    as_json
        Print JSON.
    """

    def look(node: Node) -> int:
        from rich.console import Console

        console = Console()
        if watch and console.is_terminal and not console.is_dumb_terminal and not as_json:
            return _draw(node, console)
        if watch:
            return _tell(node, as_json)
        wait_for_others(node)
        return _show(node, console, as_json)

    return run_tool("nodes", mesh, look, interrupted=0 if watch else 130)


def _show(node: Node, console: Console, as_json: bool) -> int:
    from neuraxis.observe.mesh_tables import NODES, node_data, node_rows, print_table

    here = node.peers(_ANSWER_S)
    if as_json:
        print(json.dumps([node_data(peer) for peer in here], indent=1))
    elif here:
        print_table(NODES, node_rows(here), console)
    else:
        print(_nobody(node), file=sys.stderr)
    return 0


def _draw(node: Node, console: Console) -> int:
    """A table that is drawn again every second, and when somebody joins or leaves."""
    from rich.live import Live
    from rich.text import Text

    from neuraxis.observe.mesh_tables import NODES, node_rows, rich_table
    from neuraxis.timed_queue import Empty, TimedQueue

    changes: TimedQueue[Peer] = TimedQueue()
    node.on_join(changes.put)
    node.on_leave(changes.put)
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            here = node.peers(_ANSWER_S)
            live.update(rich_table(NODES, node_rows(here)) if here else Text("nobody is here yet"), refresh=True)
            try:
                changes.get(timeout=_REDRAW_S)
                while True:  # those that came together are drawn together
                    changes.get_nowait()
            except Empty:
                pass


def _tell(node: Node, as_json: bool) -> int:
    """A line for each that joins or leaves."""
    from neuraxis.observe.mesh_tables import node_data
    from neuraxis.observe.mesh_values import printable
    from neuraxis.timed_queue import Empty, TimedQueue

    changes: TimedQueue[tuple[str, Peer]] = TimedQueue()
    node.on_leave(lambda peer: changes.put(("leave", peer)))
    node.on_join(lambda peer: changes.put(("join", peer)))
    while True:
        try:
            event, peer = changes.get(timeout=_REDRAW_S)
        except Empty:
            continue
        if as_json:
            told = node_data(peer)
            # These are asked for, and a node that has just come or gone is not.
            for name in ("step", "topics", "answers"):
                del told[name]
            print(json.dumps({"event": event, **told}), flush=True)
        else:
            words = [event.ljust(5), peer.name, peer.role or "-", peer.host, str(peer.pid)]
            print("  ".join(map(printable, words)), flush=True)


def _nobody(node: Node) -> str:
    where = f"the mesh {node.mesh!r}"
    if node.topology.mode == "local":
        return (
            f"nobody is here: {where} on this machine is empty. Another mesh has another name (--mesh-name NAME); "
            "one on other machines is reached through a router (--connect tls/ROBOT:7447 --tls FOLDER)"
        )
    return f"nobody is here: {where} is reached, and has no nodes that this tool may see. Is the name right (--mesh)?"
