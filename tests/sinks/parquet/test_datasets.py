"""What readers see of a Parquet dataset: those of the manifests, those who list, and those who know Hive's
directories.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.exceptions import PermissionDeniedError
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from airflow_kafka_offsets import Limits, ParquetDataset, Staging, committed_files, read_committed
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.parquet.snapshot import manifest_path
from airflow_kafka_offsets.sinks.parquet.target import ParquetTarget
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.lake import NEXT, RUN, LakeGroup, dying, publish_rows
from tests.support.loads import Loader, TopicFactory, names
from tests.support.rewinds import Rewinder

engine = fixtures.sqlite_engine


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"{tmp_path}/lake/orders"


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, uri: str) -> LakeGroup:
    """A topic of six records, and nothing loaded."""
    name = topic()
    produce(kafka, name, names(0, 6))
    return LakeGroup(inline_loader, name, ParquetDataset(uri), lambda: pa.Table.from_batches(read_committed(uri)))


def marked(uri: str) -> list[int]:
    """The batches whose directories have the marker."""
    return sorted(int(path.parent.name.split("-")[1]) for path in Path(uri).glob("attempt=*/_SUCCESS"))


@pytest.mark.parametrize(
    ("partitions", "each", "files"),
    [(1, 640, 25), (2, 320, 26), (30, 40, 30), (60, 20, 30)],
)
def test_a_large_batch_has_larger_files_and_not_a_file_for_each_slice(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, uri: str, partitions: int, each: int, files: int
) -> None:
    name = topic(partitions)
    for partition in range(partitions):
        produce(kafka, name, names(partition * each, each), partition=partition)
    group = LakeGroup(inline_loader, name, ParquetDataset(uri), lambda: pa.Table.from_batches(read_committed(uri)))

    group.load(staging=Staging(slice_offsets=10))

    assert isinstance(group.loader.launcher, InlineLauncher)
    (job,) = group.loader.launcher.jobs
    assert (len(job.slices), len(committed_files(uri))) == (max(files, partitions), files)
    assert group.proved() == (partitions * each, 0)


def test_a_user_who_may_not_delete_goes_on(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionDeniedError("AccessDenied: s3:DeleteObject")

    group.load()
    monkeypatch.setattr(ObjectFiles, "remove", refused)

    assert group.replay({group.topic: {0: (0, 6)}}, NEXT, replace=True).rows == 6

    # The manifests are right, and the marker that stays is named.
    assert group.places() == [(2, offset) for offset in range(6)]
    assert group.proved() == (6, 0)
    assert "could not be set or removed: PermissionDeniedError: AccessDenied" in caplog.text
    with dying(ParquetTarget, "after"):
        group.replay({group.topic: {0: (0, 6)}}, replace=True)
    assert group.replay({group.topic: {0: (0, 6)}}, replace=True).rows == 6


@pytest.mark.parametrize("series", ["an installation." + "ä/+%" * 62, "i." + "x" * 250])
def test_the_name_of_a_group_may_be_long(uri: str, series: str) -> None:
    (name,) = {Path(manifest_path(series, number)).parent.name for number in (1, 2)}

    assert len(name) <= 160
    assert manifest_path(series, 1) != manifest_path(series + "y", 1)
    assert manifest_path("i.orders loader", 1).split("/")[1] == "i.orders%20loader"
    snapshot = ParquetDataset(uri).create(pa.schema([("id", pa.int64())]))
    assert snapshot.files.put_new(manifest_path(series, 7), b"{}")
    again = snapshot.refresh()
    assert (again.last_number(series), again.last_number(series + "y"), again.is_taken(series, 7)) == (7, -1, True)


def test_it_is_a_sink_that_commits_elsewhere() -> None:
    sink = ParquetDataset("/lake/orders")
    assert sink.commits_externally
    assert sink.writes_files
    assert (sink.name, ParquetDataset("s3://b/c").name) == ("parquet+file:///lake/orders", "parquet+s3://b/c")


def test_only_committed_files_are_listed_and_marked(group: LakeGroup, uri: str) -> None:
    group.load(limits=Limits(max_records=4))
    produce(group.loader.kafka, group.topic, names(6, 2))
    with dying(ParquetTarget, "before"):
        group.load(NEXT)

    files = committed_files(uri)
    assert len(files) == 2
    assert all(Path(file).is_file() for file in files)
    assert len(list(Path(uri).rglob("*.parquet"))) == 3
    assert (marked(uri), group.offsets()) == ([1, 2], [0, 1, 2, 3, 4, 5])


def test_the_marker_is_set_by_the_next_try_if_nobody_did(group: LakeGroup, uri: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetTarget, "_mark", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            group.load(RUN)
    assert (marked(uri), group.offsets()) == ([], [0, 1, 2, 3, 4, 5])

    group.load()

    assert marked(uri) == [1]


def test_the_marker_of_an_abandoned_batch_is_taken_away(group: LakeGroup, uri: str) -> None:
    with dying(ParquetTarget, "after"):
        group.load(RUN)
    assert marked(uri) == [1]
    abandon_batch("loader", 1, engine=group.loader.engine)

    group.load()

    assert (marked(uri), group.offsets()) == ([3], [0, 1, 2, 3, 4, 5])


def test_what_is_replaced_stays_for_readers_that_have_the_list(group: LakeGroup, uri: str) -> None:
    group.load(limits=Limits(max_records=3))
    before = committed_files(uri)
    Rewinder(group.loader)("to-offset", 3, replace=group.sink)

    assert (group.offsets(), marked(uri)) == ([0, 1, 2], [1])
    assert pa.table(dataset(before, format="parquet").to_table()).num_rows == 6
    with pytest.raises(TargetError, match="There is no ParquetDataset"):
        committed_files(f"{uri}-of-nobody")


def test_a_file_that_two_manifests_replace_is_named(group: LakeGroup, uri: str) -> None:
    group.load(limits=Limits(max_records=3))
    group.replay({group.topic: {0: (1, 2)}}, replace=True)
    (replacing,) = [
        path for path in Path(uri, "_manifests").rglob("*.json") if json.loads(path.read_text())["replaces"]
    ]
    (replacing.parent / f"{9:020}.json").write_text(replacing.read_text())

    with pytest.raises(TargetError, match="both replace attempt=batch-1-"):
        committed_files(uri)


@pytest.mark.server
def test_spark_and_arrow_read_the_partitions_of_hive(uri: str, tmp_path: Path, spark: SparkSession) -> None:
    values = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "country": pa.array(["a b/%é=", None, "x"]),
        "day": pa.array([date(2024, 1, 2)] * 3),
        "amount": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(5, 2)),
        "at": pa.array([datetime(2024, 1, 2, 3, 4, 5, 6, UTC)] * 3, pa.timestamp("us", "UTC")),
    }
    rows = pa.RecordBatch.from_pydict(values)
    sink = ParquetDataset(uri, partition_by=("country", "day", "amount", "at"))
    publish_rows(sink, rows, tmp_path)

    own = sorted((row for batch in read_committed(uri) for row in batch.to_pylist()), key=lambda row: row["id"])
    assert [{**row, "_batch_id": 1} for row in rows.to_pylist()] == own
    frame = spark.read.option("basePath", uri).parquet(*committed_files(uri))
    assert [tuple(row) for row in frame.orderBy("id").select("id", "country").collect()] == [
        (1, "a b/%é="),
        (2, None),
        (3, "x"),
    ]
    hive = dataset(committed_files(uri), format="parquet", partitioning="hive").to_table().sort_by("id")
    assert hive["country"].to_pylist() == ["a b/%é=", None, "x"]


def test_columns_are_added(uri: str, tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": [1], "name": ["x"]})
    publish_rows(ParquetDataset(uri), rows.select(["id"]), tmp_path)
    with pytest.raises(TargetError, match="no column 'name'"):
        publish_rows(ParquetDataset(uri), rows, tmp_path, 2)

    publish_rows(ParquetDataset(uri), rows, tmp_path, 2, may_grow=True)

    found = pa.Table.from_batches(read_committed(uri, ["_batch_id", "name"])).sort_by("_batch_id")
    assert found.to_pylist() == [{"_batch_id": 1, "name": None}, {"_batch_id": 2, "name": "x"}]
