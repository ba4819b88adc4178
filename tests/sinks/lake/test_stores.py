"""By the URI of a table its store is chosen, and the options of the connection reach it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa
from obstore.store import AzureStore, GCSStore
from pyarrow import fs
from pyiceberg.io import load_file_io

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.iceberg.format import ConnectedIcebergTable
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.lake.storage import object_store_options
from airflow_kafka_offsets.writers.object_files import ObjectFiles


@pytest.mark.parametrize(
    ("uri", "extra", "store", "config"),
    [
        (
            "gs://lake/orders",
            {"google_skip_signature": True, "timeout": "5s"},
            GCSStore,
            {"bucket": "lake", "skip_signature": "true"},
        ),
        (
            "abfss://lake@account.dfs.core.windows.net/orders",
            {"azure_storage_account_key": "c2VjcmV0", "timeout": "5s"},
            AzureStore,
            {"account_name": "account", "container_name": "lake", "account_key": "c2VjcmV0"},
        ),
    ],
)
def test_files_of_delta_and_parquet(uri: str, extra: dict[str, Any], store: type, config: dict[str, str]) -> None:
    options = object_store_options("storage", {"storage": {"conn_type": "generic", "extra": extra}})

    found: Any = ObjectFiles(uri, options).store

    assert (type(found), found.prefix) == (store, "orders")
    assert found.config == config
    assert found.client_options == {"timeout": "5s"}


def test_hdfs_is_no_store_of_delta_and_parquet() -> None:
    with pytest.raises(ConfigurationError, match="'hdfs://namenode:8020/orders' cannot be opened"):
        ObjectFiles("hdfs://namenode:8020/orders", {})


@pytest.mark.parametrize(
    ("scheme", "extra", "file_system", "arguments"),
    [
        (
            "gs",
            {"gcs.oauth2.token": "secret", "gcs.service.host": "http://127.0.0.1:1"},
            "GcsFileSystem",
            {"access_token": "secret", "scheme": "http", "endpoint_override": "127.0.0.1:1"},
        ),
        ("hdfs", {}, "HadoopFileSystem", {"uri": "hdfs://lake"}),
    ],
)
@pytest.mark.parametrize("catalog", [None, {"type": "rest", "uri": "http://127.0.0.1:1"}])
def test_files_of_iceberg_in_tasks_of_spark(
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    extra: dict[str, str],
    file_system: str,
    arguments: dict[str, Any],
    catalog: dict[str, str] | None,
) -> None:
    opened: list[dict[str, Any]] = []

    class FileSystem:
        def __init__(self, **arguments: Any) -> None:
            opened.append(arguments)

        @classmethod
        def from_uri(cls, uri: str) -> FileSystem:
            return cls(uri=uri)

    monkeypatch.setattr(fs, file_system, FileSystem)
    sink = IcebergTable("shop.orders", catalog, storage_conn_id="storage", warehouse=f"{scheme}://lake/warehouse")
    engine: Any = None
    table = sink.connect(engine, {"storage": {"conn_type": "generic", "extra": extra}})
    monkeypatch.setattr(ConnectedIcebergTable, "_load", lambda self: None)

    location = f"{scheme}://lake/warehouse/shop/orders"
    io = load_file_io(dict(table.storage_options()), location)
    io.new_input(f"{location}/data/1.parquet")

    assert opened == [arguments]


@pytest.mark.parametrize(
    "name",
    [
        *("azure_federated_token_file", "azure_authority_host", "azure_msi_endpoint", "azure_use_azure_cli"),
        *("aws_container_credentials_full_uri", "aws_container_authorization_token_file", "aws_sts_endpoint"),
        *("aws_web_identity_token_file", "aws_metadata_endpoint", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        *("azure_fabric_token_service_url", "google_application_credentials", "proxy_url", "s3.signer.uri"),
        *("s3.retry-strategy-impl", "py-io-impl", "of-tomorrow"),
    ],
)
def test_options_that_are_not_known_to_be_harmless_are_refused(name: str) -> None:
    connection = {"conn_type": "generic", "extra": {"allow_http": "true", name: "x"}}
    with pytest.raises(ConfigurationError, match=f"has {name} in its extra, which is no option"):
        object_store_options("storage", {"storage": connection})


STRANGER = "https://stranger.example"
CLIENT = {"azure_client_id": "c", "azure_client_secret": "s", "azure_tenant_id": "t"}


@pytest.mark.parametrize(
    ("extra", "is_refused"),
    [
        ({"azure_storage_account_name": "ours", "azure_storage_endpoint": STRANGER}, True),
        ({"azure_storage_endpoint": STRANGER, "azure_storage_account_key": "a2V5"}, False),
        ({"azure_storage_endpoint": STRANGER, "azure_client_secret": "x"}, True),
        ({"azure_storage_endpoint": STRANGER, **CLIENT}, False),
        ({"azure_storage_endpoint": STRANGER, "skip_signature": "false"}, True),
        ({"azure_storage_endpoint": "https://ours.blob.core.windows.net"}, False),
        ({"azure_storage_endpoint": "https://stranger.example\\.blob.core.windows.net"}, True),
        ({"azure_storage_endpoint": "https://stranger.example/.blob.core.windows.net"}, True),
        ({"azure_storage_endpoint": STRANGER, "aws_secret_access_key": "x"}, True),
        ({"adls.account-host": "stranger.example"}, True),
        ({"adls.blob-storage-authority": "stranger.example", "adls.token": "x"}, True),
        ({"adls.dfs-storage-authority": "stranger.example", "adls.sas-token": "x"}, False),
        ({"gcs.service.host": STRANGER}, True),
        ({"gcs.service.host": STRANGER, **CLIENT}, True),
        ({"gcs.service.host": STRANGER, "gcs.oauth2.token": "x"}, False),
        ({"endpoint": STRANGER}, True),
        # Credentials that the library of the host does not take.
        ({"azure_storage_endpoint": STRANGER, "gcs.token": "x"}, True),
        ({"azure_storage_endpoint": STRANGER, "google_skip_signature": "true"}, True),
        ({"azure_storage_endpoint": STRANGER, "azure_account_key": "a2V5"}, True),
        ({"AZURE_STORAGE_ENDPOINT": STRANGER, "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}, False),
        ({"adls.blob-storage-authority": "stranger.example", "azure_account_key": "x"}, True),
        ({"adls.dfs-storage-authority": "stranger.example", "ADLS.ACCOUNT-KEY": "x"}, True),
        ({"adls.account-host": "stranger.example", **CLIENT}, True),
        ({"gcs.service.host": STRANGER, "google_oauth2_token": "x"}, True),
        ({"hf.endpoint": STRANGER, "adls.token": "x"}, True),
        ({"hf.endpoint": STRANGER, "hf.token": "x"}, False),
        ({"aws_endpoint": STRANGER}, False),
        ({"s3.endpoint": STRANGER}, False),
    ],
)
def test_the_identity_of_the_machine_is_sent_to_no_host_of_a_connection(
    extra: dict[str, str], is_refused: bool
) -> None:
    connections = {"c": {"conn_type": "generic", "extra": extra}}
    uses = (
        lambda: object_store_options("c", connections),
        lambda: IcebergTable("shop.orders", catalog_conn_id="c").connect(sa.create_engine("sqlite://"), connections),
    )
    for use in uses:
        with pytest.raises(ConfigurationError, match="no credential for it") if is_refused else nullcontext():
            use()


def test_a_connection_takes_no_credential_from_the_host_of_another_one() -> None:
    place = {"adls.account-name": "ours", "adls.blob-storage-authority": "stranger.example", "adls.account-key": "x"}
    extras = {"catalog": place, "storage": {"adls.account-key": ""}}
    connections = {name: {"conn_type": "generic", "extra": extra} for name, extra in extras.items()}
    sink = IcebergTable("shop.orders", catalog_conn_id="catalog", storage_conn_id="storage")
    with pytest.raises(ConfigurationError, match="no credential for it"):
        sink.connect(sa.create_engine("sqlite://"), connections)


@pytest.mark.parametrize(
    ("connection", "name"),
    [
        ({"conn_type": "aws", "extra": {"region_name": "x@attacker.example/"}}, "a region"),
        ({"conn_type": "generic", "extra": {"s3.region": "x.attacker.example#"}}, "a region"),
        ({"conn_type": "generic", "extra": {"azure_storage_account_name": "attacker.example/"}}, "an account"),
        ({"conn_type": "generic", "extra": {"adls.account-name": "attacker.example#"}}, "an account"),
        ({"conn_type": "wasb", "login": "attacker.example?"}, "an account"),
    ],
)
def test_what_is_a_part_of_the_name_of_a_host_is_no_host_for_tokens(connection: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"is no name of {name}"):
        object_store_options("storage", {"storage": connection})
