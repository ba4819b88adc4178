"""What others do to a lake table, and to the manifests of batches: nothing is lost, doubled or believed for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Transaction
from pyiceberg.types import LongType

from airflow_kafka_offsets import DeltaTable, ParquetFiles
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagedFileError, TargetError
from airflow_kafka_offsets.sinks.delta.format import DeltaSnapshot
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake import attempts
from airflow_kafka_offsets.sinks.lake.snapshot import KnownRollbacks
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows
from tests.sinks.lake.test_foreign_changes import clean_log, expire
from tests.sinks.lake.test_zombies import COLUMNS, NO_DATABASE, ROWS, offsets, output, publish, staged
from tests.support.iceberg import iceberg_sink
from tests.support.json_nodes import changed, nodes

BATCH = [ROWS + offset for offset in range(ROWS)]
ICEBERG, DELTA = (pytest.mark.parametrize("kind", [kind]) for kind in ("iceberg", "delta"))


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(kind: str, tmp_path: Path) -> LakeTable:
    return connect(kind, tmp_path)


def connect(kind: str, directory: Path, **options: Any) -> LakeTable:
    engine = sa.create_engine(f"sqlite:///{directory}/positions.db", poolclass=sa.NullPool)
    if kind == "iceberg":
        return iceberg_sink("sql", directory, **options).connect(engine)
    return DeltaTable(f"{directory}/lake/orders", **options).connect(engine)


def native(table: LakeTable) -> Any:
    """Return the table as its library has it."""
    snapshot: Any = table.snapshot()
    return snapshot.table


def delete(table: LakeTable, condition: str) -> None:
    """Delete rows, as any other program does."""
    native(table).delete(condition)


def test_files_whose_names_are_encoded_in_the_log_are_removed(tmp_path: Path) -> None:
    """Spark and delta-rs write Hive's directories, whose spaces and percent signs the log of Delta encodes."""
    table = connect("delta", tmp_path, partition_by=("_kafka_topic",))
    for batch_id in (1, 2):
        of = output(batch_id, "a")
        rows = staged(table, of, tmp_path, topic="New York é%/:")
        publish(table, of, rows)
    native(table).optimize.compact()

    assert [part.rows for part in table.retire(output(2, "")._replace(ranges=()))] == []
    ranges = tuple(replace(each, topic="New York é%/:") for each in output(2, "").ranges)
    assert [part.rows for part in table.retire(output(2, "")._replace(ranges=ranges))] == [ROWS]

    assert offsets(table) == BATCH
    read = pa.table(deltalake.DeltaTable(f"{tmp_path}/lake/orders").to_pyarrow_table())
    assert sorted(read["_kafka_offset"].to_pylist()) == BATCH


def drop_and_add(table: Any) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")
    with table.update_schema() as update:
        update.add_column("id", LongType())


def partition(table: Any) -> None:
    with table.update_spec() as update:
        update.add_identity("_kafka_partition")


