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
import logging
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

from airflow_kafka_offsets.core.addresses import host_in_plain_text, plain_http_host
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Connections

log = logging.getLogger(__name__)

_AWS = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}

_AZURE = {name: f"azure_storage_{name}" for name in ("tenant_id", "sas_token", "account_key", "account_name")}

# What a generic connection may set, without the prefix of a store: nothing that reads a file of the machine and sends
# it (tokens of workloads), that names who gets such a token, or that stands between this machine and a store.
_OF_STORE = """
access_key access_key_id account_host account_key account_name anon anonymous blob_storage_authority
blob_storage_scheme bucket bucket_name bearer_token cache_timeout checksum_algorithm client_id client_secret
conditional_put connect_timeout connection_string consistency container_name copy_if_not_exists credential
default_bucket_location default_region dfs_storage_authority dfs_storage_scheme disable_bulk_delete disable_tagging
encryption_key endpoint endpoint_url force_virtual_addressing host kerberos_ticket oauth2_token
oauth2_token_expires_at object_id port profile_name project_id region request_payer request_timeout requester_pays
resolve_region role_arn role_session_name sas_key sas_token secret_access_key server_side_encryption service_account
service_account_key service_host session_token skip_signature sse_bucket_key_enabled sse_customer_key_base64
sse_kms_key_id storage_class tenant_id token unsigned_payload use_fabric_endpoint user version_aware
virtual_hosted_style_request s3_allow_unsafe_rename s3_locking_provider
"""
_OF_CLIENT = """
allow_http allow_invalid_certificates connect_timeout default_content_type default_headers http1_only http2_only
max_retries pool_idle_timeout pool_max_idle_per_host randomize_addresses read_timeout retry_timeout timeout user_agent
delta_dynamo_table_name
"""
_OF_AWS = re.compile("(aws|s3)[_.-]", re.IGNORECASE)
_PREFIX = re.compile("(aws|azure(_storage)?|google|gcs|s3|adls|hdfs|hf|client)_")

_MAY_BE_SET = frozenset([*_OF_STORE.split(), *_OF_CLIENT.split()])

_IN_PLAIN_TEXT = "rows and credentials cross the network to {} in plain text: use https"

# The host of an account, where options say only how to speak to it.
_AZURE_HOST = "blob.core.windows.net"

_AZURE_SCHEME = re.compile("(blob|dfs)[._-]storage[._-]scheme$")

# For the host that an option names, the credentials by the names that the same library takes. Without one of them, it
# sends a token of the machine's identity there. AWS signs its requests instead.
_OF_OBJECT_STORE = frozenset(
    """
    azure_storage_account_key azure_storage_access_key account_key access_key azure_storage_sas_key
    azure_storage_sas_token sas_key sas_token azure_storage_token bearer_token token azure_skip_signature skip_signature
    """.split()  # noqa: SIM905
)
_OF_ADLS = frozenset({"adls.account-key", "adls.sas-token"})
_CREDENTIALS_FOR = {
    "endpoint": _OF_OBJECT_STORE,
    "endpoint_url": _OF_OBJECT_STORE,
    "hf_endpoint": frozenset({"hf.token"}),
    "account_host": _OF_ADLS | {"adls.token", "adls.credential", "adls.connection-string"},
    "blob_storage_authority": _OF_ADLS,
    "dfs_storage_authority": _OF_ADLS,
    "service_host": frozenset({"gcs.oauth2.token"}),
}
_CLIENT = ("client_id", "client_secret", "tenant_id")
_CLIENTS = {
    _OF_OBJECT_STORE: [{f"{prefix}{part}" for prefix in ("azure_storage_", "azure_", "")} for part in _CLIENT],
    _OF_ADLS: [{f"adls.{part.replace('_', '-')}"} for part in _CLIENT],
}
# Hosts of the clouds themselves, and of this machine.
_HOSTS = re.compile(
    r"(https?://)?(([a-z0-9-]+\.)+(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|fabric\.microsoft\.com|"
    r"googleapis\.com)|localhost|127\.0\.0\.1)(:[0-9]+)?/?",
    re.IGNORECASE | re.ASCII,
)

_FALSE = ("false", "0", "off", "no", "n")

# What libraries write into the name of the server to which they send a token: other characters would end that name.
_PARTS_OF_HOSTS = ("region", "account_name")
_PART_OF_HOST = re.compile("[A-Za-z0-9-]{0,64}")

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
    """Return the options that a connection stands for, and log a warning where they are not safe; see
    `object_store_options`.
    """
    options = _options(conn_id, connections)
    for name, value in options.items():
        if _plain_name(name).endswith("allow_invalid_certificates") and value.strip().lower() not in _FALSE:
            warn_once(log, f"Connection {conn_id!r}: TLS certificates of the object store are not verified")
    warn_of_plain_http(f"Connection {conn_id!r}", options)
    # Either library gets its own names of these.
    of_both = {names.get(name, name): value for names in (_PYICEBERG, _OBJECT_STORE) for name, value in options.items()}
    refuse_identity(conn_id, of_both)
    return options


