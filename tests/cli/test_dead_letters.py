"""`kafka-offsets dead-letters`: each command, and what it prints."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.ledger.tables import Tables
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, failed
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.rewinds import Rewinder
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

INTO = ("--table", "target", "--columns", "id BIGINT NOT NULL, name STRING")


@pytest.fixture
def orders(inline_loader: Loader, kafka: Kafka, topic: TopicFactory) -> str:
    """A topic of six records, of which the second and third do not decode, nor does the last."""
    name = topic()
    produce(kafka, name, [*names(0, 1), b'{"id": "one"}', b"\xff\xfe", *names(3, 1), b"[]"])
    inline_loader(name, **LEFT_OUT)
    return name


def test_dead_letters_list_counts_them(cli: CommandLine, orders: str) -> None:
    (row,) = cli("dead-letters", "list", "loader", *DB, "--output", "json").json

    assert row.pop("error")
    assert row == {
        "batch": 1,
        "topic": orders,
        "partition": 0,
        "error_class": "value",
        "schema_id": None,
        "records": 3,
        "first": 1,
        "last": 4,
        "errors": 3,
    }
    assert cli("dead-letters", "list", "loader", *DB, "--error-class", "target", "--output", "json").json == []


def test_dead_letters_show_prints_text_or_base64(cli: CommandLine, orders: str) -> None:
    shown = cli("dead-letters", "show", "loader", *DB, "--output", "json")

    assert [(row["offset"], row["value"], row["value_base64"]) for row in shown.json] == [
        (1, '{"id": "one"}', None),
        (2, None, base64.b64encode(b"\xff\xfe").decode()),
        (4, "[]", None),
    ]
    some = cli(
        "dead-letters", "show", "loader", *DB, "--offsets", f"{orders}[0] 2..5", "--limit", "1", "--output", "json"
    )
    assert [row["offset"] for row in some.json] == [2]
    assert "The group has more than 1 dead letter; --limit shows more of them" in some.stderr


def test_shown_dead_letters_can_be_corrected_and_replayed(
    cli: CommandLine, orders: str, inline_loader: Loader, tmp_path: Path
) -> None:
    shown = cli("dead-letters", "show", "loader", *DB, "--output", "json").json
    shown[0]["value"] = '{"id": 1, "name": "one"}'
    shown[1] |= {"value_base64": base64.b64encode(b'{"id": 2}').decode()}
    file = tmp_path / "corrected.json"
    file.write_text(json.dumps(shown[:2]))

    done = cli("dead-letters", "replay", "loader", *DB, *INTO, "--corrected", str(file), "--output", "json")

    assert done.json == [{"batch": 1, "records": 2, "rows": 2, "still_bad": 0, "replayed_by": 2}]
    assert "2 dead letters are loaded into 'target' and deleted; those that are still bad stay" in done.stderr
    assert done.stderr.endswith("1 such dead letter is left\n")
    assert rows(inline_loader.engine, "SELECT id, name FROM target ORDER BY id") == [
        (0, "name-0"),
        (1, "one"),
        (2, None),
        (3, "name-3"),
    ]
    assert reread(inline_loader).dead_letters == 1


def test_each_batch_has_its_own_corrections_of_an_offset(
    cli: CommandLine, orders: str, inline_loader: Loader, tmp_path: Path
) -> None:
    """As after a topic was recreated: another record has the offset."""
    Rewinder(inline_loader)("to-earliest")
    inline_loader(orders, **LEFT_OUT)
    shown = [row for row in cli("dead-letters", "show", "loader", *DB, "--output", "json").json if row["offset"] == 1]
    assert [row["batch_id"] for row in shown] == [1, 3]
    for row in shown:
        row["value"] = f'{{"id": {row["batch_id"]}}}'
    file = tmp_path / "corrected.json"
    file.write_text(json.dumps(shown))

    done = cli("dead-letters", "replay", "loader", *DB, *INTO, "--corrected", str(file), "--output", "json")

    assert [(batch["batch"], batch["rows"]) for batch in done.json] == [(1, 1), (3, 1)]
    found = rows(inline_loader.engine, "SELECT id, _batch_id FROM target WHERE _kafka_offset = 1 ORDER BY id")
    assert found == [(1, 4), (3, 5)]


CORRECTION = '{"batch_id":1,"topic":"t","partition":0,"offset":1,"value":"x"}'


def test_a_replay_that_does_not_decode_says_so(cli: CommandLine, orders: str) -> None:
    done = cli("dead-letters", "replay", "loader", *DB, "--table", "target", "--yes", "--output", "json")
    assert "'target' with keys and values unparsed (there is no --columns and no --dag-id) and deleted" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '[{"batch_id": 1, "topic": "t", "partition": 0}]',
        '[{"batch_id":1,"topic":"t","partition":0,"offset":1}]',
        '[{"topic":"t","partition":0,"offset":1,"value":"x"}]',
        f"[{CORRECTION}, {CORRECTION}]",
    ],
)
def test_another_file_is_a_usage_error(cli: CommandLine, orders: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "corrected.json"
    file.write_text(text)

    refused = cli("dead-letters", "replay", "loader", *DB, *INTO, "--corrected", str(file))

    assert refused.status == 2
    assert "it must be what 'dead-letters show --output json' prints" in refused.stderr


def test_replay_of_no_dead_letters_succeeds(cli: CommandLine, orders: str) -> None:
    done = cli("dead-letters", "replay", "loader", *DB, *INTO, "--batch", "7", "--output", "json")

    assert (done.status, done.json) == (0, [])


def test_a_group_that_does_not_exist_is_named(cli: CommandLine, orders: str) -> None:
    for command in (("list",), ("show",), ("replay", *INTO), ("drop", "--execute", "--reason", "x")):
        refused = cli("dead-letters", command[0], "other", *DB, *command[1:])
        assert refused.status == 1
        assert f"kafka-offsets dead-letters {command[0]}: The state tables" in refused.stderr


def test_dropped_dead_letters_leave_who_and_why(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    choice = ("dead-letters", "drop", "loader", *DB, "--offsets", f"{orders}:0:1-3", "--output", "json")
    assert [row["records"] for row in cli(*choice).json] == [2]
    assert len(cli("dead-letters", "show", "loader", *DB, "--output", "json").json) == 3

    done = cli(*choice, "--execute", "--who", "ana@host", "--reason", "test data")

    assert done.json == [{"group": "loader", "dropped": 2}]
    assert [row["offset"] for row in cli("dead-letters", "show", "loader", *DB, "--output", "json").json] == [4]
    kept = rows(inline_loader.engine, "SELECT key, value, headers, error FROM dead_letters WHERE offset_value < 4")
    assert {row[:3] for row in kept} == {(None, None, None)}
    assert all("dropped by ana@host at " in error and error.endswith(": test data") for *_, error in kept)
    (counted,) = cli("dead-letters", "list", "loader", *DB, "--error-class", "dropped", "--output", "json").json
    assert counted["records"] == 2
    assert reread(inline_loader).dead_letters == 3
    assert cli(*choice, "--execute", "--reason", "again").json == [{"group": "loader", "dropped": 0}]
    replayed = cli("dead-letters", "replay", "loader", *DB, *INTO, "--output", "json")
    assert replayed.json == [{"batch": 1, "records": 0, "rows": 0, "still_bad": 1, "replayed_by": 2}]
    assert "No dead letter became a row" in failed(replayed, "dead-letters replay")


@pytest.mark.parametrize("key", ["customer-7", "base64:/wA="])
def test_the_records_of_a_key_are_erased(cli: CommandLine, orders: str, inline_loader: Loader, key: str) -> None:
    bytes_of = {"customer-7": b"customer-7", "base64:/wA=": b"\xff\x00"}
    dead_letters = Tables().dead_letters
    with inline_loader.engine.begin() as conn:
        conn.execute(dead_letters.update().values(key=b"customer-8"))
        person = dead_letters.c.offset_value == 2
        conn.execute(dead_letters.update().where(person).values(key=bytes_of[key]))

    done = cli("dead-letters", "drop", "loader", *DB, "--key", key, "--execute", "--reason", "request 17", "-o", "json")

    assert done.json == [{"group": "loader", "dropped": 1}]
    assert "Key, value, headers and error of 1 dead letter are deleted, for good" in done.stderr
    kept = cli("dead-letters", "show", "loader", *DB, "--output", "json").json
    assert [(row["offset"], row["key"]) for row in kept] == [(1, "customer-8"), (4, "customer-8")]
    assert cli("dead-letters", "list", "loader", *DB, "--key", key, "--output", "json").json == []
    assert cli("dead-letters", "list", "loader", *DB, "--key", "base64:?").status == 2


def test_what_is_not_dropped_yet_is_an_error(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    with inline_loader.engine.begin() as conn:
        conn.execute(Tables().dead_letters.update().values(replayed_by=1))
        conn.execute(Tables().offset_batches.update().values(state="staged", publish_started_at=sa.func.now()))

    done = cli("dead-letters", "drop", "loader", *DB, "--execute", "--reason", "request 17", "-o", "json")

    assert (done.status, done.json) == (1, [{"group": "loader", "dropped": 0}])
    assert "3 dead letters were not dropped: a replay may be publishing their rows" in done.stderr


def test_dead_letters_of_old_batches_are_dropped(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    old = ("--older-than", "P30D", "--output", "json")
    assert cli("dead-letters", "drop", "loader", *DB, *old).json == []

    batches = Tables().offset_batches
    with inline_loader.engine.begin() as conn:
        committed = conn.scalar(sa.select(batches.c.committed_at))
        assert committed is not None
        conn.execute(batches.update().values(committed_at=committed - timedelta(days=31)))

    assert [row["records"] for row in cli("dead-letters", "drop", "loader", *DB, *old).json] == [3]
    done = cli("dead-letters", "drop", "loader", *DB, *old, "--execute", "--reason", "old")
    assert done.json == [{"group": "loader", "dropped": 3}]


def test_dead_letters_are_chosen_by_schema_id(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE dead_letters SET schema_id = 7 WHERE offset_value = 2"))

    shown = cli("dead-letters", "show", "loader", *DB, "--schema-id", "7", "--output", "json").json

    assert [(row["offset"], row["schema_id"]) for row in shown] == [(2, 7)]
