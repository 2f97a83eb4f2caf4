"""Remote calls through a router that enforces access rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from neuraxis.cli.mesh import app as mesh_command
from neuraxis.errors import CallTimeout, InvalidArgument
from neuraxis.mesh import Router
from neuraxis.mesh.access import Grant, access_control, with_calls
from neuraxis.mesh.certificates import init_keys
from neuraxis.mesh.topology import Tls, Topology
from neuraxis.rpc import RpcContext
from tests.mesh.test_access import allows


def mesh(*words: object) -> int:
    """The exit status of `neuraxis mesh`."""
    with pytest.raises(SystemExit) as ended:
        mesh_command([*map(str, words)])
    return int(ended.value.code or 0)


Join = Callable[[str, str], RpcContext]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Opens contexts with the key of a role, at a router with rules that the command has written."""
    acl = tmp_path / "acl.json5"
    init_keys(tmp_path, ["console", "server", "guest"])
    assert mesh("acl", "--calls", "console:server,guest:kiosk", "--mesh-name", "m", "--out", acl) == 0
    with ExitStack() as stack:
        router = Router(["tls/127.0.0.1:0"], tls=Tls.from_folder(tmp_path, "router"), acl=acl)
        stack.callback(router.close)

        def open_context(role: str, name: str) -> RpcContext:
            topology = Topology("client", connect=router.endpoints, tls=Tls.from_folder(tmp_path, role))
            context = RpcContext(name=name, mesh="m", topology=topology, timeout=10)
            context.register_function("name", lambda: name)
            context.register_factory("list", lambda: [1, 2])
            return stack.enter_context(context)

        yield open_context


def test_allowed_callers_can_call_and_others_are_rejected(join: Join) -> None:
    server, console, guest = join("server", "server"), join("console", "console"), join("guest", "guest")
    for caller in (console, guest):
        assert caller.wait_for(["server"], 20) == []
    assert console.rpc_sync("server", "name") == "server"
    assert console.rpc_async("server", "name").wait() == "server"
    assert console.remote_object("server", "list").count(1) == 1
    assert server.rpc_sync("console", "name") == "console"  # a callee may call back
    for caller, name in ((guest, "server"), (guest, "console"), (server, "guest")):
        with pytest.raises(CallTimeout):
            caller.call(name, "name", timeout=0.3)
    assert console.rpc_sync("server", "name") == "server"


def test_an_init_method_with_tls_explains_how_to_pass_keys() -> None:
    with pytest.raises(InvalidArgument, match=r"topology=Topology\('client', \('tls/robot:7447',\), tls=Tls"):
        RpcContext(init_method="tls://robot:7447").initialize()


def test_the_rules_of_calls_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    grants = with_calls([Grant("robot", nodes=("robot", "arm/**"))], [("robot", "server"), ("lab", "arm/left")])
    rules = access_control("m", grants)
    names = {"robot": ("robot", "arm/left"), "server": ("server",), "lab": ("lab",)}
    for role, node in (("robot", "server"), ("server", "robot"), ("lab", "arm/left"), ("robot", "lab")):
        assert allows(rules, role, "egress", "declare_subscriber", f"{node}/@serve/rpc/7/@from/**")
        for own in names[role]:
            assert allows(rules, role, "ingress", "put", f"{node}/@serve/rpc/0/@from/{own}")
        for other in ("console", "**", "*", *(one for who in names if who != role for one in names[who])):
            assert not allows(rules, role, "ingress", "put", f"{node}/@serve/rpc/0/@from/{other}")
    for role, node in (("robot", "robot"), ("lab", "server"), ("server", "lab"), ("lab", "robot"), ("lab", "**")):
        assert not allows(rules, role, "ingress", "put", f"{node}/@serve/rpc/0/@from/{role}")
    for role, node, caller in (
        ("robot", "robot", "server"), ("robot", "arm/left", "lab"),
        ("server", "server", "robot"), ("lab", "lab", "arm/left"),
    ):  # fmt: skip
        assert allows(rules, role, "ingress", "declare_subscriber", f"{node}/@serve/rpc/0/@from/**")
        assert allows(rules, role, "egress", "put", f"{node}/@serve/rpc/0/@from/{caller}")
        assert not allows(rules, role, "egress", "put", f"{node}/@serve/rpc/0/@from/stranger")
        assert not allows(rules, role, "ingress", "declare_subscriber", "**/@serve/rpc/0/@from/**")
        assert allows(rules, role, "ingress", "liveliness_token", f"@presence/{node}/~rpc/facts")
        assert (
            not allows(rules, role, "ingress", "liveliness_token", f"@presence/{node}/~driver/facts") or "arm" in node
        )
    with pytest.raises(InvalidArgument):
        access_control("m", with_calls([], [("a", "no spaces/*/**/#")]))
    for wrong in (["acl"], ["acl", "--calls", "console"], ["acl", "--calls", "a:b:c"], ["acl", "--calls", ":b"]):
        assert mesh(*wrong) == 2
    assert "write them as in" in capsys.readouterr().err
