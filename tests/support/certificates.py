"""A certificate authority for a test, and the certificates that it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """Writes PEM files into a directory.

    :param directory: where `ca.pem` is, too
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        self.certificate = directory / "ca.pem"
        self._write(self.certificate, self._signed(self._name, self._key, is_authority=True))

    def sign(self, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1, and of its key.

        :param password: encrypts the key
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate_file, key_file = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        self._write(certificate_file, self._signed(subject, key, is_authority=False))
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pkcs8 = serialization.PrivateFormat.PKCS8
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, encryption))
        return certificate_file, key_file

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now, issuer_key = datetime.now(UTC), x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        builder = builder.add_extension(issuer_key, critical=False)
        return builder.add_extension(address, critical=False).sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
