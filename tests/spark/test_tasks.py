"""What runs in a Spark worker: the rows of slices, and the notes that reading them leaves."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import DeadLetterError, RecordError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json, Raw
from airflow_kafka_offsets.spark import tasks
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.progress import Display, Progress, SliceNotes
from airflow_kafka_offsets.spark.tasks import read_arrow, write_rows
from airflow_kafka_offsets.staging.dead_letters import dead_letters
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead
from airflow_kafka_offsets.staging.rows import TargetColumns, schema_text
from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction
from airflow_kafka_offsets.writers.lake_writer import LakeWriter
from tests.support.fake_consumer import FakeConsumer, Step, end_of_log
from tests.support.messages import FakeMessage

TEN = Slice(0, "orders", 3, 10, 20)


def job(tmp_path: Path, one: Slice = TEN, **changes: Any) -> StageJob:
    made = StageJob(
        batch_id=1,
        group_id="group",
        tasks=((one,),),
        kafka_config={},
        isolation_level="read_committed",
        record_format=Json("id BIGINT"),
        columns=row_columns(Json("id BIGINT")),
        transform=None,
        target=TargetColumns("orders", None),
        fingerprint="f00d",
        staging_uri=str(tmp_path),
    )
    return replace(made, **changes)


def rows_of(job: StageJob, script: Iterable[Step]) -> list[dict[str, Any]]:
    indexes = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    with pytest.MonkeyPatch.context() as patch:
        FakeConsumer(script).install(patch)
        batches = list(read_arrow(job, iter([indexes])))
    assert all(batch.schema == job.columns for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def note(job: StageJob, kind: str = "slice") -> SliceRead:
    notes = SliceNotes(StagingDirectory(job.staging_uri))
    ((index, read),) = (notes.progress(frozenset({0})) if kind == "progress" else notes.find().finished).items()
    assert index == 0
    return read


def good(first: int, end: int, **fields: Any) -> list[FakeMessage]:
    return [FakeMessage(offset, b'{"id": %d}' % offset, **fields) for offset in range(first, end)]


def test_a_slice_is_read_no_further_once_it_has_too_many_dead_letters(tmp_path: Path) -> None:
    def script() -> Iterator[Step]:
        yield [*good(10, 12), *(FakeMessage(offset, b"{") for offset in range(12, 14))]
        yield [FakeMessage(offset, b"{") for offset in range(14, 16)]
        raise AssertionError("it is read on")

    one = job(tmp_path, has_dead_letters=True, max_dead_letters=3)
    with pytest.raises(DeadLetterError, match=r"More than 3 records of orders\[3\] 10\.\.20 .* offset 14"):
        rows_of(one, script())
    (left,) = StagingDirectory(one.staging_uri).notes("failure-")
    assert left["error"] == "DeadLetterError"


def test_modules_are_left_out_of_the_garbage_collection_after_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (job(tmp_path / name) for name in ("one", "two"))
    read: list[int | None] = []
    monkeypatch.setattr(gc, "freeze", lambda: read.append(note(one).records))
    tasks._freeze_modules.cache_clear()
    for each in (one, two):
        Path(each.staging_uri).mkdir()
        rows_of(each, [good(10, 20)])
    # Once in a process, after the first slice, when all modules of a task are imported.
    assert read == [10]


class TestLargeRecords:
    SIZES = (2, 40, 10, 41, 30)

    def script(self, **fields: Any) -> list[Step]:
        large = [FakeMessage(10 + i, b"%d" % i + b" " * size, **fields) for i, size in enumerate(self.SIZES)]
        return [large, good(15, 20)]

    def test_too_large_record_fails_the_slice(self, tmp_path: Path) -> None:
        told = r"offset 11 cannot be loaded: it has 41 bytes, but Reading.max_record_bytes allows 31"
        with pytest.raises(RecordError, match=told):
            rows_of(job(tmp_path, record_format=Raw(), columns=row_columns(Raw()), max_record_bytes=31), self.script())

    def test_dead_letters_keep_nothing_of_them(self, tmp_path: Path) -> None:
        raw = {"record_format": Raw(), "columns": row_columns(Raw()), "has_dead_letters": True}
        one = job(tmp_path, **raw, max_record_bytes=31)

        found = [row["_kafka_offset"] for row in rows_of(one, self.script(name=b"", fields=[("h", b"")]))]

        assert found == [10, 12, *range(15, 20)]
        read = note(one)
        assert (read.records, read.dead_letters) == (10, 3)
        letters = [
            row
            for batch in dead_letters(StagingDirectory(one.staging_uri), Manifest(1, "", (), (read,)))
            for row in batch.to_pylist()
        ]
        assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in letters] == [
            (offset, None, None, None) for offset in (11, 13, 14)
        ]
        assert letters[2]["error"] == "it has 32 bytes, but Reading.max_record_bytes allows 31"

    @pytest.mark.parametrize("part", ["name", "headers"])
    def test_keys_and_headers_count(self, tmp_path: Path, part: str) -> None:
        fields: dict[str, Any] = (
            {"name": b"x" * 30} if part == "name" else {"fields": [("h" * 10, b"x" * 20), ("é", None)]}
        )
        one = job(
            tmp_path, record_format=Raw(headers=True), columns=row_columns(Raw(headers=True)), max_record_bytes=31
        )

        with pytest.raises(RecordError, match=r"offset 13 .* it has 32 bytes"):
            rows_of(one, [[FakeMessage(13, b"v" * (2 if part == "name" else 0), **fields)]])

    def test_a_slice_of_them_has_no_rows(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True, max_record_bytes=1)
        assert rows_of(one, [good(10, 20)]) == []
        assert note(one).dead_letters == 10


class TestTheNoteOfASlice:
    def test_slice_note_has_the_read_offsets(self, tmp_path: Path) -> None:
        one = job(tmp_path)
        script: list[Step] = [
            good(10, 12, timestamp_ms=2000, name=b"key"),
            [FakeMessage(12, None, timestamp_ms=1500)],
            good(13, 20, timestamp_ms=3000),
        ]
        assert [row["id"] for row in rows_of(one, script)] == [10, 11, None, *range(13, 20)]
        assert note(one) == SliceRead(
            0,
            "orders",
            3,
            10,
            20,
            records=10,
            first_timestamp_ms=1500,
            last_timestamp_ms=3000,
            bytes=9 * len(b'{"id": 10}') + 2 * len(b"key"),
        )

    def test_a_slice_without_a_record(self, tmp_path: Path) -> None:
        one = job(tmp_path)
        assert rows_of(one, [[end_of_log(20)]]) == []
        assert note(one) == SliceRead(0, "orders", 3, 10, 20, records=0)

    def test_only_a_slice_that_was_read_to_its_end_has_one(self, tmp_path: Path) -> None:
        one = job(tmp_path, progress_interval=0.0)
        with pytest.raises(RecordError):
            rows_of(one, [good(10, 13), [FakeMessage(13, b"{")]])
        assert not list(StagingDirectory(one.staging_uri).notes("slice-"))
        assert note(one, "progress").records == 3


class TestBadRecords:
    SCRIPT: Sequence[Step] = [
        [*good(10, 12), FakeMessage(12, b"{", b"k", 5, [("h", b"1")]), *good(13, 15)],
        [FakeMessage(15, b"["), FakeMessage(16, b"[")],
        good(17, 20),
    ]

    def test_the_first_one_fails_the_slice(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="topic 'orders' partition 3 offset 12"):
            rows_of(job(tmp_path), self.SCRIPT)

    def test_bad_records_become_dead_letters_if_configured(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True)
        assert [row["id"] for row in rows_of(one, self.SCRIPT)] == [10, 11, 13, 14, 17, 18, 19]
        read = note(one)
        assert (read.records, read.dead_letters) == (10, 3)
        letters = [
            letter
            for batch in dead_letters(StagingDirectory(one.staging_uri), Manifest(1, "f00d", (), (read,)))
            for letter in batch.to_pylist()
        ]
        assert [(letter["offset"], letter["key"], letter["headers"]) for letter in letters] == [
            (12, b"k", '[["h", "MQ=="]]'),
            (15, None, None),
            (16, None, None),
        ]

    def test_without_any_there_is_no_file(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True)
        rows_of(one, [good(10, 20)])
        assert (note(one).dead_letters, note(one).dead_letters_file) == (0, None)
        assert not list(tmp_path.glob("dead-*"))

    def test_a_slice_that_is_evaluated_twice_counts_once(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True)
        rows_of(one, self.SCRIPT)
        rows_of(one, self.SCRIPT)
        assert len(list(tmp_path.glob("dead-0-*"))) == 2
        assert note(one).dead_letters == 3
        file = note(one).dead_letters_file
        assert file is not None
        assert (tmp_path / file.name).exists()

    def test_progress_tells_how_many_there_are(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True, progress_interval=0.0)
        rows_of(one, self.SCRIPT)
        assert note(one, "progress").dead_letters == 3

    def test_the_log_line_tells_it_where_there_are_any(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one = job(tmp_path, has_dead_letters=True)
        progress = Progress(one, SliceNotes(StagingDirectory(one.staging_uri)), Display())
        rows_of(one, [good(10, 20)])
        progress.report()
        assert "dead" not in capsys.readouterr().out
        rows_of(one, self.SCRIPT)
        progress.report()
        assert "read 10 records of 10 planned (100%)" in (printed := capsys.readouterr().out)
        assert printed.rstrip().endswith(", 3 dead letters")

    def test_a_raw_record_is_never_bad(self, tmp_path: Path) -> None:
        one = job(tmp_path, has_dead_letters=True, record_format=Raw(), columns=row_columns(Raw()))
        assert [row["value"] for row in rows_of(one, self.SCRIPT)][2] == b"{"
        assert note(one).dead_letters == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "are_fail"),
        ({"has_dead_letters": True}, "are_kept"),
        ({"has_dead_letters": True, "transform": DataFrameFunction("shop.orders.clean")}, "are_spread"),
    ],
)
def test_rows_that_no_file_can_have_are_staged_unless_spark_may_have_spread_their_record(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    columns = row_columns(Json("id BIGINT"))
    table = pa.schema([pa.field("id", pa.int32()), *list(columns)[1:], ("_batch_id", pa.int64())])
    shape = {"uri": str(tmp_path / "lake"), "columns": schema_text(table)}
    writer = LakeWriter("delta", "orders", schema_text(columns), shape, batch_id=1, attempt="batch-1-x")
    rows = pa.RecordBatch.from_pylist(
        [
            {"id": number, "_kafka_topic": "orders", "_kafka_partition": 3, "_kafka_offset": offset}
            for offset, number in enumerate((1, 2**40, 2))
        ],
        schema=columns,
    )
    one = job(tmp_path, writer=writer, **changes)
    if said == "are_kept":
        final, staged = write_rows(one, [rows])
        assert (final.rows, final.is_final, staged.rows, staged.is_final) == (2, True, 1, False)
        return
    with pytest.raises(RecordError, match="does not fit into INT") as raised:
        list(write_rows(one, [rows]))
    assert raised.value.offset == 1
    assert ("a DataFrame transform may have made other rows of it" in str(raised.value)) == (said == "are_spread")
