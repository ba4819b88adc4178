"""What Airflow connections hold, in the names of pyiceberg's properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError


def catalog_properties(conn_id: str, connections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the properties of a catalog: those in the extra, and `uri` and `credential` from the other fields."""
    connection = _find(conn_id, connections)
    properties = dict(connection.get("extra") or {})
    host, login = connection.get("host"), connection.get("login")
    if host:
        uri = host if "://" in host else f"{connection.get('schema') or 'https'}://{host}"
        properties.setdefault("uri", f"{uri}:{connection['port']}" if connection.get("port") else uri)
    if login:
        properties.setdefault("credential", f"{login}:{connection.get('password') or ''}")
    return properties


def storage_properties(conn_id: str, connections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the properties of a storage: those in the extra, the access key of S3, and what Airflow's connections to
    AWS call otherwise.
    """
    connection = _find(conn_id, connections)
    extra = dict(connection.get("extra") or {})
    renamed = {
        "s3.access-key-id": connection.get("login"),
        "s3.secret-access-key": connection.get("password"),
        "s3.endpoint": extra.pop("endpoint_url", None),
        "s3.region": extra.pop("region_name", None),
    }
    return {**{name: value for name, value in renamed.items() if value}, **extra}


def _find(conn_id: str, connections: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if conn_id not in connections:
        raise ConfigurationError(f"Connection {conn_id!r} is not known here: pass what it holds in connections=")
    return connections[conn_id]
