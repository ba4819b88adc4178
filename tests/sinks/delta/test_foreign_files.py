"""Data files that other programs wrote: what in them is read and kept, and what happens if it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction

from airflow_kafka_offsets import Json
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, KafkaOffsetsError, TargetError
from airflow_kafka_offsets.sinks.delta.format import DeltaSnapshot, remove_action
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from tests.support.clients import produce
from tests.support.lake import NEXT, LakeGroup, dying
from tests.support.loads import BESIDE_OTHERS, names, rows
from tests.support.rewinds import Rewinder

COLUMNS: dict[str, Any] = {"value_format": Json("id BIGINT, name STRING, until TIMESTAMP")}
FOR_EVER = datetime(9999, 12, 31, tzinfo=UTC)
LONG_AGO = datetime(1, 6, 1, tzinfo=UTC)


def compact(group: LakeGroup, change: Callable[[pa.Table], pa.Table] = lambda rows: rows, **options: Any) -> str:
    """Write all rows into one file, as a compaction does, and return its name.

    :param change: what of the rows is changed
    :param options: of the writer of Parquet files
    """
    snapshot = group.sink.connect(group.loader.engine).snapshot()  # type: ignore[attr-defined]
    assert isinstance(snapshot, DeltaSnapshot)
    found = change(pa.table(snapshot.table.to_pyarrow_table()))
    name = f"part-{snapshot.version}.parquet"
    path = Path(snapshot.sink.uri, name)
    pq.write_table(found, path, **options)
    stats = json.dumps({"numRecords": found.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}})
    add = AddAction(name, path.stat().st_size, {}, 0, False, stats)
    removed = map(remove_action, snapshot.files())
    snapshot.table.create_write_transaction([*removed, add], "append", snapshot.table.schema())
    return name


def until(*instants: datetime) -> Callable[[pa.Table], pa.Table]:
    """Return a change that gives rows one instant after the other."""

    def change(found: pa.Table) -> pa.Table:
        column = pa.array([*instants] * found.num_rows, pa.timestamp("us", "UTC")).slice(0, found.num_rows)
        return found.set_column(found.schema.get_field_index("until"), "until", column)

    return change


def as_text(found: pa.Table) -> pa.Table:
    """Have the file hold what the column of the table cannot."""
    return found.set_column(found.schema.get_field_index("until"), "until", pa.array(["later"] * found.num_rows))


def as_spark(group: LakeGroup) -> str:
    return compact(group, until(FOR_EVER, LONG_AGO), use_deprecated_int96_timestamps=True)


def instants(uri: str) -> dict[int, datetime | None]:
    """Return the instant of each offset. delta-rs makes nanoseconds of them."""
    found: dict[int, datetime | None] = {}
    for path in deltalake.DeltaTable(uri).file_uris():
        read = pq.read_table(path, coerce_int96_timestamp_unit="us")
        values = read["until"].cast(pa.timestamp("us", "UTC")).to_pylist()
        found |= zip(read["_kafka_offset"].to_pylist(), values, strict=True)
    return found


def state(group: LakeGroup) -> list[tuple[Any, ...]]:
    return rows(group.loader.engine, "SELECT batch_id, kind, state FROM offset_batches ORDER BY batch_id")


@pytest.mark.parametrize("way", ["replay", "rewind"])
def test_instants_that_spark_wrote_are_kept_whatever_their_year(group: LakeGroup, uri: str, way: str) -> None:
    """Spark writes timestamps as INT96 unless it is told otherwise; as nanoseconds they overflow."""
    group.load(**COLUMNS)
    as_spark(group)
    before = instants(uri)
    assert set(before.values()) == {FOR_EVER, LONG_AGO}

    if way == "replay":
        group.replay({group.topic: {0: (2, 4)}}, replace=True)
    else:
        assert Rewinder(group.loader)("to-offset", 4, replace=group.sink).rows_removed == 2

    replaced = {2, 3} if way == "replay" else {4, 5}
    assert {at: value for at, value in instants(uri).items() if value is not None} == {
        at: value for at, value in before.items() if at not in replaced
    }
    group.load(NEXT, **COLUMNS)
    assert group.proved() == (6, 0)


def as_legacy(instant: datetime, key: str, value: str = "") -> Callable[[pa.Table], pa.Table]:
    """Return a change that gives rows an instant, in a file of a Spark that writes the calendar of before 1582."""
    return lambda found: until(instant)(found).replace_schema_metadata({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("org.apache.spark.legacyDateTime", ""),
        ("org.apache.spark.legacyINT96", ""),
        ("org.apache.spark.version", "2.4.8"),
    ],
)
def test_old_dates_by_another_calendar_are_not_written_again_as_others(group: LakeGroup, key: str, value: str) -> None:
    group.load(**COLUMNS)
    compact(group, as_legacy(LONG_AGO, key, value))
    with pytest.raises(TargetError, match=r"File 'part-1.parquet' .* holds old dates or timestamps by the Julian"):
        Rewinder(group.loader)("to-offset", 4, replace=group.sink)
    assert group.position() == 6

    compact(group, as_legacy(datetime(1950, 1, 1, tzinfo=UTC), key, value))
    assert Rewinder(group.loader)("to-offset", 4, replace=group.sink).rows_removed == 2


@pytest.mark.parametrize("kind", ["varchar(6)", "char(6)"])
def test_texts_that_spark_could_not_update_are_bad(group: LakeGroup, uri: str, kind: str) -> None:
    """Spark refuses each later UPDATE of a file with a longer text."""
    columns = [deltalake.Field(each, deltalake.schema.PrimitiveType("long")) for each in ("id", "_batch_id")]
    text = deltalake.Field("name", "string", metadata={"__CHAR_VARCHAR_TYPE_STRING": kind})  # type: ignore[arg-type]
    deltalake.DeltaTable.create(uri, deltalake.Schema([*columns, text]))
    long = ('{"id": 7, "name": "näme-7"}', '{"id": 8, "name": "name-88"}')
    produce(group.loader.kafka, group.topic, [text.encode() for text in long])

    done = group.load(value_format=Json("id BIGINT, name STRING"))

    assert (done.rows, done.dead_letters) == (7, 1)
    assert rows(group.loader.engine, "SELECT offset_value, error FROM dead_letters") == [
        (7, "column 'name' has texts of 6 characters at most")
    ]


@pytest.mark.parametrize("fault", ["as_text", "damaged"])
def test_a_rewind_that_cannot_remove_rows_moves_no_position(group: LakeGroup, uri: str, fault: str) -> None:
    group.load(**COLUMNS)
    name = compact(group, until(FOR_EVER) if fault == "damaged" else as_text, compression="none")
    expected: type[KafkaOffsetsError] = TargetError
    if fault == "damaged":
        expected, path = DatabaseUnavailableError, Path(uri, name)
        column = pq.ParquetFile(path).metadata.row_group(0).column(2)
        content = bytearray(path.read_bytes())
        first = column.dictionary_page_offset or column.data_page_offset
        content[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
        path.write_bytes(content)

    with pytest.raises(expected, match=f"File '{name}' of table 'delta.*' cannot be read: "):
        group.replay({group.topic: {0: (2, 4)}}, replace=True)
    with pytest.raises(expected, match=f"File '{name}' of table 'delta.*' cannot be read: .* write the rows again"):
        Rewinder(group.loader)("to-offset", 4, replace=group.sink)

    assert (group.position(), len(group.loader.launcher.jobs)) == (6, 1)  # before Spark started
    produce(group.loader.kafka, group.topic, names(6, 2))
    assert group.load(NEXT, **COLUMNS).rows == 2


def test_a_rewind_that_cannot_write_the_rows_that_stay_moves_no_position(group: LakeGroup) -> None:
    """Spark's timestamps end in the year 294247."""
    group.load(**COLUMNS)
    late = pa.array([(1 << 63) - 1] * 6, pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    compact(group, lambda found: found.set_column(found.schema.get_field_index("until"), "until", late))

    with pytest.raises(TargetError, match=r"that stay cannot be written again \(\w+\): they are in 'part-1.parquet'"):
        Rewinder(group.loader)("to-offset", 4, replace=group.sink)
    assert (state(group), group.position()) == ([(1, "load", "committed")], 6)


def test_a_file_whose_path_delta_rs_spells_in_another_way_is_not_replaced(group: LakeGroup, uri: str) -> None:
    """Spark leaves characters of the path as they are that are not ASCII. The removal would have no effect."""
    group.load(**COLUMNS)
    log = Path(uri, "_delta_log", f"{1:020}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    Path(uri, add["path"]).rename(Path(uri, "Köln.parquet"))
    add["path"] = "Köln.parquet"
    log.write_text("\n".join(json.dumps(action, ensure_ascii=False) for action in actions), encoding="utf-8")

    for bounds in ({group.topic: {0: (1, 3)}}, {group.topic: {0: (0, 6)}}):
        with pytest.raises(TargetError, match=r"File 'Köln.parquet' of table .* cannot be replaced"):
            group.replay(bounds, replace=True, run=None)
    with pytest.raises(TargetError, match=r"File 'Köln.parquet' of table .* cannot be replaced"):
        Rewinder(group.loader)("to-offset", 4, replace=group.sink)
    assert (group.offsets(), group.position()) == (list(range(6)), 6)


def test_rows_that_cannot_be_removed_hold_up_no_other_group(
    group: LakeGroup, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    group.load(**COLUMNS)
    with dying(LakeTarget, "before"):
        Rewinder(group.loader)("to-offset", 4, replace=group.sink)
    good = group.read()
    name = compact(group, as_text)

    assert group.load(NEXT, group_id="other", **COLUMNS, **BESIDE_OTHERS).rows == 6
    what = r"rows replaced by rewind 2 of group 'loader' could not be removed from delta"
    assert "The rows replaced by rewind 2 of group 'loader' could not be removed from delta" in caplog.text
    with pytest.raises(TargetError, match=f"{what}.*: File '{name}' of table .* cannot be read: "):
        group.load(NEXT, **COLUMNS, **BESIDE_OTHERS)

    pq.write_table(good, Path(uri, name))  # its writer writes it again
    assert group.load(NEXT, **COLUMNS, **BESIDE_OTHERS).rows == 2
    assert group.proved() == (6, 0)
