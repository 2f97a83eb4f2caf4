"""What a launch of a script needs to know, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from neuraxis.errors import InvalidArgument, LaunchError
from neuraxis.machine import usable_cores

__all__ = ["DEFAULT_GRACE_S", "MULTI_NODE_PORT", "LaunchOptions"]

DEFAULT_GRACE_S = 5.0
MULTI_NODE_PORT = 29500
"""Where ranks of several hosts meet unless told otherwise: every host must know it without asking."""


@dataclass(frozen=True)
class LaunchOptions:
    """A script (or, with `module`, a module) to run as `n` processes on each of `nodes` hosts.

    Attributes:
        script: path of the script, or the name of the module.
        arguments: what the script finds in `sys.argv[1:]`.
        n: processes on this host.
        module: run `script` as `python -m script`.
        nodes, node_rank: how many hosts take part, and which of them this one is, from 0.
        master_addr, master_port: where rank 0 listens. On one host the port is chosen anew for each attempt.
        max_restarts: how often to start all ranks again after a failure.
        grace_s: seconds between asking ranks to end and killing them.
        prefix: begin each line of output with its rank.
    """

    script: str
    arguments: tuple[str, ...] = ()
    n: int = field(default_factory=usable_cores)
    module: bool = False
    nodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    max_restarts: int = 0
    grace_s: float = DEFAULT_GRACE_S
    prefix: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InvalidArgument(f"n is {self.n}: at least one process is needed")
        if self.nodes < 1:
            raise InvalidArgument(f"nodes is {self.nodes}: at least one host is needed")
        if not 0 <= self.node_rank < self.nodes:
            raise InvalidArgument(
                f"node_rank is {self.node_rank}: it is between 0 and {self.nodes - 1}, one less than nodes"
            )
        if self.nodes > 1 and not self.master_addr:
            raise InvalidArgument(
                f"master_addr is needed with {self.nodes} nodes: give every host the address of node 0, "
                "e.g. --master-addr 10.0.0.1"
            )
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise InvalidArgument(f"master_port is {self.master_port}: a port is between 1 and 65535")
        if self.max_restarts < 0:
            raise InvalidArgument(f"max_restarts is {self.max_restarts}: it cannot be negative")
        if not 0 <= self.grace_s < float("inf"):
            raise InvalidArgument(f"grace_s is {self.grace_s}: it is a number of seconds, 0 or more")
        if not self.module and not Path(self.script).exists():
            raise LaunchError(f"there is no script {self.script!r} (to run a module, put -m before its name)")
