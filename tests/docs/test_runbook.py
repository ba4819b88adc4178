"""The runbook: every command of `docs/runbook.md`, in its order, in the situation that it is written for.

The commands are taken from the document. `airflow kafka-offsets` is Airflow's own parser with the real functions in this process,
`airflow dags trigger load_orders` is the load of the README's DAG without Spark.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.utils import yaml
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from devstack.orders import order_json
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import commit_to_kafka, producer
from tests.support.command_line import CommandLine, Done, database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import rows

pytestmark = pytest.mark.server

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"
MONDAY, TUESDAY, WEDNESDAY = (datetime(2026, 11, day, tzinfo=UTC) for day in (16, 17, 18))

Placed = dict[tuple[int, int], int]


def sections() -> dict[str, str]:
    """The sections of the runbook, by their headings."""
    parts = re.split(r"^## (.*)\n", RUNBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def snippets(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@dataclass
class Orders:
    """The group `orders_loader`, and the DAG that loads it.

    :param options: of the pipeline and of the load: what the DAG says beside the README's
    """

    engine: Engine
    kafka: KafkaBroker
    options: dict[str, Any] = field(default_factory=dict)
    columns: str = COLUMNS
    paused: bool = False

    def trigger(self) -> Done:
        assert not self.paused, "a run of a paused DAG waits for ever"
        options = {"sink": SqlTable("orders")} | self.options
        of_the_load = {name: options.pop(name) for name in ("on_data_loss",) if name in options}
        pipeline = Pipeline(group_id="orders_loader", topics=("orders",), value_format=Json(self.columns), **options)
        config = {"bootstrap.servers": self.kafka.bootstrap_servers}
        try:
            load(
                pipeline, LoadOptions(**of_the_load), kafka_config=config, engine=self.engine, launcher=InlineLauncher()
            )
        except KafkaOffsetsError as error:
            return Done(1, "", str(error))
        return Done(0, "", "")

    def produce(self, partition: int, first: int, count: int, day: datetime, cents: int = 1250) -> None:
        """Orders with ids from `first` on, whose timestamps are of a day."""
        writer = producer(self.kafka)
        for number in range(first, first + count):
            value = order_json(number, "somebody", cents, day.isoformat())
            writer.produce("orders", value, partition=partition, timestamp=milliseconds(day))
        assert writer.flush(30) == 0

    def placed(self) -> Placed:
        """How many rows there are of each partition and offset."""
        found = rows(self.engine, "SELECT _kafka_partition, _kafka_offset FROM orders")
        return dict(Counter((partition, offset) for partition, offset in found))

    def positions(self) -> dict[int, int]:
        return dict(rows(self.engine, "SELECT partition, offset_value FROM consumed_offsets"))

    def gaps(self) -> list[tuple[Any, ...]]:
        return rows(
            self.engine,
            "SELECT partition, start_offset, end_offset, cause FROM offset_gaps ORDER BY batch_id, partition",
        )

    def write(self, statement: str) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.text(statement))


def once(*ends: int, first: Sequence[int] = (0, 0)) -> Placed:
    """Every offset of the partitions up to their ends, one time."""
    return {(number, offset): 1 for number, end in enumerate(ends) for offset in range(first[number], end)}


class Shell:
    """Runs the snippets of a section, one after the other."""

    def __init__(self, section: str, orders: Orders, airflow: CommandLine) -> None:
        self.text = sections()[section]
        self.left = snippets(self.text, "sh")
        self._orders = orders
        self._airflow = airflow

    def __call__(self, *, status: int = 0) -> list[Done]:
        """Run the next snippet: all of its commands succeed, but for the last, which ends with `status`."""
        commands = [shlex.split(line) for line in self.left.pop(0).splitlines()]
        done = [self._run(command) for command in commands]
        assert [one.status for one in done] == [0] * (len(done) - 1) + [status], done
        return done

    def _run(self, command: list[str]) -> Done:
        file = command[-1] if ">" in command else None
        if file is not None:
            command = command[:-2]
        if command[:2] == ["airflow", "kafka-offsets"]:
            # The same as the table for people, which is as wide as a terminal.
            output = [] if "--output" in command or command[2] == "export" else ["--output", "yaml"]
            done = self._airflow(*command[2:], *output)
        else:
            assert command[:2] == ["airflow", "dags"]
            assert command[3:] == ["load_orders"]
            done = self._dags(command[2])
        if file is not None:
            Path(file).write_text(done.stdout, encoding="utf-8")
        return done

    def _dags(self, command: str) -> Done:
        if command == "trigger":
            return self._orders.trigger()
        self._orders.paused = {"pause": True, "unpause": False}[command]
        return Done(0, "", "")

    def symptom(self) -> re.Pattern[str]:
        """The error that the section quotes; an ellipsis stands for anything."""
        (quoted,) = snippets(self.text, "text")
        return re.compile(re.escape(quoted.strip()).replace("…", ".*"))


@pytest.fixture(scope="module")
def old_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def new_kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def orders(engine: Engine, old_kafka: KafkaBroker) -> Iterator[Orders]:
    create_topic(old_kafka.bootstrap_servers, "orders", 2, {"retention.ms": "-1"})
    yield Orders(engine, old_kafka)
    delete_topic(old_kafka.bootstrap_servers, "orders")


@pytest.fixture
def airflow(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    # Files that commands write and read.
    monkeypatch.chdir(tmp_path)
    # What Spark does to a replay from the command line is tested in test_cli_rewind.py.
    monkeypatch.setattr("airflow_kafka_offsets.cli.replay.make_launcher", lambda *_, **__: InlineLauncher())
    return CommandLine(
        monkeypatch,
        capsys,
        {"warehouse": database_connection(orders.engine), "kafka_default": kafka_connection(orders.kafka)},
    )


TESTED: list[str] = []
Test = Callable[..., None]


def section(title: str) -> Callable[[Test], Test]:
    """The section of the runbook whose snippets a test runs."""
    TESTED.append(title)
    return pytest.mark.parametrize("shell", [pytest.param(title, id=title.replace(" ", "-"))], indirect=True)


@pytest.fixture
def shell(request: pytest.FixtureRequest, orders: Orders, airflow: CommandLine) -> Iterator[Shell]:
    made = Shell(request.param, orders, airflow)
    yield made
    assert made.left == [], "snippets of the section that no test runs"
    assert not orders.paused, "the section leaves the DAG paused"


def printed(done: Done) -> list[dict[str, Any]]:
    """The rows that a command printed."""
    found: list[dict[str, Any]] = yaml.safe_load(done.stdout)
    return found


def new_offsets(done: Done) -> list[int]:
    return [one["new_offset"] for one in printed(done)]


def load_days(orders: Orders) -> None:
    """Batch 1 is of Monday, batch 2 of Tuesday, batch 3 of Wednesday."""
    for number, day in enumerate((MONDAY, TUESDAY, WEDNESDAY)):
        for partition in range(2):
            orders.produce(partition, 1000 * partition + 10 * number, 10, day)
        assert orders.trigger().status == 0


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
    rewind = ("rewind", "orders_loader", "--conn-id", "warehouse", "--to-offset", "8", "--execute")

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
    assert [one["reread"] for one in printed(looked_at)] == [20, 20]
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
def test_what_did_not_decode_becomes_rows(shell: Shell, orders: Orders) -> None:
    orders.options["on_bad_record"] = "dead_letter"
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
    shell()
    assert dead_letters(orders) == 5
    assert orders.placed() == once(20, 10)

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
    again = ("--topic", "orders", "--batch", "2", "--table", "orders", "--replace", "--columns", COLUMNS)
    assert airflow("replay", "orders_loader", "--conn-id", "warehouse", *again).status == 0
    orders.write("DROP TABLE orders")

    lost = shell(status=1)[-1]
    assert shell.symptom().search(" ".join(lost.stderr.split())), lost.stderr
    (looked_at,) = shell()
    assert [(one["new_offset"], one["clamped"]) for one in printed(looked_at)] == [(0, False), (0, False)]
    shell()
    assert orders.placed() == once(30, 30)
    shell()


def test_what_kafka_has_lost_of_a_lost_table_is_named(orders: Orders, airflow: CommandLine) -> None:
    load_days(orders)
    orders.write("DROP TABLE orders")
    delete_records(orders.kafka.bootstrap_servers, "orders", 4, 1)
    shell = Shell("A lost target table", orders, airflow)

    shell(status=1)
    (looked_at,) = shell()
    assert [(one["new_offset"], one["clamped"], one["note"]) for one in printed(looked_at)] == [
        (0, False, ""),
        (4, True, "clamped: 0 is before the beginning offset"),
    ]
    shell()
    assert orders.placed() == once(30, 30, first=(0, 4))
    (named,) = shell(status=1)
    assert [(one["partition"], one["batch_id"]) for one in printed(named)] == [(1, 1)]
    assert "rows are missing" in named.stderr


@section("Expired offsets")
def test_what_expired_is_left_out_and_recorded(shell: Shell, orders: Orders) -> None:
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
    assert [(one["new_offset"], one["skipped"]) for one in printed(looked_at)] == [(20, 0), (27, 7)]
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
