"""Values that a column of a lake table refuses: their records become dead letters, or one fails the batch and is
named.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, DeltaTable, Json, Limits, Sql, replay
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import DataLossError, DeadLetterError, RecordError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.manifest import MANIFEST
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.verification.verify import verify
from airflow_kafka_offsets.writers import data_files
from airflow_kafka_offsets.writers.object_files import Nowhere
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.inline import InlineLauncher
from tests.support.lake import AGAIN, NEXT, RUN, LakeGroup, dying
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.memory_log import MemoryLog

NARROW = Json("id INT, amount DECIMAL(6,2)")
WIDE = Json("id BIGINT, amount DECIMAL(18,4)")

FIRST = [b'{"id": 0, "amount": 0.25}']
LARGE = [
    b'{"id": 1, "amount": 1.25}',
    b'{"id": 5000000000, "amount": 1}',  # beyond 32 bits
    b'{"id": 3, "amount": 12345.5}',  # beyond six digits
    b'{"id": 4, "amount": 0.1234}',  # more than two decimals
    b'{"id": null, "amount": 5.5}',
    b"nothing",
]
LOADED = [(1, 0), (2, 1), (2, 5)]


engine = fixtures.sqlite_engine


@pytest.fixture(params=["iceberg", "iceberg sql", "delta"])
def target(request: pytest.FixtureRequest, tmp_path: Path, engine: Engine) -> tuple[Sink, Callable[[], pa.Table]]:
    """A sink, and a reader of its table."""
    uri = f"{tmp_path}/lake/orders"
    if request.param == "delta":
        return DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    sink = iceberg_sink("sql" if "sql" in request.param else "positions", tmp_path)
    return sink, lambda: open_table(sink, engine).scan().to_arrow()


@pytest.fixture
def group(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, target: tuple[Sink, Callable[[], pa.Table]]
) -> LakeGroup:
    """A topic of which the first record is loaded into narrow columns, and the others are not loaded."""
    found = LakeGroup(inline_loader, topic(), *target)
    produce(kafka, found.topic, FIRST)
    found.load(RUN, value_format=NARROW)
    produce(kafka, found.topic, LARGE)
    return found


class DeadLetter(NamedTuple):
    offset: int
    value: bytes
    error_class: str
    error: str


def dead_letters(group: LakeGroup) -> list[DeadLetter]:
    query = "SELECT offset_value, value, error_class, error FROM dead_letters ORDER BY offset_value"
    return [DeadLetter(*row) for row in rows(group.loader.engine, query)]


def test_refused_values_are_dead_letters(group: LakeGroup) -> None:
    result = group.load(NEXT, value_format=WIDE)

    assert (result.records, result.rows, result.dead_letters) == (6, 2, 4)
    assert group.places() == LOADED
    assert group.proved() == (3, 4)
    found = dead_letters(group)
    assert [dead_letter[:3] for dead_letter in found] == [
        (2, LARGE[1], "target"),
        (3, LARGE[2], "target"),
        (4, LARGE[3], "target"),
        (6, LARGE[5], "value"),
    ]
    name = group.sink.name
    assert found[0].error == f"column 'id' of table {name!r}: a value of type BIGINT does not fit into INT"
    for dead_letter in found[1:3]:
        assert "column 'amount'" in dead_letter.error
        assert "a value of type DECIMAL(18,4) does not fit into DECIMAL(6,2)" in dead_letter.error
        assert "12345" not in dead_letter.error


@pytest.mark.parametrize(
    ("term", "ddl", "refused", "least"),
    [
        ("truncate(50, d)", "d DECIMAL(9,2)", ["-9999999.99", "-9999999.51"], "-9999999.50"),
        ("truncate(10, d)", "d BIGINT", [-(2**63), -(2**63) + 7], -(2**63) + 8),
        ("truncate(7, d)", "d INT", [-(2**31)], -(2**31) + 2),
    ],
)
def test_a_number_whose_partition_is_below_all_numbers_is_a_dead_letter(
    inline_loader: Loader,
    kafka: Kafka,
    topic: TopicFactory,
    tmp_path: Path,
    term: str,
    ddl: str,
    refused: list[Any],
    least: Any,
) -> None:
    name, sink = topic(), iceberg_sink("sql", tmp_path, partition_by=(term,))
    produce(kafka, name, [json.dumps({"d": value}).encode() for value in (*refused, least, 5, None)])

    result = inline_loader(name, sink=sink, value_format=Json(ddl), on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (3, len(refused))
    found = open_table(sink, inline_loader.engine).scan().to_arrow()["d"].to_pylist()
    assert {None if value is None else Decimal(value) for value in found} == {Decimal(least), Decimal(5), None}
    errors = rows(inline_loader.engine, "SELECT error FROM dead_letters")
    assert all(term.partition("(")[0] in error and "'d'" in error for (error,) in errors)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_records_of_too_many_partitions_are_dead_letters(
    inline_loader: Loader,
    kafka: Kafka,
    topic: TopicFactory,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_files, "_MOST_PARTITIONS", 3)
    monkeypatch.setattr(data_files, "_FEW", 1 if kind == "delta" else 64)
    name, place = topic(), f"{tmp_path}/lake/orders"
    iceberg = iceberg_sink("sql", tmp_path, partition_by=("k", "truncate(10, n)"))
    sink: Sink = iceberg if kind == "iceberg" else DeltaTable(place, partition_by=("k", "n"))
    values = [("a", 0), ("b", 0), ("a", 10), ("c", 0), (None, 0), ("a", 0), ("b", 10), ("b", 0)]
    produce(kafka, name, [json.dumps({"k": k, "n": n}).encode() for k, n in values])

    result = inline_loader(name, sink=sink, value_format=Json("k STRING, n INT"), on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (5, 3)
    found = (
        open_table(iceberg, inline_loader.engine).scan().to_arrow()
        if kind == "iceberg"
        else deltalake.DeltaTable(place).to_pyarrow_table()
    )
    assert sorted(found["_kafka_offset"].to_pylist()) == [0, 1, 2, 5, 7]
    errors = rows(inline_loader.engine, "SELECT error FROM dead_letters")
    assert all("more than 3 values of k, n" in error for (error,) in errors)


def test_rows_of_many_partitions_are_kept_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record batch of one row takes kilobytes beside its values."""
    kept, most = 0, 0
    keep, flush = data_files._Partition.keep, data_files._Partition.flush

    def counted(partition: Any, part: pa.RecordBatch) -> int:
        nonlocal kept, most
        kept += 1
        most = max(most, kept)
        return keep(partition, part)

    def flushed(partition: Any, stack: Any) -> Any:
        nonlocal kept
        kept -= len(partition.kept)
        return flush(partition, stack)

    monkeypatch.setattr(data_files._Partition, "keep", counted)
    monkeypatch.setattr(data_files._Partition, "flush", flushed)
    monkeypatch.setattr(data_files, "_KEPT_BYTES", 100_000)
    schema = pa.schema([("k", pa.int64()), *((f"c{i}", pa.string()) for i in range(8))])
    layout = data_files.FileLayout(schema, partition_by=[data_files.PartitionTerm("k", ("k",))])
    batch = pa.RecordBatch.from_pylist([{"k": k} for k in range(100)] * 2, schema)
    files = [*data_files.write_data_files(Nowhere(), [batch], layout, lambda values: f"k={values['k']}")]
    assert sum(file.rows for file in files) == 200
    assert most <= 10


