"""The metadata of a table names files that are not its own: the load reads none of them, copies no row of theirs, and
removes none.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, write_manifest_list
from pyiceberg.table import CommitTableResponse, FileScanTask, Table
from pyiceberg.table.snapshots import MetadataLogEntry
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.typedef import Record
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeltaTable, IcebergTable, ParquetFiles
from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.exceptions import StagedFileError, TargetError
from airflow_kafka_offsets.sinks.delta.format import DeltaSnapshot
from airflow_kafka_offsets.sinks.iceberg import private
from airflow_kafka_offsets.sinks.iceberg.format import ConnectedIcebergTable
from airflow_kafka_offsets.sinks.iceberg.places import is_in_place
from airflow_kafka_offsets.sinks.iceberg.private import commit_once
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from tests.sinks.lake.test_zombies import ROWS, output, publish, staged
from tests.support.iceberg import iceberg_sink, open_table

SECRET = pa.table({"id": [5, 10**6], "_kafka_topic": ["SECRET", "SECRET"]})


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return sa.create_engine(f"sqlite:///{tmp_path}/positions.db", poolclass=sa.NullPool)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that the load may read, and who writes the metadata of the table may not."""
    path = tmp_path / "elsewhere" / "payroll.parquet"
    path.parent.mkdir()
    pq.write_table(SECRET, path)
    return path


def upserting(engine: Engine, tmp_path: Path) -> ConnectedIcebergTable:
    """Return a table with the rows of a batch."""
    table = iceberg_sink("sql", tmp_path, upsert_key=("id",)).connect(engine)
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    return table


def name_file(table: ConnectedIcebergTable, engine: Engine, address: str, **properties: str) -> None:
    """Have the metadata of a table name a file, without reading it."""
    native = open_table(table.sink, engine)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=1000,
    )
    file.spec_id = 0
    mapping = [{"field-id": field.field_id, "names": [field.name]} for field in native.schema().fields]
    with native.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(mapping), **properties})
        with change.update_snapshot().fast_append() as append:
            append.append_data_file(file)


def move(table: ConnectedIcebergTable, engine: Engine, location: str) -> None:
    """Have the metadata of a table say that it is somewhere else."""
    path = Path(open_table(table.sink, engine).metadata_location.removeprefix("file://"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"location": location}))


def upsert(table: ConnectedIcebergTable, tmp_path: Path) -> None:
    """Replace the rows of the first batch."""
    again = output(0, "b")._replace(batch_id=7, attempt="batch-7-b")
    publish(table, again, staged(table, again, tmp_path))


def copies(root: Path) -> list[Path]:
    """Return the files below a directory with rows of the secret one."""
    files = [path for path in root.rglob("*.parquet") if not path.is_symlink()]
    return [path for path in files if "SECRET" in pq.read_table(path)["_kafka_topic"].to_pylist()]


