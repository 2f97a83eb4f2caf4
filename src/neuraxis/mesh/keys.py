"""Zenoh keys of the mesh: `neuraxis/<mesh>/<node>/<topic>`.

Names of nodes and topics may have several parts (`sensor/thermal`). Parts that begin with "@" are reserved, and
wildcards do not match them: presence tokens, the status of nodes, and served topics.

Every key names its sender, because a key is the only part of a message that a router's access rules can check. Topics
of a node lie below its name. Requests, remote calls and replies lie below the receiver's name and end with
`@from/<sender>`; a receiver trusts that part, and drops a message whose content names another sender.

This module checks lengths, since Zenoh panics at keys of 65,536 bytes and more: a name has at most `LONGEST_NAME`
characters, a key expression `LONGEST_EXPRESSION`; the keys made of them are shorter than `LONGEST_KEY`. Names cannot
contain Zenoh's special characters ("*", "$", "?", "#", "@"); expressions may contain "*" and "**" as whole parts.
"""

from __future__ import annotations

import re

from neuraxis.errors import InvalidArgument
from neuraxis.wire.envelope import LONGEST_NAME

__all__ = [
    "LONGEST_EXPRESSION",
    "LONGEST_KEY",
    "LONGEST_NAME",
    "ROOT",
    "call_key",
    "check_expression",
    "check_keys_of_nodes",
    "check_mesh",
    "check_name",
    "message_key",
    "presence_key",
    "relative",
    "sender_of_key",
    "serve_key",
    "status_key",
]

ROOT = "neuraxis"
LONGEST_EXPRESSION = 1024
LONGEST_KEY = 8192
_FROM = "/@from/"
_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")
_SPECIAL = re.compile(r"[$#?\x00-\x1f\x7f\ud800-\udfff]")


def check_name(name: object, what: str) -> str:
    """Check a name of a mesh, node, role or topic: parts of letters, digits, "_", "-" and ".", joined by "/".

    Raises
    ------
    InvalidArgument
        It has other characters, or more than `LONGEST_NAME`.
    """
    if isinstance(name, str) and len(name) > LONGEST_NAME:
        raise InvalidArgument(
            f"{what}={name[:40]!r}...: the name has {len(name):,} characters. Use {LONGEST_NAME} at most"
        )
    if not isinstance(name, str):
        raise InvalidArgument(f"{what}={name!r}: a name is expected, which is text, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        hint = _without_slash(name)
        raise InvalidArgument(
            f'{what}={name!r}: letters, digits, "_", "-" and "." are expected, in one or more parts joined by "/"{hint}'
        )
    return name


def check_mesh(mesh: object) -> str:
    """Check a mesh name. It has one part, so that no mesh lies within another."""
    if "/" in check_name(mesh, "mesh"):
        raise InvalidArgument(f'mesh={mesh!r}: a name of one part, without "/", is expected')
    return str(mesh)


def check_expression(expression: object, what: str = "key_expression") -> str:
    """Check a key expression relative to a mesh: names, "*" for any one part, "**" for any number of parts."""
    import zenoh

    if not isinstance(expression, str):
        raise InvalidArgument(f"{what}={expression!r}: a key such as 'vision/*' is expected")
    if len(expression) > LONGEST_EXPRESSION:
        raise InvalidArgument(
            f"{what}={expression[:40]!r}...: the key has {len(expression):,} characters. "
            f"Use {LONGEST_EXPRESSION:,} at most"
        )
    if special := _SPECIAL.search(expression):
        raise InvalidArgument(
            f"{what}={expression!r}: it contains {special.group()!r}, which has a special meaning in Zenoh or "
            'cannot be sent. Use names joined by "/", with "*" for any one part and "**" for any number of parts'
        )
    try:
        zenoh.KeyExpr(f"{ROOT}/{expression}")
    except zenoh.ZError:
        raise InvalidArgument(
            f"{what}={expression!r}: it is not a key expression. "
            f'Join parts by "/"; "*" is any one part and "**" any number of them{_without_slash(expression)}'
        ) from None
    return expression


def check_keys_of_nodes(expression: object, what: str = "key_expression") -> str:
    """Check a key expression for messages of nodes: `<node>/<topic>`, so it has at least two parts, or is "**"."""
    text = check_expression(expression, what)
    if "/" not in text and text != "**":
        raise InvalidArgument(
            f"{what}={text!r}: no message has such a key, because the keys of messages are <node>/<topic>. "
            f'Put the name of the node before the topic, or "*/" for any node'
        )
    return text


def _without_slash(given: object) -> str:
    """End an error message about a name that begins or ends with a slash, as names of ROS do."""
    bare = given.strip("/") if isinstance(given, str) else ""
    return f". Leave out the slash at its start or end: {bare!r}" if bare != given and _NAME.fullmatch(bare) else ""


def message_key(mesh: str, node: str, topic: str) -> str:
    return f"{ROOT}/{mesh}/{node}/{topic}"


def presence_key(mesh: str, node: str = "**") -> str:
    return f"{ROOT}/{mesh}/@presence/{node}"


def status_key(mesh: str, node: str = "**") -> str:
    return f"{ROOT}/{mesh}/@status/{node}"


def serve_key(mesh: str, node: str, topic: str, sender: str = "**") -> str:
    """Return the key of requests by `sender` for a topic that `node` serves."""
    return f"{ROOT}/{mesh}/{node}/@serve/{topic}{_FROM}{sender}"


def call_key(mesh: str, node: str, channel: int | str = "*", sender: str = "**") -> str:
    """Return the key of remote calls (channel 0) and of replies (reply channels) from `sender` to `node`."""
    return serve_key(mesh, node, f"rpc/{channel}", sender)


def sender_of_key(key: str) -> str:
    """Return the sender in the key of a request, call or reply; "" if there is none, or a wildcard."""
    sender = key.rpartition(_FROM)[2] if _FROM in key else ""
    return sender if _NAME.fullmatch(sender) else ""


def relative(mesh: str, key: str) -> str:
    """Return a key relative to the mesh, as users write and see it."""
    return key.removeprefix(f"{ROOT}/{mesh}/")
