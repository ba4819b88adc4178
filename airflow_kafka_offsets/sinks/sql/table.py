"""A table of the database that holds the positions: rows are written in the transaction that moves the positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.sinks.sink import Connections, DatabaseTable, Sink, check_upsert_key
from airflow_kafka_offsets.sinks.target_names import TargetNames

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.sql.connected_table import ConnectedSqlTable


@dataclass(frozen=True, slots=True)
class SqlTable(Sink):
    """Append rows to a table, or upsert them. Columns are matched by name; a missing table is created from the rows'
    columns.

    The number of rows of a batch is that of its rows in the table. If triggers or rules of the table drop rows, or
    write them elsewhere, it is lower than the number of rows sent, and a warning is logged.

    A created table on SQLite stores decimals of more than 15 digits as text, because SQLite's numbers would round them;
    a load refuses a decimal that a column would round.

    MariaDB and MySQL need PyMySQL and InnoDB tables. A created table has DATETIME(6) in UTC there, and compares texts
    case-sensitively.

    With `upsert_key`, on Postgres, SQLite, MariaDB and MySQL, a row is inserted, or replaces the one with the same key:
    the newest wins. Columns that the rows do not hold keep their values.

    * Within a partition, the highest offset is the newest: the row of a lower offset never replaces it, whichever group
      loads it, and however often. Topics are compared by name: after a topic was recreated, delete the rows of the
      earlier one.
    * If a key is in several partitions, the rows of one batch are compared by `_kafka_timestamp`, if the table has it,
      then by topic name, then by partition number, and the greatest wins; a later batch wins over an earlier one.
    * The number of rows of a batch is the number of rows that it inserted or replaced, not that of its records: several
      records with one key are one row, and a record older than the stored row is none.
    * The table needs the columns `_kafka_topic`, `_kafka_partition` and `_kafka_offset`, and a primary key or a unique
      index of exactly the key's columns; a created one has them. The user needs SELECT, INSERT and UPDATE, and
      temporary tables.
    * A record with a null in the key fails the batch, or becomes a dead letter. If the key is in the value, tombstones
      have a null key: leave them out in the transform.
    * `verify` proves positions and history, but not the rows: later batches replace those of earlier ones.

    :param table: the table's name (templated)
    :param schema: its schema; None is the connection's default (templated)
    :param conn_id: the Airflow connection of the database, which holds the positions too (templated)
    :param upsert_key: the columns that identify a row, for example `("id",)`; without them, all rows are appended
        (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("table", "schema", "conn_id", "upsert_key")

    table: str
    schema: str | None = None
    conn_id: str | None = None
    upsert_key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_upsert_key(self.upsert_key)

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its row."""
        return bool(self.upsert_key)

    @property
    def tables(self) -> tuple[DatabaseTable, ...]:
        return (DatabaseTable(self.table, self.schema, tuple(self.upsert_key)),)

    def qualified(self, conn: Connection, batches: sa.Table) -> SqlTable:
        """Return the table with the schema in which the session finds it, unless the state tables are there, too."""
        if self.schema or not isinstance(self.table, str):
            return self
        found = TargetNames(conn, batches).of_session(self.table)
        return replace(self, table=found.table, schema=found.schema)

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedSqlTable:
        """Return the table in a database."""
        from airflow_kafka_offsets.sinks.sql.connected_table import ConnectedSqlTable

        return ConnectedSqlTable(self, engine)

    def uris(self, engine: Engine) -> list[str]:
        """Return the URI of the table, as Airflow's providers of databases define it."""
        from airflow_kafka_offsets.sinks.sql.connected_table import asset_uri

        return [asset_uri(self.table, self.schema, engine)]
