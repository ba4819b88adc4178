"""`kafka-offsets rewind`: where each scenario leads, with the cases of `docs/semantics.md`."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.utils import yaml

from airflow_kafka_offsets.operators.positions import KafkaRewindOperator
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.command_line import CommandLine
from tests.support.loads import Loader, TopicFactory, names, positions
from tests.support.openings import produce_at
from tests.support.rewind_commands import Rewinds
from tests.support.task_context import task_context

pytestmark = pytest.mark.server


def test_r01_a_preview_stores_nothing(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-offset", "50")

    assert done.status == 0
    assert "Nothing was changed; add --execute" in done.stderr
    assert "50 offsets are read again" in done.stderr
    assert rewinds.position == 100


def test_json_and_yaml_are_the_same_preview(rewinds: Rewinds) -> None:
    as_json = rewinds("rewind", "--to-offset", "50", "--output", "json").json
    assert yaml.safe_load(rewinds("rewind", "--to-offset", "50", "--output", "yaml").stdout) == as_json
    assert (as_json["group_id"], [move["new_offset"] for move in as_json["partitions"]]) == ("loader", [50])


def test_r01_a_preview_of_a_new_group_stores_nothing(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, cli: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, cli, topic())
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

    assert {one["topic"]: (one["new_offset"], one["clamped"], one["note"]) for one in done.json["partitions"]} == {
        rewinds.topic: (20, True, "clamped: 5 is before the beginning offset"),
        other: (5, False, ""),
    }
    assert rewinds("rewind", "--to-offset", "5", "--execute").status == 0
    assert positions(rewinds.loader.engine) == {(rewinds.topic, 0): 20, (other, 0): 5}


@pytest.mark.broker
def test_r14_an_instant_is_the_first_record_at_or_after_it(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, cli: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, cli, topic(retention_ms="-1"))
    produce_at(kafka, rewinds.topic, [number / 60 for number in range(50)])
    produce_at(kafka, rewinds.topic, [60 + number / 60 for number in range(50)], first=50)
    inline_loader(rewinds.topic)

    done = rewinds("rewind", "--to-datetime", "2026-03-01T12:30:00", "--execute")

    assert done.status == 0, done.stderr
    assert "The instant meant is 2026-03-01T12:30:00+00:00" in done.stderr
    assert rewinds.position == 50


def test_r19_after_the_last_record_comes_the_end_and_that_is_told(rewinds: Rewinds) -> None:
    (one,) = rewinds("rewind", "--to-datetime", "2100-01-01T00:00:00Z", "--output", "json").json["partitions"]

    assert (one["new_offset"], one["note"]) == (200, "no record at or after that instant: the end offset")


def test_r28_an_export_read_back_changes_nothing(rewinds: Rewinds, tmp_path: Path) -> None:
    (tmp_path / "positions.csv").write_text(rewinds("export").stdout)

    done = rewinds("rewind", "--from-file", str(tmp_path / "positions.csv"))

    assert done.status == 0, done.stderr
    assert "0 positions would change" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "exactly one of"),
        (["--to-earliest", "--to-latest"], "got --to-earliest, --to-latest"),
        (["--to-offset", "-1"], "to-offset must not be negative; got -1"),
        (["--to-offset", "many"], "to-offset needs a whole number of 64 bits at most; got 'many'"),
        (["--by-duration", "-P1D"], "by-duration needs a duration"),
        (["--to-datetime", "tuesday"], "to-datetime must be a date-time"),
        (["--to-datetime", "2026-02-30"], "got to-datetime='2026-02-30': day is out of range for month"),
        (["--to-earliest", "--topic", "nowhere"], "Kafka at"),
        (["--to-batch", "99"], "Group 'loader' has no batch 99"),
        (["--to-group", "nobody"], "have no group 'nobody'"),
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


@pytest.mark.parametrize("scope", ["{}:1", " {} : 1 "], ids=["bare", "blanks"])
def test_r22_only_the_partition_in_the_scope_moves(
    scope: str, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, cli: CommandLine
) -> None:
    rewinds = Rewinds(inline_loader, cli, topic(partitions=3))
    for partition in range(3):
        produce(kafka, rewinds.topic, names(10 * partition, 10), partition)
    inline_loader(rewinds.topic)

    done = rewinds("rewind", "--to-earliest", "--topic", scope.format(rewinds.topic), "--execute")

    assert done.status == 0, done.stderr
    assert "1 position was changed" in done.stderr
    assert positions(inline_loader.engine) == {(rewinds.topic, number): 0 if number == 1 else 10 for number in range(3)}


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
        conn_id="warehouse",
        preview_only=True,
    )

    assert rewind.execute(task_context("rewind"))["offsets_reread"] == 50


def test_r22_an_unknown_partition_is_named(rewinds: Rewinds) -> None:
    done = rewinds("rewind", "--to-earliest", "--topic", f"{rewinds.topic}:0,7", "--execute")

    assert done.status == 1
    assert f"There is no partition {rewinds.topic}[7] (the topic has 1: 0..0)" in done.stderr
    assert rewinds.position == 100
