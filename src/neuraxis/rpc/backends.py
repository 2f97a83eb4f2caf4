"""The transports by name, each loaded when it is chosen."""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from dataclasses import dataclass
from itertools import count

from neuraxis.comm.torch_backend import require_torch
from neuraxis.errors import InvalidArgument
from neuraxis.mesh import Topology
from neuraxis.rpc.transport import Transport
from neuraxis.rpc.world import World

__all__ = ["BACKENDS", "Options", "open_transport"]

BACKENDS: tuple[str, ...] = ("zenoh", "shm", "gloo", "mpi", "tensorpipe")

_names = count(1)
_worlds: defaultdict[str, count[int]] = defaultdict(lambda: count(1))  # by job: all its ranks count alike


@dataclass(frozen=True)
class Options:
    """What a context was made with, as far as its transport needs to know."""

    world: World
    init_method: str | None
    timeout: float
    name: str | None
    threads: int
    mesh: str | None
    topology: Topology | None


def open_transport(backend: str, options: Options) -> Transport:
    """This process's end; in a world of ranks all of them open theirs."""
    if backend == "zenoh":
        return _open_zenoh(options)
    if backend == "tensorpipe":
        require_torch(backend)
        from neuraxis.rpc.tensorpipe_transport import open_tensorpipe

        return open_tensorpipe(options.world, options.init_method, options.timeout, options.name)
    from neuraxis.rpc.group_line import open_group
    from neuraxis.rpc.message_transport import MessageTransport

    return MessageTransport(open_group(backend, options.world, options.init_method, options.timeout, options.name))


def _open_zenoh(options: Options) -> Transport:
    from neuraxis.rpc.message_transport import MessageTransport
    from neuraxis.rpc.zenoh_line import ZenohLine

    world = options.world
    mesh = options.mesh
    if mesh is None:
        mesh = "default" if world.is_open else mesh_of_ranks(world)
    name = options.name
    if name is None:
        name = f"rank{world.rank}" if not world.is_open else _made_up_name()
    topology = options.topology or _topology(options.init_method)
    return MessageTransport(ZenohLine(name, mesh, topology, world.rank))


def mesh_of_ranks(world: World) -> str:
    """The mesh of the next context of a job: a mesh of its own, where nobody of an earlier one is.

    The ranks of a job make their contexts in the same order. What else a process opens is no affair of theirs.
    """
    job = f"{world.job or 'ranks'}-{world.size}"
    return f"rpc-{job}-{next(_worlds[job])}"


def _topology(init_method: str | None) -> Topology | None:
    if init_method is None or init_method == "env://":
        return None
    found = re.fullmatch(r"(tcp|tls|quic)://(.+)", init_method)
    if found is None:
        raise InvalidArgument(f"init_method={init_method!r}: tcp://host:port of a router is expected, or nothing")
    return Topology.from_options(connect=[f"{found[1]}/{found[2]}"])


def _made_up_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_.\-]", "-", socket.gethostname()) or "host"
    return f"{host}-{os.getpid()}-{next(_names)}"
