"""Files that failed attempts left in the storage of a table: theirs by name, old enough, and named by no snapshot."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyarrow import fs

from airflow_kafka_offsets.core.addresses import local_path
from airflow_kafka_offsets.core.attempts import attempt_name, is_attempt
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg import left_files as left_files_module
from airflow_kafka_offsets.sinks.iceberg.left_files import left_files
from airflow_kafka_offsets.sinks.lake.left_files import left_below, remove_left
from airflow_kafka_offsets.writers.object_files import ObjectFiles, remove_below
from tests.sinks.lake.test_zombies import output, publish, staged
from tests.support.iceberg import iceberg_sink

NOW = datetime.now(UTC)
OLD = (NOW - timedelta(days=8)).timestamp()
WEEK_AGO = NOW - timedelta(days=7)
ATTEMPT, SECOND = attempt_name("ours", 7), attempt_name("ours", 7)


def put(root: Path, name: str, written: float = OLD) -> str:
    path = root / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (written, written))
    return str(path)


def found(root: Path) -> list[str]:
    """Return what is found in a storage by pyarrow, as in one by obstore."""
    by_arrow = set(left_files(fs.LocalFileSystem(), str(root), WEEK_AGO, lambda name: is_attempt(name, "ours", 7)))
    by_obstore = left_below(ObjectFiles(str(root), {}), 7, "ours", WEEK_AGO, "data") if root.exists() else set()
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


@pytest.mark.parametrize("place", ["data", f"data/{ATTEMPT}", f"data/{ATTEMPT}/x"], ids=["data", "attempt", "inner"])
def test_links_lead_to_no_files_elsewhere(tmp_path: Path, place: str) -> None:
    root, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    put(elsewhere, f"{ATTEMPT}/precious.parquet")
    link = root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / "data")
    assert found(root) == []


def swapped(directory: Path, elsewhere: Path) -> None:
    """Do what somebody else may do to a directory at any time."""
    directory.rename(directory.with_name("away"))
    directory.symlink_to(elsewhere)


def test_a_link_that_appears_after_the_look_leads_to_no_file_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, precious = put(tmp_path, f"{ATTEMPT}/a.parquet"), put(tmp_path / "payroll", f"{ATTEMPT}/a.parquet")
    files = ObjectFiles(str(tmp_path), {})
    refuse_outside = files.refuse_outside

    def look(path: str) -> None:
        refuse_outside(path)
        if not Path(ours).parent.is_symlink():
            swapped(Path(ours).parent, Path(precious).parent)

    monkeypatch.setattr(files, "refuse_outside", look)
    with pytest.raises(TargetError, match=f"'{ATTEMPT}' of .* is a link, or no directory: nothing is read or written"):
        remove_left(files, {f"data/{ATTEMPT}/a.parquet"})
    assert Path(precious).exists()


def test_the_same_of_an_iceberg_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = iceberg_sink("sql", tmp_path).connect(sa.create_engine("sqlite://"))
    publish(table, output(0, "a"), staged(table, output(0, "a"), tmp_path))
    snapshot = table.snapshot()
    root = Path(local_path(snapshot.table.location()))
    ours, precious = put(root, f"{ATTEMPT}/a.parquet"), put(tmp_path / "payroll", f"{ATTEMPT}/a.parquet")
    named = left_files_module._named

    def look(version: Any) -> Any:
        swapped(Path(ours).parent, Path(precious).parent)
        return named(version)

    monkeypatch.setattr(left_files_module, "_named", look)
    with pytest.raises(TargetError, match=f"'{ATTEMPT}' of .* is a link, or no directory: nothing is read or written"):
        snapshot.remove_leftovers(7, WEEK_AGO, "ours")
    assert Path(precious).exists()


@pytest.mark.parametrize("path", ["../payroll/a.parquet", "data/../../payroll/a.parquet", "{root}/payroll/a.parquet"])
def test_nothing_above_is_removed(tmp_path: Path, path: str) -> None:
    precious = tmp_path / "payroll/a.parquet"
    precious.parent.mkdir()
    precious.write_bytes(b"x")
    (tmp_path / "table/data").mkdir(parents=True)
    with pytest.raises(TargetError, match="is not below"):
        remove_below(tmp_path / "table", path.format(root=tmp_path))
    assert precious.exists()
