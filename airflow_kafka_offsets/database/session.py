"""The settings of sessions that decide what values mean: they are the same, whatever server, database, role and
environment set.

Those of Postgres are here, those of MySQL in `database.mysql`.

Others stay as they are. Drivers recognize both forms of bytes (`bytea_output`), and quote as
`standard_conforming_strings` was when they connected. The `search_path` says which table a name without a schema means,
and that is for the user to decide.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, Engine

from airflow_kafka_offsets.database import mysql

_SETTINGS = {
    # COPY sends UTF-8. Drivers read text as bytes where it is SQL_ASCII.
    "client_encoding": "UTF8",
    # Drivers read no other forms of dates and intervals. The database reads text for ranges and arrays of them in
    # these.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
}

_SET = f"SELECT {', '.join(f'set_config({name!r}, {value!r}, false)' for name, value in _SETTINGS.items())}"
_SET_LOCAL = _SET.replace(", false)", ", true)")


_codecs: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()


def codec(dialect: Dialect) -> str:
    """Return Python's codec of the characters that texts of a database can hold, as a session of it has reported."""
    return _codecs.get(dialect, "utf-8")


def codec_of(encoding: str | None) -> str:
    """Return a codec all of whose characters an encoding of Postgres has; None is an unknown one."""
    name = (encoding or "").replace("WIN", "cp")
    # Of the other encodings with several bytes, Postgres and Python map some characters to different ones. With
    # SQL_ASCII, lengths of columns are bytes.
    return name if name.startswith(("UTF8", "LATIN", "ISO_8859_", "cp")) else "ascii"


def unify_sessions(engine: Engine) -> None:
    """Have all sessions of an engine use the same settings, also those that its pool has open already.

    They are set when a connection leaves the pool. The server of Postgres reports each change of them to the client:
    where they are right, this takes no request, and where something reset them, they are set again.
    """
    if mysql.is_mysql(engine.dialect):
        mysql.unify_sessions(engine)
    if engine.dialect.name == "sqlite" and not sa.event.contains(engine, "checkout", _take_any_text):
        sa.event.listen(engine, "checkout", _take_any_text)
    if engine.dialect.name != "postgresql" or sa.event.contains(engine, "checkout", _set):
        return
    # Before SQLAlchemy's own first statements, which fail where text is read as bytes.
    sa.event.listen(engine, "connect", _set, insert=True)
    sa.event.listen(engine, "checkout", _set)

    def note_encoding(connection: Any, *_: object) -> None:
        if engine.dialect not in _codecs:
            info = getattr(connection, "info", None)
            _codecs[engine.dialect] = codec_of(info and info.parameter_status("server_encoding"))

    sa.event.listen(engine, "checkout", note_encoding)


def unify_transaction(conn: Connection) -> None:
    """Have a transaction that writes values use the same settings. A pooler such as PgBouncer may give each transaction
    another session of the server than the one whose settings were looked at.
    """
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(_SET_LOCAL)


def _take_any_text(connection: Any, *_: object) -> None:
    """Read texts that are not UTF-8, too, which would fail the whole result."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")


def _set(connection: Any, *_: object) -> None:
    """Set the settings of a driver's connection that are different, in one request."""
    # A driver that does not pass the reports on gets the request each time.
    info = getattr(connection, "info", None)
    if info is not None and all(info.parameter_status(name) == value for name, value in _SETTINGS.items()):
        return
    # Not in a transaction, whose rollback would reset them.
    before, connection.autocommit = connection.autocommit, True
    try:
        with connection.cursor() as cursor:
            cursor.execute(_SET)
        if hasattr(connection, "set_client_encoding"):
            # psycopg2 does not notice.
            connection.set_client_encoding(_SETTINGS["client_encoding"])
    finally:
        connection.autocommit = before
