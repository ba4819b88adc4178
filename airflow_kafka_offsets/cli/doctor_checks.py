"""The checks of `doctor`: versions, the database, Kafka, Spark. They change nothing."""

from __future__ import annotations

import importlib.metadata
import socket
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from airflow.sdk import BaseHook
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.cli.command import KAFKA_TIMEOUT_SECONDS, database, scope
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.errors import STATE_RIGHTS, database_message, is_outage, sqlstate
from airflow_kafka_offsets.database.transactions import transaction
from airflow_kafka_offsets.hooks.connections import database_weakness, kafka_config, make_launcher
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.config import weaknesses
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.rights import of_loads, of_moves
from airflow_kafka_offsets.ledger.tables import Ledger

_REQUIRED = ("airflow-kafka-offsets", "apache-airflow-core", "confluent-kafka", "pyarrow", "sqlalchemy")

_CONNECT_SECONDS = 5.0

_MOST_RIGHTS = 5

_INSUFFICIENT_PRIVILEGE = "42501"

_NO_SUCH_SCHEMA = "3F000"

# In other databases DDL ends a transaction, so that it cannot be tried and rolled back.
_DDL_IN_TRANSACTIONS = ("postgresql", "sqlite")


class CheckFailedError(Exception):
    """A check failed.

    :param fix: what to do about it
    """

    def __init__(self, found: str, fix: str) -> None:
        self.fix = fix
        super().__init__(found)


class CheckSkipped(Exception):  # noqa: N818 - nothing is wrong
    """A check cannot be made, or there is nothing to check; the message says why."""


class CheckWarning(CheckFailedError):  # noqa: N818 - loads can run
    """What a check found could be better; the command succeeds all the same."""


class _RolledBackError(Exception):
    """Rolls back a transaction that was only a trial."""


class Machine:
    """What loads run with: the connections of a command, and what is installed here.

    A method is a check: it returns what it found, or raises. It may use what an earlier check has stored.
    """

    def __init__(self, args: Namespace) -> None:
        self._args = args
        self._topics: Sequence[str] = list(scope(args))
        self._kafka_config: dict[str, Any] = {}
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
                raise CheckWarning(problem, "see SECURITY.md")
        return "encrypted, or on this machine"

    def state_tables(self) -> str:
        with database(self._args) as ledger:
            version = _installed_version(ledger)
            return _try_to_create(ledger) if version is None else f"they exist, with schema version {version}"

    def rights(self) -> str:
        with database(self._args) as ledger:
            if _installed_version(ledger) is None:
                raise CheckSkipped("there are no state tables to check")
            missing = list(_missing_rights(ledger, of_loads(ledger.tables)))
            if missing:
                raise CheckFailedError(
                    f"missing: {first_few(missing, most=_MOST_RIGHTS)}",
                    "ask the owner of the tables to run the output of 'airflow kafka-offsets init --show-sql --grant-to ROLE'",
                )
            only_loads = next(_missing_rights(ledger, of_moves(ledger.tables)), None)
            with ledger.connect() as conn:
                stored = conn.scalars(sa.select(ledger.tables.consumed_offsets.c.topic).distinct()).all()
        self._topics = self._topics or stored
        if only_loads is not None:
            return f"all that loads need; not all for rewinds, and replays that replace rows: {only_loads}"
        return "all that loads, replays and rewinds need, each tried in a transaction that was committed"

    def binary_copy(self) -> str:
        with database(self._args) as ledger:
            dialect = ledger.engine.dialect
        if dialect.name != "postgresql":
            raise CheckSkipped(f"only for Postgres; {dialect.name} gets inserts")
        version = _version("pgpq")
        if version is None or dialect.driver != "psycopg":
            raise CheckSkipped(
                f"pgpq is {version or 'not installed'}, the driver is {dialect.driver}: rows go by inserts, which is slower. "
                "Install the extra [postgres] for COPY"
            )
        return f"pgpq {version}, driver {dialect.driver}"

    def kafka_connection(self) -> str:
        self._kafka_config = kafka_config(self._args.kafka_conn_id)
        protocol = self._kafka_config.get("security.protocol", "plaintext")
        return f"{self._kafka_config['bootstrap.servers']}, security.protocol={protocol}"

    def kafka_security(self) -> str:
        if problems := weaknesses(self._kafka_config):
            raise CheckWarning("; ".join(problems), "see SECURITY.md")
        return "nothing crosses the network in plain text"

    def kafka_cluster(self) -> str:
        return f"cluster id {Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS).cluster_id()}"

    def kafka_topics(self) -> str:
        if not self._topics:
            raise CheckSkipped("no positions are stored; name topics with --topic")
        answer = Cluster(self._kafka_config, timeout=KAFKA_TIMEOUT_SECONDS).partial_logs(self._topics)
        errors = [*answer.topic_errors.values(), *answer.partition_errors.values()]
        if errors:
            raise CheckFailedError(
                f"{count(len(errors), 'topic or partition', 'topics or partitions')} without an answer; the first error: {errors[0]}",
                "correct the name, grant Describe and Read on the topic, or start the broker",
            )
        return f"{count(len(set(self._topics)), 'topic')}, {count(len(answer.logs), 'partition')}"

    def pyspark(self) -> str:
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

    def java(self) -> str:
        from airflow_kafka_offsets.hooks.spark import check_java

        check_java()
        return "new enough for Spark"

    def spark_connection(self) -> str:
        # Without such a connection, the hook would use YARN.
        BaseHook.get_connection(self._args.spark_conn_id)
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        self._master = str(SparkSubmitHook(conn_id=self._args.spark_conn_id)._connection["master"])
        return f"master {self._master}"

    def spark_security(self) -> str:
        if self._master.startswith("local"):
            raise CheckSkipped("driver and executors are one process")
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher

        if problem := SparkSubmitLauncher(self._args.spark_conn_id).weakness():
            raise CheckFailedError(problem, "see SECURITY.md")
        return "authenticated and encrypted between driver and executors"

    def spark_submit(self) -> str:
        # Whether the load needs a staging directory, and shares it with the executors, is not known here.
        make_launcher(self._args.spark_conn_id, name="doctor").check("any")
        return "on the PATH, client deploy mode"

    def spark_master(self) -> str:
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


