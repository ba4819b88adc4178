"""What pages say of errors. The summary is for everybody; the detail may name hosts and users, and is for who may read
the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database.errors import database_message, is_refused_login
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    UnknownTopicError,
)
from airflow_kafka_offsets.plugin.background import TooBusyError, TooSlowError


class Problem(NamedTuple):
    """Why something is not known.

    :param conn_id: the connection whose readers may see the detail
    """

    summary: str
    detail: str | None = None
    conn_id: str | None = None


class ProblemError(Exception):
    """What failed with another connection than that of the state tables.

    :param problem: what the page says of it
    :param status: of the answer
    """

    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem, status)
        self.problem, self.status = problem, status


def original(error: Exception) -> Exception:
    """Return the database's own error, if one of this package has its text, which may name hosts and users."""
    return error.__cause__ if isinstance(error.__cause__, DBAPIError) else error


def problem(error: Exception, conn_id: str) -> Problem:
    """Return what a page says of an error.

    :param conn_id: the connection that was used
    """
    if isinstance(error, AirflowNotFoundException):
        return Problem(f"There is no connection {conn_id!r}")
    if isinstance(error, TooBusyError):
        return Problem(f"Too many requests for connection {conn_id!r} run already. Nothing was done: try again")
    if isinstance(error, TooSlowError):
        return Problem(f"The database of connection {conn_id!r} does not answer")
    if isinstance(error, DBAPIError):
        what = "refuses the login" if is_refused_login(error) else "cannot be read"
        return Problem(f"The database of connection {conn_id!r} {what}", database_message(error), conn_id)
    if isinstance(error, (SQLAlchemyError, ImportError)):
        # Their texts may hold URLs.
        return Problem(f"The connection {conn_id!r} cannot be used ({type(error).__name__})")
    if isinstance(error, KafkaUnavailableError):
        return Problem(f"The Kafka cluster of connection {conn_id!r} does not answer", shortened(str(error)), conn_id)
    if isinstance(error, UnknownTopicError):
        what = f"The Kafka cluster of connection {conn_id!r} has no such topic or partition, or does not show it"
        return Problem(what, shortened(str(error)), conn_id)
    if isinstance(error, ClusterChangedError):
        return Problem(
            f"Connection {conn_id!r} leads to another Kafka cluster than the group's positions", str(error), conn_id
        )
    if isinstance(error, KafkaOffsetsError):
        return Problem(f"Connection {conn_id!r}: {type(error).__name__}", shortened(str(error)), conn_id)
    return Problem(f"Connection {conn_id!r} cannot be used ({type(error).__name__})")
