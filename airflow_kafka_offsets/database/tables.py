"""Tables on every database: names, types of columns, tables as the database has them, and the rights to them.

Names are kept whole, and quoted in SQL that is text. The types keep every value and tell all values apart: on MySQL and
MariaDB that takes more than SQLAlchemy's generic types say, namely texts of any size and character, compared by each
character and space; bytes of any size; microseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect, Transaction
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import TypeCompiler
from sqlalchemy.types import TypeDecorator, TypeEngine

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.mysql import (
    UNKNOWN_DATABASE,
    check_engines,
    error_number,
    exact_collation,
    is_mariadb,
    is_mysql,
)
from airflow_kafka_offsets.database.session import codec
from airflow_kafka_offsets.exceptions import TargetError


def longest_name(dialect: Dialect) -> int:
    """Return how long a name can be that a database keeps."""
    # SQLAlchemy's number for MySQL is that of aliases.
    return 64 if is_mysql(dialect) else dialect.max_identifier_length


def is_too_long(name: str, dialect: Dialect) -> bool:
    """Return whether a name is longer than the database keeps. Postgres counts bytes, and truncates without an
    error.
    """
    size = len(name.encode()) if dialect.name == "postgresql" else len(name)
    return size > longest_name(dialect)


def without_placeholders(dialect: Dialect) -> Dialect:
    """Return the dialect for SQL in messages, and for SQL that goes to the server unchanged.

    With the placeholders of some drivers, such as `%s`, every percent sign in a name is doubled.
    """
    plain: type[DefaultDialect] = type(dialect)  # type: ignore[assignment]  # as every dialect is
    # SQLAlchemy's dialect of MySQL is also that of MariaDB, once it has connected to one.
    options: dict[str, Any] = {"is_mariadb": is_mariadb(dialect)} if dialect.name == "mysql" else {}
    made = plain(paramstyle="named", **options)
    made.server_version_info = getattr(dialect, "server_version_info", None)
    return made


_MYSQL = ("mysql", "mariadb")


class ExactString(sa.String):
    """A text of at most a number of characters."""

    inherit_cache = True


class ExactText(sa.Text):
    """A text of any length."""

    inherit_cache = True


class ShortenedText(TypeDecorator[str]):
    """A text of which only the beginning is read: whoever may write the table needs some bytes of SQL for a gigabyte.

    :cvar most: how many characters are read
    """

    impl = ExactText
    cache_ok = True
    most = 1 << 20

    def column_expression(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        return sa.type_coerce(sa.func.substr(column, 1, self.most), self)


class TargetName(ShortenedText):
    """The name of a target, or of the several ones of a fan-out. Loads of all groups read those of others."""

    cache_ok = True
    most = 50_000


class Description(ShortenedText):
    """A text of users or programs that nothing but its readers depends on: no statement fails for it.

    What the database cannot hold of it is escaped, in comparisons too. If it is longer than the column, a digest tells
    it from others with the same beginning.
    """

    cache_ok = True
    most = 10_000

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        return ExactString(self.length) if self.length else ExactText()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        characters = codec(dialect)
        text = value.replace("\0", r"\x00").encode(characters, "backslashreplace").decode(characters)
        if self.length is None or len(text) <= self.length:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{text[: self.length - len(digest) - 1]}~{digest}"


class AnyBytes(sa.LargeBinary):
    """Bytes of any number."""

    inherit_cache = True


class Moment(sa.DateTime):
    """A date and time with microseconds.

    With `timezone` it is an instant; MySQL and SQLite have it in UTC, without a time zone.
    """

    inherit_cache = True


@compiles(ExactString, *_MYSQL)
def _string(type_: ExactString, compiler: TypeCompiler, **_: object) -> str:
    return f"VARCHAR({type_.length}) {_collation(compiler)}"


@compiles(ExactText, *_MYSQL)
def _text(_: ExactText, compiler: TypeCompiler, **__: object) -> str:
    return f"LONGTEXT {_collation(compiler)}"


@compiles(AnyBytes, *_MYSQL)
def _bytes(*_: object, **__: object) -> str:
    return "LONGBLOB"


@compiles(Moment, *_MYSQL)
def _moment(*_: object, **__: object) -> str:
    return "DATETIME(6)"


def _collation(compiler: TypeCompiler) -> str:
    return f"CHARACTER SET utf8mb4 COLLATE {exact_collation(compiler.dialect)}"


_found: WeakKeyDictionary[Transaction, dict[tuple[str, str | None], sa.Table]] = WeakKeyDictionary()


# What of a table nobody asks for, and half of the time that it takes to reflect one.
_UNREAD = (
    "get_multi_foreign_keys",
    "get_multi_check_constraints",
    "get_multi_table_comment",
    "get_multi_table_options",
)


def reflected(conn: Connection, name: str, schema: str | None) -> sa.Table | None:
    """Return a table as the transaction of a connection first saw it; None where there is none."""
    transaction = conn.get_transaction()
    known = {} if transaction is None else _found.setdefault(transaction, {})
    if (name, schema) not in known:
        try:
            table = _reflect(conn, name, schema)
            if not table.columns and conn.dialect.name == "sqlite":
                # Its statements are not of one moment: the table was created between that for its columns and the next.
                table = _reflect(conn, name, schema)
        except sa.exc.NoSuchTableError:
            return None
        except DBAPIError as error:
            if error_number(error.orig) == UNKNOWN_DATABASE:
                return None
            raise
        known[name, schema] = table
    return known[name, schema]


def _reflect(conn: Connection, name: str, schema: str | None) -> sa.Table:
    inspector = sa.inspect(conn)
    for unread in _UNREAD:
        setattr(inspector, unread, _nothing)
    table = sa.Table(name, sa.MetaData(), schema=schema)
    inspector.reflect_table(table, include_columns=None, resolve_fks=False)
    return table


def _nothing(**_: Any) -> dict[Any, Any]:
    return {}


def forget_reflected(conn: Connection) -> None:
    """Look all tables up again: the transaction changed one, or waited for another that may have."""
    if (transaction := conn.get_transaction()) is not None:
        _found.pop(transaction, None)


# Of MySQL: a command is denied for the table. That it is denied for a column says that some columns have the right.
_COMMAND_DENIED = 1142


def check_rights(conn: Connection, table: sa.Table, rights: Sequence[str], what: str) -> None:
    """Check that the user has some privileges on a table.

    :param rights: of SELECT, INSERT, UPDATE and DELETE; for UPDATE, on MySQL, the table needs a column
    :param what: what the user may not do without them, for the message; may name `{lacking}` and `{table}`
    :raises TargetError: names the statement that grants what is lacking
    """
    if is_mysql(conn.dialect):
        lacking = [right for right in rights if _is_denied(conn, table, right)]
    elif conn.dialect.name == "postgresql":
        name = _quoted(conn, table)
        lacking = [right for right in rights if not conn.scalar(sa.select(sa.func.has_table_privilege(name, right)))]
    else:
        return
    if lacking:
        raise TargetError(
            f"User {conn.engine.url.username!r} may not "
            f"{what.format(lacking=' and '.join(lacking), table=table.fullname)}; "
            f"GRANT {', '.join(lacking)} ON {_quoted(conn, table)} TO {grantee(conn)}"
        )


def with_policies(conn: Connection, tables: Sequence[sa.Table]) -> list[sa.Table]:
    """Return those of some tables of which Postgres' row-level security may hide rows from the user.

    :param tables: that exist
    """
    if conn.dialect.name != "postgresql":
        return []
    active = (sa.func.row_security_active(_quoted(conn, table)).label(f"_{n}") for n, table in enumerate(tables))
    found = conn.execute(sa.select(*active)).one()
    return [table for table, is_active in zip(tables, found, strict=True) if is_active]


def check_policies(conn: Connection, table: sa.Table) -> None:
    """Check that no policy hides rows of a table from the user.

    :raises TargetError: Postgres' row-level security applies
    """
    if not with_policies(conn, [table]):
        return
    raise TargetError(
        f"Table {table.fullname!r} has row-level security, with policies for user {conn.engine.url.username!r}: COPY "
        "does not write into it, and replays, rewinds and verify would not see all rows. Have the owner of the table "
        f"load, or ALTER ROLE {grantee(conn)} BYPASSRLS"
    )


# Partitions, and tables that inherit.
_FOREIGN_TABLES = """
WITH RECURSIVE parts AS (
    SELECT CAST(to_regclass(name) AS oid) AS part FROM unnest(CAST(:names AS text[])) AS name
    UNION SELECT inhrelid FROM pg_catalog.pg_inherits JOIN parts ON inhparent = part
)
SELECT CAST(CAST(part AS regclass) AS text) FROM pg_catalog.pg_class JOIN parts ON oid = part
WHERE relkind = 'f' ORDER BY 1 LIMIT 10
"""


def check_transactional(conn: Connection, tables: Sequence[sa.Table], *, error: type[Exception] = TargetError) -> None:
    """Check that rows of tables are committed with the transaction, or not at all; tables that do not exist are passed
    over.

    :param tables: of one schema
    :param error: raised where rows of one are not
    """
    if is_mysql(conn.dialect):
        check_engines(conn, tables[0].schema, [table.name for table in tables], error)
    elif conn.dialect.name == "postgresql":
        found = conn.scalars(sa.text(_FOREIGN_TABLES), {"names": [_quoted(conn, table) for table in tables]}).all()
        if found:
            raise error(
                "Rows and positions are committed in one transaction, but "
                f"{first_few(f'table {name}' for name in found)} is a foreign table: what another server has committed "
                "stays there where this one fails, and may hide rows from it. Load into a table of this database, or "
                "with a connection to that server, which then has the state tables, too"
            )


def grantee(conn: Connection) -> str:
    """Return the user for a GRANT; MySQL has a host in the names of users, too, which is not known."""
    user, dialect = conn.engine.url.username, conn.dialect
    return "the user" if user is None or is_mysql(dialect) else dialect.identifier_preparer.quote(user)


def _is_denied(conn: Connection, table: sa.Table, right: str) -> bool:
    """Return whether MySQL denies a statement; EXPLAIN needs the rights of what it explains, and counts those of roles
    and databases.

    :raises DBAPIError: the database failed
    """
    name = _quoted(conn, table)
    formatted = without_placeholders(conn.dialect).identifier_preparer.format_column
    column = next(map(formatted, table.columns), "")
    statement = {
        "SELECT": f"SELECT 1 FROM {name} LIMIT 0",  # noqa: S608 - quoted
        "INSERT": f"INSERT INTO {name} () VALUES ()",  # noqa: S608
        "UPDATE": f"UPDATE {name} SET {column} = DEFAULT WHERE FALSE",  # noqa: S608
        "DELETE": f"DELETE FROM {name} WHERE FALSE",  # noqa: S608
    }[right]
    try:
        conn.exec_driver_sql(f"EXPLAIN {statement}".replace("%", "%%")).close()
    except DBAPIError as error:
        if is_outage(error):
            raise
        # Any other error is of a user who may: a column without a default has no value.
        return error_number(error.orig) == _COMMAND_DENIED
    return False


def _quoted(conn: Connection, table: sa.Table) -> str:
    return without_placeholders(conn.dialect).identifier_preparer.format_table(table)


def octets(column: sa.ColumnElement[Any], dialect: Dialect) -> sa.ColumnElement[int]:
    """Return how many bytes a text or binary value has. SQLite's length of a text ends at NUL, others' is that in
    characters.
    """
    if dialect.name == "sqlite":
        return sa.func.length(sa.cast(column, sa.LargeBinary))
    return sa.func.octet_length(column)
