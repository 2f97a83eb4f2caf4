"""Keys and certificates for a mesh with TLS: an authority, a router, and one certificate a role.

Both ends of a link show a certificate of the authority, and the common name of a node's certificate is its role, by
which a router's access control knows it. The layout of a folder:

    ca.pem, ca.key              the authority; the key signs, and is needed on no robot
    router.pem, router.key      for routers
    vision.pem, vision.key      for the role "vision"

A machine needs `ca.pem` and the two files of its own role.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraxis.errors import BackendUnavailable, InvalidArgument

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

__all__ = ["ROUTER", "init_keys", "make_authority", "make_certificate"]

ROUTER = "router"  # the role of routers

_AUTHORITY = "ca"
_ALWAYS = ("localhost", "127.0.0.1", "::1")  # what every certificate is also good for
_CLOCKS_DIFFER = datetime.timedelta(hours=1)  # a robot's clock may be behind
_ROLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


def init_keys(
    folder: str | os.PathLike[str],
    roles: Sequence[str] = (),
    hosts: Sequence[str] = (),
    days: int = 825,
    *,
    replace: bool = False,
) -> list[Path]:
    """Make an authority, a certificate for routers and one for each role; those that are there stay as they are.

    Called again with more roles, it adds them under the same authority.

    Args:
        hosts: names and addresses under which routers are reached, besides localhost.
        days: how long the certificates are good for; the authority is good for ten years, or as long if that is more.
        replace: begin anew with another authority: no certificate made before is accepted any more.

    Returns:
        the certificates that were made.
    """
    for role in roles:
        _check_role(role)
    _check_days(days)
    _names(hosts)
    place = Path(folder)
    made = []
    if replace or not (place / f"{_AUTHORITY}.pem").exists():
        made.append(make_authority(place, days=max(days, 3650), replace=replace))
    elif not (place / f"{_AUTHORITY}.key").exists():
        raise InvalidArgument(f"{place}: has {_AUTHORITY}.pem without {_AUTHORITY}.key, with which others are signed")
    for role in dict.fromkeys((ROUTER, *roles)):
        if replace or not (place / f"{role}.pem").exists():
            made.append(make_certificate(place, role, hosts if role == ROUTER else (), days, replace=replace))
    return made


def make_authority(folder: str | os.PathLike[str], *, days: int = 3650, replace: bool = False) -> Path:
    """Make the key and the certificate that all others are signed with; returns the certificate's path.

    Raises:
        InvalidArgument: there is one, and `replace` was not said.
    """
    x509, _ = _cryptography()
    _check_days(days)
    place = _private_folder(folder)
    _keep(place, _AUTHORITY, replace)
    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "neuraxis mesh authority")])
    builder = _dated(x509.CertificateBuilder().subject_name(name).issuer_name(name), days)
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _sign_and_write(place, _AUTHORITY, certificate, key, key)


def make_certificate(
    folder: str | os.PathLike[str],
    role: str,
    hosts: Sequence[str] = (),
    days: int = 825,
    *,
    replace: bool = False,
) -> Path:
    """Make a key and a certificate for a role, signed by the authority in the folder; returns the certificate's path.

    It serves both ends of a link, and whoever connects to its owner finds the `hosts` in it.

    Raises:
        InvalidArgument: there is no authority, or there is such a certificate and `replace` was not said.
    """
    x509, serialization = _cryptography()
    _check_role(role)
    _check_days(days)
    names = _names(hosts)
    place = _private_folder(folder)
    _keep(place, role, replace)
    authority, authority_key = _read_authority(place, serialization)
    key = _new_key()
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, role)])
    both = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject), days, authority)
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    return _sign_and_write(place, role, certificate, key, authority_key)


# --- what is asked for ---


def _check_role(role: str) -> None:
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidArgument(f"role {role!r}: letters, digits, _ and - are expected, at most 63")
    if role == _AUTHORITY:
        raise InvalidArgument(f"role {role!r}: {role}.pem is the authority's; take another name")


def _check_days(days: int) -> None:
    if not isinstance(days, int) or not 1 <= days <= 36500:
        raise InvalidArgument(f"days {days!r}: a whole number from 1 to 36500 is expected")


def _names(hosts: Iterable[str]) -> list[Any]:
    """The subjectAltName entries: addresses are told from names, since a client compares the two differently."""
    x509, _ = _cryptography()
    names: list[Any] = []
    for host in dict.fromkeys((*_ALWAYS, *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.fullmatch(host) or len(host) > 253:
                raise InvalidArgument(f"host {host!r}: a name or an address is expected, without a port") from None
            names.append(x509.DNSName(host))
    return names


# --- making them ---


def _cryptography() -> tuple[Any, Any]:
    """The modules `x509` and `serialization`; the package is an extra."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise BackendUnavailable(
            "tls", f"certificates are made with the package cryptography ({error})", "pip install 'neuraxis[security]'"
        ) from error
    return x509, serialization


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _dated(builder: Any, days: int, within: Certificate | None = None) -> Any:
    x509, _ = _cryptography()
    now = datetime.datetime.now(datetime.UTC)
    first, last = now - _CLOCKS_DIFFER, now + datetime.timedelta(days=days)
    if within is not None:  # what outlives its authority looks good and is refused
        first, last = max(first, within.not_valid_before_utc), min(last, within.not_valid_after_utc)
        if first >= last:
            raise InvalidArgument(f"the authority was good until {within.not_valid_after_utc}: make another one")
    return builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)


def _key_usage(**uses: bool) -> Any:
    x509, _ = _cryptography()
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**dict.fromkeys(every, False) | uses)


# --- files ---


def _private_folder(folder: str | os.PathLike[str]) -> Path:
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InvalidArgument(f"{place}: is a file; a folder is expected")
    if not place.exists():
        place.mkdir(mode=0o700, parents=True)
    return place


def _keep(place: Path, name: str, replace: bool) -> None:
    for path in (place / f"{name}.pem", place / f"{name}.key"):
        if path.exists() and not replace:
            raise InvalidArgument(f"{path}: is there already, and is not replaced unless asked for")


def _read_authority(place: Path, serialization: Any) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric import ec

    x509, _ = _cryptography()
    certificate_file, key_file = place / f"{_AUTHORITY}.pem", place / f"{_AUTHORITY}.key"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise InvalidArgument(f"{error.filename}: is missing: there is no authority to sign with") from None
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"{place}: the authority cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InvalidArgument(f"{place}: {key_file.name} is not the key of {certificate_file.name}")
    return certificate, key


def _sign_and_write(place: Path, name: str, builder: Any, key: Any, signer: Any) -> Path:
    from cryptography.hazmat.primitives import hashes

    _, serialization = _cryptography()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = builder.sign(signer, hashes.SHA256())
    _write(place / f"{name}.key", private, 0o600)
    _write(place / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return place / f"{name}.pem"


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
