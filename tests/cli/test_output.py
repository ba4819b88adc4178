"""Every command in every format: what is printed, and how a failure is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from airflow.utils import yaml
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.output import show, show_each
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.command_line import DB, FORMATS, CommandLine, failed
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_large_rows_are_printed_before_the_next_one_is_read(
    form: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def rows() -> Iterator[dict[str, str]]:
        for index in range(number):
            printed.append(capsys.readouterr().out)
            assert index == 0 or f"row {index - 1}" in printed[-1]
            yield {"value": f"row {index}"}

    show_each(rows(), form, nothing="none")
    printed.append(capsys.readouterr().out)
    parse = json.loads if form == "json" else yaml.safe_load
    assert parse("".join(printed)) == [{"value": f"row {index}"} for index in range(number)]


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

    def test_stored_texts_are_not_printed_as_markup(self, cli: CommandLine, engine: Engine) -> None:
        initialize(Ledger(engine))
        claim_group(Ledger(engine), "[red]a[/blue] :bug:", TaskRun("r"), cluster_id="c", lease=timedelta(0))
        for form in FORMATS:
            assert "[red]a[/blue] :bug:" in cli("groups", *DB, "--output", form).stdout

    @pytest.mark.parametrize("columns", [80, 240])
    def test_a_table_that_is_wider_than_the_terminal_is_folded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        rows = [
            {"group": "orders_loader", "topic": "orders", "partition": partition}
            | {f"a_wide_measure_{number}": 1000 + number + partition for number in range(9)}
            for partition in range(3)
        ]

        show(rows, "table")

        printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
        lines = printed.splitlines()
        assert max(map(len, lines)) <= columns
        # No heading and no value is broken, and each part says which partition a line is of.
        assert all(f"A-WIDE-MEASURE-{number}" in printed for number in range(9))
        parts = printed.count("PARTITION")
        assert (parts > 1) == (columns == 80)
        assert lines[0].startswith("GROUP")
        assert [line.split(" | ")[0].strip() for line in lines[-3:]] == (
            ["0", "1", "2"] if parts > 1 else ["orders_loader"] * 3
        )

    def test_a_table_in_a_pipe_has_a_line_for_a_row_and_loses_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        rows = [{"offset": offset, "value": f"<{'word ' * 90}>", "reason": None, "skips": True} for offset in range(2)]

        show(rows, "table")

        lines = capsys.readouterr().out.splitlines()
        assert [line.split(" | ") for line in lines[-2:]] == [
            [f"{offset}     ", f"<{'word ' * 90}>", "-     ", "yes  "] for offset in range(2)
        ]

    def test_a_long_text_breaks_in_its_own_column(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

        show([{"check": "kafka", "found": "word " * 40, "result": "ok"}], "table")

        printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
        assert max(map(len, printed.splitlines())) <= 60
        assert printed.count("word") == 40


class TestFailures:
    def test_a_connection_that_does_not_exist(self, cli: CommandLine) -> None:
        assert "nowhere" in failed(cli("groups", "--conn-id", "nowhere"), "groups")

    def test_a_database_that_does_not_answer(self, cli: CommandLine) -> None:
        cli.connect("warehouse", "postgres://someone:5ecret@127.0.0.1:1/orders")
        done = cli("groups", *DB)
        assert "check whether it runs and can be reached, and connection 'warehouse'" in failed(done, "groups")
        assert "5ecret" not in done.stdout + done.stderr

    @pytest.mark.usefixtures("impatient")
    def test_a_broker_that_does_not_answer(self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
        inline_loader(topic())
        extra = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "5ecret"}
        cli.connect("kafka_default", json.dumps({"conn_type": "kafka", "extra": extra}))
        done = cli("lag", "loader", *DB)
        assert "127.0.0.1:1" in failed(done, "lag")
        assert "5ecret" not in done.stdout + done.stderr

    def test_a_missing_conn_id_is_a_usage_error(self, cli: CommandLine) -> None:
        assert cli("groups").status == 2


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
