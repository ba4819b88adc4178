"""Upserts into an Iceberg table from which other engines have deleted rows, without writing its data files again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import TargetError
from tests.sinks.iceberg.test_iceberg_upsert_types import publish
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.iceberg_deletes import compact_with_deletes, delete_by_position, delete_by_value


@pytest.fixture
def engine(tmp_path: Path) -> sa.Engine:
    return sa.create_engine(f"sqlite:///{tmp_path}/positions.db", poolclass=sa.NullPool)


def test_a_row_that_others_deleted_by_position_stays_deleted(tmp_path: Path, engine: sa.Engine) -> None:
    sink = iceberg_sink("positions", tmp_path, upsert_key=("key",))
    publish(sink, engine, 1, pa.int64(), (1, 2, 3), tmp_path)
    delete_by_position(open_table(sink, engine), [0])

    assert publish(sink, engine, 2, pa.int64(), (3,), tmp_path) == 1

    rows = open_table(sink, engine).scan().to_arrow()
    assert sorted(zip(rows["key"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True)) == [(2, 11), (3, 20)]


@pytest.mark.parametrize("keys", [(1,), (3,)], ids=["of_the_key", "of_another_key"])
def test_deletes_by_value_are_refused_whatever_they_delete(
    tmp_path: Path, engine: sa.Engine, keys: tuple[int, ...]
) -> None:
    """A file that is written again is newer than the delete: the deleted row would be back."""
    sink = iceberg_sink("positions", tmp_path, upsert_key=("key",))
    publish(sink, engine, 1, pa.int64(), (1, 2, 3), tmp_path)
    delete_by_value(open_table(sink, engine), "key", 1)
    before = open_table(sink, engine).metadata_location

    with pytest.raises(TargetError, match="it has equality deletes, which pyiceberg does not support"):
        publish(sink, engine, 2, pa.int64(), keys, tmp_path)
    assert open_table(sink, engine).metadata_location == before


def test_deletes_by_value_of_files_that_were_compacted_delete_nothing(tmp_path: Path, engine: sa.Engine) -> None:
    sink = iceberg_sink("positions", tmp_path, upsert_key=("key",))
    publish(sink, engine, 1, pa.int64(), (1, 2, 3), tmp_path)
    delete_by_value(open_table(sink, engine), "key", 1)
    compact_with_deletes(open_table(sink, engine), [2, 3])

    assert publish(sink, engine, 2, pa.int64(), (3,), tmp_path) == 1

    rows = open_table(sink, engine).scan("key > 1").to_arrow()
    assert sorted(zip(rows["key"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True)) == [(2, 11), (3, 20)]
