"""What a listener speaks, where it is not what `security.protocol` says.

The client cannot tell: a listener that gets bytes of another protocol closes the connection, as a broker does that
stops.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.core.hosts import address
from airflow_kafka_offsets.exceptions import ConfigurationError

_SECONDS = 1.0

# SaslHandshake (https://kafka.apache.org/protocol#The_Messages_SaslHandshake), version 1, correlation id 7, no client
# id, and the empty name of a mechanism. Every listener answers it, before any login: one that has logins with the
# mechanisms that it knows.
_REQUEST = struct.pack(">ihhihh", 12, 17, 1, 7, -1, 0)

_ANSWER = struct.Struct(">iih")

_UNSUPPORTED_MECHANISM = 33


def mismatch(config: Mapping[str, Any]) -> ConfigurationError | None:
    """Return the error for a cluster whose first listener that answers speaks another protocol than the configuration
    says.

    Nothing of the configuration is sent but the request for what the listener speaks.
    """
    said = str(config.get("security.protocol", "plaintext")).lower()
    for server in str(config["bootstrap.servers"]).split(","):
        host, port = address(server)
        spoken = _spoken(host, port)
        if spoken is None:
            continue
        if said == spoken or (spoken == "ssl" and said == "sasl_ssl"):
            return None
        return ConfigurationError(
            f"Kafka at {server.strip()} speaks {spoken}, and the connection says security.protocol={said}: correct it, "
            "or name the port of another listener"
        )
    return None


def _spoken(host: str, port: int) -> str | None:
    """Return the security protocol of a listener, None if it is not known. A listener that asks for a certificate is
    "ssl".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is entrusted to the listener.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            has_logins = _has_logins(connection)
        if has_logins is not None:
            return "sasl_plaintext" if has_logins else "plaintext"
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host) as encrypted,
        ):
            return "sasl_ssl" if _has_logins(encrypted) else "ssl"
    except OSError:
        return None


def _has_logins(connection: socket.socket) -> bool | None:
    """Return whether a listener asks for a login; None if it does not speak Kafka over this connection."""
    try:
        connection.sendall(_REQUEST)
        answer = connection.makefile("rb").read(_ANSWER.size)
    except OSError:
        return None
    if len(answer) < _ANSWER.size:
        return None
    _, correlation, error = _ANSWER.unpack(answer)
    return bool(error == _UNSUPPORTED_MECHANISM) if correlation == 7 else None
