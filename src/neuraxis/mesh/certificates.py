"""Keys and certificates for a mesh with TLS: a certificate authority (CA), a router, and one certificate per role.

Both ends of a link authenticate with a certificate that the CA has signed (mutual TLS). The common name of a
certificate is its role, which a router's access rules refer to. The layout of a folder:

    ca.pem, ca.key              the CA; the key signs certificates, and does not belong on a robot
    router.pem, router.key      for routers
    vision.pem, vision.key      for the role "vision"
    revoked.txt                 certificates that routers refuse, by common name

A machine needs `ca.pem` and the two files of its own role; a router also `revoked.txt`.

A role's certificate is valid for clients only: it names no host, and a process that connects to a listener with such a
certificate refuses the link. So a stolen key of a sensor cannot impersonate a router, which sees all traffic. Only
routers, and peers that listen (`listeners`), have server certificates.

**Revocation.** Zenoh's handshake checks no revocation lists, but its access rules refer to common names. The first
certificate of a role has the role's name; after its revocation the next one has a number appended ("vision.2"). A
router's rules then allow the newest name only, and deny everything to the others.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuraxis import imports as optional
from neuraxis.arguments import is_whole
from neuraxis.errors import InvalidArgument
from neuraxis.store import replacing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

__all__ = [
    "REVOKED",
    "ROUTER",
    "can_listen",
    "init_keys",
    "make_authority",
    "make_certificate",
    "read_revoked",
    "revoke",
    "valid_name",
]

ROUTER = "router"  # the role of routers

REVOKED = "revoked.txt"

_AUTHORITY = "ca"
_ALWAYS = ("localhost", "127.0.0.1", "::1")  # hosts in every server certificate
_SERVER_AUTH = bytes((6, 8, 0x2B, 6, 1, 5, 5, 7, 3, 1))  # DER of the extended key usage serverAuth (1.3.6.1.5.5.7.3.1)
_CLOCK_SKEW = datetime.timedelta(hours=1)  # a robot's clock may be slow
_ROLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,55}")  # a common name has 64 characters, with its number
_COMMON_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[1-9][0-9]{0,5})?")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


def init_keys(
    folder: str | os.PathLike[str],
    roles: Sequence[str] = (),
    hosts: Sequence[str] = (),
    days: int = 825,
    *,
    listeners: Sequence[str] = (),
    replace: bool = False,
) -> list[Path]:
    """Create a certificate authority (CA), a certificate for routers and one for each role.

    Existing files stay unchanged. Called again with more roles, it adds them under the same CA.

    Parameters
    ----------
    folder : path
        The folder to write to; created with access for its owner only.
    roles : sequence of str
        Roles that get a client certificate.
    hosts : sequence of str
        Names and addresses of routers and `listeners`, besides localhost.
    days : int
        Validity of the certificates. The CA is valid for ten years, or as long if that is more.
    listeners : sequence of str
        Roles of peers that others connect to. Their certificates are server certificates as well, so they can
        impersonate a router at these hosts: list only peers that you trust that far.
    replace : bool
        Start over with another CA; no earlier certificate is accepted any more.

    Returns
    -------
    list of Path
        The certificates that were created.
    """
    for role in (*roles, *listeners):
        _check_role(role)
    _check_days(days)
    _names(hosts)
    place = Path(folder)
    made = []
    if replace:
        (place / REVOKED).unlink(missing_ok=True)  # it lists certificates of another authority
    if replace or not (place / f"{_AUTHORITY}.pem").exists():
        made.append(make_authority(place, days=max(days, 3650), replace=replace))
    elif not (place / f"{_AUTHORITY}.key").exists():
        raise InvalidArgument(
            f"{place}: has {_AUTHORITY}.pem without {_AUTHORITY}.key, which signs certificates. Copy the key there"
        )
    for role in dict.fromkeys((ROUTER, *listeners, *roles)):
        if replace or not (place / f"{role}.pem").exists():
            listens = role == ROUTER or role in listeners
            made.append(make_certificate(place, role, hosts if listens else (), days, listens=listens, replace=replace))
    return made


def revoke(folder: str | os.PathLike[str], role: str) -> str:
    """Add a role's certificate to the list of revoked ones, and rename its files.

    `init_keys` then creates another certificate for the role, with another common name. Routers read `revoked.txt`
    again when it changes; copy it to their machines.

    Parameters
    ----------
    folder : path
        The folder that `init_keys` created.
    role : str
        The role, or "router".

    Returns
    -------
    str
        The revoked common name.

    Raises
    ------
    InvalidArgument
        There is no such folder, or the name is not a role.

    Examples
    --------
    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> _ = init_keys(place, ["arm"])
    >>> revoke(place, "arm")
    'arm'
    >>> _ = init_keys(place, ["arm"])
    >>> revoke(place, "arm")
    'arm.2'
    """
    _check_role(role)
    place = Path(folder)
    if not place.is_dir():
        raise InvalidArgument(f"{place}: there is no such folder. Create it with: neuraxis mesh keys init")
    revoked = read_revoked(place / REVOKED)
    name = valid_name(role, revoked)
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    old = (place / REVOKED).read_bytes() if (place / REVOKED).exists() else b"# common names that routers refuse\n"
    _write(place / REVOKED, old + f"{name}  # {when}\n".encode(), 0o644)
    for ending in ("pem", "key"):
        path = place / f"{role}.{ending}"
        if path.exists():
            path.rename(place / f"{name}.revoked.{ending}")
    return name


def read_revoked(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return the common names in a list of revoked certificates; none if there is no such file.

    Raises
    ------
    InvalidArgument
        The file cannot be read, or a line is not a common name. An unreadable list must not count as empty.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: the list of revoked certificates cannot be read: {error}") from None
    names = [line.partition("#")[0].strip() for line in lines]
    for name in names:
        if name and not _COMMON_NAME.fullmatch(name):
            raise InvalidArgument(f"{path}: {name!r} is not a common name. Write one per line, such as arm or arm.2")
    return frozenset(filter(None, names))


def valid_name(role: str, revoked: Collection[str]) -> str:
    """Return the common name of the role's valid certificate: the one after the last revoked one.

    Examples
    --------
    >>> valid_name("arm", [])
    'arm'
    >>> valid_name("arm", ["arm", "arm.2", "console"])
    'arm.3'
    """
    numbers = [_number_of(name) for name in revoked if name.partition(".")[0] == role]
    last = max(numbers, default=0)
    return role if last == 0 else f"{role}.{last + 1}"


def _number_of(name: str) -> int:
    """Return the number of a role's certificate from its common name, counted from 1."""
    number = name.partition(".")[2]
    return int(number) if number else 1


