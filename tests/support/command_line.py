"""`airflow kafka-offsets …` in this process: Airflow's own parser, the real functions, and connections of one test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from sqlalchemy.engine import Engine

from tests.support.clients import Kafka


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class CommandLine:
    """Runs commands. Where a shell would see a message and a status, `Done` has them.

    :param connections: connection ids, and what their ``AIRFLOW_CONN_…`` variable says
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], connections: Mapping[str, str]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for conn_id, value in connections.items():
            self.connect(conn_id, value)

    def connect(self, conn_id: str, value: str) -> None:
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    def __call__(self, *arguments: str) -> Done:
        from airflow.cli.cli_parser import get_parser

        self._capsys.readouterr()
        status, message = 0, ""
        try:
            args = get_parser().parse_args(["kafka-offsets", *arguments])
            args.func(args)
        except SystemExit as end:
            # As the interpreter does it: text goes to standard error, and the status is 1.
            status = end.code if isinstance(end.code, int) else 1
            message = f"{end.code}\n" if isinstance(end.code, str) else ""
        printed = self._capsys.readouterr()
        return Done(status, printed.out, printed.err + message)


def database_connection(engine: Engine) -> str:
    """A connection of Airflow's to the database of an engine, of either kind."""
    if engine.dialect.name == "sqlite":
        return f"sqlite:///{engine.url.database}"
    return engine.url.set(drivername="postgres").render_as_string(hide_password=False)


def kafka_connection(kafka: Kafka, **config: Any) -> str:
    """A connection of the Kafka provider's."""
    return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers, **config}})
