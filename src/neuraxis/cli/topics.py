"""`neuraxis topics`: what is said on the mesh, by whom and how often."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import MeshToolOptions, check_positive, run_tool, wait_for_others

if TYPE_CHECKING:
    from neuraxis.mesh import Node

__all__ = ["topics"]

_HELP = "See what is published on the mesh: by whom, in which form, how often."

_EPILOGUE = """Nodes say what they publish, and everything is listened to for a second: so
a key is listed that is silent now, and one that a program uses which is no
node (any Zenoh program that speaks below neuraxis/MESH/).

Examples:

  All keys of the mesh on this machine:
    neuraxis topics

  Listen longer, for what comes rarely:
    neuraxis topics --seconds 10

  For a program:
    neuraxis topics --json | jq '.[] | select(.lost > 0)'

A key has "-" in place of what is not known: its kind and node where no node
says so, its encoding where nothing was heard. Lost are messages that were
sent while this tool listened, and did not arrive here.

Exit status: 0, 2 when the mesh cannot be reached as asked, 130 at Ctrl-C."""

_EVERYTHING = "**"

topics = App(name="topics", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@topics.default
def _topics(
    *,
    seconds: float = 1.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Show what is published on the mesh.

    Parameters
    ----------
    seconds
        How long to listen.
    as_json
        Print a JSON list.
    """

    def look(node: Node) -> int:
        from rich.console import Console

        from neuraxis.observe.mesh_listening import Listener
        from neuraxis.observe.mesh_tables import TOPICS, gather_topics, print_table, topic_rows

        with Listener(node, _EVERYTHING) as listener:
            wait_for_others(node)
            listener.take()  # the time begins when all are connected
            time.sleep(seconds)
            heard = listener.take()
        rows = gather_topics(node.peers(), heard, seconds)
        if as_json:
            print(json.dumps([row.as_data() for row in rows], indent=1))
        elif rows:
            print_table(TOPICS, topic_rows(rows), Console())
        else:
            print(f"nothing is published on the mesh {node.mesh!r}; who is here: neuraxis nodes", file=sys.stderr)
        return 0

    return run_tool("topics", mesh, look, check=lambda: check_positive(seconds, "--seconds"), interrupted=130)
