"""`neuraxis mesh`: keys and access rules for a mesh of several machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, NeuraxisError

__all__ = ["app"]

_KEYS_EPILOGUE = """Examples:

  A CA, a router certificate, and all roles that a brain needs:
    neuraxis mesh keys init keys/ --brain brain.toml --hosts robot.local

  One more role later, from the same CA:
    neuraxis mesh keys init keys/ --roles arm

A machine needs only ca.pem and the two files of its own role; keep ca.key
away from robots. The roles of a brain are its regions, driver (runs the
brain), observer (subscribes to everything, publishes nothing), and one for
each sensor (sensor-camera for sensor/camera). A role's certificate is for
clients: only routers, and peers named with --listeners, accept connections.
Existing files are not changed.

Exit codes: 0; 1 when a file cannot be read or written, 2 for wrong usage."""

_REVOKE_EPILOGUE = """Examples:

  The arm was stolen: revoke its certificate, and create a new one:
    neuraxis mesh keys revoke keys/ arm
    neuraxis mesh keys init keys/ --roles arm
    scp keys/revoked.txt robot:keys/

A router that was started with --acl reloads keys/revoked.txt when it changes:
it closes all connections for a moment, after which a node with a revoked
certificate can neither publish nor subscribe. The list takes effect on the
routers that have it. A stolen ca.key requires a new CA:
neuraxis mesh keys init keys/ --replace.

Exit codes: 0; 1 when a file cannot be read or written, 2 for wrong usage."""

_ACL_EPILOGUE = """Examples:

  Write the rules, and let a router enforce them:
    neuraxis mesh acl brain.toml --out acl.json5
    neuraxis router --listen tls/0.0.0.0:7447 --tls keys/ --acl acl.json5

  Allow remote calls (neuraxis.rpc), with or without a brain:
    neuraxis mesh acl --calls console:server,arm:server --out acl.json5

  A sensor that the brain's file admits by a wildcard (sensor/**), by name:
    neuraxis mesh acl brain.toml --sensors sensor/thermal --out acl.json5

  The rules for a program:
    neuraxis mesh acl brain.toml --json

A node without a certificate of this CA, or with a role that the rules do not
name, can neither publish nor subscribe. Routers enforce the rules for their
clients; peers that connect to each other directly are not restricted.

Exit codes: 0; 1 when a file cannot be read or written, 2 for wrong usage."""

app = App(name="mesh", help="Create keys and access rules for a mesh of several machines.", version_flags=())
keys = App(name="keys", help="Create and revoke keys and certificates.", version_flags=())
app.command(keys)


@keys.command(name="init", help_epilogue=_KEYS_EPILOGUE, help_format="plaintext", version_flags=())
def _init(
    folder: Path,
    *,
    roles: str = "",
    brain: Path | None = None,
    sensors: str = "",
    listeners: str = "",
    hosts: str = "",
    days: int = 825,
    replace: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Create a CA, a certificate for routers, and one for each role.

    Parameters
    ----------
    folder
        Folder of the keys.
    roles
        Names, separated by commas.
    brain
        A brain's file, for all roles that it needs.
    sensors
        Nodes of sensors that the brain admits by a wildcard, such as sensor/thermal, separated by commas.
    listeners
        Roles of peers that accept connections, separated by commas: their certificates are also for servers.
    hosts
        Names and addresses of routers and listeners, separated by commas; localhost is always included.
    days
        Days for which the certificates are valid.
    replace
        Replace the CA: earlier certificates become invalid.
    as_json
        Print the created files as a JSON object.
    """
    from neuraxis.mesh.certificates import init_keys

    try:
        if sensors and brain is None:
            raise InvalidArgument(f"--sensors {sensors}: the brain that admits them is missing; add --brain FILE")
        wanted = [*_words(roles), *([] if brain is None else _roles_of(brain, _words(sensors)))]
        made = init_keys(folder, wanted, _words(hosts), days, listeners=_words(listeners), replace=replace)
    except (NeuraxisError, OSError) as error:
        return fail("mesh keys init", error)
    if as_json:
        print(json.dumps({"folder": str(folder), "made": [path.name for path in made]}))
    else:
        print("\n".join(f"created {path}" for path in made) or f"nothing to create: {folder} has all of them")
    return 0


