"""`neuraxis mesh`: keys, and who may do what with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.errors import InvalidArgument, NeuraxisError

__all__ = ["app"]

_KEYS_EPILOGUE = """Examples:

  An authority, a router, and all roles that a brain needs:
    neuraxis mesh keys init keys/ --brain brain.toml --hosts robot.local

  One more role later, under the same authority:
    neuraxis mesh keys init keys/ --roles arm

A machine needs ca.pem and the two files of its own role, no more; keep
ca.key where no robot is. The roles of a brain are its regions, and driver
(runs the brain), observer (hears all, says nothing) and sensor (brings
data). Files that are there are left as they are."""

_ACL_EPILOGUE = """Examples:

  Write the rules, look at them, and let a router enforce them:
    neuraxis mesh acl brain.toml --out acl.json5
    neuraxis router --listen tls/0.0.0.0:7447 --tls keys/ --acl acl.json5

  Who may call whom (neuraxis.rpc), with or without a brain:
    neuraxis mesh acl --calls console:server,arm:server --out acl.json5

  Who may do what, for a program:
    neuraxis mesh acl brain.toml --json

Whoever has no certificate of ours, or one for a role that is not in the
rules, says and hears nothing. Rules bind where they are enforced: in every
router, and for clients of routers; peers that reach each other directly
are bound by none."""

app = App(name="mesh", help="Keys for a mesh beyond this machine, and rules of who may do what.", version_flags=())
keys = App(name="keys", help="Make keys and certificates.", version_flags=())
app.command(keys)


@keys.command(name="init", help_epilogue=_KEYS_EPILOGUE, help_format="plaintext", version_flags=())
def _init(
    folder: Path,
    *,
    roles: str = "",
    brain: Path | None = None,
    hosts: str = "",
    days: int = 825,
    replace: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Make an authority, a certificate for routers, and one for each role.

    Parameters
    ----------
    folder
        Where they are, and where new ones go.
    roles
        Names, with commas between them.
    brain
        A brain's file, for all roles that it needs.
    hosts
        Names and addresses under which routers are reached, with commas between them; localhost is always one.
    days
        How long the certificates are good for.
    replace
        Begin anew, with another authority: nothing made before is accepted any more.
    as_json
        Print what was made as a JSON object.
    """
    from neuraxis.mesh.certificates import init_keys

    try:
        wanted = [*_words(roles), *([] if brain is None else _roles_of(brain))]
        made = init_keys(folder, wanted, _words(hosts), days, replace=replace)
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis mesh keys init: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps({"folder": str(folder), "made": [path.name for path in made]}))
    else:
        print("\n".join(f"made {path}" for path in made) or f"all of them are in {folder} already")
    return 0


@app.command(name="acl", help_epilogue=_ACL_EPILOGUE, help_format="plaintext", version_flags=())
def _acl(
    brain: Path | None = None,
    *,
    calls: str = "",
    out: Path | None = None,
    mesh: Annotated[str, Parameter(name="--mesh-name")] = "default",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Write the rules that let each role say and hear only what a brain's graph needs, and call whom it may.

    Parameters
    ----------
    brain
        The brain's file.
    calls
        Who may call whom: a role and a node with a colon between them, pairs with commas. The node may answer, and call
        back.
    out
        The file to write (JSON, which JSON5 is too); without it, say who may do what.
    mesh
        The mesh that the brain runs on.
    as_json
        Print who may do what as JSON.
    """
    from dataclasses import asdict

    from neuraxis.brain import read_spec
    from neuraxis.brain.access import grants_of
    from neuraxis.mesh.access import access_control, with_calls, write_access

    try:
        if brain is None and not calls:
            raise InvalidArgument("a brain's file is expected, or --calls, or both")
        grants = with_calls([] if brain is None else grants_of(read_spec(brain)), _pairs(calls))
        access_control(mesh, grants)
        if out is not None:
            write_access(out, mesh, grants)
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis mesh acl: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps({"mesh": mesh, "out": None if out is None else str(out), "roles": list(map(asdict, grants))}))
        return 0
    if out is not None:
        print(f"wrote {out}: {len(grants)} roles of the mesh {mesh!r}")
        return 0
    for grant in grants:
        print(grant.role)
        for what, names in (
            ("says", grant.publishes),
            ("hears", grant.subscribes),
            ("calls", grant.calls),
            ("asks", [f"{topic} of {node}" for node, topic in grant.requests]),
            ("never", [f"{topic} of {node}" for node, topic in grant.never_requests]),
        ):
            if names:
                print(f"  {what:<6} {', '.join(names)}")
    return 0


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(words):
        raise InvalidArgument(f"{text!r}: names with commas between them are expected")
    return words


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = [tuple(word.split(":")) for word in _words(text)]
    if not all(len(pair) == 2 and all(pair) for pair in pairs):
        raise InvalidArgument(f"--calls {text!r}: roles and nodes are expected, as in console:server,arm:server")
    return [(role, node) for role, node in pairs]


def _roles_of(brain: Path) -> list[str]:
    from neuraxis.brain import read_spec
    from neuraxis.brain.access import roles_of

    return roles_of(read_spec(brain))
