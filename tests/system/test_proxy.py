"""The proxy in front of Postgres does to a connection what it is asked to, at the message it is asked for."""

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from devstack.postgres import PostgresServer
from devstack.process import listens
from devstack.proxy import PostgresProxy

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.port) as made:
        yield made


@pytest.fixture
def through_proxy(proxy: PostgresProxy, postgres: PostgresServer, database: str) -> Iterator[psycopg.Connection]:
    """A connection through the proxy, to a database with an empty table `number`."""
    with postgres.connect(database.rpartition("/")[2]) as connection:
        connection.execute("CREATE TABLE number (n BIGINT)")
    with contextlib.closing(connect_through(proxy, database)) as connection:
        yield connection


def connect_through(proxy: PostgresProxy, database: str) -> psycopg.Connection:
    url = make_url(database).set(drivername="postgresql", port=proxy.port)
    return psycopg.connect(url.render_as_string(hide_password=False), connect_timeout=5)


def numbers(database: str) -> list[int]:
    """What the table `number` holds, read without the proxy."""
    url = make_url(database).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM number ORDER BY n").fetchall()]


# As psycopg sends it by itself, and in the extended protocol, with the forms of SQL.
@pytest.mark.parametrize("commit", [None, "commit work;"], ids=["simple", "extended"])
def test_a_swallowed_answer_is_a_lost_connection_to_the_client_and_a_commit_to_the_server(
    proxy: PostgresProxy, through_proxy: psycopg.Connection, database: str, commit: str | None
) -> None:
    through_proxy.execute("INSERT INTO number VALUES (1)")
    proxy.swallow_commit_answer()
    through_proxy.execute("INSERT INTO number VALUES (2)")
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        do_commit(through_proxy, commit)
    assert proxy.triggered.is_set()
    assert numbers(database) == [1, 2]


@pytest.mark.parametrize("commit", [None, "commit work;"], ids=["simple", "extended"])
def test_a_connection_cut_before_its_commit_leaves_nothing(
    proxy: PostgresProxy, through_proxy: psycopg.Connection, database: str, commit: str | None
) -> None:
    proxy.cut_before_commit()
    through_proxy.execute("INSERT INTO number VALUES (1)")
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        do_commit(through_proxy, commit)
    assert proxy.triggered.is_set()
    # Waits for the transaction's locks: once they are free it is over, and not merely invisible.
    url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE number")
    assert numbers(database) == []


def do_commit(connection: psycopg.Connection, statement: str | None) -> None:
    if statement is None:
        connection.commit()
    else:
        connection.execute(statement, binary=True)


def test_a_commit_that_fails_is_a_fault_that_struck(
    proxy: PostgresProxy, through_proxy: psycopg.Connection, database: str
) -> None:
    through_proxy.execute("ALTER TABLE number ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")
    through_proxy.execute("INSERT INTO number VALUES (1), (1)")
    proxy.swallow_commit_answer()
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        through_proxy.commit()
    assert proxy.triggered.is_set()
    assert numbers(database) == []


def test_a_fault_strikes_once_and_can_be_asked_for_again(
    proxy: PostgresProxy, through_proxy: psycopg.Connection, database: str
) -> None:
    proxy.cut_before_commit()
    with contextlib.closing(connect_through(proxy, database)) as other:
        other.execute("INSERT INTO number VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            other.commit()
    through_proxy.execute("INSERT INTO number VALUES (2)")
    through_proxy.commit()
    assert numbers(database) == [2]
    proxy.swallow_commit_answer()
    assert not proxy.triggered.is_set()
    through_proxy.execute("INSERT INTO number VALUES (3)")
    with pytest.raises(psycopg.OperationalError):
        through_proxy.commit()
    assert proxy.triggered.is_set()
    assert numbers(database) == [2, 3]


def test_a_proxy_that_refuses_closes_new_connections_and_keeps_the_others(
    proxy: PostgresProxy, through_proxy: psycopg.Connection, database: str
) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect_through(proxy, database)
    through_proxy.execute("INSERT INTO number VALUES (1)")
    through_proxy.commit()
    assert numbers(database) == [1]
    proxy.accept()
    with contextlib.closing(connect_through(proxy, database)) as other:
        assert other.execute("SELECT count(*) FROM number").fetchone() == (1,)


def test_a_large_copy_goes_through_the_proxy_in_both_directions(through_proxy: psycopg.Connection) -> None:
    sent = b"".join(b"%0200d\n" % n for n in range(250_000))
    through_proxy.execute("CREATE TEMPORARY TABLE line (number TEXT)")
    with through_proxy.cursor() as cursor:
        with cursor.copy("COPY line FROM STDIN") as copy:
            copy.write(sent)
        with cursor.copy("COPY (SELECT number FROM line ORDER BY number) TO STDOUT") as copy:
            returned = b"".join(map(bytes, copy))
    # Not compared in the assertion: pytest would explain the difference of 50 MB.
    same = returned == sent
    assert same


def test_the_end_of_a_proxy_closes_its_connections_and_ends_its_threads(
    postgres: PostgresServer, database: str
) -> None:
    before = set(threading.enumerate())
    with PostgresProxy(postgres.port) as proxy:
        connection = connect_through(proxy, database)
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before
    assert not listens(proxy.port)
    with contextlib.closing(connection), pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")


def test_a_proxy_whose_server_is_gone_closes_the_connection(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    with PostgresProxy(own_postgres.port) as proxy, contextlib.closing(connect_through(proxy, url)) as connection:
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            connect_through(proxy, url)
