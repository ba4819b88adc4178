"""`kafka-offsets …` in this process: Airflow's own parser, the real functions, and connections of one test."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.program import main
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.spark.job import StageJob
from devstack.airflow import TAKES_COMMANDS_OF_PROVIDERS
from tests.support.clients import Kafka, producer
from tests.support.loads import Loader, names

DB = ("--conn-id", "warehouse")
FORMATS = ("table", "json", "yaml", "plain")


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Terminal(io.StringIO):
    """Standard input of a person who confirms everything, or nothing."""

    def __init__(self, answer: str = "y") -> None:
        super().__init__()
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return f"{self._answer}\n"


class CommandLine:
    """Runs commands, on a terminal of somebody who confirms. Where a shell would see a message and a status, `Done` has
    them.

    :param connections: connection ids, and what their ``AIRFLOW_CONN_…`` variable says
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], connections: Mapping[str, str]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        # Airflow logs to the standard output of its first import, which must not be what a command prints.
        with capsys.disabled():
            import airflow.cli.cli_parser  # noqa: F401
        monkeypatch.setattr(sys, "stdin", Terminal())
        for conn_id, value in connections.items():
            self.connect(conn_id, value)

    def connect(self, conn_id: str, value: str) -> None:
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        status, message = 0, ""
        try:
            if TAKES_COMMANDS_OF_PROVIDERS:
                from airflow.cli.cli_parser import get_parser

                args = get_parser().parse_args(["kafka-offsets", *arguments])
                args.func(args)
            else:
                main([*arguments])
        except SystemExit as end:
            # As the interpreter does it: text goes to standard error, and the status is 1.
            status = end.code if isinstance(end.code, int) else 1
            message = f"{end.code}\n" if isinstance(end.code, str) else ""
        printed = self._capsys.readouterr()
        return Done(status, printed.out, printed.err + message)


def database_connection(engine: Engine) -> str:
    """A connection of Airflow's to the database of an engine, of any kind."""
    if engine.dialect.name == "sqlite":
        return f"sqlite:///{engine.url.database}"
    kind = "postgres" if engine.dialect.name == "postgresql" else "mysql"
    return engine.url.set(drivername=kind).render_as_string(hide_password=False)


def kafka_connection(kafka: Kafka, **config: Any) -> str:
    """A connection of the Kafka provider's."""
    return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers, **config}})


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

    def cancel(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""


def leave_open(loader: Loader, topic: str, **options: Any) -> None:
    """A batch that was planned, and not finished."""
    with pytest.raises(StagingError):
        Loader(loader.kafka, loader.engine, DyingLauncher())(topic, **options)


def produce_at(kafka: Kafka, topic: str, timestamps_ms: Sequence[int]) -> None:
    """Records with timestamps of their own."""
    writer = producer(kafka)
    for number, timestamp_ms in enumerate(timestamps_ms):
        writer.produce(topic, names(number, 1)[0], timestamp=timestamp_ms)
        writer.flush(30)


def findings(done: Done) -> dict[str, dict[str, Any]]:
    """By check; and what must be true of every one."""
    found = {row["check"]: row for row in done.json}
    for row in found.values():
        assert row["result"] in ("ok", "warning", "failed", "skipped")
        assert row["found"]
        assert (row["fix"] is not None) == (row["result"] in ("warning", "failed")), row
    failed = [row["check"] for row in found.values() if row["result"] == "failed"]
    assert (done.status != 0) == bool(failed)
    for check in failed:
        assert check in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr
    return found
