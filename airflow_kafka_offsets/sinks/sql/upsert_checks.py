"""Whether a key identifies the rows of a table: checked before Spark starts, and again in the commit."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.database.mysql import error_number, is_mysql
from airflow_kafka_offsets.database.tables import check_rights, grantee, without_placeholders
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.row_origin import check_key_names, quoted_names
from airflow_kafka_offsets.sinks.sql.column_types import add_column

# Options of indexes of some rows, of beginnings of values, or that CREATE INDEX CONCURRENTLY did not finish.
_UNFIT = ("_where", "_length", "_invalid")

_MYSQL_NO_RIGHT_TO_DATABASE = 1044


def check_key(dialect: Dialect, key: Sequence[str], columns: pa.Schema | None) -> None:
    """Check that a key identifies rows, and that the rows say which of them is the newest.

    :param columns: the columns of the rows, or None where a transform decides them
    :raises ConfigurationError: the database is of another kind, or the key is not a tuple of columns of the rows
    :raises TargetError: the transform drops the columns that say which row is newer
    """
    if dialect.name not in ("postgresql", "sqlite") and not is_mysql(dialect):
        raise ConfigurationError(
            "upsert_key works on PostgreSQL, SQLite, MySQL and MariaDB, and the sink's connection leads to "
            f"{dialect.name}. Append the rows, without upsert_key, and choose the newest of each key in a view"
        )
    check_key_names(key, columns)


def check_key_columns(table: sa.Table, key: Sequence[str]) -> None:
    """Check that a table has the columns of a key.

    :raises TargetError: it lacks some
    """
    if unknown := [name for name in key if name not in table.columns]:
        raise TargetError(
            f"Table {table.fullname!r} has no column {quoted_names(unknown)}, which upsert_key names: add it, or "
            "correct the key"
        )


def check_target(conn: Connection, table: sa.Table, key: Sequence[str]) -> None:
    """Check that rows of a table can be replaced by key.

    :raises TargetError: it lacks the columns that say which row is newer, or the key is not unique in it, or the user
        may not; names the statement that helps
    """
    check_key_columns(table, key)
    needed = [*(ORIGIN_COLUMNS.field(name) for name in RECORD), pa.field(BATCH_ID, pa.int64())]
    if lacking := [field for field in needed if field.name not in table.columns]:
        names = quoted_names([field.name for field in lacking])
        raise TargetError(
            f"Table {table.fullname!r} has no column {names}: without it, the newest row of a key is unknown. "
            f"{'; '.join(add_column(table, field, conn.dialect) for field in lacking)}; or append, without upsert_key"
        )
    _check_collations(conn, table, key)
    if not _is_unique(conn, table, key):
        index = sa.Index(f"{table.name}_key", *(table.columns[name] for name in key), unique=True)
        statement = CreateIndex(index).compile(dialect=without_placeholders(conn.dialect))
        raise TargetError(
            f"Table {table.fullname!r} has no primary key and no unique index of exactly the columns of upsert_key, "
            f"{quoted_names(key)}: {statement}"
        )
    check_rights(conn, table, ("SELECT", "UPDATE"), "{lacking} in table {table!r}, as upsert_key needs")
    if (right := _lacking_right(conn)) is not None:
        url = conn.engine.url
        raise TargetError(
            f"User {url.username!r} may not make temporary tables in database {url.database!r}, as upsert_key needs; "
            f"GRANT {right} TO {grantee(conn)}"
        )


def _lacking_right(conn: Connection) -> str | None:
    """Return the privilege to create temporary tables, as in GRANT; None if the user has it."""
    database = without_placeholders(conn.dialect).identifier_preparer.quote(conn.engine.url.database or "")
    if conn.dialect.name == "postgresql":
        query = sa.select(sa.func.has_database_privilege(sa.func.current_database(), "TEMPORARY"))
        return None if conn.scalar(query) else f"TEMPORARY ON DATABASE {database}"
    if not is_mysql(conn.dialect):
        return None
    name = f"_upsert_{token_hex(8)}"
    try:
        conn.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} (id INT) ENGINE = InnoDB")
    except DBAPIError as error:
        if error_number(error.orig) != _MYSQL_NO_RIGHT_TO_DATABASE:
            raise
        return f"CREATE TEMPORARY TABLES ON {database}.*"
    conn.exec_driver_sql(f"DROP TEMPORARY TABLE {name}")
    return None


def _is_unique(conn: Connection, table: sa.Table, key: Sequence[str]) -> bool:
    """Return whether the database accepts the key as a target of ON CONFLICT."""
    inspector, found = sa.inspect(conn), table.name
    if conn.dialect.name == "sqlite":  # of which the inspector knows no other spelling than the first
        names = inspector.get_table_names(table.schema)
        found = next((name for name in names if name.lower() == found.lower()), found)
    # SQLite's indexes of constraints are left out unless asked for.
    indexes = inspector.get_indexes(found, table.schema, include_auto_indexes=True)
    primary = inspector.get_pk_constraint(found, table.schema)
    unique: list[tuple[str | None, list[Any]]] = [
        (primary["name"], primary["constrained_columns"]),
        *(
            (index["name"], index["column_names"])
            for index in indexes
            if index["unique"] and not any(option.endswith(_UNFIT) for option in index.get("dialect_options", {}))
        ),
    ]
    deferrable = _deferrable(conn, table)
    return any(sorted(columns, key=str) == sorted(key) for name, columns in unique if name not in deferrable)


def _deferrable(conn: Connection, table: sa.Table) -> set[str]:
    """Return the names of the constraints that are DEFERRABLE, which ON CONFLICT does not accept."""
    if conn.dialect.name != "postgresql":
        return set()
    query = sa.text("SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(:name) AND condeferrable")
    return set(conn.scalars(query, {"name": _quoted(conn, table)}))


def _quoted(conn: Connection, table: sa.Table) -> str:
    return without_placeholders(conn.dialect).identifier_preparer.format_table(table)


# Of unique indexes of columns and all rows, with their columns: of deterministic collations, the same texts are equal.
_OTHER_COLLATIONS = """
SELECT relname, array_agg(CAST(attname AS text)) FROM pg_catalog.pg_index JOIN pg_catalog.pg_class ON oid = indexrelid,
    unnest(CAST(indkey AS int2[])) WITH ORDINALITY AS part (number, place)
    JOIN pg_catalog.pg_attribute ON attnum = number
WHERE indrelid = to_regclass(:name) AND attrelid = indrelid AND indisunique AND place <= indnkeyatts
    AND indexprs IS NULL AND indpred IS NULL
GROUP BY relname HAVING bool_or(indcollation[place - 1] <> attcollation AND EXISTS (
    SELECT FROM pg_catalog.pg_collation AS used
    WHERE used.oid IN (indcollation[place - 1], attcollation) AND NOT collisdeterministic
))
"""


def _check_collations(conn: Connection, table: sa.Table, key: Sequence[str]) -> None:
    """Check that no unique index of the key takes other keys for equal than the columns do: by these, the newest record
    of a key in a batch is found.

    :raises TargetError: there is one
    """
    if conn.dialect.name != "postgresql":
        return
    for index, columns in conn.execute(sa.text(_OTHER_COLLATIONS), {"name": _quoted(conn, table)}):
        if sorted(columns) == sorted(key):
            raise TargetError(
                f"The unique index {index!r} of table {table.fullname!r} and the columns of upsert_key, "
                f"{quoted_names(key)}, have different collations, so that a key for one of them may be two for the "
                "other: give the columns the collation of the index, or drop the index"
            )
