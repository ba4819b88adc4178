"""A Delta table whose log leads to files of another table is refused: their list and statistics are not copied."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, TargetError
from airflow_kafka_offsets.sinks.delta import log_files
from airflow_kafka_offsets.sinks.delta.format import ConnectedDeltaTable, DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.snapshot import Change, PublicationResult
from devstack.process import free_port
from tests.sinks.lake.test_zombies import ROWS, output, publish, staged


class Place:
    """A table of ours with a checkpoint, and one of somebody else."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path / "orders" / "_delta_log"
        sink = DeltaTable(str(path / "orders"), properties={"delta.checkpointInterval": "1"})
        self.table: ConnectedDeltaTable = sink.connect(sa.create_engine("sqlite://"))
        self.load(0)
        secrets = pa.table({"id": [1, 2], "name": ["SECRET-a", "SECRET-b"]})
        deltalake.write_deltalake(str(path / "payroll"), secrets)
        deltalake.DeltaTable(str(path / "payroll")).create_checkpoint()
        (self.foreign,) = (path / "payroll" / "_delta_log").glob("*.checkpoint.parquet")

    def load(self, batch_id: int) -> None:
        of = output(batch_id, "ab12")
        assert publish(self.table, of, staged(self.table, of, self.path / "staging")) == ROWS

    @property
    def checkpoint(self) -> Path:
        return max(self.log.glob("*.checkpoint.parquet"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def name_sidecar(checkpoint: Path, sidecar: str) -> None:
    rows = pq.read_table(checkpoint)
    entry = {"path": sidecar, "sizeInBytes": 1, "modificationTime": 0, "tags": []}
    more = [dict.fromkeys(rows.schema.names) | {"sidecar": entry}]
    pq.write_table(pa.concat_tables([rows, pa.Table.from_pylist(more, rows.schema)]), checkpoint)


def absolute(place: Place) -> None:
    name_sidecar(place.checkpoint, f"file://{place.foreign}")


def relative(place: Place) -> None:
    name_sidecar(place.checkpoint, os.path.relpath(place.foreign, place.log / "_sidecars"))


def without_hint(place: Place) -> None:
    absolute(place)
    (place.log / "_last_checkpoint").unlink()


def with_a_hint_that_is_behind(place: Place) -> None:
    absolute(place)
    (place.log / "_last_checkpoint").write_text('{"version": 99, "size": 1}')


def with_a_part_that_hides_it(place: Place) -> None:
    absolute(place)
    # Not whole, so that it does not count.
    part = f"{int(place.checkpoint.name[:20]) + 1:020}.checkpoint.0000000001.0000000002.parquet"
    pq.write_table(pq.read_table(place.foreign), place.log / part)


def of_parts(place: Place) -> None:
    absolute(place)
    number = place.checkpoint.name[:20]
    empty = pq.read_table(place.checkpoint).slice(0, 0)
    place.checkpoint.rename(place.log / f"{number}.checkpoint.0000000001.0000000002.parquet")
    pq.write_table(empty, place.log / f"{number}.checkpoint.0000000002.0000000002.parquet")


def of_version_2(place: Place) -> None:
    number = place.checkpoint.name[:20]
    sidecar = {"sidecar": {"path": f"file://{place.foreign}", "sizeInBytes": 1, "modificationTime": 0}}
    lines = [
        each for each in pq.read_table(place.checkpoint).to_pylist() if each.get("metaData") or each.get("protocol")
    ]
    whole = [{name: value for name, value in line.items() if value is not None} for line in lines]
    text = "\n".join(json.dumps(line) for line in [*whole, sidecar])
    (place.log / f"{number}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json").write_text(text)
    place.checkpoint.unlink()


def link(place: Place) -> None:
    checkpoint = place.checkpoint
    checkpoint.unlink()
    checkpoint.symlink_to(place.foreign)


def link_of_the_log(place: Place) -> None:
    place.log.rename(place.path / "moved")
    place.log.symlink_to(place.foreign.parent)


def link_of_a_commit(place: Place) -> None:
    commit = place.log / f"{int(place.checkpoint.name[:20]) + 1:020}.json"
    commit.symlink_to(next(place.foreign.parent.glob("*0.json")))


LIES = [
    absolute,
    relative,
    without_hint,
    with_a_hint_that_is_behind,
    with_a_part_that_hides_it,
    of_parts,
    of_version_2,
    link,
    link_of_the_log,
    link_of_a_commit,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_log_that_leads_to_another_table_is_refused(place: Place, lie: Callable[[Place], None]) -> None:
    lie(place)
    before = [sorted(path.iterdir()) for path in (place.log, place.foreign.parent)]
    with pytest.raises(TargetError, match=r"may name further files|leads out of .*, by a link"):
        place.load(1)
    assert [sorted(path.iterdir()) for path in (place.log, place.foreign.parent)] == before


@pytest.mark.parametrize("lie", [absolute, link])
def test_a_log_that_changes_before_the_commit_is_refused(place: Place, lie: Callable[[Place], None]) -> None:
    snapshot: Any = place.table.snapshot()
    lie(place)
    with pytest.raises(TargetError, match=r"may name further files|leads out of .*, by a link"):
        snapshot.commit(Change(output(1, "ab12"), 1, PublicationResult()))


def test_no_table_is_created_where_a_link_leads(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "_delta_log").symlink_to(there)
    table = DeltaTable(str(tmp_path / "orders")).connect(sa.create_engine("sqlite://"))
    with pytest.raises(TargetError, match=r"'_delta_log' leads out of .*/orders, by a link"):
        staged(table, output(0, "ab12"), tmp_path / "staging")
    assert not list(there.iterdir())


def test_looking_for_a_table_makes_no_directory(tmp_path: Path) -> None:
    assert DeltaTable(f"{tmp_path}/orders").connect(sa.create_engine("sqlite://")).snapshot() is None
    assert not list(tmp_path.iterdir())


def parts(place: Place) -> None:
    rows, number = pq.read_table(place.checkpoint), place.checkpoint.name[:20]
    for part, start in ((1, 0), (2, 2)):
        own = rows.slice(start, 2 if part == 1 else None)
        pq.write_table(own, place.log / f"{number}.checkpoint.{part:010}.{2:010}.parquet")
    place.checkpoint.unlink()
    (place.log / "_last_checkpoint").write_text(json.dumps({"version": int(number), "size": len(rows), "parts": 2}))


def link_within_the_table(place: Place) -> None:
    moved = place.log.parent / "moved.parquet"
    place.checkpoint.rename(moved)
    (place.log / f"{1:020}.checkpoint.parquet").symlink_to(moved)


@pytest.mark.parametrize("change", [lambda _: None, parts, link_within_the_table], ids=["own", "parts", "link"])
def test_a_log_that_stays_within_the_table_is_read(place: Place, change: Callable[[Place], None]) -> None:
    before = place.checkpoint
    change(place)
    # Their checkpoints are needed.
    for commit in place.log.glob("*.json"):
        if int(commit.stem) < int(before.name[:20]):
            commit.unlink()
    place.load(1)
    assert deltalake.DeltaTable(str(place.log.parent)).to_pyarrow_table().num_rows == 2 * ROWS


def test_a_checkpoint_that_cannot_be_read_is_an_error_that_is_retried(place: Place) -> None:
    place.checkpoint.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DatabaseUnavailableError, match="cannot be read: a checkpoint is damaged: ArrowInvalid"):
        place.load(1)


def test_a_store_that_does_not_answer_is_an_error_that_is_retried() -> None:
    storage = {"aws_endpoint": f"http://127.0.0.1:{free_port()}", "aws_allow_http": "true", "aws_region": "eu-west-1"}
    secret = {"aws_access_key_id": "key", "aws_secret_access_key": "hidden"}
    table = DeltaTable("s3://lake/orders").connect(sa.create_engine("sqlite://"))
    with pytest.raises(
        DatabaseUnavailableError, match=r"orders' cannot be read: GenericError: .*_last_checkpoint"
    ) as no:
        DeltaSnapshot(with_values(table.sink, storage=storage | secret))
    assert "hidden" not in str(no.value)


def test_only_the_log_after_the_last_checkpoint_is_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(1, 5):
        place.load(batch)
    snapshot: Any = place.table.snapshot()
    read: list[str] = []
    has_sidecars = log_files._has_sidecars

    def noted(files: Any, path: str) -> bool:
        read.append(path)
        return has_sidecars(files, path)

    monkeypatch.setattr(log_files, "_has_sidecars", noted)
    snapshot.refresh()
    assert read == [f"_delta_log/{place.checkpoint.name}"]
