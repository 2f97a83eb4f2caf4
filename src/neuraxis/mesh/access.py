"""Access rules, which a router enforces by the certificates of its clients.

Every key names its sender (see `keys`), and a role may send only on keys with the names of its own nodes. So a
certificate authenticates the sender that the key of a message, a request, a call or a presence token names.

Everything that no rule allows is denied, without a reply. A router checks each link in both directions, from the node
(*ingress*) and to the node (*egress*), so every message passes two checks. A key expression is allowed
only as a whole: a role that may subscribe to `vision/**` and subscribes to `**` receives nothing.

Wildcards do not match parts that begin with "@", so this module lists the reserved keys of neuraxis and Zenoh:
presence, status, served topics, and the `@adv` keys by which cached messages are recovered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.certificates import ROUTER, valid_name
from neuraxis.mesh.keys import (
    ROOT,
    call_key,
    check_expression,
    check_mesh,
    check_name,
    presence_key,
    serve_key,
    status_key,
)
from neuraxis.mesh.membership import role_key
from neuraxis.store import replacing

__all__ = ["CALLS_ROLE", "Grant", "access_control", "with_calls", "without_revoked", "write_access"]

_ADVANCED = "@adv/**"  # Zenoh's keys below a cached topic: caches, heartbeats, publisher detection
_DATA = ("put", "delete", "reply")  # cached messages arrive as replies
_OBSERVE = ("liveliness_query", "declare_liveliness_subscriber")
_MAX_ROLES = 5  # with more roles than this, a node may declare all or none, else any combination

CALLS_ROLE = "rpc"  # the role of processes that make remote calls


@dataclass(frozen=True)
class Grant:
    """The permissions of a role. Keys are relative to the mesh; served topics are pairs `(node, topic)`.

    Attributes
    ----------
    role : str
        The common name of its certificate.
    nodes : tuple of str
        Names of its nodes ("vision", "sensor/**"), under which it may send requests and calls. If there are none, it
        may send them as an invisible node of the role's name.
    roles : tuple of str
        Roles that its nodes may declare (`Node(role=, roles=)`), any of these or none. The roles of nodes that are
        given by a wildcard cannot be restricted: list the nodes where roles matter.
    publishes, subscribes : tuple of str
        Key expressions ("vision/**").
    serves, requests : tuple of pairs
        Nodes and their served topics, wildcards allowed (("vision", "replay"), ("**", "**")).
    never_requests : tuple of pairs
        Exceptions from `requests`, denied whatever else allows them.
    calls : tuple of str
        Nodes that it may call (`neuraxis.rpc`). Calls and replies use the same kind of message, so these nodes may call
        the role's nodes as well.
    """

    role: str
    nodes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    subscribes: tuple[str, ...] = ()
    serves: tuple[tuple[str, str], ...] = ()
    requests: tuple[tuple[str, str], ...] = ()
    never_requests: tuple[tuple[str, str], ...] = ()
    calls: tuple[str, ...] = ()


def access_control(mesh: str, grants: Sequence[Grant]) -> dict[str, Any]:
    """Return Zenoh's `access_control` for a router: roles have their grants, routers may do everything, others nothing.

    Every role with a grant may also see which nodes are present, and query their status.

    Raises
    ------
    InvalidArgument
        A grant is not valid, or would let a role send in the name of a node of another role: their node names are equal
        or nest ("arm", "arm/left"), or one publishes or serves below the name of the other's node. The key
        "arm/left/angle" does not tell where the name of its sender ends.
    """
    check_mesh(mesh)
    names = [grant.role for grant in grants]
    for name in names:
        if not name or name == ROUTER or names.count(name) > 1:
            raise InvalidArgument(
                f"role {name!r}: " + ("has two grants" if names.count(name) > 1 else "cannot be the role of a node")
            )
    rules: list[dict[str, Any]] = []
    policies = []
    for grant in grants:
        own = [*_common_rules(mesh), *_rules_of(mesh, grant), *_rules_of_calls(mesh, grant, grants)]
        own = [{"id": f"{grant.role} {number}", **rule} for number, rule in enumerate(own)]
        rules += own
        policies.append({"id": grant.role, "rules": [rule["id"] for rule in own], "subjects": [grant.role]})
    for one, other in permutations(grants, 2):
        _check_distinct(one, other)
    rules.append({"id": ROUTER, **_rule("both", _EVERYTHING, _every_key(mesh))})
    policies.append({"id": ROUTER, "rules": [ROUTER], "subjects": [ROUTER]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": name, "cert_common_names": [name]} for name in (*names, ROUTER)],
        "policies": policies,
    }


def with_calls(grants: Sequence[Grant], pairs: Iterable[tuple[str, str]]) -> list[Grant]:
    """Return the grants with permissions to call added: pairs of a role and a node.

    A role or a called node without a grant gets one, as a node of the same name.
    """
    by_role = {grant.role: grant for grant in grants}
    for role, node in pairs:
        grant = by_role.get(role) or Grant(role, nodes=(role,))
        by_role[role] = replace(grant, calls=tuple(dict.fromkeys((*grant.calls, node))))
    for grant in list(by_role.values()):
        for node in grant.calls:
            if not any(_intersect(node, other) for one in by_role.values() for other in one.nodes):
                by_role[node] = Grant(node, nodes=(node,))
    called = [node for grant in by_role.values() for node in grant.calls]
    return [
        _with_call_roles(grant) if grant.calls or any(_intersect(one, own) for one in called for own in grant.nodes)
        else grant
        for grant in by_role.values()
    ]  # fmt: skip


def _with_call_roles(grant: Grant) -> Grant:
    """Add the role "rpc", which processes declare that call or are called, and a role with its number for a rank."""
    ranks = [
        f"{CALLS_ROLE}-rank-{node[4:]}" for node in grant.nodes if node.startswith("rank") and node[4:].isdecimal()
    ]
    return replace(grant, roles=tuple(dict.fromkeys((*grant.roles, CALLS_ROLE, *ranks))))


def without_revoked(rules: dict[str, Any], revoked: Collection[str]) -> dict[str, Any]:
    """Return the rules with revoked certificates replaced: each role has its newest common name only.

    Parameters
    ----------
    rules : dict
        Zenoh's `access_control`, as `access_control` returns it, with one subject per role.
    revoked : collection of str
        Common names, as `certificates.read_revoked` returns them.
    """
    if not revoked or not rules.get("subjects"):
        return rules
    roles = {name.partition(".")[0] for name in revoked}

    def newest(name: str) -> str:
        role = name.partition(".")[0]
        return valid_name(role, revoked) if role in roles else name

    subjects = [
        one | {"cert_common_names": [newest(name) for name in one["cert_common_names"]]}
        if one.get("cert_common_names")
        else one
        for one in rules["subjects"]
    ]
    return rules | {"subjects": subjects}


def write_access(path: str | os.PathLike[str], mesh: str, grants: Sequence[Grant]) -> None:
    """Write the rules to a file for `neuraxis router --acl`, or for the configuration of a zenohd."""
    text = json.dumps({"access_control": access_control(mesh, grants)}, indent=1) + "\n"
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8", newline="\n")


# --- rules ---

_EVERYTHING = (
    "put", "delete", "declare_subscriber", "query", "reply", "declare_queryable", "liveliness_token", *_OBSERVE,
)  # fmt: skip


def _common_rules(mesh: str) -> list[dict[str, Any]]:
    """Return the rules of every role: observe presence and status, and learn of subscribers and queryables.

    The last concerns declarations, not data, with the expressions of the other side: a publisher of `vision/**` must
    learn of a subscriber to `**`, or it would not send.
    """
    anywhere = [f"{ROOT}/{mesh}/**", *_advanced([f"{ROOT}/{mesh}/**"]), status_key(mesh)]
    return [
        _rule("ingress", _OBSERVE, [presence_key(mesh)]),
        _rule("egress", ("liveliness_token",), [presence_key(mesh)]),
        _rule("ingress", ("query",), [status_key(mesh)]),
        _rule("egress", ("reply",), [status_key(mesh)]),
        _rule("egress", ("declare_subscriber",), anywhere),
        _rule("egress", ("declare_queryable",), [*anywhere, serve_key(mesh, "**", "**")]),
    ]


def _rules_of(mesh: str, grant: Grant) -> list[dict[str, Any]]:
    rules = []
    if grant.nodes:
        choices = _combinations(grant.roles)
        tokens = [role_key(mesh, node, roles, "*") for node in _checked(grant.nodes, "nodes") for roles in choices]
        states = [status_key(mesh, node) for node in grant.nodes]
        rules += [
            _rule("ingress", ("liveliness_token",), tokens),
            _rule("ingress", ("declare_queryable", "reply"), states),
            # A status query goes to all nodes at once, so its key is wider than those that this role may reply to.
            _rule("egress", ("query",), [status_key(mesh)]),
        ]
    if grant.publishes:
        keys = [f"{ROOT}/{mesh}/{key}" for key in _checked(grant.publishes, "publishes")]
        cached = _advanced(keys)
        rules += [
            _rule("ingress", _DATA, [*keys, *cached]),
            _rule("ingress", ("declare_queryable", "liveliness_token"), cached),
            _rule("egress", ("query",), cached),
        ]
    if grant.subscribes:
        keys = [f"{ROOT}/{mesh}/{key}" for key in _checked(grant.subscribes, "subscribes")]
        cached = _advanced(keys)
        rules += [
            _rule("ingress", ("declare_subscriber",), [*keys, *cached]),
            _rule("ingress", ("query", *_OBSERVE), cached),
            _rule("egress", _DATA, [*keys, *cached]),
            _rule("egress", ("liveliness_token",), cached),
        ]
    if grant.serves:
        keys = [serve_key(mesh, node, topic) for node, topic in _checked_pairs(grant.serves, "serves")]
        rules += [_rule("ingress", ("declare_queryable", "reply"), keys), _rule("egress", ("query",), keys)]
    if grant.requests:
        topics = _checked_pairs(grant.requests, "requests")
        keys = [serve_key(mesh, node, topic, own) for node, topic in topics for own in _own_names(grant)]
        rules += [_rule("ingress", ("query",), keys), _rule("egress", ("reply",), keys)]
    if grant.never_requests:
        keys = [serve_key(mesh, node, topic) for node, topic in _checked_pairs(grant.never_requests, "never_requests")]
        rules.append(_rule("ingress", ("query",), keys, "deny"))
    return rules


def _rules_of_calls(mesh: str, grant: Grant, grants: Sequence[Grant]) -> list[dict[str, Any]]:
    """Return the rules for remote calls: messages to keys of the receiver, between roles that call each other."""
    callers = [one for one in grants if any(_intersect(node, own) for node in one.calls for own in grant.nodes)]
    others = [*_checked(grant.calls, "calls"), *(node for one in callers for node in one.nodes)]
    if not others:
        return []
    names = _own_names(grant)
    return [
        _rule("ingress", ("put",), [call_key(mesh, other, sender=own) for other in others for own in names]),
        _rule("egress", ("declare_subscriber",), [call_key(mesh, other) for other in others]),
        _rule("ingress", ("declare_subscriber",), [call_key(mesh, own) for own in names]),
        _rule("egress", ("put",), [call_key(mesh, own, sender=other) for own in names for other in others]),
    ]


def _check_distinct(grant: Grant, other: Grant) -> None:
    """Raise if a role may send in the name of a node of another role."""
    for name in _own_names(other):
        for own in _own_names(grant):
            if _intersect(own, _below(name)):
                raise InvalidArgument(
                    f"roles {other.role!r} and {grant.role!r}: the node names {name!r} and {own!r} overlap: "
                    "one role could send as the other. Use names with different first parts, or one role for both"
                )
        for key in grant.publishes:
            if _intersect(key, _below(name)):
                raise InvalidArgument(
                    f"role {grant.role!r}: it publishes {key!r}, which includes keys of node {name!r} of the role "
                    f"{other.role!r}. Publish below its own node, or give it that node instead"
                )
        for node, topic in grant.serves:
            if _intersect(node, name):
                raise InvalidArgument(
                    f"role {grant.role!r}: it serves {topic!r} of {node!r}, which includes node {name!r} of the role "
                    f"{other.role!r}. Serve it as its own node, or give it that node instead"
                )


def _below(name: str) -> str:
    """Return the expression for a name and every key below it."""
    return name if name == "**" or name.endswith("/**") else f"{name}/**"


def _own_names(grant: Grant) -> tuple[str, ...]:
    """Return the names under which a role sends requests and calls."""
    return grant.nodes or (grant.role,)


def _combinations(roles: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the combinations of granted roles that a node may declare."""
    ordered = sorted({check_name(role, "roles") for role in roles})
    counts = range(len(ordered) + 1) if len(ordered) <= _MAX_ROLES else (0, len(ordered))
    return [chosen for count in counts for chosen in combinations(ordered, count)]