def is_part_of_host(name: str, value: str) -> bool:
    """Return whether the value of an option is one that cannot lead to another host: it is no region and no account,
    or has the characters of their names.
    """
    return not _plain_name(name).endswith(_PARTS_OF_HOSTS) or _PART_OF_HOST.fullmatch(value) is not None


def refuse_identity(conn_id: str, options: Mapping[str, Any]) -> None:
    """Refuse options that name a host, and leave it to the identity of the machine to log in there.

    :param options: by the names that the library which uses them gets
    :raises ConfigurationError: they do
    """
    texts = {name: str(value) for name, value in options.items()}
    for name, value in texts.items():
        if not is_part_of_host(name, value):
            what = "an account" if "account" in _plain_name(name) else "a region"
            raise ConfigurationError(f"Connection {conn_id!r}: {name} is no name of {what}; got {value!r}")
    set_ones = sorted(name for name, value in texts.items() if value and value.strip().lower() not in _FALSE)
    # Only object_store knows its names, which have no dots, in any case.
    given = {name if "." in name else name.lower() for name in set_ones}
    for name in set_ones:
        host = _host_of(name)
        if host is not None and not _HOSTS.fullmatch(texts[name]) and not _has_credential(host, given):
            raise ConfigurationError(
                f"Connection {conn_id!r} names a host in its extra ({name}), and no credential for it: the machine's "
                "own login would be sent there. Add a credential to the connection; an endpoint of S3 is aws_endpoint"
            )


def _host_of(name: str) -> str | None:
    """Return which of `_CREDENTIALS_FOR` an option is; None where it names no host, or one of S3."""
    plain = _plain_name(name)
    names = (plain, _PREFIX.sub("", plain, count=1))
    return None if _OF_AWS.match(name) else next((each for each in names if each in _CREDENTIALS_FOR), None)


def _has_credential(host: str, given: Set[str]) -> bool:
    """Return whether one of the names that are given is a credential for a host, or they are a client."""
    needed = _CREDENTIALS_FOR[host]
    clients = [_CLIENTS[library] for library in _CLIENTS if library & needed]
    return bool(given & needed) or any(all(given & names for names in parts) for parts in clients)


def warn_of_plain_http(whose: str, options: Mapping[str, Any]) -> None:
    """Log a warning where an option is the address of another machine without TLS."""
    for name in options:
        for host in filter(None, map(plain_http_host, _urls(name, options))):
            warn_once(log, f"{whose}: {_IN_PLAIN_TEXT.format(host)}")


def _urls(name: str, options: Mapping[str, Any]) -> Iterable[str]:
    """Return the URLs that an option has, or stands for."""
    value = str(options[name])
    if _AZURE_SCHEME.search(name):
        return [f"{value}://{options.get(name.replace('scheme', 'authority'), _AZURE_HOST)}"]
    # The connection string of an account.
    parts = dict(part.strip().partition("=")[::2] for part in value.split(";"))
    if "DefaultEndpointsProtocol" in parts and "BlobEndpoint" not in parts:
        return [f"{parts['DefaultEndpointsProtocol']}://{_AZURE_HOST}"]
    return [value, *parts.values()]


def warn_of_plain_store(uri: str) -> None:
    """Log a warning where the environment has the address of another machine without TLS for a directory."""
    if host := host_in_plain_text(uri):
        warn_once(log, f"The environment of {uri}: {_IN_PLAIN_TEXT.format(host)}")


def _options(conn_id: str, connections: Connections) -> dict[str, str]:
    if conn_id not in connections:
        raise ConfigurationError(
            f"Connection {conn_id!r} of an object store is unknown: pass its contents in connections=, which has "
            f"{', '.join(connections) or 'none'}"
        )
    connection = connections[conn_id]
    extra, kind = dict(connection.get("extra") or {}), connection.get("conn_type")
    login, password = connection.get("login"), connection.get("password")
    if kind == "generic":
        if harmful := sorted(name for name in map(str, extra) if not _may_be_set(name)):
            raise ConfigurationError(
                f"Connection {conn_id!r} has {', '.join(harmful)} in its extra, which is no option of object_store or "
                "pyiceberg that a connection may set: leave tokens of the machine, proxies and certificates to the "
                "environment of the worker and of Spark's executors"
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


def _may_be_set(option: str) -> bool:
    name = _plain_name(option)
    return not _MAY_BE_SET.isdisjoint((name, _PREFIX.sub("", name, count=1)))


def _plain_name(option: str) -> str:
    return re.sub("[.-]", "_", option.lower())


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
