"""`kafka-offsets plan`: what the next load would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, data, failed, leave_open, ok, produce_at
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server


class TestPlan:
    def test_the_plan_is_what_the_next_load_does(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 10))
        inline_loader(name)
        produce(kafka, name, names(10, 10))
        produce(kafka, name, names(20, 4), 1)
        options = ("--max-records", "7", "--slice-offsets", "2", "--output", "json")

        done = cli("plan", "loader", *DB, *options)
        planned = ok(done)
        result = inline_loader(name, limits=Limits(max_records=7))

        loaded = rows(
            inline_loader.engine,
            "SELECT partition, start_offset, end_offset, bytes FROM offset_ranges WHERE batch_id = :id ORDER BY "
            "partition",
            id=result.batches[0],
        )
        assert [(row["partition"], row["start"], row["end"]) for row in planned] == [one[:3] for one in loaded]
        assert sum(row["offsets"] for row in planned) == 7
        for row, (_, start, end, size) in zip(planned, loaded, strict=True):
            assert row["slices"] == -(-(end - start) // 2)
            assert row["bytes"] == pytest.approx(size, rel=0.2)
            assert (row["batch_id"], row["skipped"], row["how"]) == (None, 0, "stored")
        assert "7 offsets of 2 partitions" in done.stderr

    def test_a_large_batch_for_a_lake_table_has_fewer_slices(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        initialize(Ledger(inline_loader.engine))
        produce(kafka, name, names(0, 48))
        options = ("--topic", name, "--slice-offsets", "1")

        (row,) = data(cli, "plan", "new", *options)
        (of_lake,) = data(cli, "plan", "new", *options, "--lake-table")

        assert (row["slices"], of_lake["slices"]) == (48, 24)

    def test_plan_writes_nothing(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        inline_loader(name)
        produce(kafka, name, names(0, 3))
        before = everything(inline_loader.engine)

        data(cli, "plan", "loader")
        data(cli, "plan", "new", "--topic", name, "--start", "latest")

        assert everything(inline_loader.engine) == before

    def test_an_open_batch_is_what_comes_next(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        leave_open(inline_loader, name, limits=Limits(max_records=3))
        produce(kafka, name, names(5, 5))

        done = cli("plan", "loader", *DB, "--topic", name, "--output", "json")

        (row,) = ok(done)
        assert (row["start"], row["end"], row["batch_id"]) == (0, 3, 1)
        assert "has the open batch 1 (planned)" in done.stderr

    def test_the_open_batch_of_a_first_load_names_the_topics(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        leave_open(inline_loader, name)

        (row,) = data(cli, "plan", "loader")
        of_topic, total = data(cli, "lag", "loader")

        assert (row["topic"], row["offsets"], row["batch_id"]) == (name, 5, 1)
        assert (of_topic["topic"], of_topic["lag"], total["lag"], total["complete"]) == (name, 5, 5, True)

    def test_an_open_batch_whose_records_expired_is_an_error_or_planned_anew(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        leave_open(inline_loader, name)
        delete_records(kafka.bootstrap_servers, name, 2)

        assert "2 offsets gone" in failed(cli("plan", "loader", *DB, "--topic", name), "plan")
        done = cli("plan", "loader", *DB, "--topic", name, "--on-data-loss", "skip", "--output", "json")
        (row,) = ok(done)
        assert (row["start"], row["end"], row["skipped"], row["batch_id"]) == (2, 5, 2, None)
        assert "a load abandons it" in done.stderr

    @pytest.mark.broker
    def test_P08_lost_records_are_an_error_or_skipped(
        self, cli: CommandLine, kafka: KafkaBroker, loaded_topic: str
    ) -> None:
        produce(kafka, loaded_topic, names(5, 5))
        delete_records(kafka.bootstrap_servers, loaded_topic, 8)

        assert "3 offsets gone" in failed(cli("plan", "loader", *DB), "plan")
        done = cli("plan", "loader", *DB, "--on-data-loss", "skip", "--output", "json")
        (row,) = ok(done)
        assert (row["start"], row["end"], row["offsets"], row["skipped"], row["how"]) == (8, 10, 2, 3, "skipped-gap")
        assert "3 offsets are lost, and skipped" in done.stderr

    def test_a_first_run_can_be_planned_by_its_topics(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        initialize(Ledger(inline_loader.engine))

        done = cli("plan", "loader", *DB, "--topic", name, "--output", "json")

        (row,) = ok(done)
        assert (row["start"], row["end"], row["bytes"], row["how"]) == (0, 5, 5 * 1024, "earliest")
        assert "its first run" in done.stderr

    def test_partitions_that_begin_at_their_end_are_shown_though_nothing_is_loaded_of_them(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        initialize(Ledger(inline_loader.engine))

        (row,) = data(cli, "plan", "new", "--topic", name, "--start", "latest")

        assert (row["start"], row["end"], row["offsets"], row["slices"], row["how"]) == (5, 5, 0, 0, "latest")

    @pytest.mark.broker
    def test_a_bound_in_time_and_the_commits_of_a_group(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(retention_ms=-1)
        produce_at(kafka, name, [1_000, 2_000, 3_000])
        initialize(Ledger(inline_loader.engine))

        (row,) = data(cli, "plan", "new", "--topic", name, "--until", "1970-01-01T00:00:02")

        assert (row["start"], row["end"]) == (0, 1)
        assert "nothing of" in failed(
            cli("plan", "new", *DB, "--topic", name, "--start", "committed-by:nobody"), "plan"
        )

    def test_plan_without_records_says_so(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
        inline_loader(topic())
        done = cli("plan", "loader", *DB, "--output", "json")
        assert ok(done) == []
        assert "Nothing to load" in done.stderr

    @pytest.mark.parametrize(
        "options",
        [("--max-records", "0"), ("--slice-offsets", "x")],
        ids=["cap", "slices"],
    )
    def test_values_that_mean_nothing_are_usage_errors(self, cli: CommandLine, options: Sequence[str]) -> None:
        assert cli("plan", "loader", *DB, *options).status == 2

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (("--start", "yesterday"), "start='yesterday'"),
            (("--until", "soon"), "until='soon'"),
        ],
        ids=["start", "until"],
    )
    def test_options_that_a_load_refuses_are_refused(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory, options: Sequence[str], told: str
    ) -> None:
        inline_loader(topic())
        assert told in failed(cli("plan", "loader", *DB, *options), "plan")


def everything(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """All that the database holds."""
    return {
        name: sorted(map(tuple, rows(engine, f'SELECT * FROM "{name}"')), key=repr)
        for name in sa.inspect(engine).get_table_names()
    }
