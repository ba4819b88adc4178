"""`kafka-offsets groups`: what is stored of every group."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli import command, groups
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, data, failed, leave_open
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


@pytest.fixture
def frozen() -> Iterator[int]:
    """The port of a server that accepts connections and never answers, as one that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


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

    def test_lag_is_that_of_kafka_now(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 3))
        inline_loader(name)
        produce(kafka, name, names(3, 4))

        (group,) = data(cli, "groups")

        assert (group["group"], group["lag"]) == ("loader", 4)

    @pytest.mark.parametrize("others", [(), ("kafka_default",)], ids=["alone", "beside another one"])
    def test_a_cluster_that_does_not_answer_is_named_and_its_lag_is_not_known(
        self,
        cli: CommandLine,
        inline_loader: Loader,
        kafka: KafkaBroker,
        topic: TopicFactory,
        monkeypatch: pytest.MonkeyPatch,
        frozen: int,
        others: tuple[str, ...],
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 3))
        inline_loader(name)
        extra = {"bootstrap.servers": f"127.0.0.1:{frozen}"}
        cli.connect("kafka_frozen", json.dumps({"conn_type": "kafka", "extra": extra}))
        # The other one answers within seconds on any machine.
        monkeypatch.setattr(groups, "KAFKA_TIMEOUT_SECONDS", 6.0 if others else 0.5)

        asked = [word for conn_id in ("kafka_frozen", *others) for word in ("--kafka-conn-id", conn_id)]
        done = cli("groups", *DB, *asked, "--output", "json")

        assert (done.status, done.json[0]["lag"]) == (0, 0 if others else None)
        assert "Connection 'kafka_frozen'" in done.stderr
        assert "the lag of the groups of its cluster is not known" in done.stderr

    def test_a_database_that_accepts_and_does_not_answer_is_named(
        self, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, frozen: int
    ) -> None:
        cli.connect("warehouse", f"postgres://someone:5ecret@127.0.0.1:{frozen}/orders")
        monkeypatch.setattr(command, "DATABASE_TIMEOUT_SECONDS", 0.5)

        for name in ("groups", "lag"):
            done = cli(name, *(("loader",) if name == "lag" else ()), *DB, "--output", "json")
            advice = "check whether it runs and can be reached, and connection 'warehouse'"
            assert f"The database does not answer within 0.5 s: {advice}" in failed(done, name)
            assert (done.status, done.stdout) == (1, "")

    def test_a_partition_without_an_end_makes_the_lag_unknown(
        self, cli: CommandLine, inline_loader: Loader, loaded_topic: str
    ) -> None:
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE consumed_offsets SET offset_value = 8"))

        done = cli("groups", *DB, "--output", "json")

        assert (done.status, done.json[0]["lag"]) == (0, None)
        assert "The lag of group 'loader' is not known: " in done.stderr

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