@ICEBERG
@pytest.mark.parametrize("change", [drop_and_add, partition])
def test_files_of_earlier_columns_or_partitions_are_staged_again(
    table: LakeTable, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    """Such a change makes no snapshot, which a commit would be based on."""
    of = output(1, "a")
    rows = staged(table, of, tmp_path)

    def change_meanwhile() -> None:
        with table.publish(NO_DATABASE, of) as target:
            target.write(rows)
            change(native(table))

    with pytest.raises(StagedFileError, match="other columns or partitions"):
        change_meanwhile()

    assert offsets(table) == []


@ICEBERG
def test_an_error_before_a_commit_is_sent_is_not_an_unknown_outcome(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = output(1, "a")
    rows = staged(table, of, tmp_path)

    def fail(*_: Any) -> None:
        raise ValueError("Cannot write manifest")

    monkeypatch.setattr(Transaction, "update_snapshot", fail)
    with pytest.raises(TargetError, match=r"cannot be written to: Cannot write manifest\. Nothing was written"):
        publish(table, of, rows)


@DELTA
def test_a_commit_without_an_operation_is_passed_over(table: LakeTable, tmp_path: Path) -> None:
    of = output(1, "a")
    publish(table, of, staged(table, of, tmp_path))
    log = tmp_path / "lake/orders/_delta_log"
    Path(log, f"{native(table).version() + 1:020}.json").write_text(json.dumps({"commitInfo": {"engine": "foreign"}}))

    snapshot = table.snapshot()

    assert snapshot is not None
    snapshot.check_history("loader", KnownRollbacks(None))


@DELTA
def test_a_table_that_spark_converted_is_loaded(table: LakeTable, tmp_path: Path) -> None:
    """Its first commit has no version before it, which Spark writes as -1."""
    table.prepare(COLUMNS)
    first = tmp_path / "lake/orders/_delta_log/00000000000000000000.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"] |= {"operation": "CONVERT", "readVersion": -1}
    first.write_text("\n".join(map(json.dumps, actions)))

    for number, group in ((1, "a"), (2, "b")):
        of = output(number, group)
        snapshot = table.snapshot()
        assert snapshot is not None
        snapshot.check_history(group, KnownRollbacks(None))
        publish(table, of, staged(table, of, tmp_path))
    assert native(table).version() == 2


@DELTA
@pytest.mark.parametrize("is_after", [True, False])
def test_a_restore_to_a_time_after_the_last_load_loses_nothing(
    table: LakeTable, tmp_path: Path, is_after: bool
) -> None:
    of = output(1, "a")
    table.prepare(COLUMNS)
    before = native(table).history(1)[0]["timestamp"]
    publish(table, of, staged(table, of, tmp_path))
    found = native(table)
    version, last = found.version(), found.history(1)[0]["timestamp"]
    found.delete("_kafka_offset = 40")
    entry = {"timestamp": last + 5, "operation": "RESTORE", "operationParameters": {"version": None}}
    entry["operationParameters"] |= {"timestamp": last + 1 if is_after else before - 1000}
    path = tmp_path / f"lake/orders/_delta_log/{version + 2:020}.json"
    path.write_text(json.dumps({"commitInfo": entry}))

    snapshot = table.snapshot()
    assert snapshot is not None
    if is_after:
        snapshot.check_history("loader", KnownRollbacks(None))
    else:
        with pytest.raises(TargetError, match="was restored to a version before"):
            snapshot.check_history("loader", KnownRollbacks(None))


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_batch_that_was_published_and_is_gone_moves_no_position(
    kind: str, table: LakeTable, tmp_path: Path, is_forgotten: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody set the table back, and expired the history that would tell."""
    of = output(1, "a")
    rows = staged(table, of, tmp_path)
    publish(table, of, rows)
    assert publish(table, of, rows) == ROWS

    delete(table, "_batch_id = 1")
    if is_forgotten:
        (clean_log if kind == "delta" else expire)(native(table))

    with pytest.raises(TargetError, match=r"was rolled back: batch 1 of group 'loader' .* with 40 rows, and none"):
        publish(table, of, rows)
    is_counted = kind == "delta" and is_forgotten
    assert ("does not name batch 1 any more: its rows are counted" in caplog.text) == is_counted


def test_a_table_that_is_set_back_in_the_moment_of_a_commit_is_noticed(
    kind: str, table: LakeTable, tmp_path: Path
) -> None:
    first, second = output(1, "a"), output(2, "a")
    rows = {of: staged(table, of, tmp_path) for of in (first, second)}
    if kind == "iceberg":
        native(table).append(native(table).scan().to_arrow())  # a snapshot to go back to
    publish(table, first, rows[first])

    def publish_late() -> None:
        with table.publish(NO_DATABASE, second) as target:
            target.write(rows[second])
            found = native(table)
            if kind == "delta":
                found.restore(found.version() - 1)
            else:
                found.manage_snapshots().set_current_snapshot(found.snapshots()[0].snapshot_id).commit()

    with pytest.raises(TargetError, match=r"was restored to a version before|was rolled back, or replaced"):
        publish_late()


def test_a_writer_that_commits_without_a_pause_is_outlasted(
    kind: str, table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = output(1, "a")
    rows = staged(table, of, tmp_path)
    snapshots: Any = {"delta": DeltaSnapshot, "iceberg": IcebergSnapshot}[kind]
    commit, overtaken = snapshots.commit, list[int]()

    def overtake(snapshot: Any, change: Any) -> bool:
        if len(overtaken) < 60:
            overtaken.append(1)
            return False
        return bool(commit(snapshot, change))

    monkeypatch.setattr(snapshots, "commit", overtake)
    monkeypatch.setattr(attempts, "_LONGEST_PAUSE_SECONDS", 0.0)

    assert publish(table, of, rows) == ROWS
    assert table.last_number(of) == of.batch_id


@pytest.fixture(scope="module", params=["delta", "iceberg", "parquet"])
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, StagedRows]:
    """A table, and the files of attempt `a` of batch 2."""
    directory = tmp_path_factory.mktemp(request.param)
    table: Any
    if request.param == "parquet":
        table = ParquetFiles(f"{directory}/lake").connect(sa.create_engine("sqlite://", poolclass=sa.NullPool))
    else:
        table = connect(request.param, directory)
    return table, staged(table, output(2, "a"), directory)


def commit_forged(table: Any, number: int, *files: StagedFile) -> None:
    """Commit a manifest as batch 2, or under another number: an earlier example may be committed."""
    forged = Manifest(2, "", files, (), ())
    publish(table, output(2, "a")._replace(batch_id=number), StagedRows(StagingDirectory("/nowhere"), forged))


PLACES = st.sampled_from(["{}x", "/etc/passwd", "", "../{}", "s3://other/{}"])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_forged_manifest_commits_nothing(honest: tuple[Any, StagedRows], data: Any) -> None:
    table, rows = honest
    (file,) = rows.files
    plain = json.loads(file.data)
    entry = plain.get("add", plain)
    places = [file.name.replace("-2-a/", f"-2-a{part}") for part in ("/../x/", "//", "/./")]
    places.append(file.name.replace("batch-2-a", "batch-1-a"))
    path = data.draw(st.one_of(st.sampled_from(places), PLACES.map(lambda text: text.format(file.name))))
    field = data.draw(st.sampled_from(["name", "path", "bytes", "rows", "both", "twice"]))
    if field in ("name", "both"):
        file = replace(file, name=path)
    if field in ("path", "both"):
        entry["path"] = path
    if field in ("bytes", "rows"):
        file = replace(file, **{field: getattr(file, field) + data.draw(st.integers(1, 9))})
    file = replace(file, data=json.dumps(plain))

    with pytest.raises(StagedFileError):
        commit_forged(table, 2, *[file] * (2 if field == "twice" else 1))

    assert files_of(table) <= {rows.files[0].name}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_manifest_that_makes_no_sense_commits_no_other_file(honest: tuple[Any, StagedRows], data: Any) -> None:
    """Statistics, partitions and field ids of another file, or of another type."""
    table, rows = honest
    (file,) = rows.files
    plain = json.loads(file.data)
    within = data.draw(st.sampled_from(sorted(nodes(plain), key=repr)))
    values: list[Any] = [None, "", 0, -1, 2**70, "x", [], {}, "/etc/passwd", {"1": "x"}, {"name": "x"}]
    plain = changed(plain, within, "set", lambda: data.draw(st.sampled_from(values)))

    with suppress(KafkaOffsetsError):
        commit_forged(table, next(NUMBERS), replace(file, data=json.dumps(plain)))

    assert files_of(table) <= {file.name}


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "[]", "7", "", '{"add": {}}'])
def test_a_manifest_of_another_kind_commits_nothing(honest: tuple[Any, StagedRows], text: str) -> None:
    table, rows = honest
    with pytest.raises(StagedFileError):
        commit_forged(table, next(NUMBERS), replace(rows.files[0], data=text))


NUMBERS = itertools.count(3)


def files_of(table: Any) -> set[str]:
    """Return the staged files that a table has."""
    if isinstance(table.sink, ParquetFiles):
        root = Path(table.sink.uri)
        names = {path.read_bytes(): str(path.relative_to(root)) for path in root.glob("_staging/*/*")}
        return {names.get((root / path).read_bytes(), path) for path in table.published()}
    snapshot = table.snapshot()
    if isinstance(table.sink, DeltaTable):
        return {str(file.key) for file in snapshot.files()}
    return {task.file.file_path for task in snapshot.table.scan().plan_files()}
