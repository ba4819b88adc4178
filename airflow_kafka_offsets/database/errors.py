"""What the errors of a database mean: which of them a retry may cure, and what messages say of them, without values of
rows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError
from sqlalchemy.types import NullType

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database import mysql
from airflow_kafka_offsets.exceptions import DATABASE, ConfigurationError, DatabaseUnavailableError, LedgerError, about

# serialization_failure and deadlock_detected. Not all of class 40: after 40003 it is not known whether a statement was
# completed.
_ROLLED_BACK_STATES = ("40001", "40P01")

_INSUFFICIENT_PRIVILEGE, _LOCK_NOT_AVAILABLE = "42501", "55P03"

# Connection, transaction state (read-only, idle for too long), rollback, resources, lock, operator intervention,
# system. The class of the driver's error does not tell: it is the same for a value that is too long for an index.
_OUTAGE_STATES = ("08", "25", "40", "53", "55P03", "57", "58")

STATE_RIGHTS = "SELECT, INSERT, UPDATE and DELETE on the state tables, and USAGE on the sequence of offset_batches"

# What Postgres, libpq and poolers say of a login. libpq passes on no SQLSTATE of a connection that fails: not the class
# 28 of a wrong password, nor the 3D000 of a wrong database.
_LOGIN_REFUSED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|is not permitted to log in|permission denied for database"
    r"|(role|database) \".*\" does not exist|no such (user|database)"
    r"|does not support SSL|certificate verify failed|certificate file"
)

_LOGIN_STATES = ("28", "3D")

# Access denied for a user, for a user and a database, for a plugin; unknown database. Those of a database are of
# statements, too, which name another than that of the connection.
_MYSQL_LOGIN_ERRORS = (1044, 1045, 1049, 1698)


def is_refused_login(error: DBAPIError) -> bool:
    """Return whether the database refuses the user, the password or the name of the database: no retry helps."""
    number = mysql.error_number(error.orig)
    state = sqlstate(error)
    if number is None and state is not None:
        return state.startswith(_LOGIN_STATES)
    if not isinstance(error, OperationalError) or error.connection_invalidated:
        return False
    # Of a connection that fails, SQLAlchemy knows no statement.
    if error.statement is not None:
        return False
    if number is not None:
        return number in _MYSQL_LOGIN_ERRORS
    return _LOGIN_REFUSED.search(str(error.orig)) is not None


def is_outage(error: DBAPIError) -> bool:
    """Return whether the database failed for a reason that is not in the statements: a later attempt may succeed."""
    if error.connection_invalidated:
        return True
    if is_refused_login(error):
        return False
    number = mysql.error_number(error.orig)
    if number is not None:
        return isinstance(error, (OperationalError, InternalError)) and mysql.is_outage_number(number)
    state = sqlstate(error)
    if state is not None:
        return state.startswith(_OUTAGE_STATES)
    # SQLite's driver raises the same class for a wrong statement, for missing rights and for a full disk.
    lasting = getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_ERROR", "SQLITE_READONLY"))
    return isinstance(error, (OperationalError, InternalError)) and not lasting


@contextmanager
def translated_errors(
    what: str, then: str = "Run the task again: it continues from the stored positions."
) -> Iterator[None]:
    """Translate database errors within the block into errors of this package.

    :param what: what failed, as the beginning of the message
    :param then: what to do about an outage, as its end
    :raises DatabaseUnavailableError: the database failed for a reason that is not in the statements
    :raises ConfigurationError: the database refuses the login
    :raises LedgerError: the database refuses the statements: privileges or a table are missing
    """
    try:
        yield
    except IntegrityError:
        raise  # two transactions inserted the same key: the caller decides what that means
    except DBAPIError as error:
        with about(DATABASE):
            _raise_translated(error, what, then)


def _raise_translated(error: DBAPIError, what: str, then: str) -> NoReturn:
    """Raise the error of this package for one of the database."""
    if is_refused_login(error):
        raise ConfigurationError(
            f"{what}: the database refuses the login: {database_message(error)}. Correct the user, the password, "
            "the name of the database (the field Schema), or the TLS settings of the connection"
        ) from error
    if sqlstate(error) in _ABOUT_ENCODINGS:
        raise LedgerError(
            f"{what}: {database_message(error)}. Choose names of groups, targets and directories with characters "
            "that the database can store, or a database with the encoding UTF8"
        ) from error
    if not is_outage(error):
        raise LedgerError(
            f"{what}: {database_message(error)}. Loads, replays and rewinds need {STATE_RIGHTS}; reports need "
            "SELECT. 'kafka-offsets doctor' shows the missing privileges"
        ) from error
    # Of a connection that fails, SQLAlchemy knows no statement.
    where = (
        "" if error.statement else "Check that the database runs, and its host and port in the connection or the URL. "
    )
    raise DatabaseUnavailableError(f"{what}: {database_message(error)}. {where}{then}".rstrip()) from error


def database_message(error: DBAPIError) -> str:
    """Return the first line of the database's message, without the statement and its values."""
    return shortened(driver_message(error.orig).split("\n", maxsplit=1)[0])


def driver_message(driver: BaseException | None) -> str:
    """Return the message of a driver's error; those of MySQL put a number before it."""
    arguments: tuple[object, ...] = getattr(driver, "args", ())
    return str(arguments[1] if len(arguments) > 1 and isinstance(arguments[0], int) else driver).strip()


def is_lock_timeout(error: DBAPIError) -> bool:
    """Return whether a statement did not get its lock: another transaction has it."""
    number = mysql.error_number(error.orig)
    if number is not None:
        return mysql.is_lock_timeout(number)
    return sqlstate(error) == _LOCK_NOT_AVAILABLE or "NOWAIT" in database_message(error)