def can_listen(certificate: Path) -> bool:
    """Return True if a certificate is a server certificate, which connecting peers accept.

    An unreadable one counts as a server certificate: Zenoh reports the problem.
    """
    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return True
    return _SERVER_AUTH in der


def make_authority(folder: str | os.PathLike[str], *, days: int = 3650, replace: bool = False) -> Path:
    """Create the key and the certificate of the certificate authority (CA); return the certificate's path.

    Raises
    ------
    InvalidArgument
        There is one, and `replace` is False.
    """
    x509 = _cryptography("x509")
    _check_days(days)
    place = _private_folder(folder)
    _refuse_overwrite(place, _AUTHORITY, replace)
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
    listens: bool = False,
    replace: bool = False,
) -> Path:
    """Create a key and a certificate for a role, signed by the CA in the folder; return the certificate's path.

    It is a client certificate, and names no host. With `listens`, as for routers, it is a server certificate as well,
    and names the `hosts`.

    Raises
    ------
    InvalidArgument
        There is no CA, or the certificate exists and `replace` is False.
    """
    x509 = _cryptography("x509")
    _check_role(role)
    _check_days(days)
    listens = listens or role == ROUTER
    if hosts and not listens:
        raise InvalidArgument(f"hosts {list(hosts)}: a client certificate names no host. Use listens=True")
    names = _names(hosts)
    place = _private_folder(folder)
    _refuse_overwrite(place, role, replace)
    authority, authority_key = _read_authority(place)
    key = _new_key()
    name = valid_name(role, read_revoked(place / REVOKED))
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    purposes = [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    if listens:
        purposes.append(x509.ExtendedKeyUsageOID.SERVER_AUTH)  # routers also connect to each other
    builder = _dated(x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject), days, authority)
    certificate = (
        builder.public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    if listens:
        certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _sign_and_write(place, role, certificate, key, authority_key)


# --- arguments ---


def _check_role(role: str) -> None:
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidArgument(f"role {role!r}: letters, digits, _ and - are expected, at most 56")
    if role == _AUTHORITY:
        raise InvalidArgument(f"role {role!r}: {role}.pem belongs to the certificate authority. Use another name")


def _check_days(days: int) -> None:
    if not is_whole(days) or not 1 <= days <= 36500:
        raise InvalidArgument(f"days {days!r}: a whole number from 1 to 36500 is expected")


def _names(hosts: Iterable[str]) -> list[Any]:
    """Return the subjectAltName entries. Addresses and names differ, since TLS compares them differently."""
    x509 = _cryptography("x509")
    names: list[Any] = []
    for host in dict.fromkeys((*_ALWAYS, *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not _HOST.fullmatch(host) or len(host) > 253:
                raise InvalidArgument(f"host {host!r}: a name or an address is expected, without a port") from None
            names.append(x509.DNSName(host))
    return names


# --- certificates ---


def _cryptography(module: str) -> Any:
    """Return a module of the optional package cryptography, e.g. "x509"."""
    return optional.require(f"cryptography.{module}", extra="security", purpose="making certificates")


def _new_key() -> EllipticCurvePrivateKey:
    ec = _cryptography("hazmat.primitives.asymmetric.ec")
    key: EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP256R1())
    return key


def _dated(builder: Any, days: int, within: Certificate | None = None) -> Any:
    x509 = _cryptography("x509")
    now = datetime.datetime.now(datetime.UTC)
    first, last = now - _CLOCK_SKEW, now + datetime.timedelta(days=days)
    if within is not None:  # a certificate that outlives its CA looks valid, but is refused
        first, last = max(first, within.not_valid_before_utc), min(last, within.not_valid_after_utc)
        if first >= last:
            raise InvalidArgument(
                f"the certificate authority expired at {within.not_valid_after_utc}. Create another one"
            )
    return builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)


def _key_usage(**uses: bool) -> Any:
    x509 = _cryptography("x509")
    every = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**dict.fromkeys(every, False) | uses)


