"""Several hosts on this machine: network namespaces on one bridge, or on a network that delays and loses packets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = [
    "NEED_NAMESPACES",
    "Hosts",
    "bridged_hosts",
    "lone_host",
    "netem_hosts",
    "relayed_hosts",
    "skip_without_namespaces",
]

NEED_NAMESPACES = "NEURAXIS_NEED_NAMESPACES"  # `make test-root` sets it: then nothing may be skipped for want of them

_RELAY = Path(__file__).with_name("rough_relay.py")


class Hosts:
    """Hosts by name: where to run something on one of them, its address, and its cable."""

    def __init__(self, names: Sequence[str]) -> None:
        mark = uuid.uuid4().hex[:6]
        self.namespaces = {name: f"nx{mark}{name}" for name in names}
        self.addresses = {name: f"10.78.0.{number}" for number, name in enumerate(names, 1)}
        self.switch = f"nx{mark}switch"

    def on(self, name: str) -> list[str]:
        """Return the command prefix that runs a command on a host."""
        return ["ip", "netns", "exec", self.namespaces[name]]

    def cut(self, name: str) -> None:
        """Pull a host's cable."""
        ip("-n", self.switch, "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        ip("-n", self.switch, "link", "set", f"to-{name}", "up")


def ip(*words: str) -> None:
    _run("ip", *words)


@contextmanager
def lone_host() -> Iterator[list[str]]:
    """A host without a network, on which nothing else runs; what a command begins with that runs there."""
    hosts = Hosts(["lone"])
    with _namespaces(list(hosts.namespaces.values())):
        yield hosts.on("lone")


@contextmanager
def bridged_hosts(names: Sequence[str]) -> Iterator[Hosts]:
    """Hosts with a cable each to a bridge in a namespace of its own."""
    hosts = Hosts(names)
    with _namespaces([hosts.switch, *hosts.namespaces.values()]):
        ip("-n", hosts.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", hosts.switch, "link", "set", "bridge", "up")
        for name, namespace in hosts.namespaces.items():
            cable = f"to-{name}"
            ip("link", "add", "net", "netns", namespace, "type", "veth", "peer", "name", cable, "netns", hosts.switch)
            ip("-n", hosts.switch, "link", "set", cable, "master", "bridge")
            ip("-n", hosts.switch, "link", "set", cable, "up")
            ip("-n", namespace, "addr", "add", f"{hosts.addresses[name]}/24", "dev", "net")
            ip("-n", namespace, "link", "set", "net", "up")
        yield hosts


@contextmanager
def netem_hosts(names: Sequence[str], delay_ms: float, jitter_ms: float, loss: float) -> Iterator[Hosts]:
    """The same, each cable with a delay and a share of packets that the kernel loses on the way out of a host."""
    with bridged_hosts(names) as hosts:
        for namespace in hosts.namespaces.values():
            how = ["delay", f"{delay_ms}ms", f"{jitter_ms}ms", "loss", f"{100 * loss}%"]
            try:
                _run("tc", "-n", namespace, "qdisc", "add", "dev", "net", "root", "netem", *how)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"this kernel has no netem: {_reason(error)}")
        yield hosts


@contextmanager
def relayed_hosts(names: Sequence[str], delay_ms: float, jitter_ms: float, loss: float) -> Iterator[Hosts]:
    """Hosts whose packets a process carries, late or never: what netem does, for kernels that have none."""
    hosts = Hosts(names)
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("there is no /dev/net/tun")
    with _namespaces(list(hosts.namespaces.values())):
        words = [f"{hosts.namespaces[name]}={hosts.addresses[name]}" for name in names]
        relay = subprocess.Popen(
            [sys.executable, str(_RELAY), str(delay_ms), str(jitter_ms), str(loss), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline() == "ready\n"
            yield hosts
            assert relay.poll() is None, "the relay has ended"
        finally:
            relay.kill()
            relay.communicate()


@contextmanager
def _namespaces(names: Sequence[str]) -> Iterator[None]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        skip_without_namespaces("network namespaces need root and the ip command")
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
        except (OSError, subprocess.CalledProcessError) as error:
            skip_without_namespaces(f"network namespaces are not permitted here: {_reason(error)}")
        for name in names:
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            ip("netns", "del", name)


def skip_without_namespaces(reason: str) -> NoReturn:
    """Skip a test that needs namespaces; fail where they are demanded."""
    if os.environ.get(NEED_NAMESPACES):
        pytest.fail(reason)
    pytest.skip(reason)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)


def _reason(error: Exception) -> str:
    return getattr(error, "stderr", b"").decode().strip() or str(error)
