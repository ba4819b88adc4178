"""The checks of `doctor`: versions, the database, Kafka, Spark. They change nothing."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from airflow.sdk import BaseHook
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.cli.checks import CheckFailedError, Checks, CheckSkipped
from airflow_kafka_offsets.cli.command import KAFKA_TIMEOUT_SECONDS
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.errors import STATE_RIGHTS, database_message, is_outage, sqlstate
from airflow_kafka_offsets.database.transactions import transaction
from airflow_kafka_offsets.hooks.connections import database_engine, kafka_config
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.tables import Tables

_REQUIRED = ("airflow-kafka-offsets", "apache-airflow-core", "confluent-kafka", "pyarrow", "sqlalchemy")

_CONNECT_SECONDS = 5.0

_MOST_RIGHTS = 5

_INSUFFICIENT_PRIVILEGE = "42501"

_NO_SUCH_SCHEMA = "3F000"

# In other databases DDL ends a transaction, so that it cannot be tried and rolled back.
_DDL_IN_TRANSACTIONS = ("postgresql", "sqlite")


class _RolledBackError(Exception):
    """Rolls back a transaction that was only a trial."""


def check_versions(checks: Checks) -> None:
    """Check the packages that every worker needs."""

    def versions() -> str:
        installed = {name: _version(name) for name in _REQUIRED}
        missing = [name for name, version in installed.items() if version is None]
        if missing:
            raise CheckFailedError(
                f"not installed: {', '.join(missing)}",
                "pip install airflow-kafka-offsets, in the environment of Airflow",
            )
        return ", ".join(f"{name} {version}" for name, version in installed.items())

    checks.run("versions", versions, "reinstall airflow-kafka-offsets")


def check_database(checks: Checks, conn_id: str, schema: str | None, prefix: str) -> list[str]:
    """Check the database, the state tables and the rights in them.

    :return: the topics of all stored positions
    """
    tables = Tables(schema, prefix)
    engines: list[Engine] = []

    def reached() -> str:
        engine = database_engine(conn_id)
        engines.append(engine)
        with engine.connect() as conn:
            conn.scalar(sa.select(1))
            version = ".".join(map(str, conn.dialect.server_version_info or ()))
        user = f" as user {engine.url.username!r}" if engine.url.username else ""
        return f"{engine.dialect.name} {version}, database {engine.url.database!r}{user}"

    def stored() -> list[str]:
        with engine.connect() as conn:
            return list(conn.scalars(sa.select(tables.consumed_offsets.c.topic).distinct()).all())

    topics: list[str] = []
    try:
        if not checks.run("database", reached, "correct the connection, or start the database"):
            checks.skip("the database is not reached", "state tables", "rights")
            return topics
        engine = engines[0]
        installed = checks.run(
            "state tables",
            lambda: _state_tables(engine, tables),
            "ask a user who may run DDL to apply the output of 'airflow kafka-offsets init --show-sql'",
        )
        if installed and _is_installed(engine, tables):
            if checks.run("rights", lambda: _rights(engine, tables), "GRANT the missing rights to the user"):
                topics = stored()
        else:
            checks.skip("there are no state tables to check", "rights")
        checks.run("binary COPY", lambda: _binary_copy(engine), "pip install 'airflow-kafka-offsets[postgres]'")
    finally:
        for opened in engines:
            opened.dispose()
    return topics


def check_kafka(checks: Checks, conn_id: str, topics: Sequence[str]) -> None:
    """Check the cluster, and whether this user may describe topics.

    :param topics: those to describe
    """
    configs: list[dict[str, Any]] = []

    def configured() -> str:
        configs.append(kafka_config(conn_id))
        protocol = configs[0].get("security.protocol", "plaintext")
        return f"{configs[0]['bootstrap.servers']}, security.protocol={protocol}"

    def described() -> str:
        if not topics:
            raise CheckSkipped("no positions are stored; name topics with --topic")
        answer = cluster().partial_logs(topics)
        errors = [*answer.topic_errors.values(), *answer.partition_errors.values()]
        if errors:
            raise CheckFailedError(
                f"{count(len(errors), 'topic or partition', 'topics or partitions')} without an answer; the first error: {errors[0]}",
                "correct the name, grant Describe and Read on the topic, or start the broker",
            )
        return f"{count(len(set(topics)), 'topic')}, {count(len(answer.logs), 'partition')}"

    def cluster() -> Cluster:
        return Cluster(configs[0], timeout=KAFKA_TIMEOUT_SECONDS)

    if not checks.run(
        "Kafka connection", configured, "add a connection of type kafka whose extra has 'bootstrap.servers'"
    ):
        checks.skip("there is no configuration", "Kafka cluster", "Kafka topics")
        return
    fix = "correct bootstrap.servers, security.protocol and the credentials, or start the broker"
    if not checks.run("Kafka cluster", lambda: f"cluster id {cluster().cluster_id()}", fix):
        checks.skip("the cluster is not reached", "Kafka topics")
        return
    checks.run("Kafka topics", described, fix)


def check_spark(checks: Checks, conn_id: str) -> None:
    """Check what this machine needs to launch Spark, and the master of the connection."""
    masters: list[str] = []

    def connected() -> str:
        # Without such a connection, the hook would use YARN.
        BaseHook.get_connection(conn_id)
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        masters.append(str(SparkSubmitHook(conn_id=conn_id)._connection["master"]))
        return f"master {masters[0]}"

    def java() -> str:
        from airflow_kafka_offsets.hooks.spark import check_java

        check_java()
        return "new enough for Spark"

    def submit() -> str:
        from airflow_kafka_offsets.hooks.connections import make_launcher

        # Whether the load needs a staging directory, and shares it with the executors, is not known here.
        make_launcher(conn_id, name="doctor").check("any")
        return "on the PATH, client deploy mode"

    checks.run("PySpark", _pyspark, "pip install 'airflow-kafka-offsets[spark]'")
    has_java = checks.run("Java", java, "install a Java runtime, and set JAVA_HOME if it is not on the PATH")
    fix = "add a connection of type spark, with the master as its host: local[*], spark://…, yarn, k8s://…"
    if not checks.run("Spark connection", connected, fix):
        checks.skip("there is no connection", "spark-submit", "Spark master")
        return
    if has_java:
        checks.run("spark-submit", submit, "install the extra [spark], and correct the connection's extra")
    else:
        checks.skip("it needs Java", "spark-submit")
    checks.run("Spark master", lambda: _master(masters[0]), "start the master, or correct the connection")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_installed(engine: Engine, tables: Tables) -> bool:
    with engine.connect() as conn:
        return installed_version(conn, tables) is not None


def _state_tables(engine: Engine, tables: Tables) -> str:
    tables.check_names(engine.dialect)
    with engine.connect() as conn:
        try:
            version = installed_version(conn, tables)
        except DBAPIError as error:
            if sqlstate(error) != _INSUFFICIENT_PRIVILEGE:
                raise
            schema = f", and USAGE on schema {tables.metadata.schema}" if tables.metadata.schema else ""
            raise CheckFailedError(
                f"they exist, but this user may not read them: {database_message(error)}",
                f"GRANT {STATE_RIGHTS}{schema}",
            ) from error
        inspector = sa.inspect(conn)
        missing = [
            table.fullname
            for table in tables.metadata.sorted_tables
            if not inspector.has_table(table.name, schema=table.schema)
        ]
    if version is not None and missing:
        raise CheckFailedError(
            f"schema version {version}, but without {', '.join(missing)}",
            "restore the tables from a backup: their positions and history are lost",
        )
    if version is not None:
        return f"they exist, with schema version {version}"
    if engine.dialect.name not in _DDL_IN_TRANSACTIONS:
        raise CheckSkipped("they do not exist yet; 'airflow kafka-offsets init', or the first load, creates them")
    try:
        _try(engine, tables.metadata.create_all)
    except DBAPIError as error:
        if sqlstate(error) != _NO_SUCH_SCHEMA:
            raise
        name = tables.metadata.schema
        quoted = engine.dialect.identifier_preparer.quote(name) if name else ""
        create = f"CREATE SCHEMA {quoted}" if name else "name a schema with --schema"
        raise CheckFailedError(database_message(error), f"{create}, and grant USAGE and CREATE on it") from error
    return "they do not exist yet; this user may create them, and the first load does"


def _rights(engine: Engine, tables: Tables) -> str:
    missing: list[str] = []
    for table in tables.metadata.sorted_tables:
        for right, statement in _statements(table):
            try:
                with transaction(engine) as conn:
                    conn.execute(statement)
            except DBAPIError as error:
                if is_outage(error) and engine.dialect.name != "sqlite":
                    raise
                missing.append(f"{right} on {table.fullname} ({database_message(error)})")
    if engine.dialect.name == "postgresql" and not _may_number(engine, tables):
        missing.append(f"USAGE on the sequence of {tables.offset_batches.fullname}")
    if missing:
        raise CheckFailedError(
            f"missing: {first_few(missing, most=_MOST_RIGHTS)}",
            f"GRANT {STATE_RIGHTS}",
        )
    return "SELECT, INSERT, UPDATE and DELETE, each in a transaction that was committed"


def _statements(table: sa.Table) -> Iterator[tuple[str, sa.Executable]]:
    """Yield a statement for each right. It changes no row; the database checks the right all the same."""
    nothing, column = sa.false(), next(iter(table.columns))
    yield "SELECT", sa.select(column).where(nothing)
    yield "INSERT", table.insert().from_select(list(table.columns), sa.select(table).where(nothing))
    yield "UPDATE", table.update().where(nothing).values({column: column})
    yield "DELETE", table.delete().where(nothing)


def _may_number(engine: Engine, tables: Tables) -> bool:
    """Return whether this user may number new batches; also true if their sequence has no owner that Postgres knows."""
    name = engine.dialect.identifier_preparer.format_table(tables.offset_batches)
    sequence = sa.func.pg_get_serial_sequence(name, "batch_id")
    with engine.connect() as conn:
        return conn.scalar(sa.select(sa.func.has_sequence_privilege(sequence, "USAGE"))) is not False


def _try(engine: Engine, work: Callable[[Connection], object]) -> None:
    with suppress(_RolledBackError), transaction(engine) as conn:
        work(conn)
        raise _RolledBackError


def _binary_copy(engine: Engine) -> str:
    if engine.dialect.name != "postgresql":
        raise CheckSkipped(f"only for Postgres; {engine.dialect.name} gets inserts")
    version = _version("pgpq")
    if version is None or engine.dialect.driver != "psycopg":
        raise CheckSkipped(
            f"pgpq is {version or 'not installed'}, the driver is {engine.dialect.driver}: rows go by inserts, which is slower. "
            "Install the extra [postgres] for COPY"
        )
    return f"pgpq {version}, driver {engine.dialect.driver}"


def _pyspark() -> str:
    full, client = _version("pyspark"), _version("pyspark-client")
    if full is None:
        raise CheckFailedError(
            f"pyspark is not installed{f', only pyspark-client {client}' if client else ''}",
            "pip install 'airflow-kafka-offsets[spark]'",
        )
    if client is not None and client != full:
        raise CheckFailedError(
            f"pyspark {full} and pyspark-client {client} share their files, and overwrite each other's",
            f"install one version of both: pip install --force-reinstall pyspark=={full} pyspark-client=={full}",
        )
    return f"pyspark {full}{f', pyspark-client {client}' if client else ''}"


def _master(master: str) -> str:
    scheme, _, addresses = master.partition("://")
    if scheme != "spark" or not addresses:
        raise CheckSkipped(f"{master} has no address to connect to")
    refused: list[str] = []
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                return f"{address} answers"
        except (OSError, ValueError) as error:
            refused.append(f"{address}: {error}")
    raise CheckFailedError("; ".join(refused), "start the master, or correct host and port of the connection")
