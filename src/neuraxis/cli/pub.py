"""`neuraxis pub KEY VALUE`: say something on the mesh by hand."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import MeshToolOptions, check_positive, run_tool, wait_for_others
from neuraxis.errors import InvalidArgument

if TYPE_CHECKING:
    from neuraxis.mesh import Node

__all__ = ["pub"]

_HELP = "Publish a value on the mesh, once or at a rate."

_EPILOGUE = """KEY is NODE/TOPIC. If no node of that name is here, it is published by one of
that name, which others see come and go; else in that node's name, as one
more source on its key.

Examples:

  A number, a text, an object (VALUE is JSON, and text if it is none):
    neuraxis pub sensor/thermal/celsius 21.5
    neuraxis pub pfc/control stop --kind state
    neuraxis pub lang/features '{"word": "cup", "score": 0.9}'

  Ten a second, until Ctrl-C, or fifty of them:
    neuraxis pub sensor/thermal/celsius 21.5 --rate 10
    neuraxis pub sensor/thermal/celsius 21.5 --rate 10 --count 50

  For a program that knows no msgpack, and bytes as they are:
    neuraxis pub motor/goal '[1, 2]' --codec json
    neuraxis pub motor/raw hello --codec bytes

The last part of KEY is the topic, unless a node is here whose name is a
longer or shorter beginning of it. It waits a moment for somebody who has
subscribed (--wait) and then publishes all the same: what nobody hears is
gone. A state is kept only while the command runs.

Exit status: 0 when somebody listened, and at Ctrl-C when no --count was
given; 1 when nobody listened; 2 when it cannot be published as asked; 130
when Ctrl-C came before --count was reached."""

pub = App(name="pub", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@pub.default
def _pub(
    key: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    rate: float | None = None,
    count: int | None = None,
    codec: Literal["json", "msgpack", "bytes"] | None = None,
    kind: Literal["stream", "state", "bulk"] = "stream",
    wait: float = 1.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Publish a value.

    Parameters
    ----------
    key
        Where: NODE/TOPIC.
    value
        What: JSON, or text if it is none.
    rate
        Messages per second; 1 where only --count is given.
    count
        How many messages; by default one, and with --rate no end.
    codec
        The form in which it travels; msgpack by default. Bytes are VALUE as it is.
    kind
        What the topic is for: stream (the newest counts), state (every one counts), bulk (large).
    wait
        How many seconds to wait for somebody who listens, before the first message.
    as_json
        Print what was done as a JSON object.
    """
    endless = rate is not None and count is None

    def check() -> None:
        _check_key(key)
        check_positive(rate, "--rate")
        check_positive(count, "--count")
        if not 0 <= wait < math.inf:
            raise InvalidArgument(f"--wait={wait}: a number of seconds, 0 or more, is expected")

    def place(node: Node) -> tuple[str, bool]:
        wait_for_others(node)
        here = {peer.name for peer in node.peers(ask=False)}
        name = _node_of(key, here)
        return name, name not in here

    def publish(node: Node) -> int:
        from neuraxis.observe.mesh_listening import anybody_listens

        topic = key.removeprefix(f"{node.name}/")
        limit = math.inf if endless else count or 1
        sent, heard = 0, anybody_listens(node, key, wait)
        at = time.monotonic()
        try:
            while sent < limit:
                node.publish(topic, _value(value, codec), kind, codec=codec)
                sent += 1
                heard = heard or anybody_listens(node, key, 0.0)
                if sent < limit:
                    at = max(at + 1 / (rate or 1.0), time.monotonic() - 1.0)  # what was missed is not made up for
                    time.sleep(max(0.0, at - time.monotonic()))
        finally:
            _tell(key, node.name, sent, heard, as_json)
        return 0 if heard else 1

    return run_tool("pub", mesh, publish, check=check, place=place, interrupted=0 if endless else 130)


def _node_of(key: str, here: set[str]) -> str:
    """The name of a node in a key: the longest of those that are here, else all but the last part."""
    parts = key.split("/")
    beginnings = ["/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
    return next((one for one in beginnings if one in here), beginnings[0])


def _check_key(key: str) -> None:
    from neuraxis.mesh.keys import check_name

    check_name(key, "KEY")
    if "/" not in key:
        raise InvalidArgument(f"KEY={key!r}: NODE/TOPIC is expected, such as sensor/celsius")


def _value(text: str, codec: str | None) -> Any:
    if codec == "bytes":
        return text.encode("utf-8", "surrogateescape")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _tell(key: str, node: str, sent: int, heard: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"key": key, "node": node, "messages": sent, "heard": heard}), flush=True)
    else:
        messages = f"{sent} message{'s' * (sent != 1)}"
        listened = "somebody listened" if heard else "nobody listened"
        print(f"published {messages} on {key}; {listened}", flush=True)
