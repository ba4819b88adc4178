"""A table that was dropped and created again under its name, and rows of another installation with the same numbers of
batches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink
from tests.support.loads import Loader, TopicFactory, names, positions
from tests.support.rewinds import Rewinder


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> IcebergGroup:
    """A topic of four records, and nothing loaded."""
    name = topic()
    produce(kafka, name, names(0, 4))
    return IcebergGroup(inline_loader, name, iceberg_sink("sql", tmp_path))


def test_a_table_that_is_created_again_after_staging_is_named(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=2))
    produce(group.loader.kafka, group.orders, names(4, 2))
    catalog, old = load_catalog("default", **group.sink.catalog), group.table  # type: ignore[arg-type]
    launch = type(group.loader.launcher).__call__

    def created_again(launcher: Any, job: Any) -> None:
        launch(launcher, job)
        catalog.drop_table("shop.orders")
        catalog.create_table("shop.orders", old.schema(), location=old.location())

    with monkeypatch.context() as patch:
        patch.setattr(type(group.loader.launcher), "__call__", created_again)
        with pytest.raises(TargetError, match=r"was dropped .* Restore the table \(register_table"):
            group.load()
    assert group.table.current_snapshot() is None

    # What the error says.
    catalog.drop_table("shop.orders")
    catalog.register_table("shop.orders", old.metadata_location)
    assert group.load().rows == 2
    assert group.offsets() == list(range(6))


@pytest.mark.parametrize("kind", ["sql", "positions"])
def test_a_table_of_the_same_name_without_the_rows_of_the_group_is_refused(
    group: IcebergGroup, tmp_path: Path, kind: str
) -> None:
    first = replace(group, sink=iceberg_sink(kind, tmp_path))
    assert first.load().rows == 4
    produce(group.loader.kafka, group.orders, names(4, 2))
    if kind == "sql":
        (tmp_path / "other").mkdir()
        other = replace(first, sink=iceberg_sink(kind, tmp_path / "other"))
    else:
        with group.loader.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM iceberg_tables"))
        other = first
    with pytest.raises(TargetError, match="has no rows of group 'loader', whose batch 1 is in one"):
        other.load()
    assert positions(group.loader.engine) == {(group.orders, 0): 4}

    # What the error says.
    Rewinder(group.loader)("to-earliest")
    assert other.load().rows == 6
    assert other.load().rows == 0
    assert other.offsets() == list(range(6))


@pytest.mark.parametrize("kind", ["sql", "positions"])
@pytest.mark.parametrize("before", ["rewind", "undo"])
def test_a_rewind_of_the_table_does_not_allow_another(
    group: IcebergGroup, tmp_path: Path, kind: str, before: str
) -> None:
    first = replace(group, sink=iceberg_sink(kind, tmp_path))
    (tmp_path / "other").mkdir()
    other = replace(first, sink=iceberg_sink("sql", tmp_path / "other"))
    assert first.load().rows == 4
    rewind = Rewinder(group.loader)
    if before == "undo":
        rewind("to-offset", 3)
        rewind("undo")
    else:
        rewind("to-offset", 3, replace=first.sink)
    produce(group.loader.kafka, group.orders, names(4, 2))

    with pytest.raises(TargetError, match=r"of another catalog or store\. Nothing was written"):
        rewind("to-offset", 2, replace=other.sink)
    with pytest.raises(TargetError, match=r"of another catalog or store\. Nothing was written"):
        other.load()
    first.load()

    assert first.offsets() == list(range(6))


def test_a_catalog_that_is_changed_back_is_refused(group: IcebergGroup, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = replace(group, sink=iceberg_sink("sql", tmp_path / "other"))
    group.load()
    Rewinder(group.loader)("to-earliest")
    assert other.load().rows == 4
    produce(group.loader.kafka, group.orders, names(4, 2))

    with pytest.raises(TargetError, match="has batch 1 as the last one of group 'loader', whose batch 3 is in one"):
        group.load()

    assert other.load().rows == 2
    assert (group.offsets(), other.offsets()) == ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5])


def test_an_older_metadata_file_is_refused(group: IcebergGroup) -> None:
    group.load()
    old = group.table.metadata_location
    produce(group.loader.kafka, group.orders, names(4, 2))
    group.load()
    new = group.table.metadata_location
    catalog = load_catalog("default", **group.sink.catalog)  # type: ignore[arg-type]
    catalog.drop_table("shop.orders")
    catalog.register_table("shop.orders", old)
    produce(group.loader.kafka, group.orders, names(6, 2))

    with pytest.raises(TargetError, match="has batch 1 as the last one of group 'loader', whose batch 2 is in one"):
        group.load()

    catalog.drop_table("shop.orders")
    catalog.register_table("shop.orders", new)
    group.load()
    assert group.offsets() == list(range(8))


def test_rows_of_another_installation_stay_where_a_batch_of_its_number_is_taken_back(
    group: IcebergGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = IcebergSnapshot.commit

    def dies(snapshot: IcebergSnapshot, change: Any) -> bool:
        commit(snapshot, change)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(IcebergSnapshot, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            group.load()
    foreign = group.table.scan("_kafka_offset = 0").to_arrow()
    topic = foreign.schema.get_field_index("_kafka_topic")
    group.table.append(
        foreign.set_column(topic, foreign.schema.field(topic), pa.array(["theirs"], foreign.schema.field(topic).type))
    )
    abandon_batch("loader", 1, engine=group.loader.engine)

    group.load()

    found = group.table.scan(selected_fields=("_kafka_topic", "_batch_id", "_kafka_offset")).to_arrow().to_pylist()
    places = sorted((row["_kafka_topic"] == "theirs", row["_batch_id"], row["_kafka_offset"]) for row in found)
    assert places == [*((False, 3, offset) for offset in range(4)), (True, 1, 0)]
