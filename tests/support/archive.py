"""A sink that is no table: an archive of compressed rows."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, TIMESTAMP
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.sinks.sink import Connections, Sink
from airflow_kafka_offsets.sinks.table import Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import (
    Batches,
    Detail,
    DuplicatedOffsets,
    Removed,
    ReplacedOffsets,
    RowCount,
    TargetRows,
)
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns

Record = dict[str, Any]


@dataclass(frozen=True)
class ArchiveTable(Table):
    """An archive in its database."""

    sink: Archive
    engine: Engine

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        return self.sink.prepare(self.engine)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        self.sink.refuse_unknown_rows(conn, batches, output)

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        return self.sink.open(conn, output)

    def rows(self, conn: Connection) -> ArchivedRows:
        return self.sink.rows(conn)


@dataclass(frozen=True)
class Archive(Sink):
    """Keeps the rows of each batch as compressed JSON lines in a BLOB, which no query can look into."""

    archive: str
    conn_id: str | None = None
    refused: str = "refused"

    @property
    def name(self) -> str:
        return f"archive://{self.archive}"

    def connect(self, engine: Engine, connections: Connections | None = None) -> Table:
        return ArchiveTable(self, engine)

    @property
    def blobs(self) -> sa.Table:
        metadata = sa.MetaData()
        return sa.Table(self.archive, metadata, sa.Column("batch", sa.BigInteger), sa.Column("lines", sa.LargeBinary))

    def prepare(self, engine: Engine) -> TargetColumns:
        self.blobs.create(engine, checkfirst=True)
        return TargetColumns(self.name, None)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        batch_id = output.batch_id
        known = set(conn.scalars(sa.select(batches.c.batch_id))) - {batch_id}
        unknown = [batch for batch, _ in self.read(conn) if batch >= batch_id and batch not in known]
        if unknown:
            raise OlderLedgerError(
                f"{self.name} holds rows of batch {min(unknown)}, which the state tables do not know"
            )

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        return nullcontext(OpenArchive(self, conn))

    def rows(self, conn: Connection) -> ArchivedRows:
        return ArchivedRows(self, conn)

    def connection(self, engine: Engine) -> AbstractContextManager[Connection]:
        """Open the database that the archive is in."""
        return engine.begin()

    def put(self, conn: Connection, batch: int, records: list[Record]) -> None:
        lines = "\n".join(json.dumps(record, default=str) for record in records)
        blobs = self.blobs
        conn.execute(blobs.delete().where(blobs.c.batch == batch))
        if records:
            conn.execute(blobs.insert(), {"batch": batch, "lines": zlib.compress(lines.encode())})

    def read(self, conn: Connection) -> Iterator[tuple[int, list[Record]]]:
        for batch, lines in conn.execute(sa.select(self.blobs).order_by("batch")).all():
            yield batch, [json.loads(line) for line in zlib.decompress(lines).splitlines()]


@dataclass(frozen=True)
class OpenArchive(Target):
    """An archive in a transaction.

    :param ledger: a connection to the state tables, if it is another one
    """

    sink: Archive
    conn: Connection
    ledger: Connection | None = None

    def add_columns(self, columns: pa.Schema) -> list[str]:
        return []  # its lines have any columns

    def write(self, rows: StagedRows) -> int:
        schema = rows.schema()
        if schema is None:
            return 0
        columns = schema.append(pa.field(BATCH_ID, pa.int64()))
        records = []
        for chunk in rows.chunks(columns):
            for number, record in enumerate(chunk.rows.to_pylist()):
                if record["name"] == self.sink.refused:
                    chunk.refuse(number, "the archive takes no such name")
                else:
                    records.append(record)
        if records:
            batch = records[0][BATCH_ID]
            self.sink.put(self.conn, batch, [*dict(self.sink.read(self.conn)).get(batch, []), *records])
        return len(records)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        ledger = self.ledger or self.conn
        ranges = ledger.execute(replaced.ranges).all()
        wanted = replaced.batches.read_ids(ledger)
        assert {row.batch_id for row in ranges} >= wanted
        removed = []
        for batch, records in list(self.sink.read(self.conn)):
            kept, counts = [], Counter[TopicPartition]()
            for record in records:
                topic, partition, offset = (record[name] for name in RECORD)
                if (
                    batch in wanted
                    and _within(replaced.span, record[TIMESTAMP])
                    and any(
                        (row.batch_id, row.topic, row.partition) == (batch, topic, partition)
                        and row.start_offset <= offset < row.end_offset
                        for row in ranges
                    )
                ):
                    counts[TopicPartition(topic, partition)] += 1
                else:
                    kept.append(record)
            if counts:
                self.sink.put(self.conn, batch, kept)
            removed += [Removed(batch, tp, count) for tp, count in counts.items()]
        return removed


def _within(span: TimeSpan | None, timestamp: str) -> bool:
    at = datetime.fromisoformat(timestamp)
    return span is None or (span.since <= at and (span.until is None or at < span.until))


@dataclass(frozen=True)
class ArchivedRows:
    """The rows of an archive, read by unpacking it.

    :param ledger: a connection to the state tables, if it is another one
    """

    sink: Archive
    conn: Connection
    ledger: Connection | None = None

    @property
    def branches(self) -> Mapping[str, TargetRows]:
        return {}

    @property
    def exists(self) -> bool:
        return sa.inspect(self.conn).has_table(self.sink.archive)

    @property
    def detail(self) -> Detail:
        return "offsets" if self.exists else "batches"

    @property
    def limit(self) -> str:
        return "" if self.exists else f"There is no {self.sink.name}"

    def places(self) -> Iterator[tuple[int, TopicPartition, int]]:
        for batch, records in self.sink.read(self.conn) if self.exists else ():
            for record in records:
                yield batch, TopicPartition(record["_kafka_topic"], record["_kafka_partition"]), record["_kafka_offset"]

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        others = set((self.ledger or self.conn).scalars(other_groups))
        offsets: dict[tuple[int, TopicPartition], list[int]] = defaultdict(list)
        for batch, tp, offset in self.places():
            if batch not in others:
                offsets[batch, tp].append(offset)
        for (batch, tp), found in sorted(offsets.items()):
            yield batch, RowCount(*tp, len(found), len(set(found)), min(found), max(found))

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        rows = set(self.places())
        for batch, topic, partition, offset in (self.ledger or self.conn).execute(dead_letters):
            if (batch, TopicPartition(topic, partition), offset) in rows:
                yield DuplicatedOffsets(topic, partition, batch, offset, 1)

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        ids, wanted = of_batches.read_ids(self.ledger or self.conn), TopicPartition(within.topic, within.partition)
        yield from sorted(
            offset
            for batch, tp, offset in self.places()
            if batch in ids and of_batches.first <= batch <= of_batches.last and tp == wanted
            if within.start <= offset < within.end
        )


ARCHIVE = Archive("orders_archive")
