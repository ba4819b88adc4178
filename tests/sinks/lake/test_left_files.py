"""Files that failed attempts left in the storage of a table: theirs by name, old enough, and named by no snapshot."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import fs

from airflow_kafka_offsets.core.attempts import attempt_name, is_attempt
from airflow_kafka_offsets.sinks.iceberg.left_files import left_files
from airflow_kafka_offsets.sinks.lake.left_files import left_below
from airflow_kafka_offsets.writers.object_files import ObjectFiles

NOW = datetime.now(UTC)
OLD = (NOW - timedelta(days=8)).timestamp()
WEEK_AGO = NOW - timedelta(days=7)
ATTEMPT, SECOND = attempt_name("ours", 7), attempt_name("ours", 7)


def put(root: Path, name: str, written: float = OLD) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (written, written))
    return str(path)


def found(root: Path) -> list[str]:
    """Return what is found in a storage by pyarrow, as in one by obstore."""
    by_arrow = set(left_files(fs.LocalFileSystem(), str(root), WEEK_AGO, lambda name: is_attempt(name, "ours", 7)))
    by_obstore = left_below(ObjectFiles(str(root), {}), 7, "ours", WEEK_AGO) if root.exists() else set()
    assert by_arrow == {f"{root}/{path}" for path in by_obstore}
    return sorted(by_arrow)


def test_files_of_all_attempts_are_found_whatever_the_partition(tmp_path: Path) -> None:
    left = [
        put(tmp_path, f"{ATTEMPT}/day=2026-01-01/a.parquet"),
        put(tmp_path, f"{ATTEMPT}/b.parquet"),
        put(tmp_path, f"{SECOND}/c.parquet"),
    ]
    assert found(tmp_path) == sorted(left)


def test_a_file_that_may_still_be_published_stays(tmp_path: Path) -> None:
    put(tmp_path, f"{ATTEMPT}/a.parquet", written=NOW.timestamp())
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        attempt_name("ours", 70),
        attempt_name("ours", 8),
        attempt_name("other", 7),
        ATTEMPT.replace("batch-7-", "batch-8-"),
        ATTEMPT[:-1],
        ATTEMPT[:-1] + ("0" if ATTEMPT[-1] != "0" else "1"),
        f"batch-7-{'a1' * 16}",
        "orders",
        "batch-7-",
    ],
    ids=range(9),
)
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/a.parquet")
    put(tmp_path, "a.parquet")
    assert not is_attempt(name, "ours", 7)
    assert found(tmp_path) == []


def test_a_location_that_is_gone_has_none(tmp_path: Path) -> None:
    assert found(tmp_path / "gone") == []


@pytest.mark.parametrize("is_nested", [False, True])
def test_links_lead_to_no_files_elsewhere(tmp_path: Path, is_nested: bool) -> None:
    root, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    put(elsewhere, "precious.parquet")
    link = root / ATTEMPT / "x" if is_nested else root / ATTEMPT
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    assert found(root) == []
