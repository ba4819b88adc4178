"""Airflow connections of type `mysql`: the engine that a load gets, without the provider of MySQL."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from airflow_kafka_offsets.database.weakness import database_weakness
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.connections import open_database, open_url
from devstack.certificates import Authority
from devstack.mariadb import MariaDbServer
from tests.support.mariadb import columns, select, staged, write


def connected(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> None:
    connection["extra"] = json.dumps(connection.get("extra", {}))
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "mysql"} | connection))


def arguments(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> dict[str, Any]:
    """Return what the driver is called with."""
    found: list[dict[str, Any]] = []

    def connect(**given: Any) -> None:
        found.append(given)
        raise RuntimeError("enough")

    connected(monkeypatch, host="db", login="ada", password="5ecret", schema="shop", extra=extra)
    monkeypatch.setattr("pymysql.connect", connect)
    with open_database("warehouse") as engine, pytest.raises(RuntimeError, match="enough"):
        engine.connect()
    assert "5ecret" not in str(engine)
    return found[0]


def test_where_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(monkeypatch, {})

    wanted = {
        "host": "db",
        "user": "ada",
        "password": "5ecret",
        "database": "shop",
        "port": 3306,
        "local_infile": False,
    }
    assert given.items() >= wanted.items()


def test_keys_of_the_provider_that_mean_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(
        monkeypatch, {"charset": "latin1", "cursor": "sscursor", "client": "mysqlclient", "local_infile": True}
    )

    assert not given.keys() & {"charset", "cursorclass", "client"}
    assert given["local_infile"] is False


@pytest.mark.parametrize(
    "ssl", [{"ca": "/ca.pem", "key": "/k"}, '{"ca": "/ca.pem", "key": "/k"}'], ids=["object", "text"]
)
def test_a_certificate_authority_verifies_the_host(monkeypatch: pytest.MonkeyPatch, ssl: Any) -> None:
    wanted = {"ssl_ca": "/ca.pem", "ssl_key": "/k", "ssl_verify_identity": True, "ssl_verify_cert": True}
    assert arguments(monkeypatch, {"ssl": ssl}).items() >= wanted.items()
    assert arguments(monkeypatch, {"ssl_ca": "/ca.pem", "ssl_verify_identity": False})["ssl_verify_identity"] is False


@pytest.mark.server
def test_a_server_without_trusted_tls_is_refused_before_the_login(mariadb_database: str, tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(Authority().certificate)

    with (
        open_url(f"{mariadb_database}?ssl_ca={authority}") as engine,
        pytest.raises(
            OperationalError, match=r"SSL is required but the server doesn't support it|CERTIFICATE_VERIFY_FAILED"
        ),
    ):
        engine.connect()


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"ssl_mode": "VERIFY_IDENTITY"}, "ssl_mode"),
        ({"ssl": {"cipher": "x"}}, "ssl.cipher"),
        ({"init_command": "x"}, "init_command"),
    ],
)
def test_options_that_the_driver_does_not_know_are_refused(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], named: str
) -> None:
    connected(monkeypatch, host="db", extra=extra)

    with pytest.raises(ConfigurationError, match=rf"'warehouse' has '{named}', which PyMySQL does not know; .*ssl_ca"):
        open_database("warehouse").__enter__()


@pytest.mark.parametrize(
    ("host", "is_encrypted", "is_told"), [("db", False, True), ("db", True, False), ("127.0.0.1", False, False)]
)
def test_rows_that_cross_the_network_in_plain_text_are_told(host: str, is_encrypted: bool, is_told: bool) -> None:
    problem = database_weakness(SimpleNamespace(_secure=is_encrypted, host=host))

    assert (problem is not None and "cross the network to db in plain text; add 'ssl_ca'" in problem) == is_told


@pytest.mark.server
def test_rows_are_loaded_through_it(
    monkeypatch: pytest.MonkeyPatch,
    mariadb: MariaDbServer,
    mariadb_database: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import pyarrow as pa

    from airflow_kafka_offsets.sinks.sql.table import SqlTable

    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", mariadb.airflow_uri(mariadb_database.rpartition("/")[2]))
    schema = columns(id=pa.int64())
    row = {"id": 1, "_kafka_topic": "orders", "_kafka_partition": 0, "_kafka_offset": 0}
    with open_database("warehouse") as engine, caplog.at_level(logging.WARNING):
        SqlTable("target").connect(engine).prepare(schema)
        assert write(engine, SqlTable("target"), staged(tmp_path, schema, [row])) == 1
        assert select(engine, "SELECT id FROM target") == [(1,)]
        with engine.connect() as conn:
            assert conn.get_isolation_level() == "READ COMMITTED"
    assert not caplog.records
