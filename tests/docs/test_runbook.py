"""The runbook: every command of `docs/runbook.md`, in its order, in the situation that it is written for.

The commands are taken from the document; `tests.support.runbook` says how they are run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import commit_to_kafka
from tests.support.command_line import CommandLine, kafka_connection
from tests.support.loads import rows
from tests.support.runbook import (
    COLUMNS,
    MONDAY,
    TUESDAY,
    WEDNESDAY,
    Orders,
    Shell,
    load_days,
    moves,
    new_offsets,
    once,
    printed,
    sections,
    snippets,
)

pytestmark = pytest.mark.server

TESTED: list[str] = []
Test = Callable[..., None]


def section(title: str) -> Callable[[Test], Test]:
    """The section of the runbook whose snippets a test runs."""
    TESTED.append(title)
    return pytest.mark.parametrize("shell", [pytest.param(title, id=title.replace(" ", "-"))], indirect=True)


@section("In every situation")
def test_a_preview_is_executed_as_it_was_shown_and_taken_back(shell: Shell, orders: Orders) -> None:
    load_days(orders)

    shell()
    assert orders.positions() == {0: 20, 1: 20}

    looked_at, undone, _ = shell()
    assert new_offsets(looked_at) == new_offsets(undone) == [30, 30]
    assert orders.positions() == {0: 30, 1: 30}
    assert orders.trigger().status == 0
    assert orders.placed() == once(30, 30)
    shell()


def test_a_rewind_of_an_upsert_target_is_harmless_unless_it_replaces(orders: Orders, airflow: CommandLine) -> None:
    orders.options["sink"] = SqlTable("orders", upsert_key=("id",))
    orders.produce(0, 0, 10, MONDAY)
    orders.produce(0, 0, 5, TUESDAY, cents=9900)
    assert orders.trigger().status == 0
    newest = {number: (99.0 if number < 5 else 12.5) for number in range(10)}
    assert amounts(orders) == newest
    shell = Shell("In every situation", orders, airflow)
    rewind = ("rewind", "orders_loader", "--conn-id", "warehouse", "--to-offset", "8", "--execute", "--reason", "x")

    assert airflow(*rewind).status == 0
    assert amounts(orders) == newest
    assert orders.trigger().status == 0
    assert amounts(orders) == newest

    assert airflow(*rewind, "--replace", "orders").status == 0
    assert sorted(amounts(orders)) == [5, 6, 7]
    assert orders.trigger().status == 0
    assert amounts(orders) == newest
    assert airflow("verify", "orders_loader", "--conn-id", "warehouse", "--table", "orders").status == 1
    shell.left = shell.left[-1:]
    shell()


def amounts(orders: Orders) -> dict[int, float]:
    return {number: float(amount) for number, amount in rows(orders.engine, "SELECT id, amount FROM orders")}


@section("A bug in a transform")
def test_wrong_rows_are_loaded_again(shell: Shell, orders: Orders) -> None:
    load_days(orders)
    orders.write("UPDATE orders SET amount = 0 WHERE _batch_id > 1")

    _, looked_at = shell()
    assert new_offsets(looked_at) == [10, 10]
    assert [move["reread"] for move in moves(looked_at)] == [20, 20]
    shell()
    assert wrong(orders) == 0
    assert orders.placed() == once(30, 30)
    shell()

    orders.write("UPDATE orders SET amount = 0 WHERE _kafka_offset BETWEEN 10 AND 19")
    assert list(map(new_offsets, shell())) == [[10, 10], [20, 20]]
    before = rows(orders.engine, "SELECT count(*) FROM orders WHERE _kafka_offset >= 20 AND _batch_id < 6")
    shell()
    assert wrong(orders) == 0
    assert orders.placed() == once(30, 30)
    assert orders.positions() == {0: 30, 1: 30}
    assert rows(orders.engine, "SELECT count(*) FROM orders WHERE _kafka_offset >= 20 AND _batch_id < 6") == before


def wrong(orders: Orders) -> int:
    ((count,),) = rows(orders.engine, "SELECT count(*) FROM orders WHERE amount <> 12.5")
    return int(count)


@section("A late schema fix")
def test_replayed_dead_letters_become_rows(shell: Shell, orders: Orders) -> None:
    orders.options["on_bad_record"] = DeadLetters()
    for partition in range(2):
        orders.produce(partition, 1000 * partition, 10, MONDAY)
    assert orders.trigger().status == 0
    orders.produce(0, 10, 5, TUESDAY)
    orders.produce(0, 15, 5, TUESDAY, cents=10**12)
    assert orders.trigger().status == 0
    orders.produce(1, 1010, 5, WEDNESDAY, cents=10**12)
    assert orders.trigger().status == 0
    assert dead_letters(orders) == 10

    fix(shell, orders)
    listed, parts = shell()
    assert [one["dead_letters"] for one in printed(listed)] == [5, 5, 0]
    assert [(one["start_offset"], one["end_offset"]) for one in printed(parts)] == [(10, 20)]
    counted, shown, replayed = shell()
    assert [(one["batch"], one["error_class"], one["records"]) for one in printed(counted)] == [
        (2, "value", 5),
        (3, "value", 5),
    ]
    assert printed(shown)[0]["offset"] == 15
    assert [(one["rows"], one["still_bad"]) for one in printed(replayed)] == [(5, 0), (5, 0)]
    assert dead_letters(orders) == 0
    assert orders.placed() == once(20, 15)

    _, looked_at = shell()
    assert new_offsets(looked_at) == [10, 10]
    shell()
    assert dead_letters(orders) == 0
    assert orders.placed() == once(20, 15)

    orders.options["on_bad_record"] = "fail"
    orders.columns = COLUMNS
    orders.produce(1, 1015, 5, WEDNESDAY, cents=10**12)
    failed = orders.trigger()
    assert shell.symptom().match(failed.stderr), failed.stderr
    fix(shell, orders)
    shell()
    assert orders.placed() == once(20, 20)
    (proved,) = shell()
    assert [one["dead_letters"] for one in printed(proved)] == [0]


def fix(shell: Shell, orders: Orders) -> None:
    """Correct the columns, in the DAG and in the table."""
    orders.columns = COLUMNS.replace("DECIMAL(10,2)", "DECIMAL(16,2)")
    (alter,) = snippets(shell.text, "sql")
    # SQLite neither knows the statement nor needs it: it takes a number of any size.
    if orders.engine.dialect.name == "postgresql":
        orders.write(alter)


def dead_letters(orders: Orders) -> int:
    ((count,),) = rows(orders.engine, "SELECT count(*) FROM dead_letters")
    return int(count)


@section("A lost target table")
def test_a_lost_table_is_filled_again(shell: Shell, orders: Orders, airflow: CommandLine) -> None:
    load_days(orders)
    again = (
        "--topic",
        "orders",
        "--batch",
        "2",
        "--table",
        "orders",
        "--replace",
        "--columns",
        COLUMNS,
        "--reason",
        "x",
    )
    assert airflow("replay", "orders_loader", "--conn-id", "warehouse", *again).status == 0
    orders.write("DROP TABLE orders")

    lost = shell(status=1)[-1]
    assert shell.symptom().search(" ".join(lost.stderr.split())), lost.stderr
    (looked_at,) = shell()
    assert [(move["new_offset"], move["clamped"]) for move in moves(looked_at)] == [(0, False), (0, False)]
    shell()
    assert orders.placed() == once(30, 30)
    shell()


def test_expired_records_of_a_lost_table_are_named(orders: Orders, airflow: CommandLine) -> None:
    load_days(orders)
    orders.write("DROP TABLE orders")
    delete_records(orders.kafka.bootstrap_servers, "orders", 4, 1)
    shell = Shell("A lost target table", orders, airflow)

    shell(status=1)
    (looked_at,) = shell()
    assert [(move["new_offset"], move["clamped"], move["note"]) for move in moves(looked_at)] == [
        (0, False, ""),
        (4, True, "clamped: 0 is before the beginning offset"),
    ]
    shell()
    assert orders.placed() == once(30, 30, first=(0, 4))
    (named,) = shell(status=1)
    assert [(one["partition"], one["batch_id"]) for one in printed(named)] == [(1, 1)]
    assert "rows are missing" in named.stderr


@section("Expired offsets")
def test_expired_records_are_skipped_and_recorded(shell: Shell, orders: Orders) -> None:
    for partition in range(2):
        orders.produce(partition, 1000 * partition, 10, MONDAY)
    assert orders.trigger().status == 0
    expire(orders, 15, 20)

    failed = orders.trigger()
    assert shell.symptom().match(failed.stderr), failed.stderr
    (shown,) = shell()
    assert [one["lost"] for one in printed(shown)] == [0, 5]
    (planned,) = shell()
    assert [(one["start"], one["end"]) for one in printed(planned)] == [(10, 20), (15, 20)]
    orders.options["on_data_loss"] = "skip"
    _, recorded = shell()
    assert orders.gaps() == [(1, 10, 15, "expired")]
    assert [one["cause"] for one in printed(recorded) if one["part"] == "gap"] == ["expired"]

    orders.options.clear()
    expire(orders, 27, 30)
    assert shell.symptom().match(orders.trigger().stderr)
    _, looked_at = shell()
    assert [(move["new_offset"], move["skipped"]) for move in moves(looked_at)] == [(20, []), (27, [[20, 27]])]
    *_, recorded = shell()
    assert orders.gaps() == [(1, 10, 15, "expired"), (1, 20, 27, "passed over")]
    assert [one["cause"] for one in printed(recorded) if one["part"] == "gap"] == ["passed over"]
    assert orders.placed() == {
        one: 1 for one in once(30, 30) if one[0] == 0 or one[1] not in {*range(10, 15), *range(20, 27)}
    }
    (proved,) = shell()
    assert [one["gaps"] for one in printed(proved)] == [12]


def expire(orders: Orders, beginning: int, end: int) -> None:
    """Ten more records in both partitions, of which the second loses those before an offset."""
    for partition in range(2):
        orders.produce(partition, 1000 * partition + end - 10, 10, TUESDAY)
    delete_records(orders.kafka.bootstrap_servers, "orders", beginning, 1)


@section("A new Kafka cluster")
def test_a_group_goes_on_in_another_cluster(
    shell: Shell, orders: Orders, airflow: CommandLine, new_kafka: KafkaBroker
) -> None:
    create_topic(new_kafka.bootstrap_servers, "orders", 2, {"retention.ms": "-1"})
    try:
        move(shell, orders, airflow, new_kafka)
    finally:
        delete_topic(new_kafka.bootstrap_servers, "orders")


def move(shell: Shell, orders: Orders, airflow: CommandLine, new_kafka: KafkaBroker) -> None:
    # The new cluster has Monday's records from another offset on, and Tuesday's, which were never in the old one.
    old_kafka, there = orders.kafka, Orders(orders.engine, new_kafka)
    for partition in range(2):
        orders.produce(partition, 1000 * partition, 10, MONDAY)
        there.produce(partition, 1000 * partition + 5, 5, MONDAY)
        there.produce(partition, 1000 * partition + 10, 10, TUESDAY)
    assert orders.trigger().status == 0
    failed = there.trigger()
    assert shell.symptom().match(failed.stderr), failed.stderr
    airflow.connect("kafka_new", kafka_connection(new_kafka))
    airflow.connect("kafka_old", kafka_connection(old_kafka))
    commit_to_kafka(new_kafka, "orders_loader", "orders", {0: 5, 1: 5})
    Path("new-positions.csv").write_text("orders,0,5\norders,1,5\n", encoding="utf-8")

    shown, *_ = shell()
    assert [one["lag"] for one in printed(shown)] == [0, 0]
    assert list(map(new_offsets, shell())) == [[5, 5]] * 3
    assert orders.positions() == {0: 10, 1: 10}
    shell()
    assert orders.positions() == {0: 5, 1: 5}
    orders.kafka = new_kafka
    airflow.connect("kafka_default", kafka_connection(new_kafka))
    try:
        shell()
        found = rows(orders.engine, "SELECT id FROM orders ORDER BY id")
        assert [number for (number,) in found] == [*range(20), *range(1000, 1020)]
        shell()
        refused = airflow("rewind", "orders_loader", "--conn-id", "warehouse", "--undo")
        assert refused.status == 1
        (back,) = shell()
        assert new_offsets(back) == [10, 10]
    finally:
        orders.kafka = old_kafka


def test_every_section_with_commands_is_tested() -> None:
    assert [title for title, text in sections().items() if snippets(text, "sh")] == TESTED
