"""What all commands share: how a failure is reported, and the database and the cluster of their connections.

Arguments are in `arguments`, printing is in `output`.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.cli.output import note
from airflow_kafka_offsets.core.offsets import Scope, parse_scope
from airflow_kafka_offsets.database.errors import database_message, is_refused_login
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError
from airflow_kafka_offsets.hooks.connections import kafka_cluster, open_database
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.replaying.bounds import OffsetBounds

KAFKA_TIMEOUT_SECONDS = 10.0
"""How long a command waits for an answer of Kafka: less than a task, since a person waits for the command."""


_OFFSETS = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+):(?P<start>\d+)-(?P<end>\d+)", re.ASCII)


class _UsageError(Exception):
    """An option has a value that it cannot have."""


@contextmanager
def command(name: str) -> Iterator[None]:
    """Report a failure in one line on standard error, and exit with 1, or with 2 for a usage error; decorates the function of a command.

    :param name: the name of the command after `airflow kafka-offsets`
    """
    try:
        yield
    except _UsageError as error:
        note(f"kafka-offsets {name}: {one_line(error)}")
        raise SystemExit(2) from error
    except (AirflowException, KafkaOffsetsError, SQLAlchemyError, ImportError) as error:
        raise SystemExit(f"kafka-offsets {name}: {one_line(describe_error(error))}") from error


@contextmanager
def usage() -> Iterator[None]:
    """Report a value that an option cannot have as a usage error, as argparse does: the command exits with 2.

    Use it around code that looks at the arguments only.
    """
    try:
        yield
    except ConfigurationError as error:
        raise _UsageError(str(error)) from error


def describe_error(error: Exception) -> str:
    """Return what happened and what to do, without statements, values and URLs."""
    if isinstance(error, DBAPIError) and is_refused_login(error):
        return f"the database refuses the login: {database_message(error)}. Correct the connection of --conn-id"
    if isinstance(error, DBAPIError):
        return (
            f"the database says: {database_message(error)}. 'airflow kafka-offsets doctor' with the same --conn-id, --schema and "
            "--prefix shows what is missing"
        )
    if isinstance(error, SQLAlchemyError):
        return f"the database connection cannot be used ({type(error).__name__}): check its type, host and extra"
    if isinstance(error, AirflowNotFoundException):
        return f"{error}. Name another connection, or add this one: 'airflow connections add'"
    if isinstance(error, ImportError):
        return f"{error}: install what the connection's type needs, for example the extra [postgres]"
    return str(error)


@contextmanager
def database(args: Namespace) -> Iterator[Ledger]:
    """Open the database of `--conn-id` for a block, with the state tables of `--schema` and `--prefix`."""
    with open_database(args.conn_id) as engine:
        yield Ledger(engine, Tables.of(args.schema, args.prefix))


def cluster(args: Namespace) -> Cluster:
    """Return the cluster of `--kafka-conn-id`."""
    return kafka_cluster(args.kafka_conn_id, args.isolation_level, timeout=KAFKA_TIMEOUT_SECONDS)


@usage()
def scope(args: Namespace) -> Scope:
    """Return the topics and partitions of `--topic`; without it, all topics."""
    return parse_scope(args.topics or ())


@usage()
def whole_topics(args: Namespace, instead: str) -> list[str]:
    """Return the topics of `--topic`, for a command that cannot take some of their partitions.

    :param instead: what the user may give instead of a partition
    :raises ConfigurationError: partitions are named
    """
    given = parse_scope(args.topics or ())
    if partial := [topic for topic, partitions in given.items() if partitions is not None]:
        raise ConfigurationError(f"--topic takes whole topics here, such as --topic {partial[0]}; {instead}")
    return list(given)


def offset_bounds(texts: Sequence[str]) -> OffsetBounds:
    """Return the offsets of `--offsets`.

    :raises ConfigurationError: one is of another form, or a partition is named twice
    """
    offsets = []
    for text in texts:
        match = _OFFSETS.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"--offsets must be topic:partition:start-end, the end exclusive; got {text!r}")
        offsets.append(match.groupdict())
    bounds = OffsetBounds(offsets)
    bounds.read()  # raises for a partition that is named twice
    return bounds


def one_line(text: object) -> str:
    """Return a text without its line breaks."""
    return " ".join(str(text).split())