def test_the_first_one_is_an_error_where_no_dead_letters_are_asked_for(group: LakeGroup) -> None:
    with pytest.raises(RecordError, match=r"column 'id' of table .*: a value of type BIGINT does not fit") as raised:
        group.load(NEXT, value_format=WIDE, on_bad_record="fail", limits=Limits(max_records=3))

    error = raised.value
    assert (error.topic, error.partition, error.offset) == (group.topic, 0, 2)
    assert (group.position(), group.places(), dead_letters(group)) == (1, [(1, 0)], [])
    group.load(NEXT, value_format=WIDE)  # the same batch, with another pipeline
    assert [offset for _, offset in group.places()] == [0, 1, 5]
    assert group.proved()[1] == 4


def test_refused_values_count_as_dead_letters(group: LakeGroup) -> None:
    with pytest.raises(DeadLetterError, match="at least 3 are refused by the target"):
        group.load(NEXT, value_format=WIDE, on_bad_record=DeadLetters(limit=3))

    assert (group.position(), group.places()) == (1, [(1, 0)])
    assert group.load(NEXT, value_format=WIDE, on_bad_record=DeadLetters(limit=4)).dead_letters == 4


class Deletes(InlineLauncher):
    """Has Kafka delete all records once they are staged."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        super().__init__()
        self._log, self._topic = log, topic

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        self._log.delete_records(self._topic, 0, 7)


def test_refused_row_of_an_expired_record_is_kept(group: LakeGroup, log: MemoryLog) -> None:
    launcher = Deletes(log, group.topic)
    replace(group, loader=Loader(log, group.loader.engine, launcher)).load(NEXT, value_format=WIDE)

    (first, *_) = dead_letters(group)
    assert json.loads(first.value) == {"id": 5000000000, "amount": "1.0000"}
    assert first.error.endswith("Kafka no longer has the record, and the value is what it was decoded to, as JSON")


def test_a_replay_that_replaces_refuses_the_same_records(group: LakeGroup) -> None:
    group.load(NEXT, value_format=WIDE)

    replayed = replay(
        group.loader.pipeline([group.topic], sink=group.sink, value_format=WIDE, on_bad_record=DeadLetters()),
        {group.topic: {0: (0, 7)}},
        kafka_config=group.loader.config,
        engine=group.loader.engine,
        launcher=group.loader.launcher,
        run=AGAIN,
        replace=True,
    )

    assert (replayed.rows, replayed.dead_letters) == (3, 4)
    assert group.proved() == (3, 4)


def test_their_dead_letters_are_replayed(group: LakeGroup) -> None:
    group.load(NEXT, value_format=WIDE)
    pipeline = group.loader.pipeline([group.topic], sink=group.sink, value_format=WIDE)
    corrected = {2: {Record(group.topic, 0, 3): b'{"id": 3, "amount": 12.5}', Record(group.topic, 0, 4): LARGE[3]}}

    (replayed,) = replay_dead_letters(
        DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected, who="ana@host"
    )

    assert (replayed.records, replayed.rows, replayed.still_bad) == (1, 1, 1)
    assert group.proved() == (4, 3)


def test_no_other_row_of_their_records_is_written(group: LakeGroup) -> None:
    twice = Sql(
        "SELECT unnest([id, id * 10]) AS id, amount, _kafka_topic, _kafka_partition, _kafka_offset, _kafka_timestamp "
        "FROM records"
    )
    produce(group.loader.kafka, group.topic, [b'{"id": 300000000, "amount": 1}'])  # ten times that is too large

    result = group.load(NEXT, value_format=WIDE, transform=twice)

    assert (result.rows, result.dead_letters) == (4, 5)
    assert sorted(group.read()["_kafka_offset"].to_pylist()) == [0, 1, 1, 5, 5]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_between_the_commits(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path, moment: str
) -> None:
    uri = f"{tmp_path}/lake/orders"
    found = LakeGroup(
        inline_loader, topic(), DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    )
    produce(kafka, found.topic, FIRST)
    found.load(RUN, value_format=NARROW)
    produce(kafka, found.topic, LARGE)
    with dying(LakeTarget, moment):
        found.load(NEXT, value_format=WIDE)

    found.load(replace(NEXT, try_number=2), value_format=WIDE)

    assert found.places() == LOADED
    assert found.proved() == (3, 4)


def test_refused_values_of_a_published_batch_are_not_lost(
    inline_loader: Loader, log: MemoryLog, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its staged files are lost, and its records expired: the rows are the only copy, and refused values have none."""
    uri = f"{tmp_path}/lake/orders"
    found = LakeGroup(
        inline_loader, topic(), DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    )
    produce(found.loader.kafka, found.topic, FIRST)
    found.load(RUN, value_format=NARROW)
    produce(found.loader.kafka, found.topic, LARGE[:5])
    with dying(LakeTarget, "after"):
        found.load(NEXT, value_format=WIDE)
    ((staged,),) = rows(
        found.loader.engine, "SELECT staging_uri FROM offset_batches WHERE publish_started_at IS NOT NULL"
    )
    (Path(staged) / MANIFEST).unlink()
    log.delete_records(found.topic, 0, 6)

    with pytest.raises(DataLossError):
        found.load(NEXT, value_format=WIDE)
    done = found.load(NEXT, value_format=WIDE, on_data_loss="skip")

    assert (done.records, done.rows, done.dead_letters) == (2, 2, 0)
    assert "3 dead letters cannot be had any more" in caplog.text
    assert (found.places(), found.position()) == (LOADED, 6)
    verify("loader", sink=found.sink, engine=found.loader.engine)


