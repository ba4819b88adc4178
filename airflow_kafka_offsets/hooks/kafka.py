"""The librdkafka configuration in a connection of the Kafka provider."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.config import check_config


def kafka_config(conn_id: str) -> dict[str, Any]:
    """Return the librdkafka configuration in the extra of a connection.

    The extra is data: unlike the provider's hook, this function never imports dotted paths that it contains.

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
