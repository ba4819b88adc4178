"""A sink that loads into a table of a DuckDB file, which is another database than that of the positions.

One transaction of DuckDB writes the rows and the number of the batch, before the positions move. Where a process dies
between the two commits, the next attempt finds the number, and only moves the positions.
DAG files import this module: DuckDB and Arrow are imported where they are used.
"""
# ruff: noqa: S608 - names of tables are quoted

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseBusyError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.sink import Connections, Sink
from airflow_kafka_offsets.sinks.table import Dataset, Output, PublishedTarget, Table, Target
from airflow_kafka_offsets.sinks.target_rows import DuplicatedOffsets, Removed, RowCount, TargetRows

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import sqlalchemy as sa

    from airflow_kafka_offsets.sinks.target_rows import Batches, Detail, ReplacedOffsets
    from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns

_PLACE = "_batch_id, _kafka_topic, _kafka_partition, _kafka_offset"


@dataclass(frozen=True)
class DuckDBTable(Sink):
    """Append rows to a table of a DuckDB file; a missing one is created. All parameters are templated.
    The path is absolute. `conn_id` is the Airflow connection of the database that holds the positions."""

    template_fields: ClassVar[tuple[str, ...]] = ("path", "table", "conn_id")
    commits_externally = True

    path: str
    table: str
    conn_id: str | None = None

    @property
    def name(self) -> str:
        return f"duckdb://{self.path}/{self.table}"

    def connect(self, engine: sa.Engine, connections: Connections | None = None) -> ConnectedTable:
        return ConnectedTable(self)

    def uris(self, engine: sa.Engine) -> list[str]:
        return [quote(self.name, safe=":/")]

    @contextmanager
    def opened(self) -> Iterator[OpenTable]:
        """Open the file, and commit at the end of the block."""
        import duckdb

        # Not read-only anywhere: a process has a file open in one mode at a time, and may look while it publishes.
        try:
            with duckdb.connect(self.path) as file:
                file.begin()
                file.execute("""CREATE TABLE IF NOT EXISTS _kafka_publications
                    (target VARCHAR, series VARCHAR, number BIGINT, did VARCHAR, PRIMARY KEY (target, series))""")
                yield OpenTable(self, file)
                file.commit()
        except duckdb.TransactionException as error:
            raise DatabaseBusyError(f"Another writer of {self.name!r} was first: run the task again") from error
        except duckdb.Error as error:  # such as a lock of another process
            raise TargetError(f"{self.name!r} cannot be used: {error}. Nothing was written to it") from error


@dataclass
class OpenTable(Target):
    """The table in a transaction of its file; `publish` adds the connection of the positions."""

    sink: DuckDBTable
    file: duckdb.DuckDBPyConnection
    rows: int = 0
    gone: list[Removed] = field(default_factory=list)
    ledger: sa.Connection = field(init=False)

    @property
    def table(self) -> str:
        return '"' + self.sink.table.replace('"', '""') + '"'

    def columns(self) -> dict[str, str]:
        """Return names and types; nothing where there is no table."""
        query = """SELECT column_name, data_type FROM duckdb_columns() WHERE lower(table_name) = lower(?)
            AND schema_name = 'main' AND database_name = current_database()"""
        return dict(self.file.execute(query, [self.sink.table]).fetchall())

    def create(self, columns: pa.Schema) -> None:
        self.file.register("_columns", columns.empty_table())
        self.file.execute(f"CREATE TABLE IF NOT EXISTS {self.table} AS SELECT *, 0::BIGINT AS _batch_id FROM _columns")

    def delete(self, where: str, parameters: Sequence[Any]) -> list[Removed]:
        rows = f"FROM {self.table} WHERE {where}"
        counted = f"SELECT _batch_id, _kafka_topic, _kafka_partition, count(*) {rows} GROUP BY ALL ORDER BY ALL"
        found = self.file.execute(counted, parameters).fetchall()
        self.file.execute(f"DELETE {rows}", parameters)
        return [Removed(batch, TopicPartition(*place), count) for batch, *place, count in found]

    def last(self, output: Output) -> tuple[int, int, list[Removed]]:
        """Return the number of the last publication of a series, how many rows it wrote, and what it removed."""
        query = "SELECT number, did FROM _kafka_publications WHERE target = ? AND series = ?"
        found = self.file.execute(query, [self.sink.table, output.series]).fetchall()
        number, did = found[0] if found else (-1, "[0, []]")
        rows, removed = json.loads(did)
        return number, rows, [Removed(batch, TopicPartition(*tp), count) for batch, tp, count in removed]

    def take(self, output: Output) -> None:
        row = [self.sink.table, output.series, output.batch_id, json.dumps([self.rows, self.gone])]
        self.file.execute("INSERT OR REPLACE INTO _kafka_publications VALUES (?, ?, ?, ?)", row)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        if self.columns():
            self.file.register("_replaced", _arrow_table(self.ledger, replaced.ranges))
            where = f"""EXISTS (FROM _replaced WHERE _kafka_offset >= start_offset AND ({_PLACE}) =
                (batch_id, topic, partition, least(_kafka_offset, end_offset - 1)))"""
            if replaced.span is not None:
                where += " AND _kafka_timestamp >= ? AND _kafka_timestamp < coalesce(?, 'infinity'::TIMESTAMPTZ)"
            self.gone = self.delete(where, replaced.span or ())
        return self.gone

    def write(self, rows: StagedRows) -> int:
        schema, file = rows.schema(), self.file
        if schema is None:
            return 0
        self.create(schema)
        # With a transform, it is called again where a record that was refused had other rows, too.
        self.rows = 0
        file.execute(f"CREATE OR REPLACE TEMP TABLE _written AS FROM {self.table} LIMIT 0")
        # In the types of the table: a value that does not fit is refused.
        columns = file.table("_written").to_arrow_table().select([*schema.names, "_batch_id"]).schema
        for chunk in rows.chunks(columns):
            file.register("_chunk", chunk.rows)
            file.execute("INSERT INTO _written BY NAME FROM _chunk")
            self.rows += chunk.rows.num_rows
        return self.rows


