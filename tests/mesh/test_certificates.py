"""Keys on disk: their content, their permissions, and that none is overwritten by mistake."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
import re
import socket
import ssl
import stat
import sys
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from neuraxis.errors import BackendUnavailable, InvalidArgument
from neuraxis.imports import install_command
from neuraxis.mesh.certificates import (
    can_listen,
    init_keys,
    make_authority,
    make_certificate,
    read_revoked,
    revoke,
    valid_name,
)
from neuraxis.mesh.topology import Tls, Topology


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def common_name(one: x509.Certificate) -> str:
    return str(one.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def test_a_folder_has_an_authority_a_router_and_each_role(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    made = init_keys(folder, ["vision", "motor-left"], ["robot.local", "10.0.0.3", "fe80::1"], 30)
    assert [path.name for path in made] == ["ca.pem", "router.pem", "vision.pem", "motor-left.pem"]
    names = {f"{name}.{end}" for name in ("ca", "router", "vision", "motor-left") for end in ("pem", "key")}
    assert {path.name for path in folder.iterdir()} == names
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for role in ("router", "vision"):
        assert Tls.from_folder(folder, role).certificate == folder / f"{role}.pem"


def test_a_certificate_has_role_and_addresses(tmp_path: Path) -> None:
    init_keys(tmp_path, ["vision"], ["robot.local", "10.0.0.3"], 30)
    authority, router, vision = (certificate(tmp_path / f"{name}.pem") for name in ("ca", "router", "vision"))
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    client, server = x509.ExtendedKeyUsageOID.CLIENT_AUTH, x509.ExtendedKeyUsageOID.SERVER_AUTH
    now = datetime.datetime.now(datetime.UTC)
    for one, name, purposes in ((router, "router", {client, server}), (vision, "vision", {client})):
        assert common_name(one) == name
        one.verify_directly_issued_by(authority)
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert set(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes
        assert one.not_valid_before_utc < now - datetime.timedelta(minutes=30)
        assert datetime.timedelta(days=29) < one.not_valid_after_utc - now <= datetime.timedelta(days=30)
    assert authority.not_valid_after_utc > router.not_valid_after_utc
    names = router.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "robot.local"]
    addresses = [ipaddress.ip_address(one) for one in ("127.0.0.1", "::1", "10.0.0.3")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    # A node cannot pass for a router.
    with pytest.raises(x509.ExtensionNotFound):
        vision.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert [can_listen(tmp_path / f"{name}.pem") for name in ("router", "vision")] == [True, False]


def test_the_next_certificate_of_a_revoked_role_has_another_name(tmp_path: Path) -> None:
    init_keys(tmp_path, ["arm", "console"])
    assert read_revoked(tmp_path / "revoked.txt") == frozenset()
    assert revoke(tmp_path, "arm") == "arm"
    assert not (tmp_path / "arm.pem").exists()
    assert [path.name for path in init_keys(tmp_path, ["arm", "console"])] == ["arm.pem"]
    assert common_name(certificate(tmp_path / "arm.pem")) == "arm.2"
    assert revoke(tmp_path, "arm") == "arm.2"
    assert revoke(tmp_path, "router") == "router"
    revoked = read_revoked(tmp_path / "revoked.txt")
    assert revoked == {"arm", "arm.2", "router"}
    assert [valid_name(role, revoked) for role in ("arm", "console", "router")] == ["arm.3", "console", "router.2"]
    init_keys(tmp_path, ["arm"], replace=True)  # another authority, which has revoked nothing
    assert common_name(certificate(tmp_path / "arm.pem")) == "arm"
    (tmp_path / "revoked.txt").write_text("arm\nno common name\n")
    with pytest.raises(InvalidArgument, match=r"'no common name' is not a common name"):
        read_revoked(tmp_path / "revoked.txt")
    with pytest.raises(InvalidArgument, match="there is no such folder"):
        revoke(tmp_path / "nowhere", "arm")


def test_only_those_that_listen_name_hosts(tmp_path: Path) -> None:
    init_keys(tmp_path, ["arm"], ["robot.local"], listeners=["hub"])
    assert can_listen(tmp_path / "hub.pem")
    with pytest.raises(InvalidArgument, match="names no host"):
        make_certificate(tmp_path, "leg", ["robot.local"])
    with pytest.raises(InvalidArgument, match="this is a client certificate"):
        Topology("peer", listen=("tls/127.0.0.1:0",), tls=Tls.from_folder(tmp_path, "arm"))
    Topology("peer", listen=("tls/127.0.0.1:0",), tls=Tls.from_folder(tmp_path, "hub"))


def test_another_implementation_of_tls_accepts_them(tmp_path: Path) -> None:
    init_keys(tmp_path, ["vision"], ["robot.local"])
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(tmp_path / "router.pem", tmp_path / "router.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.load_cert_chain(tmp_path / "vision.pem", tmp_path / "vision.key")
    ends = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        with server.wrap_socket(ends[0], server_side=True) as line:
            seen.append(line.getpeercert())
            line.sendall(b"welcome")

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(ends[1], server_hostname="robot.local") as line:
        assert line.recv(100) == b"welcome"
    thread.join(10)
    assert [dict(pair[0] for pair in one["subject"])["commonName"] for one in seen] == ["vision"]  # type: ignore[index]


def test_a_second_call_adds_and_leaves_the_rest(tmp_path: Path) -> None:
    init_keys(tmp_path, ["vision"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [path.name for path in init_keys(tmp_path, ["vision", "arm"])] == ["arm.pem"]
    assert init_keys(tmp_path, ["arm"]) == []
    for name, content in before.items():
        assert (tmp_path / name).read_bytes() == content
    certificate(tmp_path / "arm.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))


def test_an_authority_is_replaced_only_on_request(tmp_path: Path) -> None:
    init_keys(tmp_path, ["vision"])
    old = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(InvalidArgument, match=r"ca\.pem: exists already"):
        make_authority(tmp_path)
    with pytest.raises(InvalidArgument, match=r"vision\.pem: exists already"):
        make_certificate(tmp_path, "vision")
    assert (tmp_path / "ca.key").read_bytes() == old
    made = init_keys(tmp_path, ["vision"], replace=True)
    assert [path.name for path in made] == ["ca.pem", "router.pem", "vision.pem"]
    assert (tmp_path / "ca.key").read_bytes() != old
    certificate(tmp_path / "vision.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))


def test_invalid_arguments_raise_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    for roles in (["../evil"], ["a b"], [""], ["ca"], ["x" * 64], ["-x"]):
        with pytest.raises(InvalidArgument, match="role"):
            init_keys(folder, roles)
    for hosts in (["robot:7447"], [""], ["a/b"], ["*.local"], ["x" * 64]):
        with pytest.raises(InvalidArgument, match="host"):
            init_keys(folder, [], hosts)
    for days in (0, -1, 40000):
        with pytest.raises(InvalidArgument, match="days"):
            init_keys(folder, [], days=days)
    assert not folder.exists()
    with pytest.raises(InvalidArgument, match=r"ca\.pem: there is no such file"):
        make_certificate(folder, "vision")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="not a file"):
        init_keys(tmp_path / "file")


def test_an_authority_without_its_key_signs_nothing(tmp_path: Path) -> None:
    init_keys(tmp_path)
    other = tmp_path / "other"
    init_keys(other)
    key = (tmp_path / "ca.key").read_bytes()
    (tmp_path / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(InvalidArgument, match="is not the key of"):
        make_certificate(tmp_path, "vision")
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        make_certificate(tmp_path, "vision")
    (tmp_path / "ca.key").write_bytes(key)
    whole = certificate(tmp_path / "ca.pem").public_bytes(serialization.Encoding.DER)
    for part, damaged in ((b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x22"), (b"neuraxis mesh", b"\xff" * 13)):
        assert part in whole  # the version, and the name of the authority
        der = base64.encodebytes(whole.replace(part, damaged)).decode()
        (tmp_path / "ca.pem").write_text(f"-----BEGIN CERTIFICATE-----\n{der}-----END CERTIFICATE-----\n")
        with pytest.raises(InvalidArgument, match="cannot be read"):
            make_certificate(tmp_path, "vision")
    os.unlink(tmp_path / "ca.key")
    with pytest.raises(InvalidArgument, match=r"without ca\.key"):
        init_keys(tmp_path, ["vision"])


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path, days=10)
    make_certificate(tmp_path, "vision", days=100)
    ends = [certificate(tmp_path / f"{name}.pem").not_valid_after_utc for name in ("ca", "vision")]
    assert ends[0] == ends[1]


def test_without_the_package_the_error_has_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BackendUnavailable, match=re.escape(install_command("security"))):
        init_keys(tmp_path / "keys", ["vision"])
    assert not (tmp_path / "keys").exists()
