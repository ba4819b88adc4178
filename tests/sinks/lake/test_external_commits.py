"""Lake targets that commit before the positions do: loads, deaths between the commits, rewinds, replays and dead
dead letters, in each format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from obstore.exceptions import PermissionDeniedError
from pyarrow.dataset import dataset

from airflow_kafka_offsets import DeadLetters, DeltaTable, IcebergTable, Limits, ParquetFiles, Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import DoubleLoadError, OlderLedgerError, OpenBatchError
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.delta import format as delta_format
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.parquet.table import ParquetTarget
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.lake import NEXT, RUN, LakeGroup, dying
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names, rows
from tests.support.rewinds import Rewinder

DEATHS = ["before", "after"]
ALL = [(1, offset) for offset in (0, 1, 3, 4, 5)]


engine = fixtures.sqlite_engine


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(kind: str) -> type:
    """The class whose commit is the first of the two."""
    return ParquetTarget if kind == "parquet" else LakeTarget


@pytest.fixture
def group(kind: str, inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> LakeGroup:
    """A topic of six records, the third a dead letter, and nothing loaded."""
    name, uri = topic(), f"{tmp_path}/lake/orders"
    produce(kafka, name, [*names(0, 2), b"{not json", *names(3, 3)])

    sinks: dict[str, Callable[[], Sink]] = {
        "delta": lambda: DeltaTable(uri),
        "iceberg": lambda: iceberg_sink("sql", tmp_path),
        "parquet": lambda: ParquetFiles(uri),
    }
    sink = sinks[kind]()

    def read() -> pa.Table:
        if isinstance(sink, IcebergTable):
            return open_table(sink, inline_loader.engine).scan().to_arrow()
        if kind == "parquet":
            return dataset(uri, format="parquet").to_table()
        return pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())

    return LakeGroup(inline_loader, name, sink, read)


TABLES = pytest.mark.parametrize("kind", ["delta", "iceberg"])
"""Targets from which single rows are removed; of plain files, only those of whole batches are."""


def test_loads_are_proved_and_carry_on(group: LakeGroup) -> None:
    assert group.load(limits=Limits(max_records=4)).rows == 5
    assert group.places() == [(1, 0), (1, 1), (1, 3), (2, 4), (2, 5)]
    produce(group.loader.kafka, group.topic, names(6, 2))

    assert group.load(NEXT).rows == 2

    assert group.proved() == (7, 1)
    assert (group.offsets(), group.position()) == ([0, 1, 3, 4, 5, 6, 7], 8)


@pytest.mark.parametrize("dies", DEATHS)
def test_a_load_that_dies_between_the_commits_is_finished_by_the_next_try(
    group: LakeGroup, target: type, dies: str
) -> None:
    with dying(target, dies):
        group.load(RUN)
    assert group.position() is None

    done = group.load()

    assert (done.rows, done.dead_letters, len(group.loader.launcher.jobs)) == (5, 1, 1)
    assert (group.places(), group.position()) == (ALL, 6)
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", DEATHS)
def test_an_abandoned_batch_is_taken_back_by_the_next_load(group: LakeGroup, target: type, dies: str) -> None:
    with dying(target, dies):
        group.load(RUN)
    abandon_batch("loader", 1, engine=group.loader.engine)

    group.load()

    # Batch 2 keeps the position where the first one began.
    assert group.places() == [(3, offset) for _, offset in ALL]
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", DEATHS)
def test_an_abandoned_batch_is_taken_back_by_a_load_of_any_group(group: LakeGroup, target: type, dies: str) -> None:
    with dying(target, dies):
        group.load(RUN)
    abandon_batch("loader", 1, engine=group.loader.engine)

    group.loader(group.topic, group_id="other", sink=group.sink, on_bad_record=DeadLetters())

    assert [offset for _, offset in group.places()] == [offset for _, offset in ALL]
    with pytest.raises(DoubleLoadError, match="Group 'other' has loaded"):
        group.load()


@TABLES
@pytest.mark.parametrize("dies", [None, *DEATHS])
def test_a_rewind_takes_rows_back(group: LakeGroup, target: type, dies: str | None) -> None:
    group.load(limits=Limits(max_records=4))
    rewind = Rewinder(group.loader)
    if dies is None:
        done = rewind("to-offset", 1, replace=group.sink)
        assert (done.rows_removed, done.dead_letters_removed) == (4, 1)
    else:
        with dying(target, dies):
            rewind("to-offset", 1, replace=group.sink)

    # The file of the first batch held rows that stay, too, and is written again.
    group.load(NEXT)

    assert group.places() == [(1, 0), (4, 1), (4, 3), (4, 4), (4, 5)]
    assert group.proved() == (5, 1)


@TABLES
@pytest.mark.parametrize("dies", [None, *DEATHS])
def test_a_replay_replaces_rows_in_one_commit(group: LakeGroup, target: type, dies: str | None) -> None:
    group.load()
    bounds = {group.topic: {0: (1, 5)}}
    with pytest.raises(DoubleLoadError):
        group.replay(bounds)
    if dies is not None:
        with dying(target, dies):
            group.replay(bounds, RUN, replace=True)

    done = group.replay(bounds, replace=True)

    assert (done.rows, done.dead_letters) == (3, 1)
    assert group.places() == [(1, 0), (1, 5), (2, 1), (2, 3), (2, 4)]
    assert rows(group.loader.engine, "SELECT sum(row_count) FROM replaced_output") == [(3,)]
    assert group.proved() == (5, 1)


@TABLES
def test_a_replay_that_may_be_published_is_finished_before_its_offsets_are_replaced_again(
    group: LakeGroup, target: type
) -> None:
    group.load()
    bounds, fewer = ({group.topic: {0: (1, end)}} for end in (5, 2))
    with dying(target, "after"):
        group.replay(bounds, RUN, replace=True)

    # Its removal could not be taken back, and its rows would stay beside those of others.
    with pytest.raises(OpenBatchError, match=r"Batch 2 of the same task instance .* finish it before another replay"):
        group.replay(fewer, replace=True)
    with pytest.raises(OpenBatchError, match=r"Batch 2, an open replay of group 'loader', may have published"):
        group.replay(fewer, NEXT, replace=True)
    with pytest.raises(OpenBatchError, match=r"Batch 2, an open replay of group 'loader', may have published"):
        Rewinder(group.loader)("to-offset", 1, replace=group.sink)

    assert group.replay(bounds, replace=True).rows == 3
    assert group.replay(fewer, NEXT, replace=True).rows == 1
    assert group.places() == [(1, 0), (1, 5), (2, 3), (2, 4), (3, 1)]
    assert group.proved() == (5, 1)


@TABLES
def test_a_replay_of_a_script_is_finished_when_the_script_runs_again(group: LakeGroup, target: type) -> None:
    group.load()
    bounds = {group.topic: {0: (1, 5)}}
    with dying(target, "after"):
        group.replay(bounds, None, replace=True)
    with pytest.raises(OpenBatchError, match=r"finish the replay: .* run the same replay again"):
        abandon_batch("loader", 2, engine=group.loader.engine)

    assert group.replay(bounds, None, replace=True).batches == (2,)
    assert group.places() == [(1, 0), (1, 5), (2, 1), (2, 3), (2, 4)]
    assert group.proved() == (5, 1)
    # One that is finished is not taken over.
    assert group.replay(bounds, None, replace=True).batches == (3,)
    assert group.proved() == (5, 1)


@TABLES
@pytest.mark.parametrize("dies", [None, *DEATHS])
def test_a_dead_letter_that_is_replayed_is_one_row(group: LakeGroup, target: type, dies: str | None) -> None:
    group.load()
    corrected = {1: {Record(group.topic, 0, 2): b'{"id": 2, "name": "corrected"}'}}

    def replayed() -> Any:
        pipeline = group.loader.pipeline([group.topic], sink=group.sink)
        return replay_dead_letters(
            DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected
        )

    if dies is not None:
        with dying(target, dies):
            list(replayed())
    assert [dead_letter.rows for dead_letter in replayed()] == [1]

    # A replay that published nothing is abandoned, and its rows are those of another batch.
    assert group.places() == sorted([*ALL, (3 if dies == "before" else 2, 2)])
    assert group.proved() == (6, 0)


def test_published_batch_is_staged_again_when_its_files_are_lost(
    group: LakeGroup, target: type, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    with dying(target, "after"):
        group.load(RUN, staging=Staging(dir=str(staging)))
    (manifest,) = staging.glob("*/manifest.json")
    manifest.unlink()

    assert group.load(staging=Staging(dir=str(staging))).rows == 5
    assert (group.places(), group.proved()) == (ALL, (5, 1))


@pytest.mark.parametrize("kind", ["delta"])
def test_a_user_who_may_not_delete_files_goes_on_loading(
    group: LakeGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refused(*_: Any) -> None:
        raise PermissionDeniedError("AccessDenied: s3:DeleteObject")

    group.load()
    produce(group.loader.kafka, group.topic, names(6, 2))
    monkeypatch.setattr(delta_format, "left_below", lambda *_: {"batch-1-x/part.parquet"})
    monkeypatch.setattr(deltalake.DeltaTable, "vacuum", lambda *_, **__: ["batch-1-x/part.parquet"])
    monkeypatch.setattr(ObjectFiles, "remove", refused)

    assert (
        group.load(NEXT, staging=Staging(dir=str(tmp_path / "staging"), retention=timedelta(microseconds=1))).rows == 2
    )
    assert "could not be removed: PermissionDeniedError: AccessDenied: s3:DeleteObject" in caplog.text


def test_state_tables_that_are_older_than_the_table_are_refused(group: LakeGroup) -> None:
    group.load()
    Ledger(group.loader.engine).tables.metadata.drop_all(group.loader.engine)

    with pytest.raises(OlderLedgerError, match="holds rows of batch 1"):
        group.load()
    assert group.places() == ALL


@TABLES
def test_an_older_backup_is_noticed_whatever_other_groups_load(group: LakeGroup) -> None:
    """Batches of another group got higher numbers than the one that the state tables of a backup do not know."""
    group.load(limits=Limits(max_records=3))
    group.load(NEXT, group_id="other", **BESIDE_OTHERS)
    with group.loader.engine.begin() as conn:
        for table in ("offset_ranges", "dead_letters", "offset_batches"):
            conn.exec_driver_sql(f"DELETE FROM {table} WHERE batch_id = 2")
        conn.exec_driver_sql("UPDATE consumed_offsets SET offset_value = 3 WHERE consumer_group = 'loader'")

    with pytest.raises(OlderLedgerError, match="holds rows of batch 2, which"):
        group.load(NEXT, **BESIDE_OTHERS)

    produce(group.loader.kafka, group.topic, names(6, 1))
    assert group.load(replace(NEXT, run_id="third"), group_id="other", **BESIDE_OTHERS).rows == 1
