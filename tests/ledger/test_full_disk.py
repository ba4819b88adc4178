"""A disk without room for the rows ends a load with nothing written; with room, what was staged is committed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import DatabaseUnavailableError
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.database_faults import (
    ADDED,
    assert_nothing_written,
    assert_staged_rows_are_committed,
    change,
    raise_for_each_row,
)
from tests.support.loads import CountingLauncher, Loader, TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server

NO_ROOM = "Batch {batch} of group 'loader' was not committed, and nothing of it was written: {said}. Run the task again"


class TestFullDisk:
    """There is no room for the rows; once there is, what was staged is committed."""

    def test_full_disk_of_sqlite(
        self, kafka: KafkaBroker, launcher: CountingLauncher, topic: TopicFactory, tmp_path: Path
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))
        loader = Loader(kafka, sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db"), launcher)
        loader(name)
        produce(kafka, name, names(10, 20_000))
        most_pages = [rows(loader.engine, "PRAGMA page_count")[0][0] + 20]

        @sa.event.listens_for(loader.engine, "checkout")
        def limit(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {most_pages[0]}")

        with pytest.raises(DatabaseUnavailableError, match=NO_ROOM.format(batch=2, said="database or disk is full")):
            loader(name)

        assert positions(loader.engine) == {(name, 0): 10}
        assert_exactly_once(loader.engine)
        most_pages[0] = 1_000_000
        assert_staged_rows_are_committed(loader, name, 20_000)
        loader.engine.dispose()

    def test_full_disk_of_postgres(self, kafka: KafkaBroker, postgres_loader: Loader, topic: TopicFactory) -> None:
        name, engine = topic(), postgres_loader.engine
        produce(kafka, name, names(0, 20_000))
        with small_disk() as disk, tablespace(engine, disk) as space:
            change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED}) TABLESPACE {space}")

            with pytest.raises(
                DatabaseUnavailableError, match=NO_ROOM.format(batch=1, said=".*No space left on device")
            ):
                postgres_loader(name)

            assert_nothing_written(engine)
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            assert_staged_rows_are_committed(postgres_loader, name, 20_000)

    def test_full_disk_error_has_no_row_values(
        self, kafka: KafkaBroker, postgres_loader: Loader, topic: TopicFactory
    ) -> None:
        name, engine = topic(), postgres_loader.engine
        produce(kafka, name, [b'{"id": 1, "name": "10.99.99.99"}'])
        # A type that is written as text: then Postgres says where it was by quoting the row.
        change(engine, f"CREATE TABLE target (id BIGINT, name INET, {ADDED})")
        raise_for_each_row(engine, "true", "disk_full")

        with pytest.raises(DatabaseUnavailableError, match=NO_ROOM.format(batch=1, said="not this one")) as raised:
            postgres_loader(name)

        assert "10.99.99.99" not in "".join(traceback.format_exception(raised.value))


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = Path(tempfile.mkdtemp(prefix="small-disk-"))
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True
        )
        if mounted.returncode != 0:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    finally:
        disk.rmdir()


@contextmanager
def tablespace(engine: Engine, disk: Path) -> Iterator[str]:
    """A tablespace on a disk, for tables of the database; all are dropped in the end."""
    disk.chmod(0o755)
    space = disk / "space"
    space.mkdir()
    shutil.chown(space, "nobody")  # who runs Postgres where root cannot
    name = disk.name.replace("-", "_")
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as conn:
        conn.execute(sa.text(f"CREATE TABLESPACE \"{name}\" LOCATION '{space}'"))
    try:
        yield f'"{name}"'
    finally:
        change(engine, "DROP TABLE IF EXISTS target")
        with autocommit.connect() as conn:
            conn.execute(sa.text(f'DROP TABLESPACE "{name}"'))
