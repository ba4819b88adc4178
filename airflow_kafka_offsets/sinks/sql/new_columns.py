"""Columns that a commit adds to a table, because the records have fields for which it has none."""

from __future__ import annotations

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.database.tables import without_placeholders
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.sql.column_types import add_column, created_type, is_added

_TRANSACTIONAL_DDL = ("postgresql", "sqlite")


def grown(table: sa.Table, columns: pa.Schema) -> sa.Table:
    """Return the table as it is after the commit has added the columns that it lacks.

    :raises TargetError: it cannot have a column of such a type
    """
    copy = table.to_metadata(sa.MetaData())
    for field in lacking(table, columns):
        copy.append_column(sa.Column(field.name, created_type(field)))
    return copy


def check_growth(engine: Engine, table: sa.Table, columns: pa.Schema) -> None:
    """Check that the commit can add the columns that a table lacks.

    :raises ConfigurationError: the database has no transactions that add columns
    :raises TargetError: the user does not own the table, or it has a column of such a name but for the case
    """
    missing = lacking(table, columns)
    if not missing:
        return
    existing = {column.name.lower(): column.name for column in table.columns}
    if alike := [(existing[field.name.lower()], field.name) for field in missing if field.name.lower() in existing]:
        raise TargetError(
            f"Table {table.fullname!r} has a column {alike[0][0]!r}, and gets no column {alike[0][1]!r}, whose name "
            "differs in case only: rename the column, or the field by a transform"
        )
    if engine.dialect.name not in _TRANSACTIONAL_DDL:
        raise ConfigurationError(
            f"on_new_field='add' adds columns in the transaction of the commit, which {engine.dialect.name} cannot: "
            f"add {', '.join(repr(field.name) for field in missing)} to table {table.fullname!r} yourself"
        )
    if engine.dialect.name != "postgresql":
        return
    name = engine.dialect.identifier_preparer.format_table(table)
    owner = sa.text(
        "SELECT pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
    )
    with engine.connect() as conn:
        row = conn.execute(owner, {"name": name}).one()
    if not row[1]:
        statements = "; ".join(add_column(table, field, engine.dialect) for field in missing)
        raise TargetError(
            f"User {engine.url.username!r} may not add columns to table {table.fullname!r}, which {row[0]!r} owns: let "
            f"the owner execute {statements}"
        )


def add_columns(conn: Connection, table: sa.Table, columns: pa.Schema) -> list[str]:
    """Add the columns that a table lacks, nullable.

    On Postgres the table is locked until the end of the transaction: its readers wait.

    :return: their names
    """
    missing = lacking(table, columns)
    for field in missing:
        # A colon would begin a parameter.
        conn.execute(sa.text(add_column(table, field, conn.dialect).replace(":", r"\:")))
    return [field.name for field in missing]


def lock_table(conn: Connection, table: sa.Table) -> None:
    """Wait for other transactions that change a table, which may add the same columns."""
    if conn.dialect.name == "postgresql":
        name = without_placeholders(conn.dialect).identifier_preparer.format_table(table)
        conn.execute(sa.text(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE".replace(":", r"\:")))


def lacking(table: sa.Table, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table has not."""
    return [field for field in columns if field.name not in table.columns and not is_added(field.name)]