def _intersect(one: str, other: str) -> bool:
    """Return True if two expressions match a common name or key."""
    return bool(_expression(one).intersects(_expression(other)))


@lru_cache(maxsize=10_000)  # every grant is compared with every other one
def _expression(text: str) -> Any:
    import zenoh

    return zenoh.KeyExpr(check_expression(text))


def _rule(flow: str, messages: Iterable[str], keys: Iterable[str], permission: str = "allow") -> dict[str, Any]:
    import zenoh

    return {
        "messages": list(messages),
        "flows": ["ingress", "egress"] if flow == "both" else [flow],
        "permission": permission,
        # Zenoh accepts canonical expressions only: "**/*" has to be written "*/**".
        "key_exprs": list(dict.fromkeys(str(zenoh.KeyExpr.autocanonize(key)) for key in keys)),
    }


def _every_key(mesh: str) -> list[str]:
    everything = f"{ROOT}/{mesh}/**"
    return [
        everything,
        *_advanced([everything]),
        presence_key(mesh),
        status_key(mesh),
        serve_key(mesh, "**", "**"),
    ]


def _advanced(keys: Iterable[str]) -> list[str]:
    return [f"{key}/{_ADVANCED}" for key in keys]


def _checked(expressions: Sequence[str], what: str) -> Sequence[str]:
    for expression in expressions:
        check_expression(expression, what)
    return expressions


def _checked_pairs(pairs: Sequence[tuple[str, str]], what: str) -> Sequence[tuple[str, str]]:
    for pair in pairs:
        _checked(pair, what)
    return pairs
