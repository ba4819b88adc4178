"""PyMySQL still has the names that are not public, with which rows are sent."""

from __future__ import annotations

import inspect
from pathlib import Path

import pymysql
import pytest
from pymysql.connections import Connection, MySQLResult

from airflow_kafka_offsets.database import pymysql_protocol


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (Connection, "_execute_command", ["self", "command", "sql"]),
        (Connection, "_force_close", ["self"]),
        (Connection, "_read_packet", ["self", "packet_type"]),
        (MySQLResult, "_read_load_local_packet", ["self", "first_packet"]),
        (MySQLResult, "_read_ok_packet", ["self", "packet"]),
    ],
)
def test_pymysql_has_what_is_not_public_and_used(owner: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_pymysql_answers_a_request_for_a_file_where_rows_are_sent() -> None:
    """A result reads the answer to a statement, and calls the method that is overridden."""
    assert "self._read_load_local_packet(first_packet)" in inspect.getsource(MySQLResult.read)


def test_names_that_are_not_public_in_pymysql_are_used_in_one_module() -> None:
    package = Path(pymysql_protocol.__file__).parents[1]
    names = ("_execute_command", "_force_close", "_read_packet", "_read_load_local_packet", "_read_ok_packet")
    using = {path.name for path in package.rglob("*.py") if any(name in path.read_text("utf-8") for name in names)}
    assert using == {"pymysql_protocol.py"}, pymysql.__version__
