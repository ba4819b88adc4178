"""MySQL and MariaDB: how their sessions are set, what their errors mean, and which of their tables have transactions.

Transactions are safe under READ COMMITTED, which every session gets: under REPEATABLE READ, the default, a query could
read what was committed before the lock that its transaction has waited for.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, Engine

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError

_DIALECTS = ("mysql", "mariadb")

PADDED = "utf8mb4_bin"
"""The binary collation of every MySQL: a text that ends in spaces equals the one without."""

# The first MySQL with a binary collation that is not.
_WITHOUT_PADDING = (8, 0, 17)

# What a value is, and that no value is changed without an error: too large, too long, zero that becomes a generated
# number.
_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)

# Notes say that a text lost spaces at its end; both are counted only if they are kept. As others set them: results of
# queries are cut, IS NULL finds a row that was just inserted, COMMIT ends the session, a key may be there twice.
_SETTINGS = (
    "time_zone = '+00:00', sql_notes = 1, max_error_count = 64, sql_safe_updates = 0, "
    "sql_select_limit = 18446744073709551615, sql_auto_is_null = 0, completion_type = 0, unique_checks = 1"
)

# Shutdown, a statement that was interrupted, a session that was killed: if it was COMMIT, its outcome is not known.
_INTERRUPTED = (1053, 1317, 1927)

CONFLICTS = (1213, 1020, 1412, 1684)
"""A deadlock, a row or a table that another session has changed, a table that it is changing: the transaction can be
repeated.
"""

# MariaDB has the number of a lock time-out for NOWAIT, too.
_LOCK_TIMEOUT, _NOWAIT = 1205, 3572

_NO_RIGHTS = (1044, 1142, 1143, 1227, 1370)

UNKNOWN_DATABASE = 1049
"""The number of an error: there is no such database, which is a schema there."""

_CLIENT_ERRORS = range(2000, 3000)

# No lock, no connection, no memory, no room, not ready (Galera), read-only, shutdown, time limits.
_OUTAGES = frozenset((
    *_INTERRUPTED, *CONFLICTS, _LOCK_TIMEOUT, _NOWAIT, 1206, 1040, 1203, 1226, 1129, 1152, 1154, 1155, 1156, 1157, 1158,
    1159, 1160, 1161, 1184, 1037, 1038, 1041, 1135, 1021, 1026, 1030, 1114, 1180, 1047, 1290, 1792, 1836, 1077, 1078,
    1079, 1080, 1969, 3024, 4031,
))  # fmt: skip

# A null, a number out of range, a value of another type or too long, a CHECK, SIGNAL of a trigger, invalid JSON, a row
# too large for a page; and what a generated column makes of a value: a division by zero, a function of JSON.
_VALUE_ERRORS = (
    *(1048, 1118, 1263, 1264, 1265, 1292, 1300, 1365, 1366, 1367, 1406, 1411, 1416, 1441, 1644, 1690),
    *(3140, 3141, 3146, 3156, 3157, 3819, 4025, 4035, 4036, 4037, 4038, 4039, 4040),
)

# Messages that quote names of columns, tables and constraints, and no values.
_NAMES_ONLY = (1048, 1263, 1452, 3819, 4025)

_ROW = re.compile(r" at row (\d+)$")


def is_mysql(dialect: Dialect) -> bool:
    """Return whether a database is MySQL or MariaDB; SQLAlchemy has names for both, and either may lead to either."""
    return dialect.name in _DIALECTS


def is_mariadb(dialect: Dialect) -> bool:
    """Return whether the server is MariaDB, as the dialect knows once it has connected."""
    return bool(getattr(dialect, "is_mariadb", False))


def exact_collation(dialect: Dialect) -> str:
    """Return the collation that compares texts by each character: also by spaces at their ends, unless it is
    `PADDED`.
    """
    if is_mariadb(dialect):
        return "utf8mb4_nopad_bin"
    version = getattr(dialect, "server_version_info", None) or _WITHOUT_PADDING
    return "utf8mb4_0900_bin" if version >= _WITHOUT_PADDING else PADDED


def error_number(error: BaseException | None) -> int | None:
    """Return the number of an error of MySQL's driver; None for other drivers."""
    number = error.args[0] if error is not None and error.args else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def is_outage_number(number: int) -> bool:
    """Return whether an error is not about the statement: a later attempt may succeed."""
    return number in _OUTAGES or number in _CLIENT_ERRORS


def is_value_number(number: int) -> bool:
    """Return whether an error, or a warning, is about the value of a row."""
    return number in _VALUE_ERRORS


def quotes_names_only(number: int | None) -> bool:
    """Return whether the message of an error is known to quote no value of a row."""
    return number in _NAMES_ONLY


