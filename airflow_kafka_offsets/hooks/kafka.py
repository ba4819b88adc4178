"""The Kafka provider's connection as a librdkafka configuration."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.config import check_config


def kafka_config(conn_id: str) -> dict[str, Any]:
    """Read a connection of the official Kafka provider; its extra is the librdkafka configuration.

    Read as data: unlike the provider's own hook, dotted paths in it are never imported.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: it is of another type, or its extra cannot be used
    """
    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type != "kafka":
        raise ConfigurationError(f"Connection {conn_id!r} is of type {connection.conn_type!r}, not 'kafka'")
    try:
        return check_config(connection.extra_dejson)
    except ConfigurationError as error:
        raise ConfigurationError(f"Connection {conn_id!r}: {error}") from error