@pytest.mark.parametrize("way", ["elsewhere", "location", "link", "remote"])
def test_iceberg_copies_no_rows_from_elsewhere(
    engine: Engine, tmp_path: Path, secret: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = upserting(engine, tmp_path)
    root = open_table(table.sink, engine).location()
    address = f"file://{secret}"
    if way == "link":
        address = f"{root}/data/payroll.parquet"
        Path(address.removeprefix("file://")).symlink_to(secret)
    name_file(table, engine, address, **({"write.data.path": f"{root}/data"} if way == "location" else {}))
    problem = f"cannot be read: file {address} is not below file://.*, where the table"
    if way == "location":
        move(table, engine, f"file://{secret.parent}")
        problem = "has the manifest list file://.*, which is not below file://.*/elsewhere"
    if way == "remote":
        monkeypatch.setitem(table.properties, "warehouse", "s3://bucket/warehouse")
        problem = "has the place 'file://.*', which is on this machine, while its warehouse is not"

    with pytest.raises(TargetError, match=problem):
        upsert(table, tmp_path)
    assert copies(tmp_path / "lake") == []


def test_iceberg_appends_to_a_table_with_files_from_elsewhere(engine: Engine, tmp_path: Path, secret: Path) -> None:
    name_file(upserting(engine, tmp_path), engine, f"file://{secret}")
    table = iceberg_sink("sql", tmp_path).connect(engine)

    assert publish(table, output(1, "a"), staged(table, output(1, "a"), tmp_path)) == ROWS
    snapshot = table.snapshot()
    assert snapshot is not None
    with pytest.raises(TargetError, match="is not below"):
        list(snapshot.scan(["id"]))


def test_what_a_manifest_list_elsewhere_says_is_not_copied(engine: Engine, tmp_path: Path) -> None:
    table = upserting(engine, tmp_path)
    rows = staged(table, output(1, "a"), tmp_path)
    path = Path(open_table(table.sink, engine).metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    other = Path(metadata["snapshots"][-1]["manifest-list"].removeprefix("file://")).rename(tmp_path / "snap-1.avro")
    metadata["snapshots"][-1]["manifest-list"] = f"file://{other}"
    path.write_text(json.dumps(metadata))

    for use in (lambda: table.prepare(None), lambda: publish(table, output(1, "a"), rows)):
        with pytest.raises(
            TargetError, match=f"has the manifest list file://{other}, which is not below file://.*/orders"
        ):
            use()


def test_rows_of_a_manifest_elsewhere_are_not_copied(engine: Engine, tmp_path: Path) -> None:
    table = upserting(engine, tmp_path)
    native = open_table(table.sink, engine)
    snapshot = native.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(native.io)
    other = Path(manifest.manifest_path.removeprefix("file://")).rename(tmp_path / "victims-m0.avro")
    manifest[0] = f"file://{other}"
    file = native.io.new_output(snapshot.manifest_list)
    native.io.delete(file)
    with write_manifest_list(2, file, snapshot.snapshot_id, None, 1, "deflate") as written:
        written.add_manifests([manifest])

    with pytest.raises(
        TargetError, match=f"has the manifest file://{other}, which is not below file://.*/orders, where"
    ):
        upsert(table, tmp_path)


@pytest.mark.parametrize(
    ("kind", "reason"), [("puffin", "is no Parquet"), ("orc", "is no Parquet"), ("parquet", "has 40 deleted positions")]
)
def test_deleted_positions_take_bounded_memory(
    engine: Engine, tmp_path: Path, kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two files of twenty, neither of which is too large.
    monkeypatch.setattr(private, "_MOST_DELETED", 30)
    table = upserting(engine, tmp_path)
    found: Any = table.snapshot()
    (task,) = found.table.scan().plan_files()
    root = Path(task.file.file_path.removeprefix("file://")).parent
    deletes = set()
    for place in (root / f"first.{kind}", root / f"second.{kind}"):
        pq.write_table(pa.table({"file_path": [task.file.file_path] * 20, "pos": [7] * 20}), place)
        deletes.add(
            DataFile.from_args(
                content=DataFileContent.POSITION_DELETES,
                file_path=f"file://{place}",
                file_format=FileFormat(kind.upper()),
                partition=Record(),
                record_count=1,
                file_size_in_bytes=1000,
            )
        )
    monkeypatch.setattr(type(found.table.scan()), "plan_files", lambda self: [FileScanTask(task.file, deletes)])

    with pytest.raises(TargetError, match=reason):
        list(found.scan(["id"]))


@pytest.mark.parametrize("mark", ["#1", "?1"])
def test_a_staged_file_has_one_name(engine: Engine, tmp_path: Path, mark: str) -> None:
    table = upserting(engine, tmp_path)
    rows = staged(table, output(1, "a"), tmp_path)
    (file,) = rows.files
    other = replace(file, name=f"{file.name}{mark}", data=file.data.replace(".parquet", f".parquet{mark}"))
    twice = StagedRows(StagingDirectory(str(tmp_path)), Manifest(1, "", (file, other), (), (), None))

    with pytest.raises(StagedFileError, match=r"names files of table .* that are not its own"):
        publish(table, output(1, "a"), twice)


def test_a_moved_iceberg_table_removes_no_files_of_the_other_place(
    engine: Engine, tmp_path: Path, secret: Path
) -> None:
    table = upserting(engine, tmp_path)
    left = [secret.parent / "data" / attempt_name(each, 3) / "part.parquet" for each in ("other", "installation")]
    for path in left:
        path.parent.mkdir(parents=True)
        pq.write_table(SECRET, path)
        os.utime(path, (1, 1))
    move(table, engine, f"file://{secret.parent}")

    assert table.remove_leftovers(3, datetime.now(UTC), "installation") == 1
    assert [path.exists() for path in left] == [True, False]


@pytest.mark.parametrize("where", ["sql", "positions"])
def test_a_commit_deletes_no_earlier_metadata_elsewhere(engine: Engine, tmp_path: Path, where: str) -> None:
    table = iceberg_sink(where, tmp_path).connect(engine)

    def load(number: int) -> Path:
        rows = staged(table, output(number, "a"), tmp_path)
        with engine.begin() as conn, table.publish(conn, output(number, "a")) as target:
            target.write(rows)
        return Path(open_table(table.sink, engine).metadata_location.removeprefix("file://"))

    first, present = load(0), load(1)
    others = [tmp_path / "airflow.cfg", tmp_path / "00001-a.metadata.json", present.parent / "snap-1.avro"]
    others += [present.parent / "a.metadata.json.py", present.parent / "dag.py"]
    for path in others:
        path.write_text("{}")
    metadata = json.loads(present.read_text())
    metadata["properties"] |= {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "1",
    }
    named = [*others, present.parent / "../../../../00001-a.metadata.json", first]
    named += [Path(f"{others[-1]}{mark}.metadata.json") for mark in "#?"]
    metadata["metadata-log"] = [{"metadata-file": f"file://{path}", "timestamp-ms": 1} for path in named]
    present.write_text(json.dumps(metadata))

    load(2)

    assert [path.exists() for path in (*others, present, first)] == [True] * 6 + [False]


class Server(NoopCatalog):
    """A catalog of a server, which names metadata of others as that of a table."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        made = update_table_metadata(table.metadata, updates).model_copy(update={"metadata_log": []})
        return CommitTableResponse.model_validate({"metadata-location": table.metadata_location, "metadata": made})


def test_a_commit_to_a_server_deletes_no_metadata(engine: Engine, tmp_path: Path) -> None:
    table = open_table(upserting(engine, tmp_path).sink, engine)
    other = tmp_path / "00001-of-others.metadata.json"
    other.write_text("{}")
    entry = MetadataLogEntry.model_validate({"metadata-file": f"file://{other}", "timestamp-ms": 1})
    table.metadata = table.metadata.model_copy(update={"metadata_log": [entry]})
    table.metadata_location, table.catalog = f"file://{tmp_path}/00002.metadata.json", Server("server")
    transaction = table.transaction().set_properties({"write.metadata.delete-after-commit.enabled": "true"})

    commit_once(table, transaction, ())

    assert other.exists()


@pytest.mark.parametrize(
    ("place", "path", "is_in"),
    [
        ("s3://b/t", "s3://b/t/data/x.parquet", True),
        ("s3a://b/t/", "s3://b/t/x.parquet", True),
        ("s3://b/t", "s3n://b/t/x.parquet", True),
        ("s3://b", "s3://b/x.parquet", True),
        ("s3://b/t", "s3://b/t2/x.parquet", False),
        ("s3://b/t", "s3://b/t/../u/x.parquet", False),
        ("s3://b/t", "s3://c/t/x.parquet", False),
        ("s3://b/t", "file:///b/t/x.parquet", False),
        ("s3://b/t", "/b/t/x.parquet", False),
        ("s3://b/t", "gs://b/t/x.parquet", False),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t/x", True),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://d@a.dfs.core.windows.net/t/x", False),
        ("hdfs://n/t", "hdfs://n/t/x", True),
        ("hdfs://n/t", "hdfs://m/t/x", False),
        ("file:///t", "/t/x", True),
        ("/t", "file:/t/x", True),
        ("/t", "file:///t/../u/x", False),
        ("/t", "/t", True),
    ],
)
def test_a_file_is_in_its_place(place: str, path: str, is_in: bool) -> None:
    assert is_in_place(path, place, may_be_local=True) == is_in
    assert is_in_place(path, place, may_be_local=False) == (is_in and place.startswith(("s3", "abfss", "hdfs")))


@pytest.mark.parametrize("path", ["../../elsewhere/payroll.parquet", "%2e%2e/../elsewhere/payroll.parquet", "link"])
def test_delta_copies_no_rows_from_elsewhere(tmp_path: Path, secret: Path, path: str) -> None:
    table: LakeTable = DeltaTable(f"{tmp_path}/lake/orders").connect(sa.create_engine("sqlite://"))
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    log = tmp_path / "lake/orders/_delta_log" / f"{2:020}.json"
    add: dict[str, Any] = {"path": path, "partitionValues": {}, "size": 1000, "modificationTime": 0, "dataChange": True}
    log.write_text(json.dumps({"add": add}))
    if path == "link":
        (tmp_path / "lake/orders/link").symlink_to(secret)
    snapshot = table.snapshot()
    assert isinstance(snapshot, DeltaSnapshot)

    with pytest.raises(TargetError, match=r"cannot be read|nothing is read"):
        list(snapshot.scan(["id"]))
    assert publish(table, output(1, "a"), staged(table, output(1, "a"), tmp_path)) == ROWS


def test_parquet_files_are_no_links_to_elsewhere(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "1-0.parquet").symlink_to(secret)
    table = ParquetFiles(f"{tmp_path}/lake").connect(sa.create_engine("sqlite://"))
    with pytest.raises(TargetError, match=r"'1-0.parquet' leads out of .*/lake, by a link: nothing is read"):
        table.datasets()


@pytest.mark.parametrize("link", ["country=DE", "1-0.parquet", "_staging/batch-1-a"])
def test_parquet_files_of_another_table_are_neither_removed_nor_added(tmp_path: Path, link: str) -> None:
    ours, theirs = (
        ParquetFiles(f"{tmp_path}/lake/{name}").connect(sa.create_engine("sqlite://")) for name in ("ours", "theirs")
    )
    for number in (1, 2):
        publish(theirs, output(number, "b"), staged(theirs, output(number, "b"), tmp_path))
    before = sorted((tmp_path / "lake/theirs").rglob("*"))
    place = tmp_path / "lake/ours" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "lake/theirs" / ("1-0.parquet" if link.endswith(".parquet") else ""))

    with pytest.raises(TargetError, match="by a link: nothing is read or written there"):
        publish(ours, output(1, "a"), staged(ours, output(1, "a"), tmp_path))

    assert sorted((tmp_path / "lake/theirs").rglob("*")) == before


@pytest.mark.parametrize("kind", [DeltaTable, IcebergTable])
def test_files_of_an_attempt_are_written_nowhere_else(tmp_path: Path, engine: Engine, kind: type) -> None:
    sink = DeltaTable(f"{tmp_path}/orders") if kind is DeltaTable else iceberg_sink("sql", tmp_path)
    table: Any = sink.connect(engine)
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    (data,) = {path.parent.parent for path in tmp_path.rglob("*batch-0-a/*.parquet")}
    (tmp_path / "elsewhere").mkdir()
    (data / "batch-1-a").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(TargetError, match="by a link: nothing is read or written there"):
        staged(table, output(1, "a"), tmp_path)

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_files_of_an_iceberg_table_whose_data_is_a_link_are_written_nowhere(tmp_path: Path, engine: Engine) -> None:
    table: Any = iceberg_sink("sql", tmp_path).connect(engine)
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    (data,) = {path.parent.parent for path in tmp_path.rglob("*batch-0-a/*.parquet")}
    (tmp_path / "elsewhere").mkdir()
    data.rename(data.with_name("away"))
    data.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(TargetError, match="by a link: nothing is read or written there"):
        staged(table, output(1, "a"), tmp_path)

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_table_behind_a_link_is_read(tmp_path: Path) -> None:
    table: LakeTable = DeltaTable(f"{tmp_path}/lake/orders").connect(sa.create_engine("sqlite://"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "orders").symlink_to(tmp_path / "disk")
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    snapshot = table.snapshot()
    assert snapshot is not None
    assert sum(rows.num_rows for rows in snapshot.scan(["id"])) == ROWS
