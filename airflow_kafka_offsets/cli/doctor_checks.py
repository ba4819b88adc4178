"""The checks of `doctor`: versions, the database, Kafka, Spark. They change nothing."""

from __future__ import annotations

import importlib.metadata
import socket
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_kafka_offsets.cli.command import KAFKA_TIMEOUT_SECONDS, database, scope
from airflow_kafka_offsets.cli.connections import Connections
from airflow_kafka_offsets.cli.doctor_database import (
    CheckFailedError,
    CheckSkipped,
    CheckWarning,
    existing_version,
    look_at_target,
    missing_rights,
    schemas_of_everybody,
    try_to_create,
)
from airflow_kafka_offsets.cli.load_target import named_table
from airflow_kafka_offsets.core.text import count, first_few, first_reason
from airflow_kafka_offsets.database.weakness import database_weakness
from airflow_kafka_offsets.hooks.connections import LAUNCHERS, make_launcher
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.config import weaknesses
from airflow_kafka_offsets.ledger.group_table import targets_of_groups
from airflow_kafka_offsets.ledger.install import rights_of_loads, rights_of_moves
from airflow_kafka_offsets.ledger.overview import between_commits
from airflow_kafka_offsets.sinks.sql.connected_table import why_no_copy
from airflow_kafka_offsets.sinks.target_names import TargetNames, is_table

_REQUIRED = ("airflow-kafka-offsets", "apache-airflow-core", "confluent-kafka", "pyarrow", "sqlalchemy")

_CONNECT_SECONDS = 5.0

_MOST_RIGHTS = 5

_DATABASE = {"database": "the database is not reached"}
_KAFKA = {"Kafka connection": "there is no configuration"}
_SPARK = {"Spark connection": "there is no connection"}
_FIX_SECURITY = "see SECURITY.md"

_Look = Callable[["CheckContext"], str]


class Check(NamedTuple):
    """A check.

    :param fix: what the user can do if it fails or warns, unless the failure has a better answer
    :param needs: the checks that must be ok, and why this one is skipped otherwise; an empty reason leaves it out
    """

    name: str
    look: _Look
    fix: str
    needs: Mapping[str, str]


CHECKS: list[Check] = []
"""All checks, in the order in which they are made."""


