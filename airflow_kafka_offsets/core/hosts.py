"""Addresses of servers, and whether a host is this machine: what does not leave it needs no encryption. Pure: no name
is looked up.
"""

from __future__ import annotations

import ipaddress

# Where an address has none, as the client takes it.
_KAFKA_PORT = 9092


def is_this_machine(host: str | None) -> bool:
    """Return whether a host is the loopback interface, or a directory of Unix sockets.

    :param host: a name, an address, or the empty text and None, which leave it to the client, which takes this machine
    """
    if not host or host.startswith(("/", "@")) or host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address(server: str) -> tuple[str, int]:
    """Return host and port of an entry of bootstrap.servers, such as PLAINTEXT://kafka:9092 or [::1]:9092."""
    name = server.strip().rpartition("://")[2]
    host, colon, port = name.rpartition(":")
    has_port = bool(colon) and port.isdecimal()
    return (host if has_port else name).strip("[]"), int(port) if has_port else _KAFKA_PORT
