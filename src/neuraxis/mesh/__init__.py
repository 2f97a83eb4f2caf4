"""Nodes that come and go: publish, subscribe, ask and answer over Zenoh.

    with Node("vision", role="sensor") as node:
        node.publish("objects", {"cup": 0.9})

Every name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.mesh.messages import Message
    from neuraxis.mesh.node import Node
    from neuraxis.mesh.peers import Peer
    from neuraxis.mesh.router import Router
    from neuraxis.mesh.subscription import Polled, Subscription
    from neuraxis.mesh.topology import Tls, Topology

__all__ = ["Message", "Node", "Peer", "Polled", "Router", "Subscription", "Tls", "Topology"]

__getattr__ = loads_lazily(
    __name__,
    {
        "Message": "messages",
        "Node": "node",
        "Peer": "peers",
        "Polled": "subscription",
        "Router": "router",
        "Subscription": "subscription",
        "Tls": "topology",
        "Topology": "topology",
    },
)