def _check(name: str, fix: str, needs: Mapping[str, str] | None = None) -> Callable[[_Look], _Look]:
    """Have a method be a check; for the parameters see `Check`."""

    def add(look: _Look) -> _Look:
        CHECKS.append(Check(name, look, fix, needs or {}))
        return look

    return add


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

    @_check("versions", "pip install airflow-kafka-offsets, in the environment of Airflow")
    def versions(self) -> str:
        installed = {name: _version(name) for name in _REQUIRED}
        if missing := [name for name, version in installed.items() if version is None]:
            raise CheckFailedError(f"not installed: {', '.join(missing)}")
        return ", ".join(f"{name} {version}" for name, version in installed.items())

    @_check("database", "add or correct the connection, of type postgres, mysql or sqlite, or start the database")
    def database(self) -> str:
        with database(self._args) as ledger, ledger.connect() as conn:
            conn.scalar(sa.select(1))
            version = ".".join(map(str, conn.dialect.server_version_info or ()))
        engine = ledger.engine
        user = f" as user {engine.url.username!r}" if engine.url.username else ""
        return f"{engine.dialect.name} {version}, database {engine.url.database!r}{user}"

    @_check("database security", _FIX_SECURITY, _DATABASE)
    def database_security(self) -> str:
        with database(self._args) as ledger, ledger.connect() as conn:
            if schemas := schemas_of_everybody(conn):
                raise CheckWarning(
                    f"everybody may create functions and operators in schema {first_few(map(repr, schemas))}, which "
                    "this user's statements call: REVOKE CREATE ON SCHEMA … FROM PUBLIC"
                )
            if conn.dialect.driver != "psycopg":
                raise CheckSkipped(f"the driver {conn.dialect.driver} does not tell")
            if problem := database_weakness(conn.connection.dbapi_connection):
                raise CheckWarning(problem)
        return "encrypted, or on this machine"

    @_check(
        "state tables",
        "ask a user who may run DDL to apply the output of 'kafka-offsets init --show-sql'",
        _DATABASE,
    )
    def state_tables(self) -> str:
        with database(self._args) as ledger:
            version = existing_version(ledger)
            self._is_installed = version is not None
            if version is not None:
                return f"they exist, with schema version {version}"
            ledger.tables.set_options(ledger.engine.dialect)
            try_to_create(ledger.engine, ledger.tables.metadata, "--schema")
        return "they do not exist yet; this user may create them, and the first load does"

    @_check(
        "rights",
        "GRANT the missing privileges to the user",
        _DATABASE | {"state tables": "there are no state tables to check"},
    )
    def rights(self) -> str:
        self._refuse_missing_tables()
        with database(self._args) as ledger:
            missing = list(missing_rights(ledger, rights_of_loads(ledger.tables)))
            if missing:
                raise CheckFailedError(
                    f"missing: {first_few(missing, most=_MOST_RIGHTS)}",
                    "ask the owner of the tables to run the output of 'kafka-offsets init --show-sql --grant-to ROLE'",
                )
            only_loads = next(missing_rights(ledger, rights_of_moves(ledger.tables)), None)
            with ledger.connect() as conn:
                stored = conn.scalars(sa.select(ledger.tables.consumed_offsets.c.topic).distinct()).all()
        self._topics = self._topics or stored
        if only_loads is not None:
            return f"has the privileges for loads, but not for rewinds and replays that replace rows: {only_loads}"
        return "has the privileges for loads, replays and rewinds, each tried by a statement that changes no row"

    @_check(
        "target",
        "GRANT the missing privileges, create the table, or name another one with --table and --table-schema",
        _DATABASE,
    )
    def target(self) -> str:
        with database(self._args) as ledger:
            targets, others = [], []
            if self._args.table is not None:
                targets = [named_table(self._args, self._args.table)]
            elif self._is_installed:
                with ledger.connect() as conn:
                    names = TargetNames(conn, ledger.tables.offset_batches)
                    for name in targets_of_groups(conn, ledger.tables):
                        if is_table(name):
                            targets.append(names.meant(name))
                        else:
                            others.append(name)
            unchecked = f"not checked, since only tables of this database are: {first_few(others)}" if others else ""
            if not targets:
                raise CheckSkipped(unchecked or "no load is known; name a table with --table")
            found = [look_at_target(ledger, target, knows_batches=self._is_installed) for target in targets]
            return "; ".join([*found, unchecked] if unchecked else found)

    @_check(
        "between commits",
        "if no task is working on it, run the load again: it checks the target, and finishes the batch",
        {"state tables": ""},
    )
    def between_commits(self) -> str:
        self._refuse_missing_tables()
        with database(self._args) as ledger, ledger.connect() as conn:
            batches = [
                f"batch {batch.batch_id} of group {group_id!r} ({batch.state}) and {batch.target}, since "
                f"{batch.since:%Y-%m-%d %H:%M:%S} UTC"
                for group_id, of_group in between_commits(conn, ledger.tables).items()
                for batch in of_group
            ]
        if batches:
            raise CheckWarning(first_few(batches, between="; "))
        return "no batch of a target that commits externally is between its two commits"

    def _refuse_missing_tables(self) -> None:
        if not self._is_installed:
            raise CheckSkipped("there are no state tables to check")

    @_check("binary COPY", "pip install 'airflow-kafka-offsets[postgres]'", {"database": ""})
    def binary_copy(self) -> str:
        with database(self._args) as ledger:
            dialect = ledger.engine.dialect
        if dialect.name != "postgresql":
            raise CheckSkipped(f"only for Postgres; {dialect.name} gets inserts")
        if (reason := why_no_copy(dialect)) is not None:
            raise CheckWarning(reason)
        return f"pgpq {_version('pgpq')}, driver {dialect.driver}"

    @_check("Kafka connection", "add a connection of type kafka whose extra has 'bootstrap.servers'")
    def kafka_connection(self) -> str:
        self._kafka_config = config = self.connections.kafka_config()
        return f"{config['bootstrap.servers']}, security.protocol={config.get('security.protocol', 'plaintext')}"

    @_check("Kafka security", _FIX_SECURITY, _KAFKA)
    def kafka_security(self) -> str:
        if problems := weaknesses(self._kafka_config):
            raise CheckWarning("; ".join(problems))
        return "encrypted, or on this machine"

    @_check(
        "Kafka cluster",
        "correct bootstrap.servers, security.protocol and the credentials, or start the broker",
        _KAFKA,
    )
    def kafka_cluster(self) -> str:
        self._cluster = Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS)
        return f"cluster id {self._cluster.cluster_id()}"

    @_check(
        "Kafka topics",
        "correct the name, add the ACL Read on the topic, or start the broker",
        _KAFKA | {"Kafka cluster": "the cluster is not reached"},
    )
    def kafka_topics(self) -> str:
        if not self._topics:
            raise CheckSkipped("no positions are stored; name topics with --topic")
        answer = self._cluster.partial_logs(self._topics)
        errors = [*answer.topic_errors.values(), *answer.partition_errors.values()]
        if errors:
            raise CheckFailedError(
                f"{count(len(errors), 'topic or partition', 'topics or partitions')} without an answer; the first "
                f"error: {errors[0]}"
            )
        self._cluster.check_readable(self._topics)
        return f"{count(len(set(self._topics)), 'topic')}, {count(len(answer.logs), 'partition')}"

    @_check(
        "headroom in time",
        "for a min_headroom that is a duration, add the ACL DescribeConfigs on the topics",
        _KAFKA | {"Kafka topics": "the topics are not read"},
    )
    def headroom(self) -> str:
        unknown: dict[str, str] = {}
        known = self._cluster.retention(self._topics, unknown)
        if unknown:
            raise CheckWarning(f"unknown for {count(len(unknown), 'topic')}: {first_reason(unknown.values())}")
        return f"known; {count(len(known), 'topic has', 'topics have')} a retention in time"

    @_check("PySpark", "pip install 'airflow-kafka-offsets[spark]'")
    def pyspark(self) -> str:
        full, client = _version("pyspark"), _version("pyspark-client")
        if full is None:
            if client is not None and self._is_connect:
                return f"pyspark-client {client}"
            raise CheckFailedError(f"pyspark is not installed{f', only pyspark-client {client}' if client else ''}")
        if client is not None and client != full:
            raise CheckFailedError(
                f"pyspark {full} and pyspark-client {client} share their files, and overwrite each other's",
                f"install the same version of both: pip install --force-reinstall pyspark=={full} "
                f"pyspark-client=={full}",
            )
        return f"pyspark {full}{f', pyspark-client {client}' if client else ''}"

    @_check("Java", "install a Java runtime, and set JAVA_HOME if it is not on the PATH")
    def java(self) -> str:
        if self._is_connect:
            raise CheckSkipped("Spark is that of the Spark Connect server")
        self._skip_service()
        from airflow_kafka_offsets.hooks.java import check_java

        check_java()
        return "new enough for Spark"

    @_check(
        "Spark connection",
        "add a connection of type spark, with the master as its host: local[*], spark://…, yarn, k8s://…; or of type "
        "spark_connect, or of a service",
    )
    def spark_connection(self) -> str:
        # Without such a connection, the hook would use YARN.
        # That of either type of connection has a master and a weakness.
        self._launcher = cast("Any", make_launcher(self._args.spark_conn_id, name="doctor"))
        kind = {"spark": "master", "spark_connect": "Spark Connect,"}.get(self._conn_type, "service")
        return f"{kind} {self._launcher.master}"

    @property
    def _conn_type(self) -> str:
        try:
            return str(BaseHook.get_connection(self._args.spark_conn_id).conn_type)
        except AirflowNotFoundException:
            return ""

    @property
    def _is_connect(self) -> bool:
        return self._conn_type == "spark_connect"

    def _skip_service(self) -> None:
        if self._conn_type in LAUNCHERS.keys() - {"spark", "spark_connect"}:
            raise CheckSkipped("a service starts Spark, with the options of a task, which are not known here")

    @_check(
        "spark-submit",
        "install the extra [spark], and correct the connection's extra",
        _SPARK | {"Java": "it needs Java"},
    )
    def spark_submit(self) -> str:
        # Whether the load needs a staging directory, and shares it with the executors, is not known here.
        self._launcher.check("any")
        return "on the PATH, client deploy mode"

    @_check("Spark security", _FIX_SECURITY, _SPARK)
    def spark_security(self) -> str:
        if self._launcher.master.startswith("local"):
            raise CheckSkipped("driver and executors are one process")
        if problem := self._launcher.weakness():
            raise CheckFailedError(problem)
        self._skip_service()
        if self._is_connect:
            return "encrypted between this machine and the server, or on this machine"
        return "authenticated and encrypted between driver and executors"

    @_check("Spark master", "start the master, or correct the connection", _SPARK)
    def spark_master(self) -> str:
        master = self._launcher.master
        if self._is_connect:
            with closing(self._launcher) as launcher:
                return f"{master.removeprefix('sc://')} answers, with Spark {launcher.version()}"
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


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
