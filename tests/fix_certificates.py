"""Certificates of the tests' own: an authority, a server on loopback, clients, and a stranger."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_VALID = timedelta(days=2)


@dataclass(frozen=True, kw_only=True)
class Signed:
    """PEM files of one party."""

    certificate: Path
    key: Path
    """PKCS 8, without a password."""
    both: Path
    """The key, then the certificate."""


class Authority:
    """Signs what its users trust; `certificate` is what they trust it by."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        folder.mkdir()
        self._name, self._key = _name(name), ec.generate_private_key(ec.SECP256R1())
        made = _builder(self._name, self._name, self._key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = folder / "authority.pem"
        signed = made.sign(self._key, SHA256())
        self.certificate.write_bytes(signed.public_bytes(Encoding.PEM))

    def sign(self, name: str) -> Signed:
        """A key and its certificate, for a client `CN=name` or a server on loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        made = _builder(_name(name), self._name, key.public_key())
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = made.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return Signed(
            certificate=self._write(f"{name}.crt", [certificate]),
            key=self._write(f"{name}.key", [private]),
            both=self._write(f"{name}.pem", [private, certificate]),
        )

    def _write(self, name: str, parts: Sequence[bytes]) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(b"".join(parts))
        return path


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the tests' servers and clients trust."""
    return Authority(tmp_path_factory.mktemp("certificates") / "own", "semel-tests")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("certificates") / "strange", "stranger")


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
    )
