"""`kafka-offsets history`: the batches of a group, and all of one."""

from __future__ import annotations

from datetime import datetime

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.tables import Tables
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, data, failed, ok
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


class TestHistory:
    @pytest.fixture
    def loaded(self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> str:
        name = topic()
        produce(kafka, name, names(0, 5))
        run = TaskRun("manual", "orders", "load", -1, 1)
        inline_loader(name, limits=Limits(max_records=2), run=run)
        delete_records(kafka.bootstrap_servers, name, 5)
        produce(kafka, name, names(5, 3))
        delete_records(kafka.bootstrap_servers, name, 6)
        inline_loader(name, on_data_loss="skip")
        return name

    def test_batches_come_newest_first(self, cli: CommandLine, loaded: str) -> None:
        found = data(cli, "history", "loader")

        assert [(row["batch_id"], row["records"], row["rows"]) for row in found] == [
            (4, 2, 2),
            (3, 1, 1),
            (2, 2, 2),
            (1, 2, 2),
        ]
        oldest = found[-1]
        assert [oldest[key] for key in ("kind", "state", "dag_id", "task_id", "run_id", "try_number")] == [
            "load",
            "committed",
            "orders",
            "load",
            "manual",
            1,
        ]
        assert datetime.fromisoformat(oldest["planned_at"]) <= datetime.fromisoformat(oldest["committed_at"])

    def test_the_limit_leaves_out_older_batches_and_says_so(self, cli: CommandLine, loaded: str) -> None:
        done = cli("history", "loader", *DB, "--limit", "3", "--output", "json")
        assert [row["batch_id"] for row in ok(done)] == [4, 3, 2]
        assert "--limit" in done.stderr

        every = cli("history", "loader", *DB, "--limit", "4", "--output", "json")
        assert len(ok(every)) == 4
        assert every.stderr == ""

    def test_the_table_names_the_task_in_one_column(self, cli: CommandLine, loaded: str) -> None:
        done = cli("history", "loader", *DB, "--output", "plain")
        assert "orders/load/manual" in done.stdout

    def test_all_of_one_batch(self, cli: CommandLine, loaded: str) -> None:
        loaded_range, gap = data(cli, "history", "loader", "--batch", "4")

        assert [loaded_range[key] for key in ("part", "topic", "start_offset", "end_offset", "records", "how")] == [
            "range",
            loaded,
            6,
            8,
            2,
            "skipped-gap",
        ]
        assert [gap[key] for key in ("part", "start_offset", "end_offset", "cause", "records")] == [
            "gap",
            5,
            6,
            "expired",
            None,
        ]

    def test_output_that_a_batch_replaced_is_part_of_it(self, cli: CommandLine, loaded: str, engine: Engine) -> None:
        with engine.begin() as conn:
            conn.execute(
                Tables()
                .replaced_output.insert()
                .values(batch_id=4, replaced_batch_id=2, topic=loaded, partition=0, row_count=7, dead_letters=1)
            )

        replaced = data(cli, "history", "loader", "--batch", "4")[-1]

        assert [replaced[key] for key in ("part", "replaced_batch_id", "rows", "dead_letters")] == ["replaced", 2, 7, 1]

    def test_a_batch_of_another_group_is_an_error(self, cli: CommandLine, loaded: str, inline_loader: Loader) -> None:
        inline_loader(loaded, group_id="another", start="latest")
        assert "it is one of group 'another'" in failed(cli("history", "loader", *DB, "--batch", "5"), "history")
        assert "Group 'loader' has no batch 77. 'kafka-offsets history loader' lists" in failed(
            cli("history", "loader", *DB, "--batch", "77"), "history"
        )
