"""Files that failed attempts left in the storage of a table: theirs by name, old enough, and named by no snapshot."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import fs

from airflow_kafka_offsets.sinks.iceberg.left_files import left_files
from airflow_kafka_offsets.sinks.lake.left_files import is_attempt

NOW = datetime.now(UTC)
OLD = (NOW - timedelta(days=8)).timestamp()
WEEK_AGO = NOW - timedelta(days=7)
ATTEMPT = f"batch-7-{'a1' * 16}"


def put(root: Path, name: str, written: float = OLD) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (written, written))
    return str(path)


def found(root: Path) -> list[str]:
    return sorted(left_files(fs.LocalFileSystem(), str(root), 7, WEEK_AGO))


def test_files_of_all_attempts_are_found_whatever_the_partition(tmp_path: Path) -> None:
    left = [
        put(tmp_path, f"{ATTEMPT}/day=2026-01-01/a.parquet"),
        put(tmp_path, f"{ATTEMPT}/b.parquet"),
        put(tmp_path, f"batch-7-{'0' * 32}/c.parquet"),
    ]
    assert found(tmp_path) == sorted(left)


def test_a_file_that_may_still_be_published_stays(tmp_path: Path) -> None:
    put(tmp_path, f"{ATTEMPT}/a.parquet", written=NOW.timestamp())
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        f"batch-70-{'a1' * 16}",
        f"batch-8-{'a1' * 16}",
        f"batch-7-{'a1' * 15}",
        f"batch-7-{'A1' * 16}",
        "orders",
        "batch-7-",
    ],
)
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/a.parquet")
    put(tmp_path, "a.parquet")
    assert not is_attempt(name, 7)
    assert found(tmp_path) == []


def test_a_location_that_is_gone_has_none(tmp_path: Path) -> None:
    assert found(tmp_path / "gone") == []
