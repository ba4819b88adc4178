"""What Airflow connections name: databases, Kafka clusters, schema registries and launchers of Spark.

To add a launcher, write a module with a class that is a `spark.job.Launcher` and takes what `make_launcher` passes, and
add a line to `LAUNCHERS`. `SessionLauncher` is not in the table: its caller passes a session, and no connection.

MySQL and MariaDB are opened through PyMySQL, without the hook of the MySQL provider, which need not be installed: it is
made for mysqlclient, and SqlTable needs a driver that reports each warning of the server and sends rows without a file.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.libpq import check_libpq
from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.database.weakness import warn_of_weakness
from airflow_kafka_offsets.exceptions import DATABASE, KAFKA, REGISTRY, ConfigurationError, about
from airflow_kafka_offsets.kafka.config import check_config
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.sink import Sink

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.spark.job import Launcher

LAUNCHERS = {
    "spark": "airflow_kafka_offsets.hooks.spark:SparkSubmitLauncher",
    "spark_connect": "airflow_kafka_offsets.hooks.spark_connect:SparkConnectLauncher",
    "livy": "airflow_kafka_offsets.hooks.livy:LivyLauncher",
    "databricks": "airflow_kafka_offsets.hooks.databricks:DatabricksLauncher",
    "aws": "airflow_kafka_offsets.hooks.emr_serverless:EmrServerlessLauncher",
    "google_cloud_platform": "airflow_kafka_offsets.hooks.dataproc:DataprocLauncher",
}
"""The class of the launcher for each type of connection."""

_WITHOUT_OPTIONS = ("spark", "spark_connect")

# Fields of a connection, in the order of `sqlalchemy.URL.create`.
_FIELDS = ("login", "password", "host", "port", "schema")

_DRIVERS = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}

_MYSQL_PORT = 3306

_MYSQL_TLS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "ssl_verify_cert", "ssl_verify_identity")

_MYSQL_OTHERS = ("unix_socket", "connect_timeout", "read_timeout", "write_timeout")

# Keys of the provider that mean nothing here: which client, which cursor; every session has utf8mb4, and reads no file.
_MYSQL_IGNORED = ("client", "charset", "cursor", "local_infile")

_MYSQL_OF_SSL = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}

# Keys of the provider: how its hook logs in, which cursor it has.
_POSTGRES_IGNORED = """
iam redshift redshift-serverless cursor cluster-identifier workgroup-name aws_conn_id azure_conn_id region_name
sqlalchemy_scheme sqlalchemy_query enable_log_db_messages
"""


@about(DATABASE)
def database_engine(conn_id: str) -> sa.Engine:
    """Return the engine of the connection's own hook, which logs in as its provider does; for Postgres one of its URL,
    and for MySQL and MariaDB one of PyMySQL, with the extra's parameters of the driver.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: its hook has no SQLAlchemy engine, or its extra cannot be used
    """
    from airflow.providers.common.compat.sdk import AirflowException

    connection = _connection(conn_id)
    if connection.conn_type == "mysql":
        url = sa.URL.create("mysql", *(getattr(connection, name) for name in _FIELDS))
        engine = _mysql_engine(url, connection.extra_dejson, conn_id)
    else:
        try:
            with warnings.catch_warnings():
                # A connection of the metadata database asks Airflow in a way that Airflow deprecates.
                warnings.filterwarnings("ignore", r"ProvidersManager\.")
                hook = connection.get_hook()
        except (AirflowException, AttributeError):
            hook = None  # no installed provider has the type
        if not hasattr(hook, "get_sqlalchemy_engine"):
            kind = connection.conn_type
            raise ConfigurationError(
                f"Connection {conn_id!r} is of type {kind!r}, whose provider is not installed: pip install "
                f"'airflow-kafka-offsets[{kind}]'"
                if kind in ("postgres", "sqlite")
                else f"Connection {conn_id!r} is of type {kind!r}, which is not a SQL database, or its provider is not "
                "installed: the target and the positions must be in a SQL database"
            )
        if connection.conn_type == "postgres":
            # The hook's own engine has its URL alone, without sslmode and the like.
            engine = _postgres_engine(hook.sqlalchemy_url, connection.extra_dejson, conn_id)
        else:
            # Error messages must not show the values of rows.
            engine = hook.get_sqlalchemy_engine(engine_kwargs={"hide_parameters": True})
    unify_sessions(engine)
    warn_of_weakness(engine, f"Connection {conn_id!r}")
    return engine


def _connection(conn_id: str) -> Any:
    # The command line without Airflow imports this module too.
    from airflow.sdk import BaseHook

    return BaseHook.get_connection(conn_id)


def _postgres_engine(url: sa.URL, extra: Mapping[str, Any], name: str) -> sa.Engine:
    """Return an engine of libpq.

    :param url: of the provider's hook, with the login
    :param extra: parameters of libpq; it is data: only known ones are passed on
    :param name: of the connection, for messages
    :raises ConfigurationError: the extra has one that is not known, or a key that is not in a file
    """
    # Several hosts are in the URL's query.
    arguments = {key: value for key, value in url.query.items() if key not in ("host", "port")}
    arguments |= {key: value for key, value in extra.items() if key not in _POSTGRES_IGNORED.split()}
    check_libpq(arguments, f"The extra of connection {name!r}")
    if arguments.get("sslrootcert"):
        # libpq would accept a server without TLS.
        arguments.setdefault("sslmode", "verify-full")
    hosts = {key: value for key, value in url.query.items() if key not in arguments}
    # Error messages must not show the values of rows.
    return sa.create_engine(url.set(query=hosts), hide_parameters=True, connect_args=arguments)


def _mysql_engine(url: sa.URL, extra: Mapping[str, Any], name: str) -> sa.Engine:
    """Return an engine of PyMySQL.

    :param extra: arguments of the driver; it is data: only known keys are passed on
    :param name: of the connection, for messages
    :raises ConfigurationError: PyMySQL is not installed, or the extra has a key that is not known
    """
    try:
        import pymysql  # noqa: F401 - SQLAlchemy imports it
    except ImportError:
        raise ConfigurationError(
            f"Connection {name!r} leads to MySQL or MariaDB, which needs PyMySQL: pip install "
            "'airflow-kafka-offsets[mysql]'"
        ) from None
    arguments = {key: value for key, value in extra.items() if key not in _MYSQL_IGNORED}
    # As the provider has them: an object, or its text.
    tls = arguments.pop("ssl", None) or {}
    tls = json.loads(tls) if isinstance(tls, str) else tls
    arguments = {_MYSQL_OF_SSL.get(key, f"ssl.{key}"): value for key, value in tls.items()} | arguments
    if unknown := sorted(arguments.keys() - {*_MYSQL_TLS, *_MYSQL_OTHERS}):
        raise ConfigurationError(
            f"The extra of connection {name!r} has {first_few(map(repr, unknown))}, which PyMySQL does not know; it "
            f"may have {', '.join((*_MYSQL_TLS, *_MYSQL_OTHERS))}"
        )
    if arguments.get("ssl_ca"):
        # PyMySQL would accept a certificate of any host, and of any authority.
        arguments = {"ssl_verify_identity": True, "ssl_verify_cert": True} | arguments
    url = url.set(drivername="mysql+pymysql", host=url.host or "localhost", port=url.port or _MYSQL_PORT, query={})
    # Error messages must not show the values of rows.
    return sa.create_engine(url, hide_parameters=True, connect_args=arguments)


def open_database(conn_id: str) -> AbstractContextManager[sa.Engine]:
    """Open the database of a connection, and close it after the block; see `database_engine`."""
    return _open(database_engine(conn_id))


@contextmanager
def open_ledger(conn_id: str, schema: str | None, prefix: str) -> Iterator[Ledger]:
    """Open the state tables in the database of a connection, and close the database after the block.

    :param schema: of the state tables
    :param prefix: of their names
    """
    with open_database(conn_id) as engine:
        yield Ledger(engine, Tables.of(schema, prefix))


def open_url(url: str) -> AbstractContextManager[sa.Engine]:
    """Open the database of a URL, and close it after the block. Drivers and warnings are those of connections.

    :param url: of SQLAlchemy; it need not name the driver. In one of MySQL or MariaDB the query has what the extra of a
        connection has
    :raises ConfigurationError: it is not a URL, or its query cannot be used
    """
    name = "database URL"
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        # The message has the URL, or what it takes for the port.
        raise ConfigurationError(
            "The database URL cannot be read; its form is dialect://user:password@host:port/database, with @, : and / "
            "in user and password as %40, %3A and %2F"
        ) from None
    if parsed.get_backend_name() in ("mysql", "mariadb"):
        engine = _mysql_engine(parsed, {key: _value(text) for key, text in parsed.query.items()}, name)
    else:
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        # Error messages must not show the values of rows.
        engine = sa.create_engine(parsed, hide_parameters=True)
    unify_sessions(engine)
    warn_of_weakness(engine, f"Connection {name!r}")
    return _open(engine)


def _value(text: str | tuple[str, ...]) -> Any:
    try:
        return json.loads(str(text))
    except ValueError:
        return text


@contextmanager
def _open(engine: sa.Engine) -> Iterator[sa.Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


@about(KAFKA)
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
        raise ConfigurationError(f"Connection {conn_id!r}: {error}") from None


def kafka_cluster(conn_id: str, isolation_level: str = "read_committed", *, timeout: float = 30.0) -> Cluster:
    """Return the cluster of a connection; see `kafka_config`.

    :param isolation_level: decides where a log ends
    :param timeout: seconds that a request may take
    """
    from airflow_kafka_offsets.kafka.cluster import Cluster

    return Cluster(kafka_config(conn_id), isolation_level=isolation_level, timeout=timeout)


@about(REGISTRY)
def registry_config(conn_id: str) -> dict[str, Any]:
    """Return the configuration of a schema registry; see `formats.schema_registry.CONFIG`.

    Login and password are for basic authentication; the extra holds the other properties.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: it is of another type, or cannot be used
    """
    from airflow_kafka_offsets.formats.schema_registry import check_config

    connection = _connection(conn_id)
    # `airflow connections add` stores a type without a provider as generic.
    if connection.conn_type not in ("http", "generic"):
        raise ConfigurationError(
            f"Connection {conn_id!r} is of type {connection.conn_type!r}; the connection of a schema registry has "
            "type 'http' or 'generic'"
        )
    host = connection.host or ""
    try:
        url = urlsplit(host if "://" in host else f"{connection.schema or 'http'}://{host}")
    except ValueError:
        # Its message may have a part of the URL.
        raise ConfigurationError(f"Connection {conn_id!r}: its host is no URL of a schema registry") from None
    if connection.port:
        url = url._replace(netloc=f"{url.netloc}:{connection.port}")
    config = {**connection.extra_dejson, "url": url.geturl()}
    if connection.login:
        config["basic.auth.user.info"] = f"{connection.login}:{connection.password or ''}"
    try:
        return dict(check_config(config))
    except ConfigurationError as error:
        raise ConfigurationError(f"Connection {conn_id!r}: {error}") from None


def sink_connections(sink: Sink) -> dict[str, dict[str, Any]]:
    """Return what the connections hold that a sink names besides that of its database.

    :return: by their ids: `conn_type`, `host`, `port`, `login`, `password`, `schema` and `extra`
    :raises AirflowNotFoundException: there is no such connection
    """
    found = {conn_id: _connection(conn_id) for conn_id in sink.conn_ids}
    return {
        conn_id: {name: getattr(connection, name) for name in ("conn_type", *_FIELDS)}
        | {"extra": connection.extra_dejson}
        for conn_id, connection in found.items()
    }


def pipeline_connections(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Return what the connections hold that the formats and the sink of a pipeline name; see `sink_connections`."""
    return {conn_id: registry_config(conn_id) for conn_id in pipeline.conn_ids} | sink_connections(pipeline.sink)


def make_launcher(
    conn_id: str, *, conf: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None, name: str
) -> Launcher:
    """Return the launcher for a connection.

    :param conf: Spark properties; they take precedence over those that the package sets
    :param options: of the request of a service
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
    if options and conn_type in _WITHOUT_OPTIONS:
        raise ConfigurationError(
            f"Spark.options are for services: connection {conn_id!r} of type {conn_type!r} takes Spark.conf alone"
        )
    launcher: Launcher = getattr(import_module(module), class_name)(
        conn_id, conf=conf, name=name, **({"options": options} if options else {})
    )
    return launcher
