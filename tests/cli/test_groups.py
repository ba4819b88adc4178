"""`airflow kafka-offsets groups`: what is stored of every group."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, data, failed, leave_open
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


class TestGroups:
    def test_every_group_is_listed_with_its_last_batch(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 3))
        inline_loader(name)
        inline_loader(name, group_id="another", start="latest")

        another, loader = data(cli, "groups")

        assert (another["group"], another["partitions"], another["last_batch"]) == ("another", 2, 3)
        assert (loader["group"], loader["partitions"], loader["last_batch"]) == ("loader", 2, 2)
        assert loader["cluster_id"] == another["cluster_id"] != ""
        assert datetime.fromisoformat(loader["committed_at"]).tzinfo is not None
        assert (loader["open_batch"], loader["held_by"], loader["held_until"]) == (None, None, None)

    def test_an_open_batch_is_shown_with_its_state(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 3))
        leave_open(inline_loader, name)

        (group,) = data(cli, "groups")

        assert (group["last_batch"], group["open_batch"], group["open_state"]) == (None, 1, "planned")

    def test_an_open_replay_is_not_the_open_batch_of_a_group(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 3))
        leave_open(inline_loader, name)
        with inline_loader.engine.begin() as conn:
            batches = Tables().offset_batches
            (batch,) = conn.execute(sa.select(batches)).mappings()
            replay = {str(key): value for key, value in batch.items()} | {"batch_id": 77, "kind": "replay"}
            conn.execute(batches.insert().values(replay))

        (group,) = data(cli, "groups")

        assert group["open_batch"] == 1

    @pytest.mark.parametrize(
        ("lease", "shown"), [(timedelta(hours=1), True), (timedelta(0), False)], ids=["live", "over"]
    )
    def test_only_a_live_lease_holds_a_group(
        self, cli: CommandLine, engine: Engine, lease: timedelta, shown: bool
    ) -> None:
        initialize(Ledger(engine))
        claim_group(Ledger(engine), "loader", TaskRun("run-1", "dag", "task"), cluster_id="c", lease=lease)

        (group,) = data(cli, "groups")

        assert (group["held_by"] is not None, group["held_until"] is not None) == (shown, shown)
        if shown:
            assert group["held_by"] == "dag 'dag' task 'task' run 'run-1'"

    def test_tables_that_are_not_there_are_an_error(self, cli: CommandLine) -> None:
        assert "offsets_schema_version" in failed(cli("groups", *DB), "groups")

    def test_tables_with_a_prefix_are_found_by_it(self, cli: CommandLine, engine: Engine) -> None:
        initialize(Ledger(engine, Tables(prefix="my_")))
        assert data(cli, "groups", "--prefix", "my_") == []
