"""Where a command finds the database, Kafka and Spark: what commands ask for, and Airflow's connections as an answer.

The other answer is in `file_connections`. What a command runs with is `args.connections`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.spark.job import Launcher


class Connections(Protocol):
    """What the arguments of a command name.

    :param database: what names the database, for messages
    :param doctor: how `doctor` is called, for messages
    """

    database: str
    doctor: str

    def describe(self, error: Exception) -> str | None:
        """Return what an error of its own says, and what to do; None for any other error."""

    def open_database(self) -> AbstractContextManager[Engine]:
        """Open the database with the state tables for a block."""

    @property
    def names_kafka(self) -> bool:
        """Whether the arguments name a cluster, where a command can do without."""

    def kafka_config(self, fallback: str | None = None) -> dict[str, Any]:
        """Return the librdkafka configuration.

        :param fallback: the Airflow connection, where the arguments name none
        """

    def launcher(self, conn_id: str, conf: Mapping[str, Any] | None, name: str) -> Launcher:
        """Return the launcher of Spark; see `hooks.connections.make_launcher`."""


class AirflowConnections:
    """Airflow's connections, whose ids are arguments."""

    database = "the connection of --conn-id"
    doctor = "'airflow kafka-offsets doctor' with the same --conn-id, --schema and --prefix"

    def __init__(self, args: Namespace) -> None:
        self._args = args

    def describe(self, error: Exception) -> str | None:
        from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

        if isinstance(error, AirflowNotFoundException):
            return f"{error}. Name another connection, or add this one: 'airflow connections add'"
        return str(error) if isinstance(error, AirflowException) else None

    def open_database(self) -> AbstractContextManager[Engine]:
        from airflow_kafka_offsets.hooks.connections import open_database

        return open_database(self._args.conn_id)

    @property
    def names_kafka(self) -> bool:
        return self._args.kafka_conn_id is not None

    def kafka_config(self, fallback: str | None = None) -> dict[str, Any]:
        from airflow_kafka_offsets.hooks.connections import kafka_config

        conn_id = self._args.kafka_conn_id or fallback
        # The argument has a default where there is no fallback.
        assert conn_id is not None
        return kafka_config(conn_id)

    def launcher(self, conn_id: str, conf: Mapping[str, Any] | None, name: str) -> Launcher:
        from airflow_kafka_offsets.hooks.connections import make_launcher

        return make_launcher(conn_id, conf=conf, name=name)
