"""`airflow kafka-offsets` groups, show, lag, history, plan, verify and export, on both databases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.utils import yaml
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.rewinding.scenarios import read_offsets
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records, delete_topic
from tests.support.clients import Kafka, produce, producer
from tests.support.command_line import CommandLine, Done, database_connection, kafka_connection
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server

DB = ("--conn-id", "warehouse")
FORMATS = ("table", "json", "yaml", "plain")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: Engine, kafka: KafkaBroker
) -> CommandLine:
    connections = {"warehouse": database_connection(engine), "kafka_default": kafka_connection(kafka)}
    return CommandLine(monkeypatch, capsys, connections)


@pytest.fixture
def loaded_topic(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> str:
    """A topic with 5 records, all of which group `loader` has loaded."""
    name = topic()
    produce(kafka, name, names(0, 5))
    inline_loader(name)
    return name


def ok(done: Done) -> Any:
    assert done.status == 0, done.stderr
    return done.json


def data(cli: CommandLine, *arguments: str) -> Any:
    """What a command finds in the database, as JSON."""
    return ok(cli(*arguments, *DB, "--output", "json"))


def failed(done: Done, name: str) -> str:
    """The one line that a failure is."""
    assert done.status != 0
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"kafka-offsets {name}: ")
    assert "Traceback" not in done.stderr
    return line


class DyingLauncher:
    """Spark that does not come up."""

    def check(self, staging_dir: str | None) -> None:
        """Nothing is missing."""

    def __call__(self, job: StageJob) -> None:
        raise StagingError("Spark did not come up")


def leave_open(loader: Loader, topic: str, **options: Any) -> None:
    """A batch that was planned, and not finished."""
    with pytest.raises(StagingError):
        Loader(loader.kafka, loader.engine, DyingLauncher())(topic, **options)


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
        initialize(engine, Tables())
        claim_group(engine, Tables(), "loader", TaskRun("run-1", "dag", "task"), cluster_id="c", lease=lease)

        (group,) = data(cli, "groups")

        assert (group["held_by"] is not None, group["held_until"] is not None) == (shown, shown)
        if shown:
            assert group["held_by"] == "dag 'dag' task 'task' run 'run-1'"

    def test_tables_that_are_not_there_are_an_error(self, cli: CommandLine) -> None:
        assert "offsets_schema_version" in failed(cli("groups", *DB), "groups")

    def test_tables_with_a_prefix_are_found_by_it(self, cli: CommandLine, engine: Engine) -> None:
        initialize(engine, Tables(prefix="my_"))
        assert data(cli, "groups", "--prefix", "my_") == []


class TestShow:
    @pytest.mark.broker
    def test_L01_every_partition_with_both_ends_of_its_log(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 5))
        inline_loader(name)
        delete_records(kafka.bootstrap_servers, name, 2)
        produce(kafka, name, names(5, 3))

        first, second = data(cli, "show", "loader")

        assert {key: first[key] for key in ("group", "topic", "partition")} == {
            "group": "loader",
            "topic": name,
            "partition": 0,
        }
        assert [first[key] for key in ("beginning_offset", "current_offset", "log_end_offset", "lag")] == [2, 5, 8, 3]
        assert (first["lost"], first["headroom"], first["flags"], first["error"]) == (0, 3, [], None)
        assert 0 < first["time_lag_seconds"] < 600
        # Kafka's own default.
        assert 6 * 86_400 < first["headroom_time_seconds"] <= 7 * 86_400
        assert (second["lag"], second["time_lag_seconds"], second["headroom_time_seconds"]) == (0, 0, None)

    def test_what_retention_took_is_lost_and_no_lag(
        self, cli: CommandLine, kafka: KafkaBroker, loaded_topic: str
    ) -> None:
        produce(kafka, loaded_topic, names(5, 5))
        delete_records(kafka.bootstrap_servers, loaded_topic, 7)

        (one,) = data(cli, "show", "loader")

        assert (one["lag"], one["lost"], one["headroom"], one["headroom_time_seconds"]) == (3, 2, -2, 0)

    def test_L02_a_topic_without_positions_is_flagged(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        known, new = topic(), topic()
        produce(kafka, new, names(0, 4))
        inline_loader(known)

        (earliest,) = data(cli, "show", "loader", "--topic", new)
        (latest,) = data(cli, "show", "loader", "--topic", new, "--start", "latest")
        (since,) = data(cli, "show", "loader", "--topic", new, "--start", "PT1H")

        assert (earliest["current_offset"], earliest["lag"], earliest["flags"]) == (None, 4, ["no position"])
        assert (latest["lag"], since["lag"]) == (0, 4)

    @pytest.mark.broker
    def test_L07_the_end_is_that_of_the_isolation_level(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 7))
        inline_loader(name)
        writer = producer(kafka, **{"transactional.id": name})
        writer.init_transactions()
        writer.begin_transaction()
        writer.produce(name, b"{}")
        writer.produce(name, b"{}")
        writer.flush()

        committed = data(cli, "show", "loader")
        everything = data(cli, "show", "loader", "--isolation-level", "read_uncommitted")
        writer.abort_transaction()

        assert (committed[0]["lag"], everything[0]["lag"]) == (0, 2)

    def test_headroom_in_time_follows_the_oldest_record_that_waits(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        """And not the newest that was committed: a quiet topic is no danger."""
        day = 86_400_000
        name = topic(retention_ms=10 * day)
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        produce_at(kafka, name, [now_ms - 9 * day])
        inline_loader(name)
        produce_at(kafka, name, [now_ms - 2 * day, now_ms - day])

        (one,) = data(cli, "show", "loader")

        assert one["headroom_time_seconds"] == pytest.approx(8 * 86_400, abs=600)
        assert one["time_lag_seconds"] == pytest.approx(9 * 86_400, abs=600)

    @pytest.mark.parametrize(
        "config",
        [{"retention_ms": -1}, {"retention_bytes": 10**9}, {"cleanup_policy": "compact"}],
        ids=["for ever", "size", "compaction"],
    )
    @pytest.mark.broker
    def test_headroom_in_time_is_unknown_where_time_is_not_what_decides(
        self,
        cli: CommandLine,
        inline_loader: Loader,
        kafka: KafkaBroker,
        topic: TopicFactory,
        config: dict[str, Any],
    ) -> None:
        name = topic(**config)
        keyed(kafka, name, 2)
        inline_loader(name)
        keyed(kafka, name, 2)

        (one,) = data(cli, "show", "loader")

        assert (one["lag"], one["headroom_time_seconds"]) == (2, None)

    @pytest.mark.broker
    def test_L08_a_topic_that_is_gone_leaves_the_others_counted(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name, gone = topic(), topic(partitions=2)
        produce(kafka, name, names(0, 2))
        inline_loader(name, gone)
        produce(kafka, name, names(2, 3))
        delete_topic(kafka.bootstrap_servers, gone)

        done = cli("show", "loader", *DB, "--output", "json")

        line = failed(done, "show")
        assert "2 of 3 partitions have an error" in line
        assert gone in line
        by_topic = {row["topic"]: row for row in done.json}
        assert (by_topic[name]["lag"], by_topic[name]["error"]) == (3, None)
        assert by_topic[gone]["lag"] is None
        assert gone in by_topic[gone]["error"]

        total = cli("lag", "loader", *DB, "--output", "json")
        assert "incomplete" in failed(total, "lag")
        assert [(row["topic"], row["lag"], row["complete"]) for row in total.json] == [
            *sorted([(name, 3, True), (gone, 0, False)]),
            (None, 3, False),
        ]

    def test_an_unknown_group_is_an_error_that_names_the_known_ones(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        inline_loader(topic())
        for command in ("show", "lag", "history", "export", "plan"):
            line = failed(cli(command, "loder", *DB), command)
            assert "'loder'" in line
            assert "'loader'" in line

    def test_another_cluster_is_an_error(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
        inline_loader(topic())
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE consumer_groups SET cluster_id = 'elsewhere'"))

        assert "'elsewhere'" in failed(cli("show", "loader", *DB), "show")

    def test_a_topic_that_does_not_exist_is_an_error(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        inline_loader(topic())
        assert "'no-such-topic'" in failed(cli("lag", "loader", *DB, "--topic", "no-such-topic"), "lag")


class TestLag:
    def test_by_topic_and_in_total(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        one, other = sorted((topic(partitions=2), topic()))
        inline_loader(one, other)
        produce(kafka, one, names(0, 3))
        produce(kafka, other, names(0, 4))

        found = data(cli, "lag", "loader")

        assert [(row["topic"], row["lag"], row["lost"], row["complete"]) for row in found] == [
            (one, 3, 0, True),
            (other, 4, 0, True),
            (None, 7, 0, True),
        ]

    def test_a_group_of_which_nothing_is_stored_is_not_up_to_date(
        self, cli: CommandLine, kafka: KafkaBroker, engine: Engine
    ) -> None:
        initialize(engine, Tables())
        of = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).cluster_id()
        claim_group(engine, Tables(), "empty", TaskRun("r"), cluster_id=of, lease=timedelta(0))

        done = cli("lag", "empty", *DB, "--output", "json")

        assert "yet, and its lag is not known: name its topics" in failed(done, "lag")
        assert [row["complete"] for row in done.json] == [False]


class TestHistory:
    @pytest.fixture
    def loaded(self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> str:
        name = topic()
        produce(kafka, name, names(0, 5))
        run = TaskRun("manual", "orders", "load", -1, 1)
        inline_loader(name, max_records=2, run=run)
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
        assert "there is no such batch" in failed(cli("history", "loader", *DB, "--batch", "77"), "history")


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
        result = inline_loader(name, max_records=7)

        loaded = rows(
            inline_loader.engine,
            "SELECT partition, start_offset, end_offset, bytes FROM offset_ranges WHERE batch_id = :id ORDER BY partition",
            id=result.batches[0],
        )
        assert [(row["partition"], row["start"], row["end"]) for row in planned] == [one[:3] for one in loaded]
        assert sum(row["offsets"] for row in planned) == 7
        for row, (_, start, end, size) in zip(planned, loaded, strict=True):
            assert row["slices"] == -(-(end - start) // 2)
            assert row["bytes"] == pytest.approx(size, rel=0.2)
            assert (row["batch_id"], row["skipped"], row["how"]) == (None, 0, "stored")
        assert "7 offsets of 2 partitions" in done.stderr

    def test_nothing_is_written(
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
        leave_open(inline_loader, name, max_records=3)
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
        initialize(inline_loader.engine, Tables())

        done = cli("plan", "loader", *DB, "--topic", name, "--output", "json")

        (row,) = ok(done)
        assert (row["start"], row["end"], row["bytes"], row["how"]) == (0, 5, 5 * 1024, "earliest")
        assert "its first run" in done.stderr

    def test_partitions_that_begin_at_their_end_are_shown_though_nothing_is_loaded_of_them(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 5))
        initialize(inline_loader.engine, Tables())

        (row,) = data(cli, "plan", "new", "--topic", name, "--start", "latest")

        assert (row["start"], row["end"], row["offsets"], row["slices"], row["how"]) == (5, 5, 0, 0, "latest")

    @pytest.mark.broker
    def test_a_bound_in_time_and_the_commits_of_a_group(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(retention_ms=-1)
        produce_at(kafka, name, [1_000, 2_000, 3_000])
        initialize(inline_loader.engine, Tables())

        (row,) = data(cli, "plan", "new", "--topic", name, "--until", "1970-01-01T00:00:02")

        assert (row["start"], row["end"]) == (0, 1)
        assert "nothing of" in failed(
            cli("plan", "new", *DB, "--topic", name, "--start", "committed-by:nobody"), "plan"
        )

    def test_nothing_to_load_says_so(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
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


@pytest.mark.parametrize(
    "command",
    [
        ("show", "loader", "--start", "committed-by:"),
        ("lag", "loader", "--start", "committed-by: "),
        ("mirror", "loader", "--to", ""),
        ("import", "loader", "--from-group", " "),
    ],
    ids=lambda command: command[0],
)
def test_a_consumer_group_without_a_name_is_a_usage_error(cli: CommandLine, command: Sequence[str]) -> None:
    done = cli(*command, *DB)
    assert done.status == 2
    assert "must be the name of a consumer group; got an empty one" in done.stderr


def test_mirroring_a_group_without_positions_is_an_error(
    cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    leave_open(inline_loader, name)
    assert "nothing to mirror" in failed(cli("mirror", "loader", *DB, "--to", name), "mirror")


class TestVerify:
    def test_a_group_that_is_as_it_has_to_be(self, cli: CommandLine, loaded_topic: str) -> None:
        (alone,) = data(cli, "verify", "loader", "--table", "target")
        (compared,) = data(cli, "verify", "loader", "--table", "target", "--kafka-conn-id", "kafka_default")

        assert (alone["records"], alone["rows"], alone["reread"]) == (5, 5, None)
        assert compared["reread"] == 5

    def test_what_was_not_looked_at_is_noted(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE plain (id BIGINT NOT NULL)"))
        inline_loader(name, sink=SqlTable("plain"), value_format=Json("id BIGINT NOT NULL"))

        done = cli("verify", "loader", *DB, "--table", "plain", "--output", "json")

        assert (done.status, done.json[0]["rows"], done.json[0]["output_checked"]) == (0, 5, False)
        assert (
            "Table 'plain' has no column _batch_id, _kafka_topic, _kafka_partition, _kafka_offset: history and positions are proved"
            in done.stderr
        )

    def test_violations_are_data_and_the_status_says_it(
        self, cli: CommandLine, inline_loader: Loader, loaded_topic: str
    ) -> None:
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM target WHERE _kafka_offset = 3"))

        done = cli("verify", "loader", *DB, "--table", "target", "--output", "json")

        assert "is violated" in failed(done, "verify")
        assert (done.json[0]["topic"], done.json[0]["batch_id"]) == (loaded_topic, 1)


class TestExport:
    def test_positions_are_csv_that_a_rewind_reads(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 5), 1)
        inline_loader(name)

        done = cli("export", "loader", *DB)

        assert done.status == 0
        assert done.stdout == f"{name},0,0\n{name},1,5\n"
        assert read_offsets(done.stdout) == {TopicPartition(name, 0): 0, TopicPartition(name, 1): 5}

    def test_a_group_without_positions_is_an_error(self, cli: CommandLine, engine: Engine) -> None:
        initialize(engine, Tables())
        claim_group(engine, Tables(), "empty", TaskRun("r"), cluster_id="c", lease=timedelta(0))
        done = cli("export", "empty", *DB)
        assert "nothing to export" in failed(done, "export")
        assert done.stdout == ""


class TestOutput:
    COMMANDS = (
        ("groups",),
        ("show", "loader"),
        ("lag", "loader"),
        ("history", "loader"),
        ("history", "loader", "--batch", "1"),
        ("plan", "loader"),
        ("verify", "loader", "--table", "target"),
        ("mirror", "loader", "--to", "shown-by-the-command"),
    )

    def test_every_command_prints_every_format(self, cli: CommandLine, kafka: KafkaBroker, loaded_topic: str) -> None:
        produce(kafka, loaded_topic, names(5, 1))
        for command in self.COMMANDS:
            printed = {form: cli(*command, *DB, "--output", form) for form in FORMATS}
            assert {form: done.status for form, done in printed.items()} == dict.fromkeys(FORMATS, 0), printed
            keys = [set(row) for row in json.loads(printed["json"].stdout)]
            assert keys, command
            assert [set(row) for row in yaml.safe_load(printed["yaml"].stdout)] == keys
            headings = printed["plain"].stdout.splitlines()[0].split()
            assert {key.removesuffix("_seconds").replace("_", "-").upper() for key in keys[0]} >= set(headings) - {"BY"}
            assert headings[0] in printed["table"].stdout.splitlines()[0]

    def test_show_has_the_columns_of_kafka_consumer_groups(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        inline_loader(name)
        done = cli("show", "loader", *DB, "--output", "plain")
        assert done.stdout.splitlines()[0].split()[:6] == [
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
        ]
        assert done.stdout.splitlines()[1].split()[:6] == ["loader", name, "0", "0", "0", "0"]

    def test_what_is_stored_is_no_markup(self, cli: CommandLine, engine: Engine) -> None:
        initialize(engine, Tables())
        claim_group(engine, Tables(), "[red]a[/blue] :bug:", TaskRun("r"), cluster_id="c", lease=timedelta(0))
        for form in FORMATS:
            assert "[red]a[/blue] :bug:" in cli("groups", *DB, "--output", form).stdout


class TestFailures:
    def test_a_connection_that_does_not_exist(self, cli: CommandLine) -> None:
        assert "nowhere" in failed(cli("groups", "--conn-id", "nowhere"), "groups")

    def test_a_database_that_does_not_answer(self, cli: CommandLine) -> None:
        cli.connect("warehouse", "postgres://someone:5ecret@127.0.0.1:1/orders")
        done = cli("groups", *DB)
        assert "doctor" in failed(done, "groups")
        assert "5ecret" not in done.stdout + done.stderr

    def test_a_broker_that_does_not_answer(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
        inline_loader(topic())
        extra = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "5ecret"}
        cli.connect("kafka_default", json.dumps({"conn_type": "kafka", "extra": extra}))
        done = cli("lag", "loader", *DB)
        assert "127.0.0.1:1" in failed(done, "lag")
        assert "5ecret" not in done.stdout + done.stderr

    def test_a_missing_conn_id_is_a_usage_error(self, cli: CommandLine) -> None:
        assert cli("groups").status == 2


def produce_at(kafka: KafkaBroker, topic: str, timestamps_ms: Sequence[int]) -> None:
    """Records with timestamps of their own."""
    writer = producer(kafka)
    for number, timestamp_ms in enumerate(timestamps_ms):
        writer.produce(topic, names(number, 1)[0], timestamp=timestamp_ms)
        writer.flush(30)


def keyed(kafka: KafkaBroker, topic: str, count: int) -> None:
    """Records with different keys, as a compacted topic wants them."""
    writer = producer(kafka)
    for number in range(count):
        writer.produce(topic, names(number, 1)[0], key=str(number))
    assert writer.flush(30) == 0


def everything(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """All that the database holds."""
    return {
        name: sorted(map(tuple, rows(engine, f'SELECT * FROM "{name}"')), key=repr)
        for name in sa.inspect(engine).get_table_names()
    }
