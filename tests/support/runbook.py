"""The sections of `docs/runbook.md`, their commands, and the group and the DAG that these are about.

`kafka-offsets` is the real functions in this process, `airflow dags trigger load_orders` is the load of the README's
DAG without Spark.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from devstack.orders import order_json
from tests.support.clients import producer
from tests.support.command_line import CommandLine, Done
from tests.support.inline import InlineLauncher
from tests.support.loads import rows

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
        commands = [shlex.split(line) for line in self.left.pop(0).replace("\\\n", " ").splitlines()]
        done = [self._run(command) for command in commands]
        assert [one.status for one in done] == [0] * (len(done) - 1) + [status], done
        return done

    def _run(self, command: list[str]) -> Done:
        file = command[-1] if ">" in command else None
        if file is not None:
            command = command[:-2]
        if command[0] == "kafka-offsets":
            # The same as the table for people, which is as wide as a terminal.
            output = [] if "--output" in command or command[1] == "export" else ["--output", "yaml"]
            done = self._airflow(*command[1:], *output)
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
        return re.compile(re.escape(" ".join(quoted.split())).replace("…", ".*"))


def printed(done: Done) -> list[dict[str, Any]]:
    """The rows that a command printed."""
    found: list[dict[str, Any]] = yaml.safe_load(done.stdout)
    return found


def moves(done: Done) -> list[dict[str, Any]]:
    """The moves of the preview that a command printed, partition by partition."""
    found: list[dict[str, Any]] = yaml.safe_load(done.stdout)["partitions"]
    return found


def new_offsets(done: Done) -> list[int]:
    return [move["new_offset"] for move in moves(done)]


def load_days(orders: Orders) -> None:
    """Batch 1 is of Monday, batch 2 of Tuesday, batch 3 of Wednesday."""
    for number, day in enumerate((MONDAY, TUESDAY, WEDNESDAY)):
        for partition in range(2):
            orders.produce(partition, 1000 * partition + 10 * number, 10, day)
        assert orders.trigger().status == 0
