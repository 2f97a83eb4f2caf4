"""Nodes that join and leave a mesh: publish/subscribe and request/reply over Zenoh.

Example::

    with Node("vision", role="sensor") as node:
        node.publish("objects", {"cup": 0.9})

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Message", "Node", "Peer", "Polled", "Router", "Subscription", "Tls", "Topology"]

if TYPE_CHECKING:
    from neuraxis.mesh.membership import Peer
    from neuraxis.mesh.messages import Message
    from neuraxis.mesh.node import Node
    from neuraxis.mesh.router import Router
    from neuraxis.mesh.subscription import Polled, Subscription
    from neuraxis.mesh.topology import Tls, Topology
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.mesh.membership": ["Peer"],
            "neuraxis.mesh.messages": ["Message"],
            "neuraxis.mesh.node": ["Node"],
            "neuraxis.mesh.router": ["Router"],
            "neuraxis.mesh.subscription": ["Polled", "Subscription"],
            "neuraxis.mesh.topology": ["Tls", "Topology"],
        },
    )
