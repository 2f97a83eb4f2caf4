"""`neuraxis router`: where the nodes of a mesh meet."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.errors import NeuraxisError
from neuraxis.launch.signals import SignalRelay

__all__ = ["router"]

_HELP = """Run a router, through which the nodes of a mesh reach each other.

Nodes on one machine need none. On several machines, nodes are clients of a
router (--connect), and it decides who may say and hear what. It runs until
Ctrl-C or SIGTERM. A zenohd does the same.
"""

_EPILOGUE = """Examples:

  For nodes on this machine:
    neuraxis router
    neuraxis node brain.toml --region vision --connect tcp/127.0.0.1:7447

  For a robot: keys once, then a router that every machine reaches, where
  each region may say and hear only what the brain needs:
    neuraxis mesh keys init keys/ --brain brain.toml --hosts robot.local
    neuraxis mesh acl brain.toml --out acl.json5
    neuraxis router --listen tls/0.0.0.0:7447 --tls keys/ --acl acl.json5

  A second router, on another machine with the same keys. Nodes that name
  both go on when one of them is gone:
    neuraxis router --listen tls/0.0.0.0:7447 --connect tls/robot.local:7447 \\
        --tls keys/ --acl acl.json5
    neuraxis node ... --connect tls/robot.local:7447 --connect tls/other:7447

Beyond this machine an address must be tls/ or quic/, with keys; --insecure
takes plain ones as well, for a network that is yours alone.

Exit status: 0 when it was stopped, 2 when it cannot run as asked."""

_POLL_S = 0.2  # where signals cannot be waited for

router = App(name="router", help=_HELP, help_epilogue=_EPILOGUE, help_format="plaintext", version_flags=())


@router.default
def _router(
    *,
    listen: Annotated[list[str] | None, Parameter(negative=())] = None,
    connect: Annotated[list[str] | None, Parameter(negative=())] = None,
    tls: Path | None = None,
    insecure: Annotated[bool, Parameter(negative=())] = False,
    acl: Path | None = None,
    zenoh_config: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Run a router.

    Parameters
    ----------
    listen
        Where to listen; may be said several times. By default tcp/127.0.0.1:7447; port 0 is a free one.
    connect
        Another router; may be said several times. It need not run yet.
    tls
        The folder with the keys, from neuraxis mesh keys init: ca.pem, router.pem and router.key are used.
    insecure
        Accept addresses beyond this machine without TLS.
    acl
        A file with the rules of access, from neuraxis mesh acl.
    zenoh_config
        A native Zenoh configuration (JSON5), used as it is, in place of all the above.
    as_json
        Print where it listens as a JSON object, in one line.
    """
    from neuraxis.mesh.certificates import ROUTER
    from neuraxis.mesh.router import Router
    from neuraxis.mesh.topology import Tls

    try:
        with SignalRelay() as signals:
            keys = None if tls is None else Tls.from_folder(tls, ROUTER)
            with Router(listen, connect or (), keys, insecure, acl, zenoh_config) as running:
                if as_json:
                    print(json.dumps({"endpoints": running.endpoints, "pid": os.getpid()}), flush=True)
                else:
                    print(f"router at {', '.join(running.endpoints) or 'nowhere of its own'}", flush=True)
                    print("Ctrl-C ends it", file=sys.stderr)
                _wait_for_end(signals)
    except (NeuraxisError, OSError) as error:
        print(f"neuraxis router: {error}", file=sys.stderr)
        return 2
    return 0


def _wait_for_end(signals: SignalRelay) -> None:
    """Until a signal that asks for an end; others are passed over."""
    import signal

    going_on = {getattr(signal, name, None) for name in ("SIGUSR1", "SIGUSR2")}
    while not set(signals.take()) - going_on:
        if signals.descriptor is not None:
            select.select([signals.descriptor], [], [])
        else:
            time.sleep(_POLL_S)
