"""Whether a host is this machine: what does not leave it needs no encryption. Pure: no name is looked up."""

from __future__ import annotations

import ipaddress


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
