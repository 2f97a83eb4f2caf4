"""`neuraxis pub KEY VALUE`: publish a value on the mesh by hand."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from neuraxis.cli.mesh_options import ConnectionWatch, MeshToolOptions, check_positive, run_tool, wait_for_others
from neuraxis.errors import InvalidArgument

if TYPE_CHECKING:
    from neuraxis.mesh import Node

__all__ = ["pub"]

_HELP = "Publish a value on the mesh, once or at a rate."

_EPILOGUE = """KEY is NODE/TOPIC. If the mesh has no node of that name, the command joins as
one, which others see join and leave; otherwise it publishes as one more
source on that node's key.

Examples:

  A number, a text, an object (VALUE is JSON, else text):
    neuraxis pub sensor/thermal/celsius 21.5
    neuraxis pub pfc/control stop --kind state
    neuraxis pub lang/features '{"word": "cup", "score": 0.9}'

  Ten a second, until Ctrl-C, or fifty of them:
    neuraxis pub sensor/thermal/celsius 21.5 --rate 10
    neuraxis pub sensor/thermal/celsius 21.5 --rate 10 --count 50

  For a program without msgpack, and raw bytes:
    neuraxis pub motor/goal '[1, 2]' --codec json
    neuraxis pub motor/raw hello --codec bytes

The last part of KEY is the topic, unless the mesh has a node whose name is
another prefix of it. The command waits for a subscriber (--timeout), then
publishes in any case: without subscribers the message is lost. A state or
event is available to late subscribers only while the command runs. When the
router or all nodes are lost meanwhile, a line on stderr says so.

Exit codes: 0 with a subscriber, and at Ctrl-C without --count; 1 without a
subscriber, or when the mesh cannot be reached; 2 for wrong usage; 130 when
Ctrl-C came before --count was reached."""

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
    kind: Literal["stream", "state", "event", "bulk"] = "stream",
    timeout: float = 1.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    mesh: MeshToolOptions = MeshToolOptions(),  # noqa: B008 (frozen)
) -> int:
    """Publish a value.

    Parameters
    ----------
    key
        Key: NODE/TOPIC.
    value
        Value: JSON, else text.
    rate
        Messages per second; default with --count: 1.
    count
        Number of messages; default: one, with --rate no limit.
    codec
        Codec of the message; default: msgpack. With bytes, VALUE is sent unchanged.
    kind
        Kind of the topic: stream (only the newest matters), state (late subscribers get the last), event (all matter),
        bulk (large).
    timeout
        Seconds to wait for a subscriber before the first message.
    as_json
        Print the result as a JSON object.
    """
    endless = rate is not None and count is None

    def check() -> None:
        _check_key(key)
        check_positive(rate, "--rate")
        check_positive(count, "--count")
        if not 0 <= timeout < math.inf:
            raise InvalidArgument(f"--timeout={timeout}: not a number of seconds; give 0 or more")

    def place(node: Node) -> tuple[str, bool]:
        wait_for_others(node)
        here = {peer.name for peer in node.peers(ask=False)}
        name = _node_of(key, here)
        return name, name not in here

    def publish(node: Node) -> int:
        from neuraxis.mesh.monitor import has_subscriber

        topic = key.removeprefix(f"{node.name}/")
        limit = math.inf if endless else count or 1
        sent, subscribed = 0, has_subscriber(node, key, timeout)
        at = time.monotonic()
        connection = ConnectionWatch("pub", node)
        try:
            while sent < limit:
                node.publish(topic, _value(value, codec), kind, codec=codec)
                sent += 1
                subscribed = subscribed or has_subscriber(node, key, 0.0)
                if sent < limit:
                    at = max(at + 1 / (rate or 1.0), time.monotonic() - 1.0)  # missed messages are not sent later
                    connection.sleep_until(at)
        finally:
            _print(key, node.name, sent, subscribed, as_json)
        return 0 if subscribed else 1

    return run_tool("pub", mesh, publish, check=check, place=place, interrupted=0 if endless else 130)


def _node_of(key: str, here: set[str]) -> str:
    """Return the name of the node in a key: the longest one on the mesh, else all but the last part."""
    parts = key.split("/")
    beginnings = ["/".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]
    return next((one for one in beginnings if one in here), beginnings[0])


def _check_key(key: str) -> None:
    from neuraxis.mesh.keys import check_name

    check_name(key, "KEY")
    if "/" not in key:
        raise InvalidArgument(f"KEY={key!r}: no topic; give NODE/TOPIC, such as sensor/celsius")


def _value(text: str, codec: str | None) -> Any:
    if codec == "bytes":
        return text.encode("utf-8", "surrogateescape")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _print(key: str, node: str, sent: int, subscribed: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"key": key, "node": node, "messages": sent, "heard": subscribed}), flush=True)
    else:
        messages = f"{sent} message{'s' * (sent != 1)}"
        subscribers = "there was a subscriber" if subscribed else "there was no subscriber"
        print(f"published {messages} on {key}; {subscribers}", flush=True)
