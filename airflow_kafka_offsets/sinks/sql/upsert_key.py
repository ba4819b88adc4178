"""What `upsert_key` needs: of the key, of the rows, and of the table. Checked before Spark starts, and again in the
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex

from airflow_kafka_offsets.core.origin import RECORD
from airflow_kafka_offsets.database.mysql import error_number, is_mysql
from airflow_kafka_offsets.database.tables import check_rights, without_placeholders
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.row_origin import check_names, quoted_names
from airflow_kafka_offsets.sinks.sql.column_types import add_column

# MySQL's error.
_NO_RIGHT_TO_DATABASE = 1044


def check_key(dialect: Dialect, key: Sequence[str], columns: pa.Schema | None) -> None:
    """Check that a key identifies rows, and that the rows say which of them is the newest.

    :param columns: the columns of the rows, or None where a transform decides them
    :raises ConfigurationError: the database is of another kind, or the key is no tuple of columns of the rows
    :raises TargetError: the transform drops the columns that say which row is newer
    """
    if dialect.name not in ("postgresql", "sqlite") and not is_mysql(dialect):
        raise ConfigurationError(
            "upsert_key works on PostgreSQL, SQLite, MySQL and MariaDB, and the sink's connection leads to "
            f"{dialect.name}. Append the rows, without upsert_key, and choose the newest of each key in a view"
        )
    check_names(key, columns)


def check_target(conn: Connection, table: sa.Table, key: Sequence[str]) -> None:
    """Check that rows of a table can be replaced by key.

    :raises TargetError: it lacks the columns that say which row is newer, or the key is not unique in it, or the user
        may not; names the statement that helps
    """
    if unknown := [name for name in key if name not in table.columns]:
        raise TargetError(
            f"Table {table.fullname!r} has no column {quoted_names(unknown)}, which upsert_key names: add it"
        )
    if lacking := [name for name in RECORD if name not in table.columns]:
        raise TargetError(
            f"Table {table.fullname!r} has no column {quoted_names(lacking)}: whether a row of it is newer than one "
            "with the same key could not be known. "
            f"{'; '.join(add_column(table, ORIGIN_COLUMNS.field(name), conn.dialect) for name in lacking)}; or append, "
            "without upsert_key"
        )
    if not _is_unique(conn, table, key):
        index = sa.Index(f"{table.name}_key", *(table.columns[name] for name in key), unique=True)
        statement = CreateIndex(index).compile(dialect=without_placeholders(conn.dialect))
        raise TargetError(
            f"Table {table.fullname!r} has no primary key and no unique index of exactly the columns of upsert_key, "
            f"{quoted_names(key)}: {statement}"
        )
    check_rights(conn, table, ("SELECT", "UPDATE"), "{lacking} in table {table!r}, as upsert_key needs")
    if is_mysql(conn.dialect):
        _check_temporary(conn)
    if conn.dialect.name != "postgresql":
        return
    if not conn.scalar(sa.select(sa.func.has_database_privilege(sa.func.current_database(), "TEMPORARY"))):
        url, preparer = conn.engine.url, without_placeholders(conn.dialect).identifier_preparer
        raise TargetError(
            f"User {url.username!r} may not make temporary tables in database {url.database!r}, as upsert_key needs; "
            f"GRANT TEMPORARY ON DATABASE {preparer.quote(url.database or '')} TO the user"
        )


def _check_temporary(conn: Connection) -> None:
    """Check that the user may create temporary tables.

    :raises TargetError: the user may not; names the statement that grants it
    """
    name = f"_upsert_{token_hex(8)}"
    try:
        conn.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} (id INT) ENGINE = InnoDB")
    except DBAPIError as error:
        if error_number(error.orig) != _NO_RIGHT_TO_DATABASE:
            raise
        url = conn.engine.url
        quoted = conn.dialect.identifier_preparer.quote(url.database or "")
        raise TargetError(
            f"User {url.username!r} may not make temporary tables in database {url.database!r}, as upsert_key needs; "
            f"GRANT CREATE TEMPORARY TABLES ON {quoted}.* TO the user"
        ) from None
    conn.exec_driver_sql(f"DROP TEMPORARY TABLE {name}")


def _is_unique(conn: Connection, table: sa.Table, key: Sequence[str]) -> bool:
    """Return whether the database accepts the key as a target of ON CONFLICT."""
    inspector = sa.inspect(conn)
    # SQLite's indexes of constraints are left out unless asked for.
    indexes = inspector.get_indexes(table.name, table.schema, include_auto_indexes=True)
    unique: list[list[str | None]] = [
        inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"],  # type: ignore[list-item]
        *(
            index["column_names"]
            for index in indexes
            if index["unique"] and not any(option.endswith("_where") for option in index.get("dialect_options", {}))
        ),
    ]
    return any(sorted(names, key=str) == sorted(key) for names in unique)