def is_lock_timeout(number: int) -> bool:
    """Return whether another transaction had a lock for too long, or at all where the statement does not wait."""
    return number in (_LOCK_TIMEOUT, _NOWAIT)


def lacks_rights(number: int) -> bool:
    """Return whether the user may not do what a statement does."""
    return number in _NO_RIGHTS


def row_of_message(message: str) -> int | None:
    """Return the index of the row of a statement that a message names; None where it names none."""
    found = _ROW.search(message)
    return int(found[1]) - 1 if found is not None and found[1] != "0" else None


def without_row(error: BaseException) -> BaseException:
    """Return an error of the driver without the number of the statement's row, which says nothing to those who read of
    a record.
    """
    named = copy.copy(error)
    named.args = (error.args[0], *(_ROW.sub("", str(argument)) for argument in error.args[1:]))
    return named


def column_of_message(message: str, names: Sequence[str]) -> str | None:
    """Return the column that a message is about; None where it names none.

    :param names: of the columns of the table
    """
    found = re.search(r"\b(?:for|in) column (?:`(?:[^`]|``)*`\.)*[`'](.*?)[`'](?: at row \d+)?$", message, re.DOTALL)
    return found[1] if found is not None and found[1] in names else None


def unify_sessions(engine: Engine) -> None:
    """Have all sessions of an engine use the same settings; those that its pool has open already get them when they
    leave it.
    """
    if sa.event.contains(engine, "do_connect", _connect):
        return
    sa.event.listen(engine, "do_connect", _connect)
    sa.event.listen(engine, "handle_error", _note_interrupted)

    def set_session(connection: Any, *_: object) -> None:
        _set(connection, engine.dialect)

    # Before SQLAlchemy's own first statements, which ask for the settings.
    sa.event.listen(engine, "connect", set_session, insert=True)
    sa.event.listen(engine, "checkout", set_session)


def _connect(dialect: Any, _: object, __: object, parameters: dict[str, Any]) -> None:
    """Let a new connection announce that it can send rows for LOAD DATA LOCAL, and forbid the driver to read files for
    it.

    A server can answer any statement with a request for a file of the client's machine. The driver refuses all of them;
    rows are sent from memory, by `sinks.sql.mysql_load`.
    """
    if dialect.driver != "pymysql":
        return
    from pymysql.constants import CLIENT

    parameters["client_flag"] = parameters.get("client_flag", 0) | CLIENT.LOCAL_FILES
    parameters["local_infile"] = False


def _set(connection: Any, dialect: Dialect) -> None:
    # SQLAlchemy has asked the server which quotes it takes for names.
    quotes = ",ANSI_QUOTES" if dialect.identifier_preparer.initial_quote == '"' else ""
    # MariaDB does so without being asked, and does not know the word.
    truncates = "" if "MariaDB" in getattr(connection, "server_version", "MariaDB") else ",TIME_TRUNCATE_FRACTIONAL"
    if getattr(connection, "charset", "utf8mb4") != "utf8mb4":
        connection.set_character_set("utf8mb4")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(f"SET NAMES utf8mb4, sql_mode = '{_SQL_MODE}{truncates}{quotes}', {_SETTINGS}")


def _note_interrupted(context: Any) -> None:
    """Take an interrupted statement for a broken connection: where it was COMMIT, its outcome is looked up."""
    if error_number(context.original_exception) in _INTERRUPTED:
        context.is_disconnect = True


def check_engines(conn: Connection, schema: str | None, names: Sequence[str], error: type[Exception]) -> None:
    """Check that the storage engines of tables of MySQL have transactions.

    :param error: raised where one has none
    """
    query = sa.text(
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = coalesce(:schema, database()) "
        "AND table_name IN :names AND engine <> 'InnoDB' ORDER BY table_name"
    ).bindparams(sa.bindparam("names", expanding=True))
    found = conn.execute(query, {"schema": schema, "names": list(names)}).all()
    if found:
        quote = conn.dialect.identifier_preparer.quote_identifier
        statements = "; ".join(f"ALTER TABLE {quote(name)} ENGINE = InnoDB" for name, _ in found)
        raise error(
            "Rows and positions are committed in one transaction, but the storage engine of "
            f"{first_few(f'table {name!r} is {engine}' for name, engine in found)}, which has no transactions: "
            f"{statements}"
        )


def check_driver(dialect: Dialect) -> None:
    """Check that a connection to MySQL is of the driver that is known to report what the server did with values.

    :raises ConfigurationError: it is of another one
    """
    if is_mysql(dialect) and dialect.driver != "pymysql":
        raise ConfigurationError(
            f"MySQL and MariaDB are loaded through PyMySQL, but the engine's driver is {dialect.driver!r}: create the "
            "engine from a URL that begins with mysql+pymysql://"
        )