@dataclass(frozen=True)
class ConnectedTable(Table):
    """The table of a DuckDB file. Each call opens the file and closes it, because only one process may write to it."""

    sink: DuckDBTable

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        from airflow_kafka_offsets.staging.rows import TargetColumns

        if not self.sink.path.startswith("/"):
            raise ConfigurationError(f"path must be absolute, not {self.sink.path!r}")
        with self.sink.opened() as opened:
            if columns is not None:
                opened.create(columns)
            known = tuple(opened.columns())
        # It adds no columns.
        lacking = {*_PLACE.split(", "), *(columns.names if columns is not None else ())}.difference(known)
        if known and lacking:
            raise TargetError(f"{self.sink.name!r} has no column {', '.join(sorted(lacking))}")
        return TargetColumns(self.sink.name, known or None)

    @contextmanager
    def publish(self, conn: sa.Connection, output: Output) -> Iterator[Target]:
        with self.sink.opened() as opened:
            number, rows, removed = opened.last(output)
            if number > output.batch_id:
                raise OlderLedgerError(f"{self.sink.name!r} has batch {number}, which is later than {output.batch_id}")
            if number == output.batch_id:
                yield PublishedTarget(rows, removed)
                return
            opened.ledger = conn
            yield opened
            if opened.rows:
                opened.file.execute(f"INSERT INTO {opened.table} BY NAME FROM _written")
            opened.take(output)

    def last_number(self, output: Output) -> int:
        with self.sink.opened() as opened:
            return opened.last(output)[0]

    def retire(self, output: Output) -> list[Removed]:
        with self.sink.opened() as opened:
            removed = opened.delete("_batch_id = ?", [output.batch_id]) if opened.columns() else []
            if opened.last(output)[0] <= output.batch_id:
                opened.take(output)
        return removed

    def rows(self, conn: sa.Connection) -> DuckDBRows:
        with self.sink.opened() as opened:
            if not opened.columns():
                return DuckDBRows(None, conn, False, "batches", f"There is no {self.sink.name}")
            query = f"SELECT {_PLACE} FROM {opened.table} WHERE _batch_id IS NOT NULL"
            return DuckDBRows(opened.file.sql(query).to_arrow_table(), conn)

    def datasets(self) -> list[Dataset]:
        with self.sink.opened() as opened:
            columns = list(opened.columns().items()) or None
            return [Dataset(f"duckdb://{self.sink.path}", f"main.{self.sink.table}", columns)]


@dataclass(frozen=True)
class DuckDBRows(TargetRows):
    """Where the rows are from, in memory: loads need not wait for the end of `verify`."""

    places: pa.Table | None
    ledger: sa.Connection
    exists: bool = True
    detail: Detail = "offsets"
    limit: str = ""

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        others = set(self.ledger.scalars(other_groups))
        count = "count(*), count(DISTINCT _kafka_offset), min(_kafka_offset), max(_kafka_offset)"
        query = f"SELECT _batch_id, _kafka_topic, _kafka_partition, {count} FROM _places GROUP BY ALL ORDER BY ALL"
        return ((batch, RowCount(*found)) for batch, *found in self._query(query) if batch not in others)

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        query = f"""SELECT topic, partition, batch_id, min(offset_value), count(DISTINCT offset_value) FROM _dead
            WHERE (batch_id, topic, partition, offset_value) IN (SELECT ({_PLACE}) FROM _places)
            GROUP BY ALL ORDER BY ALL"""
        return (DuplicatedOffsets(*row) for row in self._query(query, _dead=_arrow_table(self.ledger, dead_letters)))

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        query = """SELECT _kafka_offset FROM _places WHERE _kafka_topic = ? AND _kafka_partition = ?
            AND _kafka_offset >= ? AND _kafka_offset < ? AND list_contains(?, _batch_id) ORDER BY 1"""
        ids = sorted(of_batches.read_ids(self.ledger))
        return (row[0] for row in self._query(query, within.topic, within.partition, within.start, within.end, ids))

    def _query(self, query: str, *parameters: Any, **tables: pa.Table) -> list[tuple[Any, ...]]:
        import duckdb

        if self.places is None:
            return []
        with duckdb.connect() as memory:
            for name, table in {"_places": self.places, **tables}.items():
                memory.register(name, table)
            return memory.execute(query, parameters).fetchall()


def _arrow_table(ledger: sa.Connection, query: sa.Select[Any]) -> pa.Table:
    import pyarrow as pa

    names = query.selected_columns.keys()
    schema = pa.schema([(name, pa.string() if name == "topic" else pa.int64()) for name in names])
    return pa.Table.from_pylist([dict(row) for row in ledger.execute(query).mappings()], schema=schema)
