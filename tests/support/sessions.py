"""Settings of Postgres sessions that a database may have."""

from __future__ import annotations

from collections.abc import Mapping

from devstack.postgres import PostgresServer

SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
}
"""What a session of this package has."""

ODD_SETTINGS = {
    "client_encoding": "LATIN1",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/St_Johns",
    "standard_conforming_strings": "off",
}


def altered(postgres: PostgresServer, database: str, settings: Mapping[str, str]) -> None:
    """Set the settings of a database in place of those that it had."""
    with postgres.connect() as conn:
        conn.execute(f'ALTER DATABASE "{database}" RESET ALL'.encode())
        for name, value in settings.items():
            conn.execute(f"ALTER DATABASE \"{database}\" SET {name} = '{value}'".encode())
