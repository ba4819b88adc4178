"""The parameters of libpq that a connection may set, by psycopg and psycopg2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError

# Nothing that reads or writes another file than certificates and keys, or loads a library.
_NAMES = """
application_name channel_binding client_encoding connect_timeout fallback_application_name gssencmode
host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts options
port require_auth requirepeer ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression
sslcrl sslcrldir sslkey sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout
"""
_ALLOWED = _NAMES.split()


def check_libpq(parameters: Mapping[str, Any], whose: str) -> None:
    """Check parameters, which are data.

    :param whose: they are, for messages
    :raises ConfigurationError: one is not known, or a key is not in a file
    """
    if unknown := sorted(parameters.keys() - set(_ALLOWED)):
        raise ConfigurationError(
            f"{whose} has {first_few(map(repr, unknown))}, which a connection may not set; it may have "
            f"{', '.join(_ALLOWED)}"
        )
    if ":" in str(parameters.get("sslkey", "")):
        raise ConfigurationError(
            f"sslkey: {whose} must have the path of a file there, without a colon: libpq would take what is before it "
            "for a library, and load that"
        )
