"""Who may say and hear what: rules that a router enforces by the certificate of whoever is connected to it.

What no rule allows is denied, in silence. A router judges each link on its own: what a node sends into it (*ingress*)
and what goes out to the node (*egress*), so a message passes two judgements on its way. A key expression is allowed
where the whole of it is: a role that may hear `vision/**` and subscribes to `**` hears nothing.

Wildcards do not reach parts that begin with "@", so what neuraxis and Zenoh keep there is named here: presence, status,
served topics, and the `@adv` keys by which states are recovered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.certificates import ROUTER
from neuraxis.mesh.keys import ROOT, call_key, check_expression, check_mesh, presence_key, serve_key, status_key

__all__ = ["Grant", "access_control", "with_calls", "write_access"]

_ADVANCED = "@adv/**"  # Zenoh's own keys below a state topic: caches, heartbeats, who publishes
_DATA = ("put", "delete", "reply")  # what is kept by a publisher comes as a reply
_LOOK = ("liveliness_query", "declare_liveliness_subscriber")


@dataclass(frozen=True)
class Grant:
    """What a role may do. Keys are relative to the mesh; what is served or asked for is `(node, topic)`.

    Attributes:
        role: the common name of its certificate.
        nodes: the names of nodes that it may be ("vision", "sensor/**").
        publishes, subscribes: key expressions ("vision/**").
        serves, requests: nodes and their served topics, wildcards allowed (("vision", "replay"), ("**", "**")).
        never_requests: what is denied of that, whatever else allows it.
        calls: nodes that it may call (`neuraxis.rpc`). They may answer, and since a call is said in the same way as an
            answer, they may call it, too.
    """

    role: str
    nodes: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    subscribes: tuple[str, ...] = ()
    serves: tuple[tuple[str, str], ...] = ()
    requests: tuple[tuple[str, str], ...] = ()
    never_requests: tuple[tuple[str, str], ...] = ()
    calls: tuple[str, ...] = ()


def access_control(mesh: str, grants: Sequence[Grant]) -> dict[str, Any]:
    """Zenoh's `access_control` for a router: each role may do what it is granted, routers everything, others nothing.

    All who have a grant see who is present, and may ask every node for its status.
    """
    check_mesh(mesh)
    names = [grant.role for grant in grants]
    for name in names:
        if not name or name == ROUTER or names.count(name) > 1:
            raise InvalidArgument(
                f"role {name!r}: " + ("is granted twice" if names.count(name) > 1 else "is no role of a node")
            )
    rules: list[dict[str, Any]] = []
    policies = []
    for grant in grants:
        own = [*_common_rules(mesh), *_rules_of(mesh, grant), *_rules_of_calls(mesh, grant, grants)]
        own = [{"id": f"{grant.role} {number}", **rule} for number, rule in enumerate(own)]
        rules += own
        policies.append({"id": grant.role, "rules": [rule["id"] for rule in own], "subjects": [grant.role]})
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
    """The grants, and that roles may call nodes: pairs of the two.

    A role, or a node, that has no grant yet is a node of its own name.
    """
    by_role = {grant.role: grant for grant in grants}
    for role, node in pairs:
        grant = by_role.get(role) or Grant(role, nodes=(role,))
        by_role[role] = replace(grant, calls=tuple(dict.fromkeys((*grant.calls, node))))
    for grant in list(by_role.values()):
        for node in grant.calls:
            if not any(_meet(node, other) for one in by_role.values() for other in one.nodes):
                by_role[node] = Grant(node, nodes=(node,))
    return list(by_role.values())


def write_access(path: str | os.PathLike[str], mesh: str, grants: Sequence[Grant]) -> None:
    """Write the rules to a file for `neuraxis router --acl`, or to be included in the configuration of a zenohd."""
    text = json.dumps({"access_control": access_control(mesh, grants)}, indent=1) + "\n"
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


# --- rules ---

_EVERYTHING = (
    "put", "delete", "declare_subscriber", "query", "reply", "declare_queryable", "liveliness_token", *_LOOK,
)  # fmt: skip


def _common_rules(mesh: str) -> list[dict[str, Any]]:
    """What every role may: see who is present and how they are, and learn who listens to what it has to say.

    The last is not data but what others subscribed to, in their words: a publisher that may say `vision/**` must be
    told of a subscriber to `**`, or it would not send.
    """
    anywhere = [f"{ROOT}/{mesh}/**", *_advanced([f"{ROOT}/{mesh}/**"]), status_key(mesh)]
    return [
        _rule("ingress", _LOOK, [presence_key(mesh)]),
        _rule("egress", ("liveliness_token",), [presence_key(mesh)]),
        _rule("ingress", ("query",), [status_key(mesh)]),
        _rule("egress", ("reply",), [status_key(mesh)]),
        _rule("egress", ("declare_subscriber",), anywhere),
        _rule("egress", ("declare_queryable",), [*anywhere, serve_key(mesh, "**", "**")]),
    ]


def _rules_of(mesh: str, grant: Grant) -> list[dict[str, Any]]:
    rules = []
    if grant.nodes:
        tokens = [presence_key(mesh, _all_below(node)) for node in _checked(grant.nodes, "nodes")]
        states = [status_key(mesh, _all_below(node)) for node in grant.nodes]
        rules += [
            _rule("ingress", ("liveliness_token",), tokens),
            _rule("ingress", ("declare_queryable", "reply"), states),
            # All are asked at once, so the question is wider than what this one may answer.
            _rule("egress", ("query",), [status_key(mesh)]),
        ]
    if grant.publishes:
        keys = [f"{ROOT}/{mesh}/{key}" for key in _checked(grant.publishes, "publishes")]
        kept = _advanced(keys)
        rules += [
            _rule("ingress", _DATA, [*keys, *kept]),
            _rule("ingress", ("declare_queryable", "liveliness_token"), kept),
            _rule("egress", ("query",), kept),
        ]
    if grant.subscribes:
        keys = [f"{ROOT}/{mesh}/{key}" for key in _checked(grant.subscribes, "subscribes")]
        kept = _advanced(keys)
        rules += [
            _rule("ingress", ("declare_subscriber",), [*keys, *kept]),
            _rule("ingress", ("query", *_LOOK), kept),
            _rule("egress", _DATA, [*keys, *kept]),
            _rule("egress", ("liveliness_token",), kept),
        ]
    if grant.serves:
        keys = [serve_key(mesh, node, topic) for node, topic in _checked_pairs(grant.serves, "serves")]
        rules += [_rule("ingress", ("declare_queryable", "reply"), keys), _rule("egress", ("query",), keys)]
    if grant.requests:
        keys = [serve_key(mesh, node, topic) for node, topic in _checked_pairs(grant.requests, "requests")]
        rules += [_rule("ingress", ("query",), keys), _rule("egress", ("reply",), keys)]
    if grant.never_requests:
        keys = [serve_key(mesh, node, topic) for node, topic in _checked_pairs(grant.never_requests, "never_requests")]
        rules.append(_rule("ingress", ("query",), keys, "deny"))
    return rules


def _rules_of_calls(mesh: str, grant: Grant, grants: Sequence[Grant]) -> list[dict[str, Any]]:
    """What it takes to call and to answer: a message to a key of the receiver's, by those who call each other."""
    callers = [one for one in grants if any(_meet(node, own) for node in one.calls for own in grant.nodes)]
    others = [*_checked(grant.calls, "calls"), *(node for one in callers for node in one.nodes)]
    if not others:
        return []
    own, theirs = ([call_key(mesh, node) for node in nodes] for nodes in (grant.nodes, others))
    return [
        _rule("ingress", ("put",), theirs),
        _rule("egress", ("declare_subscriber",), theirs),
        _rule("ingress", ("declare_subscriber",), own),
        _rule("egress", ("put",), own),
    ]


def _meet(called: str, node: str) -> bool:
    """Whether two expressions have a name in common."""
    import zenoh

    one, other = check_expression(called, "calls"), check_expression(node, "nodes")
    return bool(zenoh.KeyExpr(one).intersects(zenoh.KeyExpr(other)))


def _rule(flow: str, messages: Iterable[str], keys: Iterable[str], permission: str = "allow") -> dict[str, Any]:
    return {
        "messages": list(messages),
        "flows": ["ingress", "egress"] if flow == "both" else [flow],
        "permission": permission,
        "key_exprs": list(dict.fromkeys(keys)),
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


def _all_below(node: str) -> str:
    """A node's name and all names below it; presence tokens say more below the name."""
    return node if node == "**" or node.endswith("/**") else f"{node}/**"


def _checked(expressions: Sequence[str], what: str) -> Sequence[str]:
    for expression in expressions:
        check_expression(expression, what)
    return expressions


def _checked_pairs(pairs: Sequence[tuple[str, str]], what: str) -> Sequence[tuple[str, str]]:
    for pair in pairs:
        _checked(pair, what)
    return pairs
