"""What a Delta table is created with, what is written to its log, and which tables are refused."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.delta import format as delta_format
from airflow_kafka_offsets.sinks.delta.columns import measured, skipping_columns
from airflow_kafka_offsets.sinks.delta.format import remove_action
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.lake import publish_rows

NO_ENGINE: Any = None
AT = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int32(), [1, None, 3]),
    "number": (pa.float64(), [1.5, float("nan"), 2.5]),
    "amount": (pa.decimal128(38, 3), [Decimal("12345678901234567890.125"), None, Decimal("-0.001")]),
    "text": (pa.string(), ["z" * 40, "é/%: ", None]),
    "at": (pa.timestamp("us", "UTC"), [AT, None, AT]),
    "local": (pa.timestamp("us"), [AT.replace(tzinfo=None)] * 3),
    "day": (pa.date32(), [date(2024, 1, 2), None, date(1969, 12, 31)]),
    "flag": (pa.bool_(), [True, False, None]),
    "bytes": (pa.binary(), [b"\0\xff", None, b""]),
    "nested": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}]),
    "items": (pa.list_(pa.int64()), [[1, 2], [], None]),
}
ROWS = pa.RecordBatch.from_arrays(
    [pa.array(values, kind) for kind, values in VALUES.values()],
    schema=pa.schema([(n, k) for n, (k, _) in VALUES.items()]),
)


def test_delta_table_commits_externally() -> None:
    sink = DeltaTable("/lake/orders")
    assert sink.commits_externally
    assert (sink.name, DeltaTable("s3://b/c/").name) == ("delta+file:///lake/orders", "delta+s3://b/c")
    assert hash(sink) == hash(DeltaTable("/lake/orders"))


@pytest.mark.parametrize("partition_by", [(), ("text",), ("day", "flag"), ("whole", "at", "local")])
def test_values_are_read_back_as_they_were(uri: str, tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    publish_rows(DeltaTable(uri, partition_by=partition_by), ROWS, tmp_path)

    table = deltalake.DeltaTable(uri)
    assert list(table.metadata().partition_columns) == list(partition_by)
    found = pa.table(table.to_pyarrow_table()).select(ROWS.schema.names).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, ROWS.to_pylist()))
    snapshot = DeltaTable(uri).connect(NO_ENGINE).snapshot()
    assert snapshot is not None
    own = [row for rows in snapshot.scan(ROWS.schema.names) for row in rows.to_pylist()]
    assert sorted(map(repr, own)) == sorted(map(repr, ROWS.to_pylist()))


@pytest.mark.parametrize(
    ("text", "directory"),
    [("New York", "New York"), ("é/%: ", "é%2F%25%3A "), ("", "__HIVE_DEFAULT_PARTITION__"), ("long" * 100, None)],
    ids=["space", "special", "empty", "long"],
)
def test_partition_values_are_names_of_directories(uri: str, tmp_path: Path, text: str, directory: str | None) -> None:
    """Readers such as polars take the values from there; the log has the paths URL-encoded."""
    rows = pa.record_batch({"id": [1, 2], "text": [text, text]})
    publish_rows(DeltaTable(uri, partition_by=("text",)), rows, tmp_path)

    (path,) = (str(each.relative_to(uri)) for each in Path(uri).rglob("*.parquet"))
    assert path.split("/")[1:-1] == ([f"text={directory}"] if directory is not None else [])
    table = deltalake.DeltaTable(uri)
    (action,) = pa.table(table.get_add_actions()).to_pylist()
    assert (unquote(action["path"]), pa.table(table.to_pyarrow_table()).num_rows) == (path, 2)
    snapshot = DeltaTable(uri).connect(NO_ENGINE).snapshot()
    assert snapshot is not None
    table.create_write_transaction(
        [remove_action(file) for file in snapshot.files()], mode="append", schema=table.schema(), partition_by=["text"]
    )
    assert deltalake.DeltaTable(uri).file_uris() == []


def test_statistics_are_those_of_the_protocol(uri: str, tmp_path: Path) -> None:
    publish_rows(DeltaTable(uri), ROWS, tmp_path)

    (line,) = [line for line in Path(uri, "_delta_log", f"{1:020}.json").read_text().splitlines() if '"add"' in line]
    stats = json.loads(json.loads(line)["add"]["stats"], parse_float=Decimal)
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "whole": 1,
        "number": "-Infinity",
        "amount": Decimal("-0.001"),
        "text": "z" * 32,
        "at": "2024-05-06T07:08:09.123Z",
        "local": "2024-05-06T07:08:09.123",
        "day": "1969-12-31",
        "flag": False,
        "nested": {"a": 1, "b": "x"},
        "_batch_id": 1,
    }
    assert stats["maxValues"] == {
        "whole": 3,
        "number": "Infinity",
        "amount": Decimal("12345678901234567890.125"),
        "text": "é/%: ",
        "at": "2024-05-06T07:08:09.124Z",
        "local": "2024-05-06T07:08:09.124",
        "day": "2024-01-02",
        "flag": True,
        "nested": {"a": 3, "b": "x"},
        "_batch_id": 1,
    }
    assert stats["nullCount"]["nested"] == {"a": 1, "b": 2}
    assert {name: stats["nullCount"][name] for name in ("whole", "bytes", "items")} == dict.fromkeys(
        ("whole", "bytes", "items"), 1
    )


def test_columns_are_added_and_named_in_the_commit(uri: str, tmp_path: Path) -> None:
    first = ROWS.select(["whole", "text"])
    publish_rows(DeltaTable(uri), first, tmp_path)
    with pytest.raises(TargetError, match="no column 'local'"):
        publish_rows(DeltaTable(uri), ROWS.select(["whole", "local"]), tmp_path, 2)

    publish_rows(DeltaTable(uri), ROWS.select(["whole", "local"]), tmp_path, 2, may_grow=True)

    table = deltalake.DeltaTable(uri)
    assert pa.schema(table.schema().to_arrow()).names == ["whole", "text", "_batch_id", "local"]
    assert json.loads(table.history(1)[0]["userMetadata"])["kafka_offsets"]["columns"] == ["local"]
    rows = pa.table(table.to_pyarrow_table()).to_pylist()
    assert sum(row["local"] is None for row in rows) == 3
    assert len(rows) == 6


def test_files_are_split_by_size_and_sorted(uri: str, tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"id": list(range(2000, 0, -1)), "text": ["x" * 50] * 2000})
    publish_rows(DeltaTable(uri, sort_by=("id",), file_bytes=20_000), rows.slice(0, 1000), tmp_path)

    snapshot = DeltaTable(uri).connect(NO_ENGINE).snapshot()
    assert snapshot is not None
    for file in snapshot.files():
        ids = [number for part in snapshot.read(file, ["id"]) for number in part.column(0).to_pylist()]
        assert ids == sorted(ids)


def test_declared_columns_create_the_table_where_a_transform_hides_them(uri: str) -> None:
    output = Output(1, "g", (), "series", "batch-1-x")
    with pytest.raises(ConfigurationError, match=r'columns="id BIGINT, name STRING"'):
        DeltaTable(uri).connect(NO_ENGINE).writer(None, output)

    sink = DeltaTable(uri, columns="id BIGINT, name STRING")
    known = sink.connect(NO_ENGINE).prepare(None).known
    assert known == ("id", "name", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_batch_id")
    writer = sink.connect(NO_ENGINE).writer(None, output)
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32()), "other": ["x"]})
    with pytest.raises(TargetError, match="no column 'other'"):
        list(writer.write([rows], StagingDirectory(uri), {}, RefusedRows(StagingDirectory(uri))))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.enableDeletionVectors": "true"}, "deletion"),
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "forgets which batches"),
    ],
)
def test_tables_with_what_is_not_known_are_refused(uri: str, properties: dict[str, str], message: str) -> None:
    deltalake.DeltaTable.create(
        uri, deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())])), configuration=properties
    )
    with pytest.raises(TargetError, match=message):
        DeltaTable(uri).connect(NO_ENGINE).prepare(None)


def test_a_table_that_maps_columns_or_has_an_unknown_feature_is_refused(uri: str) -> None:
    deltalake.DeltaTable.create(uri, deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())])))
    log = Path(uri, "_delta_log", f"{0:020}.json")
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["columnMapping"]}
    protocol = {**features, "writerFeatures": ["columnMapping", "rowTracking"]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    changed = [{"protocol": protocol} if "protocol" in line else line for line in lines]
    log.write_text("\n".join(map(json.dumps, changed)))

    with pytest.raises(TargetError, match=r"feature 'columnMapping', which is not known here.*'rowTracking'"):
        DeltaTable(uri).connect(NO_ENGINE).prepare(None)


def test_rows_that_a_feature_hides_are_not_read(uri: str) -> None:
    # As of deletion vectors: the rows of files are not those of the table.
    features = ["deletionVectors"]
    with_protocol(uri, minReaderVersion=3, minWriterVersion=7, readerFeatures=features, writerFeatures=features)
    table: Any = DeltaTable(uri).connect(NO_ENGINE)
    message = "cannot be read: it has the feature 'deletionVectors', which is not known here. Drop the feature"
    with pytest.raises(TargetError, match=message):
        list(table.snapshot().scan(["_batch_id"]))
    with pytest.raises(TargetError, match=r"cannot be (read|written to): it has the feature 'deletionVectors'"):
        table.retire(Output(1, "g", (), "series", "batch-1-x"))


def with_protocol(uri: str, **protocol: Any) -> None:
    """Create a table of a protocol."""
    deltalake.DeltaTable.create(
        uri, deltalake.Schema.from_arrow(pa.schema([("whole", pa.int32()), ("_batch_id", pa.int64())]))
    )
    log = Path(uri, "_delta_log", f"{0:020}.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps({"protocol": protocol} if "protocol" in line else line) for line in lines))


def of_features(*names: str) -> dict[str, Any]:
    return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": names}


@pytest.mark.parametrize(
    "protocol",
    [
        *({"minReaderVersion": 1, "minWriterVersion": version} for version in range(1, 6)),
        of_features("appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"),
    ],
    ids=lambda protocol: str(protocol["minWriterVersion"]),
)
def test_a_table_of_a_known_protocol_is_written_to(uri: str, tmp_path: Path, protocol: dict[str, Any]) -> None:
    with_protocol(uri, **protocol)
    publish_rows(DeltaTable(uri), ROWS.select(["whole"]), tmp_path)
    assert pa.table(deltalake.DeltaTable(uri).to_pyarrow_table()).num_rows == 3


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ({"minReaderVersion": 2, "minWriterVersion": 6}, "it wants writers of version 6"),
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "it wants writers of version 8"),
        (of_features("identityColumns"), "it has the feature 'identityColumns'"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_protocol_that_delta_rs_cannot_write_is_refused_before_spark_starts_and_is_no_conflict(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: dict[str, Any], reason: str
) -> None:
    with_protocol(uri, **protocol)
    with pytest.raises(TargetError, match=f"cannot be written to: {reason}"):
        DeltaTable(uri).connect(NO_ENGINE).prepare(None)

    monkeypatch.setattr(delta_format, "unusable", lambda table: [])
    with pytest.raises(TargetError, match=r"cannot be written to: .*features.*\. Nothing was written"):
        publish_rows(DeltaTable(uri), ROWS.select(["whole"]), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri": "lake/orders"}, "absolute path or a URI"),
        ({"uri": "s3://key:secret@bucket/x"}, "must not hold credentials"),
        ({"partition_by": "day"}, "sequence of columns"),
        ({"partition_by": ("nothing",)}, "names nothing, which the rows do not hold"),
        ({"partition_by": ("number",)}, "floating, binary or nested"),
        ({"file_bytes": 0}, "must be positive"),
    ],
)
def test_wrong_parameters_are_named(uri: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        DeltaTable(**{"uri": uri, **options}).connect(NO_ENGINE).prepare(ROWS.schema)
    assert "secret" not in str(raised.value).replace("secret@bucket", "")


def test_readers_skip_files_by_origin_however_many_columns_there_are() -> None:
    columns = pa.schema([(f"c{number}", pa.int64()) for number in range(40)] + [("_batch_id", pa.int64())])
    chosen = skipping_columns(columns)
    assert chosen is not None
    assert (chosen.split(",")[0], len(chosen.split(","))) == ("`_batch_id`", 32)
    assert skipping_columns(columns.remove(39).remove(38)) is not None
    assert skipping_columns(pa.schema([columns.field(0)])) is None


def test_batches_may_have_small_numbers(uri: str, tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("_batch_id", pa.int32())])
    deltalake.DeltaTable.create(uri, deltalake.Schema.from_arrow(columns))
    publish_rows(DeltaTable(uri), pa.RecordBatch.from_pydict({"id": [1]}), tmp_path, 7)

    snapshot = DeltaTable(uri).connect(NO_ENGINE).snapshot()

    assert snapshot is not None
    assert [rows["_batch_id"].to_pylist() for rows in snapshot.scan(["_batch_id"], (7, 7))] == [[7]]
    assert list(snapshot.scan(["_batch_id"], (8, 8))) == []


def test_a_number_of_columns_that_is_none_is_refused() -> None:
    with pytest.raises(TargetError, match=r"delta\.dataSkippingNumIndexedCols is no number: 'all'"):
        measured({"delta.dataSkippingNumIndexedCols": "all"}, pa.schema([("id", pa.int64())]))
