"""Options of an object store from an Airflow connection, by the names of the Rust library `object_store`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError

# Of an `aws` connection's extra.
_AWS_EXTRA = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}


def storage_options(conn_id: str, connection: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that a connection stands for.

    One of type `aws` has login and password for the keys, and `region_name`, `endpoint_url` and `aws_session_token` in
    its extra. Without keys, the environment of the process has them, or the machine. The extra of a `generic` one holds
    the options themselves.

    :param connection: as `hooks.connections.sink_connections` returns it
    :raises ConfigurationError: the connection is of another type, or has a parameter that cannot be passed on
    """
    extra = dict(connection["extra"] or {})
    if connection["conn_type"] == "generic":
        return {name: _text(value) for name, value in extra.items()}
    if connection["conn_type"] != "aws":
        raise ConfigurationError(
            f"Connection {conn_id!r} is of type {connection['conn_type']!r}; that of an object store is of type 'aws', "
            "or 'generic' with the options of the library object_store in its extra"
        )
    endpoint = {"endpoint_url": (extra.pop("service_config", None) or {}).get("s3", {}).get("endpoint_url")}
    extra = {**{name: value for name, value in endpoint.items() if value}, **extra}
    if unknown := sorted(set(extra) - set(_AWS_EXTRA)):
        raise ConfigurationError(
            f"Connection {conn_id!r} has {', '.join(unknown)} in its extra, which Spark's tasks could not use: they "
            f"know {', '.join(sorted(_AWS_EXTRA))}. A connection of type 'generic' takes any option of the library "
            "object_store"
        )
    options = {_AWS_EXTRA[name]: _text(value) for name, value in extra.items() if value is not None}
    keys = {"aws_access_key_id": connection["login"], "aws_secret_access_key": connection["password"]}
    options |= {name: value for name, value in keys.items() if value}
    if options.get("aws_endpoint", "").startswith("http://"):
        options["allow_http"] = "true"
    return options


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
