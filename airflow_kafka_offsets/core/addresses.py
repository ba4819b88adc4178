"""Addresses of servers and directories: whether a host is this machine, so that what is sent to it needs no encryption,
and whether a URI holds credentials. Pure: no name is looked up.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import parse_qs, urlsplit

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


# What may come after the question mark of a URI, for any store, see `pyarrow.fs.FileSystem.from_uri`.
_OPTIONS = """
region scheme endpoint_override allow_bucket_creation allow_bucket_deletion allow_delayed_open tls_ca_file_path
project_id retry_limit_seconds blob_storage_authority dfs_storage_authority enable_tls background_writes tenant_id
client_id credential_kind user replication buffer_size default_block_size kerb_ticket
"""

URI_OPTIONS = frozenset(_OPTIONS.split())


def is_local(uri: str) -> bool:
    """Return whether a URI is a path of this machine."""
    return "://" not in uri or uri.startswith("file://")


def local_path(uri: str) -> str:
    """Return the path of a local URI."""
    return uri.removeprefix("file://")


def is_relative(uri: str) -> bool:
    """Return whether a URI is a path of this machine that depends on the current directory of a process."""
    return is_local(uri) and not local_path(uri).startswith("/")


def holds_credentials(uri: str) -> bool:
    """Return whether the URI of a directory holds a login or a part of one, or an option that may be one."""
    parts = urlsplit(uri)
    if not parse_qs(parts.query, keep_blank_values=True).keys() <= URI_OPTIONS:
        return True
    if parts.scheme in ("abfs", "abfss"):  # the container of Azure is before the @
        return parts.password is not None
    # By this name pyarrow does not log in to Google's store.
    anonymous = parts.scheme in ("gs", "gcs") and parts.username == "anonymous"
    return parts.password is not None or (parts.username is not None and not anonymous)


# Environment variables, the first of them first, that every client of S3 looks at.
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def plain_http_host(url: str) -> str | None:
    """Return the host of another machine that a URL leads to without TLS; None where it does not."""
    if not url.lstrip().lower().startswith("http://"):  # clients leave out blanks before it, as `urlsplit` does
        return None
    host = urlsplit(url).hostname
    return None if is_this_machine(host) else host


def host_in_plain_text(uri: str) -> str | None:
    """Return the host of another machine to which the URI of a directory sends files without TLS, by its options or
    the environment; None where it does not.
    """
    options = {name: values[-1].lower() for name, values in parse_qs(urlsplit(uri).query).items()}
    is_s3 = urlsplit(uri).scheme in ("s3", "s3a")
    endpoint = options.get("endpoint_override") or next(filter(None, map(os.environ.get, _S3_ENDPOINTS * is_s3)), "")
    is_plain = options.get("scheme") == "http" or endpoint.startswith("http://") or options.get("enable_tls") == "false"
    host = address(endpoint.rstrip("/") or urlsplit(uri).hostname or "")[0]
    return host if is_plain and not is_this_machine(host) else None
