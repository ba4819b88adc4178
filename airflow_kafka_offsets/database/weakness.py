"""Whether a connection of a database is encrypted, and to the server that it is meant for."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets.core.addresses import is_this_machine
from airflow_kafka_offsets.core.warn import warn_once

log = logging.getLogger(__name__)


def warn_of_weakness(engine: sa.Engine, whose: str) -> None:
    """Log a warning about the first connection where it is not encrypted.

    :param whose: the engine is, for the message
    """

    def look(driver_connection: Any, _: object) -> None:
        if problem := database_weakness(driver_connection):
            warn_once(log, f"{whose}: {problem}")

    sa.event.listen(engine, "connect", look, once=True)


def database_weakness(driver_connection: Any) -> str | None:
    """Return why a connection of psycopg, psycopg2 or PyMySQL is not safe, as a sentence; None where it is, and for
    other drivers.
    """
    if (info := getattr(driver_connection, "info", None)) is not None:
        given = info.dsn_parameters if hasattr(info, "dsn_parameters") else info.get_parameters()
        is_encrypted = getattr(driver_connection, "pgconn", info).ssl_in_use
        # The name may be of this machine, and the address of another.
        host = given.get("hostaddr") or info.host
        is_verified = given.get("sslmode") == "verify-full"
        remedy = "'sslmode': 'verify-full' and 'sslrootcert'"
    else:
        is_encrypted, host = getattr(driver_connection, "_secure", True), getattr(driver_connection, "host", "")
        tls = getattr(driver_connection, "ctx", None)
        is_verified, remedy = tls is None or tls.check_hostname, "'ssl_ca'"
    if (is_encrypted and is_verified) or is_this_machine(host):
        return None
    if is_encrypted:
        what = f"the certificate of the database at {host} is not verified, or not its name"
    else:
        what = f"the rows and the positions cross the network to {host} in plain text"
    return f"{what}; add {remedy} to its extra, or to the query of its URL"
