"""A sink that is no table goes through load, retry, rewind, replay and verification by the members of `Sink` alone."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets import replay
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import (
    DoubleLoadError,
    ForeignBatchError,
    OlderLedgerError,
    RecordError,
    VerificationError,
)
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.sinks.sink import (
    Batches,
    Detail,
    DuplicatedOffsets,
    Removed,
    ReplacedOffsets,
    RowCount,
    Sink,
)
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.rows import Column, StagedRows, TargetColumns
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names, positions
from tests.support.rewinds import Rewinder

Record = dict[str, Any]


@dataclass(frozen=True)
class Archive:
    """Keeps the rows of each batch as compressed JSON lines in a BLOB, which no query can look into."""

    archive: str
    conn_id: str | None = None
    refused: str = "refused"

    @property
    def name(self) -> str:
        return f"archive://{self.archive}"

    @property
    def replaces_rows(self) -> bool:
        return False

    @property
    def blobs(self) -> sa.Table:
        metadata = sa.MetaData()
        return sa.Table(self.archive, metadata, sa.Column("batch", sa.BigInteger), sa.Column("lines", sa.LargeBinary))

    def prepare(self, engine: Engine, columns: pa.Schema | None) -> TargetColumns:
        self.blobs.create(engine, checkfirst=True)
        return TargetColumns(self.name, None)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        known = set(conn.scalars(sa.select(batches.c.batch_id))) - {batch_id}
        unknown = [batch for batch, _ in self.read(conn) if batch >= batch_id and batch not in known]
        if unknown:
            raise OlderLedgerError(
                f"{self.name} holds rows of batch {min(unknown)}, which the state tables do not know"
            )

    def write(self, conn: Connection, rows: StagedRows) -> int:
        schema = rows.schema()
        if schema is None:
            return 0
        columns = [Column(field.name, field.type) for field in (*schema, pa.field(BATCH_ID, pa.int64()))]
        records = [record for batch in rows.batches(columns) for record in batch.to_pylist()]
        for number, record in enumerate(records):
            if record["name"] == self.refused:
                raise rows.rejected(number, "the archive takes no such name")
        self.put(conn, records[0][BATCH_ID], records)
        return len(records)

    def remove(self, conn: Connection, replaced: ReplacedOffsets) -> list[Removed]:
        ranges = conn.execute(replaced.ranges).all()
        wanted = replaced.batches.read_ids(conn)
        assert {row.batch_id for row in ranges} >= wanted
        removed = []
        for batch, records in list(self.read(conn)):
            kept, counts = [], Counter[TopicPartition]()
            for record in records:
                topic, partition, offset = (record[name] for name in RECORD)
                if batch in wanted and any(
                    (row.batch_id, row.topic, row.partition) == (batch, topic, partition)
                    and row.start_offset <= offset < row.end_offset
                    for row in ranges
                ):
                    counts[TopicPartition(topic, partition)] += 1
                else:
                    kept.append(record)
            if counts:
                self.put(conn, batch, kept)
            removed += [Removed(batch, tp, count) for tp, count in counts.items()]
        return removed

    def rows(self, conn: Connection) -> ArchivedRows:
        return ArchivedRows(self, conn)

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
class ArchivedRows:
    """The rows of an archive, read by unpacking it."""

    sink: Archive
    conn: Connection

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
        others = set(self.conn.scalars(other_groups))
        offsets: dict[tuple[int, TopicPartition], list[int]] = defaultdict(list)
        for batch, tp, offset in self.places():
            if batch not in others:
                offsets[batch, tp].append(offset)
        for (batch, tp), found in sorted(offsets.items()):
            yield batch, RowCount(*tp, len(found), len(set(found)), min(found), max(found))

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        rows = set(self.places())
        for batch, topic, partition, offset in self.conn.execute(dead_letters):
            if (batch, TopicPartition(topic, partition), offset) in rows:
                yield DuplicatedOffsets(topic, partition, batch, offset, 1)

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        ids, wanted = of_batches.read_ids(self.conn), TopicPartition(within.topic, within.partition)
        yield from sorted(
            offset
            for batch, tp, offset in self.places()
            if batch in ids and of_batches.first <= batch <= of_batches.last and tp == wanted
            if within.start <= offset < within.end
        )


ARCHIVE = Archive("orders_archive")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory: the broker is not the point."""
    return log


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield engine
    engine.dispose()


def archived(engine: Engine) -> list[tuple[int, int]]:
    """Return batch and offset of every row, in order."""
    with engine.connect() as conn:
        return [(batch, offset) for batch, _, offset in ArchivedRows(ARCHIVE, conn).places()]


def proved(loader: Loader) -> tuple[int, int, int | None]:
    coverage = verify("loader", sink=ARCHIVE, engine=loader.engine, kafka_config=loader.config)
    return coverage.rows, coverage.dead_letters, coverage.reread


@pytest.fixture
def loaded(inline_loader: Loader, kafka: Kafka, topic: TopicFactory) -> str:
    """A topic of ten records, the fourth a dead letter, loaded in batches of four."""
    name = topic()
    produce(kafka, name, [*names(0, 3), b"{not json", *names(4, 6)])
    inline_loader(name, sink=ARCHIVE, max_records=4, on_bad_record="dead_letter")
    return name


def test_it_is_a_sink() -> None:
    assert isinstance(ARCHIVE, Sink)
    assert isinstance(SqlTable("orders"), Sink)
    assert not isinstance(object(), Sink)


