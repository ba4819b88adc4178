"""Convert an Airflow connection of an object store to options of the Rust library `object_store`, and these to
pyiceberg properties.

* Type `aws`: login and password are the keys; `region_name`, `endpoint_url` and `aws_session_token` in the extra.
  Without keys, the environment of the process has them, or the machine.
* Type `wasb` or `adls`: login and password are the account and its key, or a client with `tenant_id` in the extra.
* Type `google_cloud_platform`: `key_path` or `keyfile_dict` in the extra.
* Type `generic`: the extra holds the options themselves, by the names of either library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Connections

_AWS = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}

_AZURE = {name: f"azure_storage_{name}" for name in ("tenant_id", "sas_token", "account_key", "account_name")}

# Options that name a file whose contents are sent, or the host that gets them.
_SENDS_FILES = re.compile(
    "(?i)(token|identity)[._-]?(token[._-]?)?file|credentials[._-](full|relative)[._-]uri|authority[._-]?host"
    "|(msi|identity|metadata)[._-]endpoint|azure[._-]cli"
)

_GOOGLE = {"key_path": "google_service_account", "keyfile_dict": "google_service_account_key"}

_OF_BOTH = {
    ("aws_", "s3."): ("access_key_id", "secret_access_key", "session_token", "region", "endpoint"),
    ("azure_storage_", "adls."): (*_AZURE, "client_id", "client_secret"),
}

_PYICEBERG = {
    prefix + name: other_prefix + name.replace("_", "-")
    for (prefix, other_prefix), names in _OF_BOTH.items()
    for name in names
}
"""The same options by pyiceberg's names."""

_OBJECT_STORE = {name: option for option, name in _PYICEBERG.items()}


def object_store_options(conn_id: str, connections: Connections) -> dict[str, str]:
    """Return the options of a connection by the names of the library object_store.

    :raises ConfigurationError: it is not known, is of another type, or has a parameter that cannot be passed on
    """
    options = read_storage(conn_id, connections)
    return {_OBJECT_STORE.get(name, name): value for name, value in options.items()}


def pyiceberg_properties(conn_id: str, connections: Connections) -> dict[str, str]:
    """Return the options of a connection by pyiceberg's names; see `object_store_options` for errors."""
    options = read_storage(conn_id, connections)
    if unknown := [name for name in options if name.startswith("google_")]:
        raise ConfigurationError(
            f"Connection {conn_id!r} has {', '.join(unknown)}, which pyiceberg does not take: set "
            "GOOGLE_APPLICATION_CREDENTIALS where the tasks run, or gcs.oauth2.token in a connection of type 'generic'"
        )
    return {_PYICEBERG.get(name, name): value for name, value in options.items() if name != "allow_http"}


def read_storage(conn_id: str, connections: Connections) -> dict[str, str]:
    """Return the options that a connection stands for; see `object_store_options`."""
    if conn_id not in connections:
        raise ConfigurationError(
            f"Connection {conn_id!r} of an object store is unknown: pass its contents in connections=, which has "
            f"{', '.join(connections) or 'none'}"
        )
    connection = connections[conn_id]
    extra, kind = dict(connection.get("extra") or {}), connection.get("conn_type")
    login, password = connection.get("login"), connection.get("password")
    if kind == "generic":
        if harmful := sorted(filter(_SENDS_FILES.search, map(str, extra))):
            raise ConfigurationError(
                f"Connection {conn_id!r} has {', '.join(harmful)} in its extra, which can send a file of this machine "
                "to any host: leave it to the environment of the worker and of Spark's executors"
            )
        return {name: _text(value) for name, value in extra.items()}
    if kind == "aws":
        service = (extra.pop("service_config", None) or {}).get("s3", {})
        extra = _given(endpoint_url=service.get("endpoint_url")) | extra
        options = _renamed(conn_id, extra, _AWS) | _given(aws_access_key_id=login, aws_secret_access_key=password)
        is_plain = options.get("aws_endpoint", "").startswith("http://")
        return options | _given(allow_http="true" if is_plain else None)
    if kind in ("wasb", "adls"):
        options = _renamed(conn_id, extra, _AZURE)
        if "azure_storage_tenant_id" in options:
            return options | _given(
                azure_storage_client_id=login,
                azure_storage_client_secret=password,
                azure_storage_account_name=connection.get("host"),
            )
        return options | _given(azure_storage_account_name=login, azure_storage_account_key=password)
    if kind == "google_cloud_platform":
        return _renamed(conn_id, {name: value for name, value in extra.items() if name in _GOOGLE}, _GOOGLE)
    raise ConfigurationError(
        f"Connection {conn_id!r} is of type {kind!r}; the connection of an object store has type 'aws', 'wasb', "
        "'adls', 'google_cloud_platform', or 'generic' with the options of the library object_store in its extra"
    )


def _renamed(conn_id: str, extra: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    if unknown := sorted(set(extra) - set(names)):
        raise ConfigurationError(
            f"Connection {conn_id!r} has {', '.join(unknown)} in its extra, which Spark's tasks cannot use: they take "
            f"{', '.join(sorted(names))}. A connection of type 'generic' takes any option of the library object_store"
        )
    return {names[name]: _text(value) for name, value in extra.items() if value is not None}


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
