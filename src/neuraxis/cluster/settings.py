"""Settings of a cluster, validated when it is created instead of when it is started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from dask.utils import parse_bytes
from distributed import Security

from neuraxis import imports as optional
from neuraxis.arguments import positive, whole
from neuraxis.errors import BackendUnavailable, InvalidArgument, InvalidType
from neuraxis.machine import check_process_count

__all__ = ["ClusterSettings", "checked_settings"]

_ADDRESS = re.compile(r"((?P<scheme>[a-z]+)://)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")
_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")
_KEY_FILES = {"ca_file": "authority's certificate", "cert": "certificate", "key": "key"}  # Dask's names for them


@dataclass(frozen=True)
class ClusterSettings:
    """Arguments of `DaskCluster`. If `scheduler_address` is set, it is the scheduler to connect to."""

    n_workers: int
    threads_per_worker: int
    memory_limit: str | int | None
    scheduler_address: str | None
    security: Security | None
    timeout: float


def checked_settings(
    n_workers: object,
    threads_per_worker: object,
    memory_limit: object,
    scheduler_address: object,
    security: object,
    timeout: object,
) -> ClusterSettings:
    workers = whole(n_workers, "n_workers", 1)
    if scheduler_address is None:
        check_process_count(workers, "n_workers")
    return ClusterSettings(
        n_workers=workers,
        threads_per_worker=whole(threads_per_worker, "threads_per_worker", 1),
        memory_limit=_memory(memory_limit),
        scheduler_address=_address(scheduler_address, security),
        security=_security(security, scheduler_address),
        timeout=positive(timeout, "timeout"),
    )


def _memory(value: Any) -> str | int | None:
    """Return the memory limit of each worker in bytes; "auto" and None stay."""
    if value is None or value == "auto":
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, int | str):
        kind = type(value).__name__
        raise InvalidType(f'memory_limit={value!r}: pass bytes, a string such as "4GB", "auto" or None, not {kind}')
    try:
        size = int(parse_bytes(value))
    except ValueError:
        raise InvalidArgument(
            f'memory_limit={value!r} is not a size such as "4GB" or "512MiB", "auto", or None for no limit'
        ) from None
    # With less Dask ends a worker before it has imported its modules.
    if size < 64 * 2**20:
        raise InvalidArgument(f"memory_limit={value!r}: a worker needs 64MiB or more")
    return size


def _address(value: Any, security: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidType(f"scheduler_address={value!r}: pass a string, not {type(value).__name__}")
    found = _ADDRESS.fullmatch(value)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise InvalidArgument(f'scheduler_address={value!r} is not an address such as "tcp://127.0.0.1:8786"')
    if found["scheme"] is None:
        return f"{'tls' if security else 'tcp'}://{value}"
    if found["scheme"] not in _SCHEMES:
        raise InvalidArgument(f"scheduler_address={value!r}: the scheme must be one of {', '.join(_SCHEMES)}")
    if found["scheme"] == "ucx" and not optional.installed("distributed_ucxx"):
        reason = f"scheduler_address={value!r}: distributed-ucxx, which brings ucx://, is not installed"
        raise BackendUnavailable(
            "dask",
            reason,
            f"{optional.install_command('', 'distributed-ucxx-cu13')} (or -cu12), or use tcp:// or tls://",
        )
    if found["scheme"] == "tls" and not security:
        raise InvalidArgument(
            f"scheduler_address={value!r}: tls:// needs keys. Pass security=distributed.Security(...)"
        )
    if found["scheme"] == "tcp" and getattr(security, "require_encryption", False):
        raise InvalidArgument(f"scheduler_address={value!r}: with keys the address must begin with tls://")
    return value


def _security(value: Any, address: object) -> Security | None:
    """Return Dask's `Security`; True creates temporary keys in memory."""
    if value is None or value is False:
        return None
    if value is not True:
        if not isinstance(value, Security):
            raise InvalidType(f"security={value!r}: pass a distributed.Security or True, not {type(value).__name__}")
        if address is None and not value.require_encryption:
            raise InvalidArgument(
                f"security={value!r} accepts connections without keys. Create it with require_encryption=True"
            )
        _check_keys(value, ("client",) if address is not None else ("client", "scheduler", "worker"))
        return value
    if address is not None:
        raise InvalidArgument(
            "security=True creates keys for a new cluster. To connect to a running one, pass its Security"
        )
    optional.require("cryptography.x509", extra="security", purpose="a Dask cluster with security=True")
    return Security.temporary()


def _check_keys(security: Security, roles: tuple[str, ...]) -> None:
    """Check the keys once. Dask would read them at each connection, and report an error as a lost scheduler."""
    for role in roles:
        files = security.get_tls_config_for_role(role)
        for what, path in files.items():
            if isinstance(path, str) and what in _KEY_FILES and "\n" not in path and not os.path.isfile(path):
                raise InvalidArgument(f"security: the {_KEY_FILES[what]} of the {role}: there is no file {path!r}")
        try:
            made = security.get_connection_args(role)["ssl_context"]
        except (OSError, ValueError, TypeError) as error:
            names = ", ".join(str(files[what]) for what in _KEY_FILES if files.get(what) and "\n" not in files[what])
            raise InvalidArgument(f"security: the keys of the {role} cannot be used ({error}): {names}") from error
        if made is None and security.require_encryption:
            raise InvalidArgument(f"security: the {role} has no certificate, or no CA certificate to verify others")