def _installed_version(ledger: Ledger) -> int | None:
    """Return the schema version of the state tables, all of which exist; None where there are none."""
    engine, tables = ledger.engine, ledger.tables
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
        has_table = sa.inspect(conn).has_table
        missing = [
            table.fullname
            for table in tables.metadata.sorted_tables
            if version is not None and not has_table(table.name, schema=table.schema)
        ]
    if missing:
        raise CheckFailedError(
            f"schema version {version}, but without {', '.join(missing)}",
            "restore the tables from a backup: their positions and history are lost",
        )
    return version


def _try_to_create(ledger: Ledger) -> str:
    """Create the state tables in a transaction that is rolled back."""
    engine, tables = ledger.engine, ledger.tables
    if engine.dialect.name not in _DDL_IN_TRANSACTIONS:
        raise CheckSkipped("they do not exist yet; 'airflow kafka-offsets init', or the first load, creates them")
    try:
        with transaction(engine) as conn:
            tables.metadata.create_all(conn)
            raise _RolledBackError
    except _RolledBackError:
        return "they do not exist yet; this user may create them, and the first load does"
    except DBAPIError as error:
        if sqlstate(error) != _NO_SUCH_SCHEMA:
            raise
        name = tables.metadata.schema
        quoted = engine.dialect.identifier_preparer.quote(name) if name else ""
        create = f"CREATE SCHEMA {quoted}" if name else "name a schema with --schema"
        raise CheckFailedError(database_message(error), f"{create}, and grant USAGE and CREATE on it") from error


def _missing_rights(ledger: Ledger, rights: Iterable[tuple[sa.Table, str]]) -> Iterator[str]:
    engine, tables = ledger.engine, ledger.tables
    for table, right in rights:
        try:
            with transaction(engine) as conn:
                conn.execute(_STATEMENTS[right](table))
        except DBAPIError as error:
            if is_outage(error) and engine.dialect.name != "sqlite":
                raise
            yield f"{right} on {table.fullname} ({database_message(error)})"
    if engine.dialect.name == "postgresql":
        name = engine.dialect.identifier_preparer.format_table(tables.offset_batches)
        sequence = sa.func.pg_get_serial_sequence(name, "batch_id")
        with engine.connect() as conn:
            # None if the sequence has no owner that Postgres knows.
            if conn.scalar(sa.select(sa.func.has_sequence_privilege(sequence, "USAGE"))) is False:
                yield f"USAGE on the sequence of {tables.offset_batches.fullname}"


_STATEMENTS: dict[str, Callable[[sa.Table], sa.Executable]] = {
    "SELECT": lambda table: sa.select(table).where(sa.false()),
    "INSERT": lambda table: table.insert().from_select(list(table.columns), sa.select(table).where(sa.false())),
    "UPDATE": lambda table: table.update().where(sa.false()).values({table.columns[0]: table.columns[0]}),
    "DELETE": lambda table: table.delete().where(sa.false()),
}
"""A statement for each right. It changes no row; the database checks the right all the same."""
