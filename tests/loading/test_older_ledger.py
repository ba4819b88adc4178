"""State tables that are older than the target, as after a restored backup. The cases are those of
`docs/semantics.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import (
    FencedError,
    KafkaOffsetsError,
    OlderLedgerError,
    TargetError,
    VerificationError,
)
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.context import Commit
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.delta.table import DeltaTable
from airflow_kafka_offsets.sinks.sql.connected_table import ConnectedSqlTable
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.external_archive import ExternalArchive, ProcessDiedError
from tests.support.inline import InlineLauncher
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, assert_exactly_once, names, rows
from tests.support.older_ledger import backup_of, restore, sinks
from tests.support.openings import ids

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class TestOlderLedger:
    def test_state_that_is_older_than_the_target_is_refused(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        backup = backup_of(inline_loader)
        produce(kafka, name, names(5, 5))
        inline_loader(name)
        restore(inline_loader, backup)

        with pytest.raises(OlderLedgerError, match="Table 'target' holds rows of batch 2, which is planned and not"):
            inline_loader(name)
        assert ids(inline_loader) == list(range(10))

        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM target WHERE _batch_id >= 2"))
        inline_loader(name)
        assert_exactly_once(inline_loader.engine)

    @pytest.mark.parametrize("constraint", ["PRIMARY KEY", "UNIQUE"], ids=["primary-key", "unique"])
    def test_the_index_of_a_constraint_is_enough_to_find_it_out(
        self, inline_loader: Loader, topic: TopicFactory, constraint: str
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        with inline_loader.engine.begin() as conn:
            conn.exec_driver_sql(
                f"CREATE TABLE target (id BIGINT, name TEXT, _batch_id BIGINT NOT NULL, {constraint} (_batch_id, id))"
            )
        inline_loader(name)
        with inline_loader.engine.begin() as conn:
            Tables().metadata.drop_all(conn)

        with pytest.raises(OlderLedgerError, match="Table 'target' holds rows of batch 1"):
            inline_loader(name)

    def test_two_groups_share_a_target(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))

        class LoadsTheOther(InlineLauncher):
            """The other group plans after, and commits before."""

            def __call__(self, job: StageJob) -> None:
                loader = Loader(inline_loader.kafka, inline_loader.engine, InlineLauncher())
                loader(name, group_id="other", **BESIDE_OTHERS)
                super().__call__(job)

        Loader(inline_loader.kafka, inline_loader.engine, LoadsTheOther())(name)

        assert rows(inline_loader.engine, "SELECT _batch_id, count(*) FROM target GROUP BY 1 ORDER BY 1") == [
            (1, 5),
            (2, 5),
        ]

    def test_a_load_checks_its_table_once(
        self, inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[int] = []
        prepared: list[ConnectedSqlTable] = []
        look, prepare = ConnectedSqlTable.refuse_unknown_rows, ConnectedSqlTable.prepare

        def looks(sink: ConnectedSqlTable, conn: sa.Connection, batches: sa.Table, output: Output) -> None:
            looked.append(output.batch_id)
            look(sink, conn, batches, output)

        def prepares(sink: ConnectedSqlTable, *args: Any, **kwargs: Any) -> Any:
            prepared.append(sink)
            return prepare(sink, *args, **kwargs)

        monkeypatch.setattr(ConnectedSqlTable, "refuse_unknown_rows", looks)
        monkeypatch.setattr(ConnectedSqlTable, "prepare", prepares)
        name = topic()
        produce(inline_loader.kafka, name, names(0, 9))

        assert inline_loader(name, limits=Limits(max_records=3)).batches == (1, 2, 3)
        assert looked == [1]
        # As the load begins, and when the rows of its first batch are staged.
        assert len(prepared) == 2
        produce(inline_loader.kafka, name, names(9, 1))
        inline_loader(name)
        assert looked == [1, 4]
        assert len(prepared) == 4

    def test_a_table_that_changes_within_a_load_is_found_out(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 6))

        rename = executing(inline_loader, "ALTER TABLE target RENAME COLUMN name TO title")
        with pytest.raises(TargetError, match="name"):
            inline_loader(name, limits=Limits(max_records=3), on_commit=rename)
        assert ids(inline_loader) == list(range(3))

    def test_state_that_is_restored_within_a_load_takes_the_group_from_it(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name, backup = loaded_and_backed_up(inline_loader, topic)

        with pytest.raises(FencedError):
            inline_loader(name, limits=Limits(max_records=3), on_commit=lambda _: restore(inline_loader, backup))
        assert ids(inline_loader) == list(range(6))
        with pytest.raises(OlderLedgerError, match="holds rows of batch 2, which is planned and not committed"):
            inline_loader(name)

    def test_state_of_this_load_that_is_restored_within_it_is_refused(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 9))
        backups: list[dict[str, list[tuple[Any, ...]]]] = []

        def keep_and_restore(_: Commit) -> None:
            backups.append(backup_of(inline_loader))
            if len(backups) == 3:
                restore(inline_loader, backups[0])

        with pytest.raises(OlderLedgerError, match=r"holds rows of batch 3.* delete the rows with _batch_id >= 2"):
            inline_loader(name, limits=Limits(max_records=3), on_commit=keep_and_restore)
        assert ids(inline_loader) == list(range(9))

    def test_state_that_is_restored_and_claimed_by_another_run_is_refused(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name, backup = loaded_and_backed_up(inline_loader, topic)

        def restore_and_load(_: Commit) -> None:
            restore(inline_loader, backup)
            with pytest.raises(OlderLedgerError):
                Loader(inline_loader.kafka, inline_loader.engine, InlineLauncher())(name)

        with pytest.raises(KafkaOffsetsError):
            inline_loader(name, limits=Limits(max_records=3), on_commit=restore_and_load)
        assert ids(inline_loader) == list(range(6))

    def test_a_table_that_is_dropped_within_a_load_is_found_out(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 6))

        with pytest.raises(TargetError, match="disappeared"):
            inline_loader(name, limits=Limits(max_records=3), on_commit=executing(inline_loader, "DROP TABLE target"))


@pytest.mark.parametrize("kind", ["table", "delta", "iceberg", "iceberg-external", "parquet"])
def test_every_group_of_a_table_finds_an_older_backup(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kind: str
) -> None:
    """Also once other loads have used the lost numbers again."""
    topics, sink, loader = [topic() for _ in range(3)], sinks(tmp_path)[kind], inline_loader

    def load(number: int, **others: Any) -> None:
        options: dict[str, Any] = {"group_id": f"group-{number}", "sink": sink, **others}
        loader(topics[number], **options)

    for number, name in enumerate(topics):
        produce(loader.kafka, name, names(0, 5))
        load(number)
    backup = backup_of(loader)
    for number, name in enumerate(topics):
        produce(loader.kafka, name, names(5, 5))
        load(number)
    restore(loader, backup)
    for number in range(3):
        for _ in range(2):
            load(number, group_id=f"again-{number}", sink=SqlTable(f"again_{number}"), limits=Limits(max_records=5))

    for number in range(3):
        with pytest.raises(OlderLedgerError, match=r"holds rows of batch \d, which .* older backup than the table"):
            load(number)
        if kind == "table":
            with pytest.raises(VerificationError, match="which the state tables do not know"):
                verify(f"group-{number}", sink=sink, engine=loader.engine)


def test_a_group_that_is_abandoned_after_a_backup_stays_refused(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink, loader = topic(), DeltaTable(str(tmp_path / "target")), inline_loader
    produce(loader.kafka, name, names(0, 5))
    loader(name, sink=sink)
    backup = backup_of(loader)
    produce(loader.kafka, name, names(5, 5))
    loader(name, sink=sink)
    restore(loader, backup)

    for batch_id in (2, 3):
        with pytest.raises(OlderLedgerError, match="holds rows of batch 2"):
            loader(name, sink=sink)
        abandon_batch("loader", batch_id, engine=loader.engine)


def test_rows_of_a_batch_that_was_taken_back_are_known(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path
) -> None:
    name, loader = topic(), inline_loader
    archive = ExternalArchive("orders", path=str(tmp_path / "orders"))
    produce(loader.kafka, name, names(0, 5))
    with pytest.raises(ProcessDiedError):
        loader(name, sink=replace(archive, dies="after"))
    abandon_batch("loader", 1, engine=loader.engine)

    assert loader(name, sink=archive).rows == 5


def executing(loader: Loader, statement: str) -> Callable[[Commit], None]:
    """Return what a load calls after a commit, and what executes a statement then."""

    def execute(_: Commit) -> None:
        with loader.engine.begin() as conn:
            conn.exec_driver_sql(statement)

    return execute


def loaded_and_backed_up(loader: Loader, topic: TopicFactory) -> tuple[str, dict[str, list[tuple[Any, ...]]]]:
    """Load three records, and return their topic, which has six more by now, and a backup of the state tables from
    before.
    """
    name = topic()
    produce(loader.kafka, name, names(0, 3))
    loader(name)
    backup = backup_of(loader)
    produce(loader.kafka, name, names(3, 6))
    return name, backup
