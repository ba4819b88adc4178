"""What every command does the same way: how it fails, and how it comes to its database and its cluster."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import NamedTuple

from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.hooks.database import database_engine
from airflow_kafka_offsets.hooks.kafka import kafka_config
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.tables import Tables

# A partition without a leader is waited for as long as that; somebody is waiting too.
_PATIENCE_SECONDS = 10.0


class Database(NamedTuple):
    """The database that holds the state, and where in it."""

    engine: Engine
    tables: Tables


def command(name: str) -> Callable[[Callable[[Namespace], None]], Callable[[Namespace], None]]:
    """Decorate the function of a command: each failure becomes one line on standard error, and a status that is not zero.

    :param name: as it is typed after `airflow kafka-offsets`
    """

    def decorate(function: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
        @wraps(function)
        def run(args: Namespace) -> None:
            try:
                function(args)
            except (AirflowException, KafkaOffsetsError, SQLAlchemyError, ImportError) as error:
                raise SystemExit(f"kafka-offsets {name}: {reported_errors(error)}") from error

        return run

    return decorate


def reported_errors(error: Exception) -> str:
    """An error in one line: what happened and what to do, without statements, values and URLs."""
    if isinstance(error, DBAPIError):
        return (
            f"the database says: {_one_line(database_message(error))}. 'airflow kafka-offsets doctor' with the same --conn-id, --schema and "
            "--prefix tells what is missing"
        )
    if isinstance(error, SQLAlchemyError):
        return f"the database connection cannot be used ({type(error).__name__}): check its type, host and extra"
    if isinstance(error, AirflowNotFoundException):
        return f"{_one_line(str(error))}. Name another connection, or add this one: 'airflow connections add'"
    if isinstance(error, ImportError):
        return f"{_one_line(str(error))}: install what the connection's type needs, for example the extra [postgres]"
    return _one_line(str(error))


@contextmanager
def database(args: Namespace) -> Iterator[Database]:
    """The database of `--conn-id`, for as long as the block lasts."""
    engine = database_engine(args.conn_id)
    try:
        yield Database(engine, Tables(args.schema, args.prefix))
    finally:
        engine.dispose()


def cluster(args: Namespace) -> Cluster:
    """The cluster of `--kafka-conn-id`."""
    return Cluster(kafka_config(args.kafka_conn_id), isolation_level=args.isolation_level, timeout=_PATIENCE_SECONDS)


def topics_begun(found: Database, group_id: str) -> list[str]:
    """The topics of a group's open batch: where no position is stored yet, those of its first load."""
    batch = open_batch(found.engine, found.tables, group_id)
    return sorted({one.topic for one in batch.ranges}) if batch is not None else []


def _one_line(text: str) -> str:
    return " ".join(text.split())
