"""Lake tables that were dropped, or rolled back, with rows of a group: nothing is written until the group is rewound to
where its rows end, and every batch is proved then.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from airflow_kafka_offsets import DeltaTable, IcebergTable, Limits
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import abandon_batch, check_removal
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.sink import Sink
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.lake import NEXT, LakeGroup, dying
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.rewinds import Rewinder

LOST = r"has no rows of group 'loader', whose batch 3 is in one of this name: that was dropped"

BACK = r"was restored to a version before|was rolled back, or replaced"

engine = fixtures.sqlite_engine


@pytest.fixture(params=["delta", "iceberg", "iceberg in the database"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def group(kind: str, inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> LakeGroup:
    """A topic of six records, loaded in batches of two."""
    name, uri = topic(), f"{tmp_path}/lake/orders"
    produce(kafka, name, names(0, 6))
    sinks: dict[str, Callable[[], Sink]] = {
        "delta": lambda: DeltaTable(uri),
        "iceberg": lambda: iceberg_sink("sql", tmp_path),
        "iceberg in the database": lambda: iceberg_sink("positions", tmp_path),
    }
    sink = sinks[kind]()

    def read() -> pa.Table:
        if isinstance(sink, IcebergTable):
            return open_table(sink, inline_loader.engine).scan().to_arrow()
        return pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())

    group = LakeGroup(inline_loader, name, sink, read)
    assert group.load(limits=Limits(max_records=2)).rows == 6
    return group


def catalog_of(group: LakeGroup, tmp_path: Path) -> Catalog:
    assert isinstance(group.sink, IcebergTable)
    if isinstance(group.sink.catalog, dict):
        return load_catalog("default", **group.sink.catalog)
    return SqlCatalog("default", uri=str(group.loader.engine.url), warehouse=f"file://{tmp_path}/lake")


def drop(group: LakeGroup, tmp_path: Path) -> Callable[[], Any]:
    """Drop the table; return what brings it back."""
    if not isinstance(group.sink, IcebergTable):
        path, away = f"{tmp_path}/lake/orders", f"{tmp_path}/away"
        shutil.move(path, away)
        return lambda: Path(away).rename(path)
    catalog, table = catalog_of(group, tmp_path), open_table(group.sink, group.loader.engine)
    catalog.drop_table("shop.orders")
    return lambda: catalog.register_table("shop.orders", table.metadata_location)


def versions_of(group: LakeGroup, tmp_path: Path) -> list[int]:
    """Return the versions of the table, in order."""
    if not isinstance(group.sink, IcebergTable):
        table = deltalake.DeltaTable(f"{tmp_path}/lake/orders")
        return sorted(each["version"] for each in table.history())
    return [each.snapshot_id for each in open_table(group.sink, group.loader.engine).snapshots()]


def go_back(group: LakeGroup, tmp_path: Path, version: int) -> None:
    """Roll the table back to a version."""
    if not isinstance(group.sink, IcebergTable):
        deltalake.DeltaTable(f"{tmp_path}/lake/orders").restore(version)
    else:
        iceberg = open_table(group.sink, group.loader.engine)
        iceberg.manage_snapshots().set_current_snapshot(version).commit()


def roll_back(group: LakeGroup, tmp_path: Path) -> None:
    """Roll the table back to what it was before its last batch."""
    go_back(group, tmp_path, versions_of(group, tmp_path)[-2])


@pytest.mark.parametrize("to", ["to-earliest", "to-offset"])
def test_a_dropped_table_is_loaded_again_after_a_rewind_that_replaces_all_of_its_rows(
    group: LakeGroup, tmp_path: Path, to: str
) -> None:
    drop(group, tmp_path)
    produce(group.loader.kafka, group.topic, names(6, 1))
    with pytest.raises(TargetError, match=LOST):
        group.load(NEXT)
    with pytest.raises(TargetError, match=LOST):
        group.replay({group.topic: {0: (0, 6)}}, replace=True)

    rewind = Rewinder(group.loader)
    preview = rewind.preview(to, 0 if to == "to-offset" else None)
    check_removal(preview, group.sink, ledger=Ledger(group.loader.engine))
    assert rewind.execute(preview, replace=group.sink).rows_removed == 0

    assert group.load(NEXT).rows == 7
    assert group.offsets() == list(range(7))
    assert group.proved() == (7, 0)


def test_a_rewind_that_leaves_rows_of_a_dropped_table_is_refused(group: LakeGroup, tmp_path: Path) -> None:
    drop(group, tmp_path)
    rewind = Rewinder(group.loader)
    lost = "has no rows of group 'loader', whose batch 2 is in one of this name: that was dropped"
    preview = rewind.preview("to-offset", 3)

    with pytest.raises(TargetError, match=lost):
        check_removal(preview, group.sink, ledger=Ledger(group.loader.engine))
    with pytest.raises(TargetError, match=lost):
        rewind.execute(preview, replace=group.sink)

    assert group.position() == 6


def test_a_refused_load_creates_nothing_in_the_way_of_the_table_that_comes_back(
    group: LakeGroup, tmp_path: Path
) -> None:
    restore = drop(group, tmp_path)
    produce(group.loader.kafka, group.topic, names(6, 1))
    with pytest.raises(TargetError, match=LOST):
        group.load(NEXT)
    assert rows(group.loader.engine, "SELECT count(*) FROM offset_batches") == [(3,)]

    restore()

    assert group.load(NEXT).rows == 1
    assert group.proved() == (7, 0)


def test_a_table_that_was_rolled_back_is_loaded_again_from_where_its_rows_end(group: LakeGroup, tmp_path: Path) -> None:
    roll_back(group, tmp_path)
    produce(group.loader.kafka, group.topic, names(6, 1))

    with pytest.raises(TargetError, match=BACK):
        group.load(NEXT)
    # A rewind to another place, and its undo, say nothing of the rows that are gone.
    rewind = Rewinder(group.loader)
    rewind("to-offset", 5, abandon=4)
    rewind("undo")
    with pytest.raises(TargetError, match=BACK):
        group.load(NEXT)

    assert rewind("to-offset", 4, replace=group.sink, abandon=7).rows_removed == 0

    assert group.load(NEXT).rows == 3
    assert group.offsets() == list(range(7))
    assert group.proved() == (7, 0)


def test_a_rewind_to_after_the_rows_that_a_rollback_lost_changes_nothing(group: LakeGroup, tmp_path: Path) -> None:
    roll_back(group, tmp_path)
    rewind = Rewinder(group.loader)
    rewind("to-offset", 5, replace=group.sink)

    with pytest.raises(TargetError, match=BACK):
        group.load(NEXT)

    rewind("to-offset", 4, replace=group.sink, abandon=5)
    assert group.load(NEXT).rows == 2
    assert group.offsets() == list(range(6))
    assert group.proved() == (6, 0)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("to", [6, 0])
def test_rows_of_an_abandoned_batch_that_come_back_are_replaced(group: LakeGroup, tmp_path: Path, to: int) -> None:
    """A version of the table has rows of an abandoned batch, which the next one has removed."""
    produce(group.loader.kafka, group.topic, names(6, 2))
    with dying(LakeTarget, "after"):
        group.load(replace(NEXT, run_id="dies"))
    abandon_batch("loader", 4, engine=group.loader.engine)
    version = versions_of(group, tmp_path)[-1]
    assert group.load(NEXT).rows == 2
    assert group.offsets() == list(range(8))
    go_back(group, tmp_path, version)
    assert group.places()[-2:] == [(4, 6), (4, 7)]

    rewind = Rewinder(group.loader)
    preview = rewind.preview("to-offset", to)
    check_removal(preview, group.sink, ledger=Ledger(group.loader.engine))
    assert rewind.execute(preview, replace=group.sink).rows_removed == 8 - to

    assert group.load(replace(NEXT, run_id="after")).rows == 8 - to
    assert group.offsets() == list(range(8))
    assert group.proved() == (8, 0)


def test_a_rollback_to_before_a_replay_is_no_loss(group: LakeGroup, tmp_path: Path) -> None:
    """The rows of before are there again."""
    group.replay({group.topic: {0: (3, 5)}}, None, replace=True)
    versions = versions_of(group, tmp_path)
    go_back(group, tmp_path, versions[2 if isinstance(group.sink, IcebergTable) else -2])
    produce(group.loader.kafka, group.topic, names(6, 1))
    with pytest.raises(TargetError, match=r"If no row is gone, rewind it to-current"):
        group.load(NEXT)

    Rewinder(group.loader)("to-current", abandon=5)
    assert group.load(NEXT).rows == 1
    assert group.offsets() == list(range(7))

    # Rows that were replaced twice are counted once, once all of their offsets were replaced.
    group.replay({group.topic: {0: (3, 5)}}, None, replace=True)
    group.replay({group.topic: {0: (2, 3)}}, None, replace=True)
    group.replay({group.topic: {0: (5, 6)}}, None, replace=True)
    assert group.offsets() == list(range(7))
    assert group.proved() == (7, 0)


def test_a_rollback_after_the_rewind_is_found(group: LakeGroup, tmp_path: Path) -> None:
    Rewinder(group.loader)("to-offset", 5)
    roll_back(group, tmp_path)

    with pytest.raises(TargetError, match=BACK):
        group.load(NEXT)


def test_a_table_that_is_written_anew_with_all_rows_is_loaded_after_a_rewind_that_moves_nothing(
    group: LakeGroup, tmp_path: Path
) -> None:
    """As by CREATE OR REPLACE TABLE … AS SELECT."""
    if isinstance(group.sink, IcebergTable):
        table, catalog = open_table(group.sink, group.loader.engine), catalog_of(group, tmp_path)
        held = table.scan().to_arrow()
        catalog.drop_table("shop.orders")
        catalog.create_table("shop.orders", table.schema()).append(held)
    else:
        held = group.read()
        shutil.rmtree(f"{tmp_path}/lake/orders")
        deltalake.write_deltalake(f"{tmp_path}/lake/orders", held)
    produce(group.loader.kafka, group.topic, names(6, 1))
    with pytest.raises(TargetError, match=r"has no rows of group 'loader'.* rewind the group to-current, without"):
        group.load(NEXT)

    assert Rewinder(group.loader)("to-current", abandon=4).moved == 0

    assert group.load(NEXT).rows == 1
    assert group.offsets() == list(range(7))
    assert group.proved() == (7, 0)