@keys.command(name="revoke", help_epilogue=_REVOKE_EPILOGUE, help_format="plaintext", version_flags=())
def _revoke(
    folder: Path, role: str, /, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False
) -> int:
    """Revoke the certificate of a role.

    Parameters
    ----------
    folder
        Folder of the keys.
    role
        Role whose certificate is revoked.
    as_json
        Print the revoked certificate as a JSON object.
    """
    from neuraxis.mesh.certificates import REVOKED, revoke

    try:
        name = revoke(folder, role)
    except (NeuraxisError, OSError) as error:
        return fail("mesh keys revoke", error)
    if as_json:
        print(json.dumps({"role": role, "revoked": name, "list": str(folder / REVOKED)}))
    else:
        print(f"revoked {name} in {folder / REVOKED}; copy this file to every router")
    return 0


@app.command(name="acl", help_epilogue=_ACL_EPILOGUE, help_format="plaintext", version_flags=())
def _acl(
    brain: Path | None = None,
    *,
    calls: str = "",
    sensors: str = "",
    out: Path | None = None,
    mesh: Annotated[str, Parameter(name="--mesh-name")] = "default",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Write access rules that let each role publish, subscribe and call only as a brain needs.

    Parameters
    ----------
    brain
        The brain's file.
    calls
        Allowed calls: pairs ROLE:NODE, separated by commas. The node may reply, and call back.
    sensors
        Nodes of sensors that the brain admits by a wildcard, such as sensor/thermal, separated by commas.
    out
        File to write (JSON, a subset of JSON5); default: print the rules.
    mesh
        Name of the mesh that the brain runs on.
    as_json
        Print the rules as JSON.
    """
    from dataclasses import asdict

    from neuraxis.brain import read_spec
    from neuraxis.brain.mesh import grants_of
    from neuraxis.mesh.access import access_control, with_calls, write_access

    try:
        if brain is None and not calls:
            raise InvalidArgument("there is nothing to allow; name a brain's file, or --calls, or both")
        if sensors and brain is None:
            raise InvalidArgument(f"--sensors {sensors}: the brain that admits them is missing; name its file")
        grants = [] if brain is None else grants_of(read_spec(brain), _words(sensors))
        grants = with_calls(grants, _pairs(calls))
        access_control(mesh, grants)
        if out is not None:
            write_access(out, mesh, grants)
    except (NeuraxisError, OSError) as error:
        return fail("mesh acl", error)
    if as_json:
        print(json.dumps({"mesh": mesh, "out": None if out is None else str(out), "roles": list(map(asdict, grants))}))
        return 0
    if out is not None:
        print(f"wrote {out}: {len(grants)} roles of the mesh {mesh!r}")
        return 0
    for grant in grants:
        print(grant.role)
        for what, names in (
            ("nodes", grant.nodes),
            ("roles", grant.roles),
            ("publishes", grant.publishes),
            ("subscribes", grant.subscribes),
            ("calls", grant.calls),
            ("requests", [f"{topic} of {node}" for node, topic in grant.requests]),
            ("denied", [f"{topic} of {node}" for node, topic in grant.never_requests]),
        ):
            if names:
                print(f"  {what:<10} {', '.join(names)}")
    return 0


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(words):
        raise InvalidArgument(f"{text!r}: a name is empty; give names separated by commas")
    return words


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [tuple(word.split(":")) for word in _words(text)]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidArgument(
            f"--calls {text!r}: not pairs of role and node; write them as in console:server,arm:server"
        )
    return [(role, node) for role, node in pairs]


def _roles_of(brain: Path, sensors: list[str]) -> list[str]:
    from neuraxis.brain import read_spec
    from neuraxis.brain.mesh import roles_of

    return roles_of(read_spec(brain), sensors)
