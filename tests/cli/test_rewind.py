"""Rewinds by the command line, with the cases of `docs/semantics.md`, on both databases."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import FencedError, StagingError
from airflow_kafka_offsets.operators.rewind import KafkaRewindOperator
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.airflow_runs import airflow_uri
from tests.support.clients import Kafka, commit_to_kafka, produce
from tests.support.command_line import CommandLine, Done, database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import produce_at

if TYPE_CHECKING:
    from airflow.sdk import Context

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class Rewinds:
    """A group `loader` that has loaded 100 of 200 records, and the commands that move it."""

    def __init__(self, loader: Loader, airflow: CommandLine, topic: str) -> None:
        self.loader = loader
        self.airflow = airflow
        self.topic = topic

    def __call__(self, command: str, *arguments: str) -> Done:
        kafka = () if command in ("abandon", "export", "history") else ("--kafka-conn-id", "kafka_default")
        return self.airflow(command, "loader", "--conn-id", "warehouse", *kafka, *arguments)

    def new_offsets(self, *arguments: str) -> dict[int, int | None]:
        """What a rewind previews, by partition."""
        done = self("rewind", *arguments, "--output", "json")
        assert done.status == 0, done.stderr
        return {one["partition"]: one["new"] for one in done.json["partitions"]}

    @property
    def position(self) -> int:
        return positions(self.loader.engine)[self.topic, 0]


@pytest.fixture
def airflow(
    inline_loader: Loader, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(
        monkeypatch,
        capsys,
        {"warehouse": database_connection(inline_loader.engine), "kafka_default": kafka_connection(kafka)},
    )


@pytest.fixture
def rewinds(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, airflow: CommandLine) -> Rewinds:
    name = topic()
    produce(kafka, name, names(0, 100))
    inline_loader(name)
    produce(kafka, name, names(100, 100))
    return Rewinds(inline_loader, airflow, name)


def test_r01_a_preview_stores_nothing(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-offset", "50")

    assert done.status == 0
    assert "Nothing was changed; add --execute" in done.stderr
    assert "50 offsets are read again" in done.stderr
    assert rewinds.position == 100


def test_r01_a_preview_of_a_new_group_stores_nothing(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, airflow: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, airflow, topic())
    produce(kafka, rewinds.topic, names(0, 100))

    assert rewinds.new_offsets("--to-offset", "50", "--topic", rewinds.topic, "--new-group") == {0: 50}
    assert sa.inspect(inline_loader.engine).get_table_names() == []


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        pytest.param(["--to-earliest"], 0, id="R03"),
        pytest.param(["--to-latest"], 200, id="R04"),
        pytest.param(["--to-current"], 100, id="R05"),
        pytest.param(["--shift-by", "50"], 150, id="R07"),
        pytest.param(["--shift-by", "-50"], 50, id="R08"),
        pytest.param(["--shift-by", "-150"], 0, id="R09-clamped-below"),
        pytest.param(["--shift-by", "150"], 200, id="R09-clamped-above"),
        pytest.param(["--by-duration", "PT0S"], 200, id="R19"),
        pytest.param(["--to-datetime", "1971-01-01T00:00:00Z"], 0, id="R14-before-all"),
        pytest.param(["--to-batch", "1"], 0, id="to-batch"),
    ],
)
def test_each_scenario_moves_the_position_where_its_preview_says(
    rewinds: Rewinds, scenario: list[str], expected: int
) -> None:
    assert rewinds.new_offsets(*scenario) == {0: expected}
    assert rewinds.position == 100

    done = rewinds("rewind", *scenario, "--execute", "--reason", "a test")

    assert done.status == 0, done.stderr
    assert rewinds.position == expected


@pytest.mark.broker
def test_r12_each_offset_is_clamped_to_its_own_log_and_that_is_told(
    rewinds: Rewinds, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    other = topic()
    produce(kafka, other, names(1000, 10))
    rewinds.loader(other)
    delete_records(kafka.bootstrap_servers, rewinds.topic, 20)

    done = rewinds("rewind", "--to-offset", "5", "--output", "json")

    assert {one["topic"]: (one["new"], one["clamped"], one["note"]) for one in done.json["partitions"]} == {
        rewinds.topic: (20, True, "clamped: 5 is before the beginning offset"),
        other: (5, False, ""),
    }
    assert rewinds("rewind", "--to-offset", "5", "--execute").status == 0
    assert positions(rewinds.loader.engine) == {(rewinds.topic, 0): 20, (other, 0): 5}


@pytest.mark.broker
def test_r14_an_instant_is_the_first_record_at_or_after_it(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, airflow: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, airflow, topic(retention_ms="-1"))
    produce_at(kafka, rewinds.topic, [number / 60 for number in range(50)])
    produce_at(kafka, rewinds.topic, [60 + number / 60 for number in range(50)], first=50)
    inline_loader(rewinds.topic)

    done = rewinds("rewind", "--to-datetime", "2026-03-01T12:30:00", "--execute")

    assert done.status == 0, done.stderr
    assert "The instant meant is 2026-03-01T12:30:00+00:00" in done.stderr
    assert rewinds.position == 50


def test_r19_after_the_last_record_comes_the_end_and_that_is_told(rewinds: Rewinds) -> None:
    (one,) = rewinds("rewind", "--to-datetime", "2100-01-01T00:00:00Z", "--output", "json").json["partitions"]

    assert (one["new"], one["note"]) == (200, "no record at or after that instant: the end offset")


def test_r28_an_export_read_back_changes_nothing(rewinds: Rewinds, tmp_path: Path) -> None:
    (tmp_path / "positions.csv").write_text(rewinds("export").stdout)

    done = rewinds("rewind", "--from-file", str(tmp_path / "positions.csv"))

    assert done.status == 0, done.stderr
    assert "0 positions would change" in done.stderr


def test_r33_a_preview_whose_positions_moved_is_a_conflict(rewinds: Rewinds, tmp_path: Path) -> None:
    saved = tmp_path / "preview.json"
    saved.write_text(rewinds("rewind", "--to-offset", "50", "--output", "json").stdout)
    rewinds.loader(rewinds.topic)

    done = rewinds("rewind", "--preview", str(saved), "--execute")

    assert done.status == 1
    assert f"{rewinds.topic}[0]: position 100 in the preview, position 200 now" in done.stderr
    assert rewinds.position == 200


def test_a_saved_preview_is_executed_as_it_was_shown(rewinds: Rewinds, kafka: KafkaBroker, tmp_path: Path) -> None:
    saved = tmp_path / "preview.json"
    saved.write_text(rewinds("rewind", "--to-latest", "--output", "json").stdout)
    produce(kafka, rewinds.topic, names(200, 10))

    assert rewinds("rewind", "--preview", str(saved), "--execute").status == 0
    assert rewinds.position == 200


def test_replace_and_load_again_leave_every_record_once(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-offset", "40", "--replace", "target", "--execute")

    assert "60 rows and 0 dead letters were removed" in done.stderr
    assert rows(rewinds.loader.engine, "SELECT count(*) FROM target") == [(40,)]
    assert rewinds.loader(rewinds.topic).records == 160
    loaded = rows(rewinds.loader.engine, "SELECT _kafka_offset FROM target ORDER BY 1")
    assert [offset for (offset,) in loaded] == list(range(200))
    verify("loader", sink=SqlTable("target"), engine=rewinds.loader.engine, kafka_config=rewinds.loader.config)


def test_undo_takes_the_last_rewind_back_and_loads_nothing_twice(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-earliest", "--execute")
    assert rewinds.position == 0

    assert rewinds("rewind", "--undo", "--execute").status == 0

    assert rewinds.position == 100
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)


def test_an_undo_after_a_load_is_refused_and_names_the_way(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-earliest", "--execute")
    rewinds.loader(rewinds.topic)

    done = rewinds("rewind", "--undo", "--execute")

    assert done.status == 1
    assert "rewind to-batch 2" in done.stderr
    assert rewinds.position == 200


def test_the_history_says_who_and_why(rewinds: Rewinds) -> None:
    rewinds("rewind", "--shift-by", "-10", "--execute", "--who", "alice", "--reason", "late schema")

    newest = rewinds("history", "--output", "json").json[0]

    assert (newest["kind"], newest["scenario"], newest["who"], newest["reason"]) == (
        "rewind",
        "shift-by -10",
        "alice",
        "late schema",
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "exactly one of"),
        (["--to-earliest", "--to-latest"], "got --to-earliest, --to-latest"),
        (["--to-offset", "-1"], "to-offset must not be negative; got -1"),
        (["--to-offset", "many"], "to-offset needs a whole number of 64 bits at most; got 'many'"),
        (["--by-duration", "-P1D"], "by-duration needs a duration"),
        (["--to-datetime", "tuesday"], "to-datetime must be a date-time"),
        (["--to-earliest", "--topic", "nowhere"], "Kafka at"),
        (["--to-batch", "99"], "Group 'loader' has no batch 99"),
        (["--to-group", "nobody"], "know no group 'nobody'"),
        (["--from-file", "/nowhere/at/all"], "cannot be read"),
        (["--preview", "/nowhere/at/all"], "cannot be read"),
        (["--undo"], "no rewind that could be undone"),
    ],
    ids=lambda value: "-".join(value).replace("/", "_") if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_changes_nothing(rewinds: Rewinds, arguments: list[str], told: str) -> None:
    # argparse takes a value that begins with "-" and is no number for an option.
    joined = [f"{arguments[0]}={arguments[1]}"] if arguments[:1] == ["--by-duration"] else arguments
    done = rewinds("rewind", *joined, "--execute")

    assert done.status != 0
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert rewinds.position == 100


def test_r22_only_the_partition_in_the_scope_moves(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, airflow: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, airflow, topic(partitions=3))
    for partition in range(3):
        produce(kafka, rewinds.topic, names(10 * partition, 10), partition)
    inline_loader(rewinds.topic)

    done = rewinds("rewind", "--to-earliest", "--topic", f"{rewinds.topic}:1", "--execute")

    assert done.status == 0, done.stderr
    assert "1 positions were changed" in done.stderr
    assert positions(inline_loader.engine) == {(rewinds.topic, number): 0 if number == 1 else 10 for number in range(3)}


def test_r31_an_open_batch_is_named_and_once_abandoned_never_commits(rewinds: Rewinds) -> None:
    execute = ("rewind", "--to-offset", "50", "--replace", "target", "--execute")
    refused: list[Done] = []
    abandoned: list[Done] = []

    class RewoundMeanwhile(InlineLauncher):
        """Stages all of batch 2; the load that is about to commit it loses it then."""

        def __call__(self, job: StageJob) -> None:
            super().__call__(job)
            refused.append(rewinds(*execute))
            assert rewinds.position == 100
            refused.append(rewinds(*execute, "--abandon", "3"))
            abandoned.append(rewinds(*execute, "--abandon", "2", "--reason", "it hangs"))

    with pytest.raises(FencedError):
        Loader(rewinds.loader.kafka, rewinds.loader.engine, RewoundMeanwhile())(rewinds.topic)

    assert [(one.status, one.stdout) for one in refused] == [(1, "")] * 2
    assert "has the open batch 2: " in refused[0].stderr
    assert "has the open batch 2, which is not batch 3" in refused[1].stderr
    assert abandoned[0].status == 0, abandoned[0].stderr
    assert rewinds.position == 50
    assert rows(rewinds.loader.engine, "SELECT state FROM offset_batches ORDER BY batch_id") == [
        ("committed",),
        ("abandoned",),
        ("committed",),
    ]
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)
    verify("loader", sink=SqlTable("target"), engine=rewinds.loader.engine, kafka_config=rewinds.loader.config)


class Stuck(InlineLauncher):
    """Spark that does not come up."""

    def __call__(self, job: StageJob) -> None:
        raise StagingError("Spark did not come up")


def test_a_batch_is_abandoned_where_no_position_changes(rewinds: Rewinds) -> None:
    with pytest.raises(StagingError):
        Loader(rewinds.loader.kafka, rewinds.loader.engine, Stuck())(rewinds.topic)
    nowhere = ("rewind", "--to-offset", "100", "--execute", "--abandon")

    wrong = rewinds(*nowhere, "77")
    done = rewinds(*nowhere, "2", "--reason", "it hangs")

    assert (wrong.status, wrong.stdout) == (1, "")
    assert "Batch 77 of group 'loader' cannot be abandoned: the group has no such batch" in wrong.stderr
    assert done.status == 0
    assert "No position was to be changed; batch 2 is abandoned" in done.stderr
    assert rows(rewinds.loader.engine, "SELECT batch_id, state FROM offset_batches ORDER BY batch_id") == [
        (1, "committed"),
        (2, "abandoned"),
    ]


def test_a_user_without_a_name_is_told_by_number(rewinds: Rewinds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)

    assert rewinds("rewind", "--to-offset", "50", "--execute").status == 0

    found = rows(rewinds.loader.engine, "SELECT who FROM offset_batches WHERE kind = 'rewind'")
    assert found == [(f"uid {2**31 - 7}@{socket.gethostname()}",)]


@pytest.mark.parametrize("scope", ["", [], [""], ["", "{topic}"]], ids=["text", "none", "one", "beside-a-topic"])
def test_an_operators_scope_that_renders_to_nothing_is_the_whole_group(
    rewinds: Rewinds, scope: str | list[str]
) -> None:
    given = scope if isinstance(scope, str) else [one.format(topic=rewinds.topic) for one in scope]
    rewind = KafkaRewindOperator(
        task_id="rewind",
        group_id="loader",
        scenario="to-offset",
        value="50",
        scope=given,
        offsets_conn_id="warehouse",
        preview_only=True,
    )
    instance = SimpleNamespace(dag_id="dag", task_id="rewind", run_id="run", map_index=-1, try_number=1)

    assert rewind.execute(cast("Context", {"ti": instance}))["offsets_reread"] == 50


def test_replace_that_was_forgotten_is_made_good(rewinds: Rewinds) -> None:
    rewinds("rewind", "--to-offset", "50", "--execute")
    again = ("rewind", "--to-current", "--replace", "target")

    assert "0 positions would change: 50 offsets are read again" in rewinds(*again).stderr
    done = rewinds(*again, "--execute")

    assert done.status == 0
    assert "50 offsets are read again" in done.stderr
    assert "50 rows and 0 dead letters were removed" in done.stderr
    rewinds.loader(rewinds.topic)
    assert_rows_once(rewinds.loader, 200)


def test_r22_an_unknown_partition_is_named(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-earliest", "--topic", f"{rewinds.topic}:0,7", "--execute")

    assert done.status == 1
    assert f"There is no partition {rewinds.topic}[7] (the topic has 1: 0..0)" in done.stderr
    assert rewinds.position == 100


@pytest.mark.broker
def test_the_real_airflow_command_previews_executes_and_fails(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    produce(kafka, name, names(0, 100))
    postgres_loader(name)
    connections = {"kafka_default": kafka_connection(kafka), "warehouse": airflow_uri(postgres_loader.engine)}
    common = ("kafka-offsets", "rewind", "loader", "--conn-id", "warehouse")
    with AirflowHome(dags=tmp_path, connections=connections) as home:
        preview = home.run(*common, "--to-offset", "50", "--output", "json")
        (tmp_path / "preview.json").write_text(preview.stdout)
        executed = home.run(*common, "--preview", str(tmp_path / "preview.json"), "--execute", "--replace", "target")
        again = home.run(*common, "--preview", str(tmp_path / "preview.json"), "--execute")

    assert json.loads(preview.stdout)["offsets_reread"] == 50
    assert executed.returncode == 0, executed.stderr
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.splitlines()[-1].startswith("kafka-offsets rewind: ")
    assert "were rewound since this preview was made" in again.stderr.splitlines()[-1]
    assert positions(postgres_loader.engine) == {(name, 0): 50}
    postgres_loader(name)
    assert_rows_once(postgres_loader, 100)


@pytest.mark.broker
def test_an_import_into_a_new_group_takes_all_that_the_consumer_group_committed(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, airflow: CommandLine
) -> None:
    first, second, elsewhere = topic(partitions=2), topic(), topic()
    for name in (first, second, elsewhere):
        produce(kafka, name, names(0, 10))
    commit_to_kafka(kafka, first, first, {0: 4})
    commit_to_kafka(kafka, first, second, {0: 7})
    rewinds = Rewinds(inline_loader, airflow, first)

    done = rewinds("import", "--from-group", first, "--output", "json", "--execute")

    assert done.status == 0, done.stderr
    assert {(one["topic"], one["partition"]): one["note"] for one in done.json["partitions"]} == {
        (first, 0): "",
        # Of a topic that it reads all partitions are shown: a load would begin this one at its beginning.
        (first, 1): f"consumer group {first!r} in Kafka has committed no offset of this partition: left as it is",
        (second, 0): "",
    }
    assert positions(inline_loader.engine) == {(first, 0): 4, (second, 0): 7}


def test_an_import_into_a_group_is_of_its_own_topics(rewinds: Rewinds, kafka: KafkaBroker, topic: TopicFactory) -> None:
    other = topic()
    produce(kafka, other, names(0, 10))
    commit_to_kafka(kafka, other, other, {0: 4})
    commit_to_kafka(kafka, other, rewinds.topic, {0: 60})

    assert rewinds("import", "--from-group", other, "--execute").status == 0

    assert positions(rewinds.loader.engine) == {(rewinds.topic, 0): 60}


def test_an_import_from_a_consumer_group_that_is_not_there_says_so(inline_loader: Loader, airflow: CommandLine) -> None:
    done = Rewinds(inline_loader, airflow, "")("import", "--from-group", "nobody-at-all")

    assert (done.status, done.stdout) == (1, "")
    assert "Kafka has no consumer group 'nobody-at-all'" in done.stderr


def assert_rows_once(loader: Loader, count: int) -> None:
    loaded = rows(loader.engine, "SELECT _kafka_offset FROM target ORDER BY 1")
    assert [offset for (offset,) in loaded] == list(range(count))


@pytest.mark.broker
def test_a_replay_of_a_batch_replaces_its_rows_and_moves_nothing(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    produce(kafka, name, names(0, 50))
    postgres_loader(name)
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE target SET name = 'wrong'"))
    connections = {
        "kafka_default": kafka_connection(kafka),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": airflow_uri(postgres_loader.engine),
    }
    command = ("kafka-offsets", "replay", "loader", "--conn-id", "warehouse", "--topic", name, "--table", "target")
    columns = ("--columns", "id BIGINT NOT NULL, name STRING")
    with AirflowHome(dags=tmp_path, connections=connections) as home:
        refused = home.run(*command, *columns, "--batch", "1")
        done = home.run(*command, *columns, "--batch", "1", "--replace", "--reason", "a wrong transform")

    assert refused.returncode == 1
    assert "kafka-offsets replay: " in refused.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(postgres_loader.engine, "SELECT count(*) FROM target WHERE name = 'wrong'") == [(0,)]
    assert_rows_once(postgres_loader, 50)
    assert positions(postgres_loader.engine) == {(name, 0): 50}
