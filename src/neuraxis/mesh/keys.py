"""Where things are on the mesh: `neuraxis/<mesh>/<node>/<topic>`.

Names of nodes and topics may have several parts (`sensor/thermal`). Parts that begin with "@" are neuraxis's own, and
wildcards of users do not match them: presence, what a node says of itself, and what it serves.
"""

from __future__ import annotations

import re

from neuraxis.errors import InvalidArgument

__all__ = [
    "ROOT",
    "call_key",
    "check_expression",
    "check_mesh",
    "check_name",
    "message_key",
    "presence_key",
    "relative",
    "serve_key",
    "status_key",
]

ROOT = "neuraxis"
_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")


def check_name(name: object, what: str) -> str:
    """A name of a mesh, node or topic: parts of letters, digits, "_", "-" and ".", joined by "/"."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f'{what}={name!r}: letters, digits, "_", "-" and "." are expected, in one or more parts joined by "/"'
        )
    return name


def check_mesh(mesh: object) -> str:
    """A mesh has a name of one part: otherwise one mesh would lie within another."""
    if "/" in check_name(mesh, "mesh"):
        raise InvalidArgument(f'mesh={mesh!r}: a name of one part, without "/", is expected')
    return str(mesh)


def check_expression(expression: object, what: str = "key_expression") -> str:
    """A key expression relative to a mesh: names, and "*" for any one part, "**" for any number of parts."""
    import zenoh

    if not isinstance(expression, str):
        raise InvalidArgument(f"{what}={expression!r}: a key such as 'vision/*' is expected")
    try:
        zenoh.KeyExpr(f"{ROOT}/{expression}")
    except zenoh.ZError as error:
        raise InvalidArgument(
            f"{what}={expression!r}: it is no key expression ({str(error).split(' at ')[0]}); "
            'parts are joined by "/", "*" is any one part and "**" any number of them'
        ) from None
    return expression


def message_key(mesh: str, node: str, topic: str) -> str:
    return f"{ROOT}/{mesh}/{node}/{topic}"


def presence_key(mesh: str, node: str = "**") -> str:
    return f"{ROOT}/{mesh}/@presence/{node}"


def status_key(mesh: str, node: str = "**") -> str:
    return f"{ROOT}/{mesh}/@status/{node}"


def serve_key(mesh: str, node: str, topic: str) -> str:
    return f"{ROOT}/{mesh}/{node}/@serve/{topic}"


def call_key(mesh: str, node: str, lane: int | str = "**") -> str:
    """Where a node hears remote calls (lane 0) and their replies."""
    return serve_key(mesh, node, f"rpc/{lane}")


def relative(mesh: str, key: str) -> str:
    """A key without its mesh: what users write and see."""
    return key.removeprefix(f"{ROOT}/{mesh}/")