def test_a_load_is_proved_and_carries_on(inline_loader: Loader, kafka: Kafka, loaded: str) -> None:
    assert proved(inline_loader) == (9, 1, 10)
    produce(kafka, loaded, names(10, 2))

    assert inline_loader(loaded, sink=ARCHIVE).rows == 2

    assert archived(inline_loader.engine) == [
        *((1, offset) for offset in (0, 1, 2)),
        *((2, offset) for offset in (4, 5, 6, 7)),
        *((3, offset) for offset in (8, 9)),
        *((4, offset) for offset in (10, 11)),
    ]
    assert proved(inline_loader) == (11, 1, 12)


def test_a_refused_record_leaves_nothing_and_a_retry_loads_the_rest_once(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory
) -> None:
    name, run = topic(), TaskRun("run")
    produce(kafka, name, [*names(0, 5), json.dumps({"id": 5, "name": "refused"}).encode()])

    with pytest.raises(RecordError, match="the archive takes no such name") as raised:
        inline_loader(name, sink=ARCHIVE, max_records=3, run=run)
    assert raised.value.offset == 5
    assert archived(inline_loader.engine) == [(1, 0), (1, 1), (1, 2)]
    assert positions(inline_loader.engine) == {(name, 0): 3}

    sink = replace(ARCHIVE, refused="")
    assert inline_loader(name, sink=sink, max_records=3, run=run).rows == 3
    assert archived(inline_loader.engine) == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    assert proved(inline_loader) == (6, 0, 6)


def test_a_rewind_takes_back_rows_and_dead_letters(inline_loader: Loader, loaded: str) -> None:
    done = Rewinder(inline_loader)("to-offset", 2, replace=ARCHIVE)

    assert (done.rows_removed, done.dead_letters_removed) == (7, 1)
    assert archived(inline_loader.engine) == [(1, 0), (1, 1)]
    assert proved(inline_loader) == (2, 0, 2)
    inline_loader(loaded, sink=ARCHIVE, on_bad_record="dead_letter")
    assert [offset for _, offset in archived(inline_loader.engine)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert proved(inline_loader) == (9, 1, 10)


def test_a_replay_replaces_rows_in_one_transaction(inline_loader: Loader, loaded: str) -> None:
    def replay_range(**options: Any) -> int:
        return replay(
            inline_loader.pipeline([loaded], sink=ARCHIVE, on_bad_record="dead_letter"),
            {loaded: {0: (2, 6)}},
            kafka_config=inline_loader.config,
            engine=inline_loader.engine,
            launcher=inline_loader.launcher,
            **options,
        ).rows

    with pytest.raises(DoubleLoadError, match="would put records there a second time"):
        replay_range()

    assert replay_range(replace=True) == 3
    assert [offset for batch, offset in archived(inline_loader.engine) if batch > 3] == [2, 4, 5]
    assert sorted(offset for _, offset in archived(inline_loader.engine)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert proved(inline_loader) == (9, 1, 10)


def test_what_is_missing_duplicated_or_unknown_is_found(inline_loader: Loader, loaded: str) -> None:
    with inline_loader.engine.begin() as conn:
        batches = dict(ARCHIVE.read(conn))
        ARCHIVE.put(conn, 1, batches[1][:2])
        ARCHIVE.put(conn, 2, [*batches[2][:3], batches[2][0]])
        ARCHIVE.put(conn, 7, [batches[3][0] | {"_batch_id": 7}])

    with pytest.raises(VerificationError) as raised:
        proved(inline_loader)

    places = [(violation.batch_id, violation.offset) for violation in raised.value.violations]
    assert places == [(1, 0), (2, 4), (7, 8)]
    produce(inline_loader.kafka, loaded, names(10, 1))
    with pytest.raises(OlderLedgerError, match="rows of batch 7"):
        inline_loader(loaded, sink=ARCHIVE)


def test_a_row_of_a_dead_letter_is_found(inline_loader: Loader, loaded: str) -> None:
    with inline_loader.engine.begin() as conn:
        records = dict(ARCHIVE.read(conn))[1]
        ARCHIVE.put(conn, 1, [*records[:2], records[2] | {"_kafka_offset": 3}])

    with pytest.raises(VerificationError, match="offset 3 was loaded twice"):
        proved(inline_loader)


def test_what_only_kafka_shows_is_found(inline_loader: Loader, loaded: str) -> None:
    with inline_loader.engine.begin() as conn:
        ARCHIVE.put(conn, 3, dict(ARCHIVE.read(conn))[3][:1])
        conn.execute(sa.text("UPDATE offset_ranges SET records = 1 WHERE batch_id = 3"))
        conn.execute(sa.text("UPDATE offset_batches SET records = 1, row_count = 1 WHERE batch_id = 3"))

    with pytest.raises(VerificationError, match="the record at offset 9, which was loaded by batch 3, is neither"):
        proved(inline_loader)


@pytest.mark.parametrize("other", [SqlTable("target"), Archive("elsewhere")], ids=lambda sink: sink.name)
def test_another_target_is_never_taken_for_the_renamed_archive(inline_loader: Loader, loaded: str, other: Sink) -> None:
    produce(inline_loader.kafka, loaded, names(10, 1))

    with pytest.raises(ForeignBatchError, match="loads into table 'archive://orders_archive'"):
        inline_loader(loaded, sink=other)


def test_an_archive_is_never_taken_for_a_renamed_table(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 2))
    inline_loader(name)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    produce(kafka, name, names(2, 1))
    with pytest.raises(ForeignBatchError, match="loads into table 'target'"):
        inline_loader(name, sink=ARCHIVE)


def test_an_archive_that_is_gone_is_named(inline_loader: Loader, loaded: str) -> None:
    with inline_loader.engine.begin() as conn:
        ARCHIVE.blobs.drop(conn)

    with pytest.raises(VerificationError, match="has no table 'archive://orders_archive'"):
        verify("loader", sink=ARCHIVE, engine=inline_loader.engine)
