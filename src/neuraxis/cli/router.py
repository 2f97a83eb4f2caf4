"""`neuraxis router`: a Zenoh router that connects the nodes of a mesh."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from neuraxis.cli.errors import fail
from neuraxis.errors import InvalidArgument, MeshError, NeuraxisError
from neuraxis.mesh.limits import Refusals
from neuraxis.process.signals import SignalRelay

if TYPE_CHECKING:
    from neuraxis.mesh.router import Router

__all__ = ["router"]

_HELP = """Run a router, through which the nodes of a mesh reach each other.

Nodes on one machine need none. On several machines, nodes are clients of a
router (--connect), which enforces access rules. It runs until Ctrl-C or
SIGTERM. A zenohd does the same.
"""

_EPILOGUE = """Examples:

  For nodes on this machine:
    neuraxis router
    neuraxis node brain.toml --region vision --clock realtime \\
        --connect tcp/127.0.0.1:7447

  For a robot: keys once, then a router that every machine reaches, and that
  lets each region publish and subscribe only as the brain needs:
    neuraxis mesh keys init keys/ --brain brain.toml --hosts robot.local
    neuraxis mesh acl brain.toml --out acl.json5
    neuraxis router --listen tls/0.0.0.0:7447 --tls keys/ --acl acl.json5

  A second router, on another machine with the same keys. Nodes that name
  both stay connected when one of them fails:
    neuraxis router --listen tls/0.0.0.0:7447 --connect tls/robot.local:7447 \\
        --tls keys/ --acl acl.json5
    neuraxis node ... --connect tls/robot.local:7447 --connect tls/other:7447

  Revoke the certificate of a role while the router runs:
    neuraxis mesh keys revoke keys/ arm

The router logs to stderr what it refuses (connections without a certificate
of this CA, certificates without a rule, denied keys): the first time immediately,
then a total every ten seconds.

Beyond this machine an address must be tls/ or quic/, with keys; --insecure
also allows plain ones, for a private network.

Exit codes: 0 when a signal ended it, 1 when it failed, 2 for wrong usage."""

_log = logging.getLogger("neuraxis.router")
_POLL_S = 0.2  # on systems without a descriptor for signals
_RELOAD_S = 0.5  # interval of checks for changed files

router = App(name="router", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@router.default
def _router(
    *,
    listen: Annotated[list[str] | None, Parameter(negative=())] = None,
    connect: Annotated[list[str] | None, Parameter(negative=())] = None,
    tls: Path | None = None,
    insecure: Annotated[bool, Parameter(negative=())] = False,
    acl: Path | None = None,
    revoked: Path | None = None,
    log_denials: bool = True,
    zenoh_config: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a router.

    Parameters
    ----------
    listen
        Address to listen on; can be repeated. Default: tcp/127.0.0.1:7447; port 0 picks a free one.
    connect
        Another router, which may start later; can be repeated.
    tls
        Folder with the keys, from neuraxis mesh keys init: ca.pem, router.pem and router.key.
    insecure
        Allow addresses beyond this machine without TLS.
    acl
        File with access rules, from neuraxis mesh acl. The router reloads it when it changes.
    revoked
        List of revoked certificates, from neuraxis mesh keys revoke; default: revoked.txt in the folder of --tls. The
        router reloads it when it changes.
    log_denials
        Log denied messages; this takes the router some microseconds per message.
    zenoh_config
        A native Zenoh configuration (JSON5), used unchanged in place of all options above.
    as_json
        Print the endpoints as one line of JSON.
    """
    from neuraxis.mesh.certificates import REVOKED, ROUTER
    from neuraxis.mesh.router import Router, RouterLog
    from neuraxis.mesh.topology import Tls

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    try:
        with SignalRelay() as signals, RouterLog(denials=acl is not None and log_denials):
            keys = None if tls is None else Tls.from_folder(tls, ROUTER)
            if revoked is None and tls is not None:
                revoked = tls / REVOKED
            with Router(listen, connect or (), keys, insecure, acl, zenoh_config, revoked=revoked) as running:
                if as_json:
                    print(json.dumps({"endpoints": running.endpoints, "pid": os.getpid()}), flush=True)
                else:
                    print(f"router at {', '.join(running.endpoints) or 'no address'}", flush=True)
                    print("press Ctrl-C to end it", file=sys.stderr)
                _wait_for_end(signals, running)
    except (NeuraxisError, OSError) as error:
        return fail("router", error)
    return 0


def _wait_for_end(signals: SignalRelay, running: Router) -> None:
    """Wait for a signal that ends the router, and reload changed files meanwhile."""
    import signal

    ignored = {getattr(signal, name, None) for name in ("SIGUSR1", "SIGUSR2")}
    refused = Refusals(_log, "router")
    while not set(signals.take()) - ignored:
        if signals.descriptor is not None:
            select.select([signals.descriptor], [], [], _RELOAD_S)
        else:
            time.sleep(_POLL_S)
        try:
            if running.reload():
                _log.warning("router: reloaded access rules and revoked certificates")
        except (InvalidArgument, MeshError) as error:
            if not running.is_open:
                raise
            refused.add("new access rules or revoked certificates; the old ones stay in force", error)