def lacks_rights(error: DBAPIError) -> bool:
    """Return whether the user may not do what the statement does."""
    number = mysql.error_number(error.orig)
    if number is not None:
        return mysql.lacks_rights(number)
    return sqlstate(error) == _INSUFFICIENT_PRIVILEGE or "readonly database" in database_message(error)


def sqlstate(error: DBAPIError) -> str | None:
    """Return the SQLSTATE of an error; None where the driver does not pass it on (psycopg, psycopg2 and newer PyMySQL
    do).
    """
    return _state_of(error.orig)


def _state_of(driver: BaseException | None) -> str | None:
    return getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)


def rolled_back_by(error: DBAPIError) -> DBAPIError | None:
    """Return the conflict with another writer, such as a deadlock, that caused an error; None where none did."""
    cause: BaseException | None = None if error.connection_invalidated else error
    while cause is not None:
        if isinstance(cause, DBAPIError) and (
            sqlstate(cause) in _ROLLED_BACK_STATES or mysql.error_number(cause.orig) in mysql.CONFLICTS
        ):
            return cause
        # MySQL drops savepoints with the transaction: the failed ROLLBACK TO SAVEPOINT then hides the deadlock.
        cause = cause.__context__
    return None


# character_not_in_repertoire and untranslatable_character: these messages quote the names of encodings.
_ABOUT_ENCODINGS = ("22021", "22P05")

# Servers write in the language of `lc_messages`. In French, an apostrophe within a word is no quotation mark.
_MARK = r"""(?:["`«»„“”‘‚‹›「」『』]|(?<!\w)'|['’](?!\w))"""

# All from the first mark to the last: a value may hold marks, too.
_QUOTED = re.compile(rf"{_MARK}(?:.*{_MARK}|.*)", re.DOTALL)

_FROM_A_MARK = re.compile(rf"{_MARK}.*", re.DOTALL)

# The characters of a message that are searched for each name of a table.
_MOST_SEARCHED = 10_000


def refusal(error: BaseException, table: sa.Table | None = None) -> str:
    """Return why a database refuses rows, without their values, which must not get into logs.

    Databases quote a value that they cannot read. Of what they quote, only the names of columns, constraints and tables
    are kept. What a trigger raises without quotation marks is kept: its author decides what it shows.

    :param error: of the driver, or SQLAlchemy's about it
    :param table: the table that the rows go to; the type of the column is named, too
    """
    driver: Any = error.orig if isinstance(error, DBAPIError) else error
    diag = getattr(driver, "diag", None)
    state = _state_of(driver)
    words = getattr(diag, "message_primary", None) or driver_message(driver)
    # SQLite's messages hold no values.
    is_safe = isinstance(driver, sqlite3.Error) or mysql.quotes_names_only(mysql.error_number(driver))
    if state not in _ABOUT_ENCODINGS and not is_safe:
        words = _without_values(words, _names(diag, table))
    facts = [f"SQLSTATE {state}"] if state else []
    column = getattr(diag, "column_name", None) or _column_of(driver, diag, table)
    if column is not None:
        kind = None if table is None or column not in table.columns else table.columns[column].type
        facts.append(f"column {column!r}" + ("" if kind is None or isinstance(kind, NullType) else f" of type {kind}"))
    return shortened(words) + (f" ({', '.join(facts)})" if facts else "")


def _without_values(words: str, names: Sequence[str]) -> str:
    # Postgres quotes values of any length. What is quoted in the beginning may end behind it.
    quoted = _QUOTED if len(words) <= _MOST_SEARCHED else _FROM_A_MARK
    words = words[:_MOST_SEARCHED]
    # A name may hold marks: until the values are gone, its number stands for it.
    for number, name in enumerate(names):
        words = re.sub(rf"{_MARK}\s?{re.escape(name)}\s?{_MARK}", f"\0{number}\0", words)
    words = quoted.sub('"…"', words)
    return re.sub("\0([0-9]+)\0", lambda found: f'"{names[int(found[1])]}"', words)


def _names(diag: Any, table: sa.Table | None) -> list[str]:
    """Return the names that a message may quote."""
    kinds = ("schema", "table", "column", "constraint", "datatype")
    names = {getattr(diag, f"{kind}_name", None) for kind in kinds}
    if table is not None:
        names |= {table.name, table.fullname, table.schema, *(column.name for column in table.columns)}
    return [name for name in names if name]


def _column_of(driver: Any, diag: Any, table: sa.Table | None) -> str | None:
    """Return the column that a message names; None where it names none of the table."""
    if table is None:
        return None
    if mysql.error_number(driver) is not None:
        return mysql.column_of_message(driver_message(driver), table.columns.keys())
    return _copied_column(diag, table)


def _copied_column(diag: Any, table: sa.Table) -> str | None:
    """Return the column that COPY failed at, as in `COPY orders, line 3, column id: "x"`; None where the context names
    none.
    """
    context = getattr(diag, "context", None) or ""
    found = re.search(rf"^(?:COPY )?{re.escape(table.name)}[^\d\n]*\d+([^:\n]*)", context, re.MULTILINE)
    words = "" if found is None else found.group(1)
    # In most languages, a word for "column" is before the name.
    places = {
        column.name: words.rfind(column.name)
        for column in table.columns
        if re.search(rf"(?<!\w){re.escape(column.name)}(?!\w)", words)
    }
    return max(places, key=lambda name: (places[name], len(name)), default=None)
