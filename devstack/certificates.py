"""A certificate authority for one test session. Its keys are in memory only."""

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


class Certificate(NamedTuple):
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


class Authority:
    """Issues certificates for servers at 127.0.0.1, and for clients."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Test authority")
        usage = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._signed(self._name, self._key, usage)
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, name: str) -> Certificate:
        """Return a certificate whose subject is `CN=name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = self._signed(_name(name), key, address)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(certificate.public_bytes(serialization.Encoding.PEM).decode(), secret.decode())

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _DAY,
            not_valid_after=now + _DAY,
        )
        critical = isinstance(extension, x509.BasicConstraints)
        return builder.add_extension(extension, critical=critical).sign(self._key, hashes.SHA256())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