# --- files ---


def _private_folder(folder: str | os.PathLike[str]) -> Path:
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InvalidArgument(f"{place}: a folder is expected, not a file")
    if not place.exists():
        place.mkdir(mode=0o700, parents=True)
    return place


def _refuse_overwrite(place: Path, name: str, replace: bool) -> None:
    for path in (place / f"{name}.pem", place / f"{name}.key"):
        if path.exists() and not replace:
            raise InvalidArgument(f"{path}: exists already. Use replace=True to overwrite it")


def _read_authority(place: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    x509, ec = _cryptography("x509"), _cryptography("hazmat.primitives.asymmetric.ec")
    serialization = _cryptography("hazmat.primitives.serialization")
    unsupported = _cryptography("exceptions").UnsupportedAlgorithm
    certificate_file, key_file = place / f"{_AUTHORITY}.pem", place / f"{_AUTHORITY}.key"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        matching = isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()
        _ = certificate.subject, certificate.not_valid_after_utc  # parsed on access; a new certificate takes them over
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"{error.filename}: there is no such file, and no certificate authority (CA) to sign with. Create it with: "
            "neuraxis mesh keys init"
        ) from None
    except (ValueError, TypeError, unsupported, x509.InvalidVersion) as error:
        raise InvalidArgument(f"{place}: the certificate authority cannot be read: {error}") from None
    if not matching:
        raise InvalidArgument(f"{place}: {key_file.name} is not the key of {certificate_file.name}")
    return certificate, typing.cast("EllipticCurvePrivateKey", key)


def _sign_and_write(place: Path, name: str, builder: Any, key: Any, signer: Any) -> Path:
    hashes, serialization = _cryptography("hazmat.primitives.hashes"), _cryptography("hazmat.primitives.serialization")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = builder.sign(signer, hashes.SHA256())
    _write(place / f"{name}.key", private, 0o600)
    _write(place / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return place / f"{name}.pem"


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, with its final permissions from the start."""
    with replacing(path) as new, os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
