"""What other programs change in a lake table, between two loads and between staging and commit: the next rows are
loaded right, or a sentence says before Spark starts why they cannot be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform, HourTransform
from pyiceberg.types import DoubleType, FloatType, LongType, StringType

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.exceptions import StagedFileError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.sinks.table import Output
from tests.sinks.lake.test_zombies import ROWS, output, publish, staged
from tests.support.iceberg import iceberg_sink

TABLE = pa.schema([("id", pa.int32()), ("note", pa.string()), *ORIGIN_COLUMNS, ("_batch_id", pa.int64())])


class Change(NamedTuple):
    """What another program does.

    :param do: is called with the table, as its library opens it
    :param refused: what `prepare` says afterwards; None where rows are loaded
    """

    do: Callable[[Any], object]
    refused: str | None = None


def schema(**steps: tuple[Any, ...]) -> Callable[[Any], None]:
    """Return a change of an Iceberg table's columns, by the methods of pyiceberg's update."""

    def change(table: Any) -> None:
        for name, arguments in steps.items():
            with table.update_schema(allow_incompatible_changes=True) as update:
                getattr(update, name)(*arguments)

    return change


def spec(method: str, *arguments: Any) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        with table.update_spec() as update:
            getattr(update, method)(*arguments)

    return change


def in_turn(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        for each in changes:
            each(table)

    return change


def rewrite(table: Any) -> None:
    table.overwrite(table.scan().to_arrow())


def expire(table: Any) -> None:
    table.append(table.scan().to_arrow().slice(0, 0))
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def properties(**values: str) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        with table.transaction() as transaction:
            named = {name.replace("__", ".").replace("_", "-"): value for name, value in values.items()}
            transaction.set_properties(**named)

    return change


def upgrade(table: Any) -> None:
    """Set the version of the format to one that pyiceberg reads only."""
    location = Path(table.metadata_location.removeprefix("file://"))
    location.write_text(json.dumps(json.loads(location.read_text()) | {"format-version": 3, "next-row-id": 0}))


def rewritten(change: Callable[[pa.Table], pa.Table], **options: Any) -> Callable[[Any], None]:
    """Return a change that writes a Delta table with other columns or partitions."""

    def write(table: Any) -> None:
        rows = change(pa.table(table.to_pyarrow_table()))
        deltalake.write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", **options)

    return write


def vacuum(table: Any) -> None:
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


def clean_log(table: Any) -> None:
    table.create_checkpoint()
    for version in range(table.version()):
        Path(table.table_uri.removeprefix("file://"), f"_delta_log/{version:020}.json").unlink(missing_ok=True)


NO_ID = "has no column 'id'"

drop_a_partition = in_turn(
    spec("add_identity", "note"), rewrite, spec("remove_field", "note"), schema(delete_column=("note",))
)
"""Rows stay in partitions of a column that is no more."""

ICEBERG = {
    "add": Change(schema(add_column=("more", StringType()))),
    "rename": Change(schema(rename_column=("id", "key")), NO_ID),
    "rename_and_add": Change(schema(rename_column=("id", "key"), add_column=("id", LongType()))),
    "drop": Change(schema(delete_column=("id",)), NO_ID),
    "drop_and_add": Change(schema(delete_column=("id",), add_column=("id", LongType()))),
    "drop_and_add_as_text": Change(schema(delete_column=("id",), add_column=("id", StringType())), "column 'id' is"),
    "drop_another": Change(schema(delete_column=("note",))),
    "drop_batch_id": Change(schema(delete_column=("_batch_id",)), "has no column '_batch_id'"),
    "widen": Change(schema(update_column=("id", LongType()))),
    "reorder": Change(schema(move_first=("note",))),
    "partition": Change(spec("add_identity", "_kafka_partition")),
    "partition_by_hour": Change(spec("add_field", "_kafka_timestamp", HourTransform())),
    "partition_by_bucket": Change(spec("add_field", "id", BucketTransform(4))),
    "partition_by_float": Change(
        in_turn(schema(add_column=("ratio", FloatType())), spec("add_identity", "ratio")),
    ),
    "partition_by_double": Change(
        in_turn(schema(add_column=("ratio", DoubleType())), spec("add_identity", "ratio")), "is partitioned by ratio: "
    ),
    "partition_widened_to_double": Change(
        in_turn(
            schema(add_column=("ratio", FloatType())),
            spec("add_identity", "ratio"),
            schema(update_column=("ratio", DoubleType())),
        ),
        "is partitioned by ratio: ",
    ),
    "was_partitioned_by_double": Change(
        in_turn(
            schema(add_column=("ratio", DoubleType())), spec("add_identity", "ratio"), spec("remove_field", "ratio")
        ),
    ),
    "rows_partitioned_by_double": Change(
        in_turn(
            schema(add_column=("ratio", DoubleType())),
            spec("add_identity", "ratio"),
            rewrite,
            spec("remove_field", "ratio"),
        ),
        "is partitioned by ratio: ",
    ),
    "drop_a_partition": Change(drop_a_partition),
    "codec": Change(properties(write__parquet__compression_codec="gzip")),
    "expire": Change(expire),
    "delete": Change(lambda table: table.delete("_kafka_offset = 41")),
    "version_3": Change(upgrade, "has version 3 of Iceberg's format"),
}

DELTA = {
    "add": Change(
        lambda table: table.alter.add_columns([deltalake.Field("more", deltalake.schema.PrimitiveType("string"))])
    ),
    "rename": Change(rewritten(lambda rows: rows.rename_columns({"id": "key"})), NO_ID),
    "drop_another": Change(rewritten(lambda rows: rows.drop_columns(["note"]))),
    "drop_batch_id": Change(rewritten(lambda rows: rows.drop_columns(["_batch_id"])), "has no column '_batch_id'"),
    "widen": Change(rewritten(lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.int64())))),
    "as_text": Change(rewritten(lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.string()))), "column 'id' is"),
    "reorder": Change(rewritten(lambda rows: rows.select(rows.column_names[::-1]))),
    "partition": Change(rewritten(lambda rows: rows, partition_by=["_kafka_partition"])),
    "constraint": Change(lambda table: table.alter.add_constraint({"positive": "id >= 0"}), "it has constraints"),
    "deletion_vectors": Change(
        lambda table: table.alter.set_table_properties({"delta.enableDeletionVectors": "true"}), "deletion vectors"
    ),
    "append_only": Change(lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"})),
    "z_order": Change(lambda table: table.optimize.z_order(["id"])),
    "vacuum": Change(vacuum),
    "clean_log": Change(clean_log),
    "delete": Change(lambda table: table.delete("_kafka_offset = 41")),
    "update": Change(lambda table: table.update({"note": "'x'"})),
}

CASES = [pytest.param("iceberg", change, id=f"iceberg-{name}") for name, change in ICEBERG.items()]
CASES += [pytest.param("delta", change, id=f"delta-{name}") for name, change in DELTA.items()]


def created(kind: str, directory: Path) -> LakeTable:
    """Return a table that another program created, with narrower columns and one more."""
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    if kind == "delta":
        sink = DeltaTable(f"{directory}/lake/orders")
        deltalake.DeltaTable.create(sink.uri, deltalake.Schema.from_arrow(TABLE))
        return sink.connect(engine)
    iceberg = iceberg_sink("sql", directory)
    catalog = load_catalog("default", **iceberg.catalog)  # type: ignore[arg-type]
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", TABLE)
    return iceberg.connect(engine)


def native(table: LakeTable) -> Any:
    snapshot: Any = table.snapshot()
    return snapshot.table


def places(table: LakeTable) -> list[tuple[Any, Any, Any]]:
    """Return batch, offset and id of all rows, as another program reads them."""
    found = native(table)
    rows = pa.table(found.to_pyarrow_table()) if hasattr(found, "to_pyarrow_table") else found.scan().to_arrow()
    columns = (
        rows[name].to_pylist() if name in rows.column_names else [None] * len(rows)
        for name in ("_batch_id", "_kafka_offset", "id")
    )
    return sorted(zip(*columns, strict=True), key=repr)


def version(table: LakeTable) -> Any:
    snapshot = table.snapshot()
    assert snapshot is not None
    return snapshot.version


def load(table: LakeTable, of: Output, directory: Path) -> None:
    """Load a batch, as the next attempt does."""
    publish(table, of, staged(table, of, directory))


def expected(*batch_ids: int) -> set[tuple[int, int, int]]:
    return {(batch, offset, offset) for batch in batch_ids for offset in range(batch * ROWS, (batch + 1) * ROWS)}


@pytest.mark.parametrize("moment", ["between_loads", "between_staging_and_commit"])
@pytest.mark.parametrize(("kind", "change"), CASES)
def test_rows_are_loaded_right_or_refused(tmp_path: Path, kind: str, change: Change, moment: str) -> None:
    table = created(kind, tmp_path)
    load(table, output(1, "a"), tmp_path)
    if moment == "between_staging_and_commit":
        rows = staged(table, output(2, "a"), tmp_path)
    change.do(native(table))
    before = version(table)

    if moment == "between_staging_and_commit":
        try:
            publish(table, output(2, "a"), rows)
        except (StagedFileError, TargetError):
            assert version(table) == before
    if change.refused is not None:
        with pytest.raises(TargetError, match=change.refused):
            table.prepare(pa.schema([("id", pa.int64()), *ORIGIN_COLUMNS]))
        assert version(table) == before
        return
    load(table, output(2, "b"), tmp_path)

    found = places(table)
    assert len(found) == len(set(found))
    assert {place for place in found if place[0] == 2} == expected(2)
    assert {place[:2] for place in found if place[0] == 1} >= {place[:2] for place in expected(1)} - {(1, 41)}


def test_rows_of_a_dropped_partition_column_are_not_removed_before_the_files_are_rewritten(tmp_path: Path) -> None:
    table = created("iceberg", tmp_path)
    load(table, output(1, "a"), tmp_path)
    drop_a_partition(native(table))
    before = version(table)
    upserts = replace(iceberg_sink("sql", tmp_path), upsert_key=("id",)).connect(sa.create_engine("sqlite://"))
    for refused in (table.check_removal, lambda: upserts.prepare(None)):
        with pytest.raises(TargetError, match=r"partitioned by note, whose columns were dropped.* with .* rewrite-all"):
            refused()
    assert version(table) == before

    rewrite(native(table))

    table.check_removal()
    upserts.prepare(None)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_the_rows_of_a_file_are_read_by_row_groups(tmp_path: Path, kind: str) -> None:
    """A row group of large rows is small, and many of them may be in a file: together they would be too large."""
    table = created(kind, tmp_path)
    rows = pa.Table.from_pylist([{"id": number} for number in range(35)], TABLE)
    if kind == "iceberg":
        properties(write__parquet__row_group_limit="10")(native(table))
        native(table).append(rows)
    else:
        few = deltalake.WriterProperties(max_row_group_size=10)
        deltalake.write_deltalake(native(table), rows, mode="append", writer_properties=few)
    snapshot = table.snapshot()
    assert snapshot is not None
    (file,) = snapshot.files()
    read = [batch.column("id").to_pylist() for batch in snapshot.read(file, ["id"])]
    assert read == [list(range(start, min(start + 10, 35))) for start in range(0, 35, 10)]
