"""Plain Parquet files: their names, batches that are published in parts, and what is removed of them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyarrow.dataset import dataset
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits, ParquetFiles
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, OlderLedgerError, TargetError
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.parquet.table import ParquetTarget
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.lake import NEXT, RUN, LakeGroup, ProcessDiedError, dying, publish_rows
from tests.support.loads import Loader, TopicFactory, names
from tests.support.rewinds import Rewinder

engine = fixtures.sqlite_engine

NO_ENGINE: Any = None
OUTPUT = Output(1, "loader", (), "series", "batch-1-x")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"{tmp_path}/lake/orders"


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, uri: str) -> LakeGroup:
    """A topic of six records, each partition of the files with two of them."""
    name = topic()
    produce(kafka, name, [*names(0, 2), *names(0, 2), *names(0, 2)])
    sink = ParquetFiles(uri, partition_by=("name",))
    return LakeGroup(inline_loader, name, sink, lambda: dataset(uri, format="parquet").to_table())


def published(uri: str) -> list[str]:
    """Return the paths of the files that readers see."""
    found = (path.relative_to(uri) for path in Path(uri).rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not path.parts[0].startswith("_"))


def test_files_are_named_by_partition_batch_and_number(group: LakeGroup, uri: str) -> None:
    group.load(limits=Limits(max_records=3))

    assert published(uri) == [
        "name=name-0/1-0.parquet",
        "name=name-0/2-0.parquet",
        "name=name-1/1-1.parquet",
        "name=name-1/2-1.parquet",
    ]
    assert group.proved() == (6, 0)
    found = dataset(uri, format="parquet", partitioning="hive").to_table().select(["name", "id"])
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(f"name-{id_}", id_) for id_ in (0, 0, 0, 1, 1, 1)]


def test_a_batch_that_is_published_in_part_gets_its_other_files(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = ObjectFiles.copy

    def die_after_one(files: ObjectFiles, path: str, to: str) -> None:
        copy(files, path, to)
        raise ProcessDiedError

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFiles, "copy", die_after_one)
        with pytest.raises(ProcessDiedError):
            group.load(RUN)
    (first,) = published(uri)
    written = Path(uri, first).stat()

    assert group.load().rows == 6

    assert published(uri) == ["name=name-0/1-0.parquet", "name=name-1/1-1.parquet"]
    assert Path(uri, first).stat().st_ino == written.st_ino
    assert len(group.loader.launcher.jobs) == 1
    assert group.proved() == (6, 0)


def test_readers_of_all_directories_see_no_staged_file(group: LakeGroup, uri: str) -> None:
    group.load()

    assert list(Path(uri, "_staging").rglob("*.*"))
    with duckdb.connect() as engine:
        found = engine.execute(f"SELECT count(*) FROM read_parquet('{uri}/**/*.parquet')").fetchall()
    assert found == [(6,)]


def test_published_files_of_an_attempt_whose_staged_files_are_lost_are_replaced(group: LakeGroup, uri: str) -> None:
    with dying(ParquetTarget, "after"):
        group.load(RUN)
    for path in Path(uri, "_staging").rglob("*.staged"):
        path.unlink()
    Path(uri, "name=name-1", "1-1.parquet").rename(Path(uri, "name=name-1", "1-7.parquet"))

    assert group.load().rows == 6

    assert published(uri) == ["name=name-0/1-0.parquet", "name=name-1/1-1.parquet"]
    assert group.proved() == (6, 0)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_the_files_of_an_abandoned_batch_are_removed(group: LakeGroup, uri: str, dies: str) -> None:
    with dying(ParquetTarget, dies):
        group.load(RUN)
    abandon_batch("loader", 1, engine=group.loader.engine)

    assert group.load().rows == 6

    assert {path.rpartition("/")[2].partition("-")[0] for path in published(uri)} == {"3"}
    assert group.proved() == (6, 0)


def test_rewinds_and_replays_replace_the_files_of_whole_batches(group: LakeGroup, uri: str) -> None:
    group.load(limits=Limits(max_records=3))

    assert group.replay({group.topic: {0: (0, 3)}}, replace=True).rows == 3
    done = Rewinder(group.loader)("to-offset", 3, replace=group.sink)

    assert done.rows_removed == 3
    assert group.places() == [(3, 0), (3, 1), (3, 2)]
    group.load(NEXT)
    assert group.proved() == (6, 0)


def test_a_directory_without_files_is_verified(group: LakeGroup, uri: str) -> None:
    group.load()
    Rewinder(group.loader)("to-offset", 0, replace=group.sink)

    assert not published(uri)
    assert group.proved() == (0, 0)


def test_a_part_of_a_batch_cannot_be_replaced(group: LakeGroup, uri: str) -> None:
    group.load()
    before = published(uri)

    with pytest.raises(TargetError, match="only files of whole batches can be removed"):
        Rewinder(group.loader)("to-offset", 2, replace=group.sink)

    assert published(uri) == before
    assert group.position() == 6


def test_a_replay_of_a_part_of_a_batch_is_refused_and_hinders_no_other(group: LakeGroup, uri: str) -> None:
    group.load()
    before = published(uri)

    with pytest.raises(TargetError, match="only files of whole batches can be removed"):
        group.replay({group.topic: {0: (2, 4)}}, RUN, replace=True)

    assert published(uri) == before
    assert group.replay({group.topic: {0: (0, 6)}}, NEXT, replace=True).rows == 6
    assert group.proved() == (6, 0)


def test_files_of_unknown_batches_are_refused(group: LakeGroup, uri: str) -> None:
    group.load()
    before = published(uri)
    Ledger(group.loader.engine).tables.metadata.drop_all(group.loader.engine)

    with pytest.raises(OlderLedgerError, match="holds rows of batch 1"):
        group.load()

    assert published(uri) == before


def test_columns_of_a_transform_are_declared(uri: str) -> None:
    table = ParquetFiles(uri).connect(NO_ENGINE)
    assert table.prepare(None).known is None
    with pytest.raises(ConfigurationError, match="Declare them, as in ParquetFiles"):
        table.writer(None, OUTPUT)

    assert ParquetFiles(uri, columns="id BIGINT").connect(NO_ENGINE).writer(None, OUTPUT).columns is not None


def test_a_file_has_the_columns_of_its_rows(uri: str, tmp_path: Path) -> None:
    for batch_id, name in ((1, "a"), (2, "b")):
        publish_rows(ParquetFiles(uri), pa.RecordBatch.from_pydict({name: [1]}), tmp_path, batch_id)

    files = [dataset(f"{uri}/{path}").schema.names for path in published(uri)]
    assert files == [["a", "_batch_id"], ["b", "_batch_id"]]


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Operation not permitted")

    Path(tmp_path, "staged.parquet").write_bytes(b"rows")
    monkeypatch.setattr(os, "link", refuse)
    for _ in range(2):
        ObjectFiles(str(tmp_path), {}).copy("staged.parquet", "day=1/1-0.parquet")

    assert [path.name for path in Path(tmp_path, "day=1").iterdir()] == ["1-0.parquet"]
    assert Path(tmp_path, "day=1/1-0.parquet").read_bytes() == b"rows"


def test_a_publication_whose_session_ended_publishes_no_other_file(
    kafka: Kafka, postgres_engine: Engine, topic: TopicFactory, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have hung, and another attempt have published the batch since."""
    name, sink = topic(), ParquetFiles(uri, partition_by=("name",))
    produce(kafka, name, names(0, 4))
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    group = LakeGroup(loader, name, sink, lambda: dataset(uri, format="parquet").to_table())
    copy, commit = ObjectFiles.copy, ParquetTarget.commit
    copied: list[list[str]] = []

    def end_session(files: ObjectFiles, path: str, to: str) -> None:
        copy(files, path, to)
        copied[-1].append(to)
        if len(copied) > 1 or len(copied[0]) > 1:
            return
        busy = "FROM pg_stat_activity WHERE state = 'idle in transaction' AND pid <> pg_backend_pid()"
        admin = sa.create_engine(postgres_engine.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            assert conn.scalars(sa.text(f"SELECT pg_terminate_backend(pid) {busy}")).all()
            while conn.scalar(sa.text(f"SELECT count(*) {busy}")):  # until then it has the lock of the group
                pass

    def commits(target: ParquetTarget) -> None:
        copied.append([])
        commit(target)

    monkeypatch.setattr(ObjectFiles, "copy", end_session)
    monkeypatch.setattr(ParquetTarget, "commit", commits)
    with suppress(DatabaseUnavailableError):
        group.load(RUN)

    assert len(copied[0]) == 1
    group.load(RUN)
    assert group.proved() == (4, 0)
