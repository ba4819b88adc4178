"""The engine of a Postgres connection: it has the parameters of libpq in the extra, which the provider's leaves out."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.database.weakness import database_weakness
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.connections import database_engine, open_url
from airflow_kafka_offsets.sinks.sql.connected_table import why_no_copy
from devstack.certificates import Authority
from devstack.postgres import PostgresServer
from devstack.tls_proxy import PostgresTlsProxy

AUTHORITY, OTHER = Authority(), Authority()


@pytest.fixture(scope="module")
def encrypted(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresTlsProxy]:
    """The server with TLS, and without."""
    with PostgresTlsProxy(postgres.port, AUTHORITY.issue("localhost"), tmp_path_factory.mktemp("tls")) as proxy:
        yield proxy


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer) -> Iterator[Callable[..., sa.Engine]]:
    engines: list[sa.Engine] = []

    def connect(port: int, extra: dict[str, Any]) -> sa.Engine:
        login = {"host": "127.0.0.1", "port": port, "login": postgres.user, "password": postgres.password}
        fields = {"conn_type": "postgres", "schema": "postgres", "extra": extra} | login
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))
        engines.append(database_engine("warehouse"))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.dispose()


def authority(directory: Path, of: Authority) -> str:
    file = directory / "authority.pem"
    file.write_text(of.certificate)
    return str(file)


def test_its_driver_is_that_of_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one it is depends on the version of Airflow's provider."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgres://loader:secret@127.0.0.1:1/shop")

    assert why_no_copy(database_engine("warehouse").dialect) is None


@pytest.mark.server
class TestTls:
    @pytest.mark.parametrize("place", ["extra", "sqlalchemy_query"])
    def test_a_server_without_it_is_refused(
        self, connected: Callable[..., sa.Engine], postgres: PostgresServer, tmp_path: Path, place: str
    ) -> None:
        given = {"sslmode": "verify-full", "sslrootcert": authority(tmp_path, AUTHORITY)}
        engine = connected(postgres.port, given if place == "extra" else {"sqlalchemy_query": given})

        with pytest.raises(sa.exc.OperationalError, match="server does not support SSL, but SSL was required"):
            engine.connect()

    @pytest.mark.parametrize("given", [{}, {"sslmode": "verify-full"}], ids=["authority alone", "with its mode"])
    def test_the_certificate_is_verified(
        self, connected: Callable[..., sa.Engine], encrypted: PostgresTlsProxy, tmp_path: Path, given: dict[str, str]
    ) -> None:
        engine = connected(encrypted.port, given | {"sslrootcert": authority(tmp_path, OTHER)})
        with pytest.raises(
            sa.exc.OperationalError, match=r"SSL error: (provider signature failure|certificate verify failed|EVP lib)"
        ):
            engine.connect()
        authority(tmp_path, AUTHORITY)
        with engine.connect() as conn:
            driver_connection: Any = conn.connection.dbapi_connection
            assert driver_connection.pgconn.ssl_in_use

    @pytest.mark.parametrize(
        ("extra", "told"),
        [
            ({"sslmode": "disable"}, "the rows and the positions cross the network to 127.0.0.1 in plain text"),
            ({}, "the certificate of the database at 127.0.0.1 is not verified, or not its name"),
            ({"sslmode": "require"}, "the certificate of the database at 127.0.0.1 is not verified, or not its name"),
            ({"sslrootcert": "authority"}, None),
        ],
    )
    @pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
    def test_what_is_not_safe_is_told(
        self,
        monkeypatch: pytest.MonkeyPatch,
        connected: Callable[..., sa.Engine],
        encrypted: PostgresTlsProxy,
        tmp_path: Path,
        extra: dict[str, str],
        told: str | None,
        driver: str,
    ) -> None:
        monkeypatch.setattr("airflow_kafka_offsets.database.weakness.is_this_machine", lambda _: False)
        extra = {key: authority(tmp_path, AUTHORITY) if value == "authority" else value for key, value in extra.items()}
        engine = connected(encrypted.port, extra | {"sqlalchemy_scheme": f"postgresql+{driver}"})
        with engine.connect() as conn:
            problem = database_weakness(conn.connection.dbapi_connection)

        remedy = "add 'sslmode': 'verify-full' and 'sslrootcert' to its extra, or to the query of its URL"
        assert problem == (told and f"{told}; {remedy}")


@pytest.mark.parametrize("place", ["extra", "sqlalchemy_query"])
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"sslkey": "/tmp/library.so:key"}, "sslkey: The extra of connection 'warehouse' must have the path of a file"),
        *(
            ({name: "/x"}, f"The extra of connection 'warehouse' has '{name}', which a connection may not set")
            for name in ("sslkeylogfile", "passfile", "service", "servicefile", "oauth_issuer", "dbname", "of_tomorrow")
        ),
    ],
)
def test_parameters_that_load_code_or_touch_files_are_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], match: str, place: str
) -> None:
    extra = given if place == "extra" else {"sqlalchemy_query": given}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "postgres", "host": "db", "extra": extra}))

    with pytest.raises(ConfigurationError, match=match):
        database_engine("warehouse")


def test_several_hosts_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"host": ["db1:5432", "db2:5433"], "target_session_attrs": "read-write"}
    fields = {"conn_type": "postgres", "login": "loader", "schema": "shop", "extra": {"sqlalchemy_query": hosts}}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(fields))

    engine = database_engine("warehouse")

    (_, given) = engine.dialect.create_connect_args(engine.url)
    assert (given["host"], given["port"]) == ("db1,db2", "5432,5433")


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_url_that_cannot_be_read_is_not_quoted(scheme: str) -> None:
    url = f"{scheme}://loader:first@second:rest@127.0.0.1:5432/db"
    with pytest.raises(ConfigurationError, match="with @, : and / in user and password as %40") as refused:
        open_url(url)
    assert "rest" not in "".join(traceback.format_exception(refused.value))
