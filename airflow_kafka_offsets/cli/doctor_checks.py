"""The checks of `doctor`: versions, the database, Kafka, Spark. They change nothing."""

from __future__ import annotations

import importlib.metadata
import socket
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_kafka_offsets.cli.command import KAFKA_TIMEOUT_SECONDS, database, scope
from airflow_kafka_offsets.cli.connections import Connections
from airflow_kafka_offsets.cli.doctor_database import (
    CheckFailedError,
    CheckSkipped,
    CheckWarning,
    existing_version,
    look_at_target,
    missing_rights,
    try_to_create,
)
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.hooks.connections import database_weakness, make_launcher
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.config import weaknesses
from airflow_kafka_offsets.ledger.group_table import tables_of_groups
from airflow_kafka_offsets.ledger.install import rights_of_loads, rights_of_moves
from airflow_kafka_offsets.ledger.overview import between_commits
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.target_names import existing_table

if TYPE_CHECKING:
    from airflow_kafka_offsets.hooks.spark_connect import SparkConnectLauncher

_REQUIRED = ("airflow-kafka-offsets", "apache-airflow-core", "confluent-kafka", "pyarrow", "sqlalchemy")

_CONNECT_SECONDS = 5.0

_MOST_RIGHTS = 5


class CheckContext:
    """What loads run with: the connections of a command, and what is installed here.

    A method is a check: it returns what it found, or raises. It may use what an earlier check has stored.
    """

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self.connections: Connections = args.connections
        self._topics: Sequence[str] = list(scope(args))
        self._kafka_config: dict[str, Any] = {}
        self._is_installed = False
        self._master = ""

    def versions(self) -> str:
        installed = {name: _version(name) for name in _REQUIRED}
        missing = [name for name, version in installed.items() if version is None]
        if missing:
            raise CheckFailedError(
                f"not installed: {', '.join(missing)}",
                "pip install airflow-kafka-offsets, in the environment of Airflow",
            )
        return ", ".join(f"{name} {version}" for name, version in installed.items())

    def database(self) -> str:
        with database(self._args) as ledger, ledger.connect() as conn:
            conn.scalar(sa.select(1))
            version = ".".join(map(str, conn.dialect.server_version_info or ()))
        engine = ledger.engine
        user = f" as user {engine.url.username!r}" if engine.url.username else ""
        return f"{engine.dialect.name} {version}, database {engine.url.database!r}{user}"

    def database_security(self) -> str:
        with database(self._args) as ledger, ledger.connect() as conn:
            if conn.dialect.driver != "psycopg":
                raise CheckSkipped(f"the driver {conn.dialect.driver} does not tell")
            if problem := database_weakness(conn.connection.dbapi_connection):
                raise CheckWarning(problem)
        return "encrypted, or on this machine"

    def state_tables(self) -> str:
        with database(self._args) as ledger:
            version = existing_version(ledger)
            self._is_installed = version is not None
            if version is not None:
                return f"they exist, with schema version {version}"
            ledger.tables.set_options(ledger.engine.dialect)
            try_to_create(ledger.engine, ledger.tables.metadata, "--schema")
        return "they do not exist yet; this user may create them, and the first load does"

    def rights(self) -> str:
        with database(self._args) as ledger:
            if existing_version(ledger) is None:
                raise CheckSkipped("there are no state tables to check")
            missing = list(missing_rights(ledger, rights_of_loads(ledger.tables)))
            if missing:
                raise CheckFailedError(
                    f"missing: {first_few(missing, most=_MOST_RIGHTS)}",
                    "ask the owner of the tables to run the output of 'airflow kafka-offsets init --show-sql "
                    "--grant-to ROLE'",
                )
            only_loads = next(missing_rights(ledger, rights_of_moves(ledger.tables)), None)
            with ledger.connect() as conn:
                stored = conn.scalars(sa.select(ledger.tables.consumed_offsets.c.topic).distinct()).all()
        self._topics = self._topics or stored
        if only_loads is not None:
            return f"all that loads need; not all for rewinds, and replays that replace rows: {only_loads}"
        return "all that loads, replays and rewinds need, each tried in a transaction that was committed"

    def target(self) -> str:
        with database(self._args) as ledger:
            if self._args.table is not None:
                key = tuple(self._args.upsert_key or ())
                targets = [DatabaseTable(self._args.table, self._args.table_schema, key)]
            elif self._is_installed:
                with ledger.connect() as conn:
                    names = tables_of_groups(conn, ledger.tables)
                    targets = [existing_table(conn, name) or DatabaseTable(name) for name in names]
            else:
                targets = []
            if not targets:
                raise CheckSkipped("no load is known; name a table with --table")
            return "; ".join(look_at_target(ledger.engine, target) for target in targets)

    def between_commits(self) -> str:
        with database(self._args) as ledger:
            if not self._is_installed:
                raise CheckSkipped("there are no state tables to check")
            with ledger.connect() as conn:
                found = between_commits(conn, ledger.tables)
        if found:
            batches = [
                f"batch {batch.batch_id} of group {group_id!r} ({batch.state}) and {batch.target}, since "
                f"{batch.since:%Y-%m-%d %H:%M:%S} UTC"
                for group_id, of_group in found.items()
                for batch in of_group
            ]
            raise CheckWarning(first_few(batches, between="; "))
        return "no target is ahead of the state tables, or behind"

    def binary_copy(self) -> str:
        with database(self._args) as ledger:
            dialect = ledger.engine.dialect
        if dialect.name != "postgresql":
            raise CheckSkipped(f"only for Postgres; {dialect.name} gets inserts")
        version = _version("pgpq")
        if version is None or dialect.driver != "psycopg":
            raise CheckSkipped(
                f"pgpq is {version or 'not installed'}, the driver is {dialect.driver}: rows go by inserts, which is "
                "slower. Install the extra [postgres] for COPY"
            )
        return f"pgpq {version}, driver {dialect.driver}"

    def kafka_connection(self) -> str:
        self._kafka_config = self.connections.kafka_config()
        protocol = self._kafka_config.get("security.protocol", "plaintext")
        return f"{self._kafka_config['bootstrap.servers']}, security.protocol={protocol}"

    def kafka_security(self) -> str:
        if problems := weaknesses(self._kafka_config):
            raise CheckWarning("; ".join(problems))
        return "nothing crosses the network in plain text"

    def kafka_cluster(self) -> str:
        return f"cluster id {Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS).cluster_id()}"

    def kafka_topics(self) -> str:
        if not self._topics:
            raise CheckSkipped("no positions are stored; name topics with --topic")
        cluster = Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS)
        answer = cluster.partial_logs(self._topics)
        errors = [*answer.topic_errors.values(), *answer.partition_errors.values()]
        if errors:
            raise CheckFailedError(
                f"{count(len(errors), 'topic or partition', 'topics or partitions')} without an answer; the first "
                f"error: {errors[0]}"
            )
        cluster.check_readable(self._topics)
        return f"{count(len(set(self._topics)), 'topic')}, {count(len(answer.logs), 'partition')}"

    def headroom(self) -> str:
        unknown: dict[str, str] = {}
        known = Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS).retention(self._topics, unknown)
        if unknown:
            raise CheckWarning(f"unknown for {count(len(unknown), 'topic')}: {first_few(unknown.values(), most=1)}")
        return f"retention in time is known; {count(len(known), 'topic has', 'topics have')} one"

    def pyspark(self) -> str:
        full, client = _version("pyspark"), _version("pyspark-client")
        if full is None:
            if client is not None and self._is_connect:
                return f"pyspark-client {client}"
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

    def java(self) -> str:
        if self._is_connect:
            raise CheckSkipped("Spark is that of the Spark Connect server")
        from airflow_kafka_offsets.hooks.java import check_java

        check_java()
        return "new enough for Spark"

    def spark_connection(self) -> str:
        # Without such a connection, the hook would use YARN.
        if BaseHook.get_connection(self._args.spark_conn_id).conn_type == "spark_connect":
            self._master = f"sc://{self._connect_launcher().endpoint}"
            return f"Spark Connect, {self._master}"
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

        self._master = SparkSubmitLauncher(self._args.spark_conn_id).master()
        return f"master {self._master}"

    @property
    def _is_connect(self) -> bool:
        try:
            return bool(BaseHook.get_connection(self._args.spark_conn_id).conn_type == "spark_connect")
        except AirflowNotFoundException:
            return False

    def _connect_launcher(self) -> SparkConnectLauncher:
        from airflow_kafka_offsets.hooks.spark_connect import SparkConnectLauncher

        return SparkConnectLauncher(self._args.spark_conn_id, name="doctor")

    def spark_security(self) -> str:
        if self._master.startswith("local"):
            raise CheckSkipped("driver and executors are one process")
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

        if self._is_connect:
            if problem := self._connect_launcher().weakness():
                raise CheckFailedError(problem)
            return "encrypted between this machine and the server, or on this machine"
        if problem := SparkSubmitLauncher(self._args.spark_conn_id).weakness():
            raise CheckFailedError(problem)
        return "authenticated and encrypted between driver and executors"

    def spark_submit(self) -> str:
        # Whether the load needs a staging directory, and shares it with the executors, is not known here.
        make_launcher(self._args.spark_conn_id, name="doctor").check("any")
        return "on the PATH, client deploy mode"

    def spark_master(self) -> str:
        if self._is_connect:
            with closing(self._connect_launcher()) as launcher:
                return f"{launcher.endpoint} answers, with Spark {launcher.version()}"
        scheme, _, addresses = self._master.partition("://")
        if scheme != "spark" or not addresses:
            raise CheckSkipped(f"{self._master} has no address to connect to")
        refused: list[str] = []
        for address in addresses.split(","):
            host, _, port = address.rpartition(":")
            try:
                with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                    return f"{address} answers"
            except (OSError, ValueError) as error:
                refused.append(f"{address}: {error}")
        raise CheckFailedError("; ".join(refused), "start the master, or correct host and port of the connection")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