def test_a_null_in_a_required_column_is_a_dead_letter(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path
) -> None:
    uri = f"{tmp_path}/lake/orders"
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), *ORIGIN_COLUMNS, ("_batch_id", pa.int64())])
    deltalake.DeltaTable.create(uri, deltalake.Schema.from_arrow(columns))
    found = LakeGroup(
        inline_loader, topic(), DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    )
    produce(kafka, found.topic, [b'{"id": 1}', b'{"id": null}', b"{}"])

    found.load(RUN, value_format=Json("id BIGINT"))

    assert found.places() == [(1, 0)]
    assert found.proved() == (1, 2)
    assert {dead_letter.error.partition("': ")[2] for dead_letter in dead_letters(found)} == {
        f"column 'id' of table {found.sink.name!r}: it is NOT NULL, the BIGINT is null".partition("': ")[2]
    }


def test_a_batch_of_refused_values_only_moves_the_positions(group: LakeGroup, kafka: Kafka) -> None:
    group.load(NEXT, value_format=WIDE)
    produce(kafka, group.topic, LARGE[1:4])

    result = group.load(replace(NEXT, run_id="third"), value_format=WIDE)

    assert (result.rows, result.dead_letters, group.position()) == (0, 3, 10)
    assert group.places() == LOADED
    assert group.proved() == (3, 7)
