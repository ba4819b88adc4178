"""What Airflow connections name: databases, Kafka clusters and launchers of Spark.

To add a launcher, write a module with a class that is a `spark.job.Launcher` and takes what `make_launcher` passes, and
add a line to `LAUNCHERS`. `SessionLauncher` is not in the table: its caller passes a session, and no connection.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_kafka_offsets.core.addresses import is_this_machine
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.mysql import mysql_engine, mysql_weakness
from airflow_kafka_offsets.kafka.config import check_config
from airflow_kafka_offsets.sinks.sink import Sink

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Engine

    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.spark.job import Launcher

log = logging.getLogger(__name__)

LAUNCHERS = {
    "spark": "airflow_kafka_offsets.hooks.spark:SparkSubmitLauncher",
    "spark_connect": "airflow_kafka_offsets.hooks.spark_connect:SparkConnectLauncher",
}
"""The class of the launcher for each type of connection."""


def database_engine(conn_id: str) -> Engine:
    """Return the engine of the connection's own hook, which logs in as its provider does; for MySQL and MariaDB see
    `hooks.mysql`.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: its hook has no SQLAlchemy engine, or its extra cannot be used
    """
    from airflow_kafka_offsets.database.session import unify_sessions

    connection = _connection(conn_id)
    engine = mysql_engine(connection) if connection.conn_type == "mysql" else _engine_of_hook(connection)
    unify_sessions(engine)
    _warn_once(engine, conn_id)
    return engine


def _connection(conn_id: str) -> Any:
    # The command line without Airflow imports this module too.
    from airflow.sdk import BaseHook

    return BaseHook.get_connection(conn_id)


def _engine_of_hook(connection: Any) -> Engine:
    hook = connection.get_hook()
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}, which is no SQL database: the "
            "target and the positions must be in one"
        )
    # Error messages must not show the values of rows.
    engine: Engine = hook.get_sqlalchemy_engine(engine_kwargs={"hide_parameters": True})
    return engine


def _warn_once(engine: Engine, conn_id: str) -> None:
    """Log a warning about the first connection where it is not encrypted."""
    from sqlalchemy import event

    def look(driver_connection: Any, _: object) -> None:
        if problem := database_weakness(driver_connection):
            log.warning("Connection %r: %s", conn_id, problem)

    event.listen(engine, "connect", look, once=True)


def database_weakness(driver_connection: Any) -> str | None:
    """Return why a connection of psycopg or PyMySQL is not safe, as a sentence; None where it is, and for other
    drivers.
    """
    if (problem := mysql_weakness(driver_connection)) is not None:
        return problem
    pgconn = getattr(driver_connection, "pgconn", None)
    if pgconn is None or pgconn.ssl_in_use or is_this_machine(driver_connection.info.host):
        return None
    return (
        f"the rows and the positions cross the network to {driver_connection.info.host} in plain text; add 'sslmode': "
        "'verify-full' and 'sslrootcert' to its extra"
    )


@contextmanager
def open_database(conn_id: str) -> Iterator[Engine]:
    """Open the database of a connection, and close it after the block; see `database_engine`."""
    engine = database_engine(conn_id)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def open_url(url: str) -> Iterator[Engine]:
    """Open the database of a URL, and close it after the block. Drivers and warnings are those of connections.

    :param url: of SQLAlchemy; it need not name the driver. In one of MySQL or MariaDB the query has what the extra of a
        connection has
    :raises ConfigurationError: it is no URL, or its query cannot be used
    """
    import sqlalchemy as sa

    from airflow_kafka_offsets.database.session import unify_sessions

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        # Its message has the URL.
        raise ConfigurationError(
            "The database URL cannot be read; its form is dialect://user:password@host:port/database"
        ) from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        engine = mysql_engine(_as_connection(parsed))
    else:
        # Error messages must not show the values of rows.
        engine = sa.create_engine(parsed, hide_parameters=True)
    unify_sessions(engine)
    _warn_once(engine, "database URL")
    try:
        yield engine
    finally:
        engine.dispose()


_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}


def _as_connection(url: URL) -> SimpleNamespace:
    """Return what `mysql_engine` takes of a connection."""
    extra = {}
    for name, value in url.query.items():
        try:
            extra[name] = json.loads(str(value))
        except ValueError:
            extra[name] = value
    return SimpleNamespace(
        conn_id="database URL",
        login=url.username,
        password=url.password,
        host=url.host,
        port=url.port,
        schema=url.database,
        extra_dejson=extra,
    )


def kafka_config(conn_id: str) -> dict[str, Any]:
    """Return the librdkafka configuration in the extra of a connection.

    The extra is data: unlike the provider's hook, this function never imports dotted paths that it contains.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: it is of another type, or its extra cannot be used
    """
    connection = _connection(conn_id)
    if connection.conn_type != "kafka":
        raise ConfigurationError(f"Connection {conn_id!r} is of type {connection.conn_type!r}, not 'kafka'")
    try:
        return check_config(connection.extra_dejson)
    except ConfigurationError as error:
        raise ConfigurationError(f"Connection {conn_id!r}: {error}") from error


def kafka_cluster(conn_id: str, isolation_level: str = "read_committed", *, timeout: float = 30.0) -> Cluster:
    """Return the cluster of a connection; see `kafka_config`.

    :param isolation_level: decides where a log ends
    :param timeout: seconds that a request may take
    """
    from airflow_kafka_offsets.kafka.cluster import Cluster

    return Cluster(kafka_config(conn_id), isolation_level=isolation_level, timeout=timeout)


def registry_config(conn_id: str) -> dict[str, Any]:
    """Return the configuration of a schema registry; see `formats.schema_registry.CONFIG`.

    Login and password are for basic authentication; the extra holds the other properties.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: it is of another type, or cannot be used
    """
    from airflow_kafka_offsets.formats.schema_registry import check_config

    connection = _connection(conn_id)
    if connection.conn_type != "http":
        raise ConfigurationError(
            f"Connection {conn_id!r} is of type {connection.conn_type!r}; that of a schema registry is of type 'http'"
        )
    host = connection.host or ""
    url = urlsplit(host if "://" in host else f"{connection.schema or 'http'}://{host}")
    if connection.port:
        url = url._replace(netloc=f"{url.netloc}:{connection.port}")
    config = {**connection.extra_dejson, "url": url.geturl()}
    if connection.login:
        config["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    try:
        return dict(check_config(config))
    except ConfigurationError as error:
        raise ConfigurationError(f"Connection {conn_id!r}: {error}") from error


def sink_connections(sink: Sink) -> dict[str, dict[str, Any]]:
    """Return what the connections hold that a sink names beside that of its database.

    :return: by their ids: `conn_type`, `host`, `port`, `login`, `password`, `schema` and `extra`
    :raises AirflowNotFoundException: there is no such connection
    """
    found = {conn_id: _connection(conn_id) for conn_id in sink.conn_ids}
    names = ("conn_type", "host", "port", "login", "password", "schema")
    return {
        conn_id: {name: getattr(connection, name) for name in names} | {"extra": connection.extra_dejson}
        for conn_id, connection in found.items()
    }


def make_launcher(conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str) -> Launcher:
    """Return the launcher for a connection.

    :param conf: Spark properties; they take precedence over those that the package sets
    :param name: the name of the Spark application
    :raises AirflowNotFoundException: the connection does not exist
    :raises ConfigurationError: the table has no launcher for the type of the connection
    """
    conn_type = _connection(conn_id).conn_type
    if conn_type not in LAUNCHERS:
        raise ConfigurationError(
            f"Connection {conn_id!r} has type {conn_type!r}; Spark is launched through connections of type "
            f"{', '.join(LAUNCHERS)}"
        )
    module, _, class_name = LAUNCHERS[conn_type].partition(":")
    launcher: Launcher = getattr(import_module(module), class_name)(conn_id, conf=conf, name=name)
    return launcher
