"""Google Cloud Storage and Azure's blobs, on servers that behave as they do: staged batches, and tables of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeltaTable, IcebergTable, Limits, Staging
from airflow_kafka_offsets.sinks.lake.storage import object_store_options
from airflow_kafka_offsets.staging.directory import StagingDirectory
from devstack.object_stores import AzureServer, GcsServer, azurite
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import open_table
from tests.support.lake import LakeGroup
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names

pytestmark = [pytest.mark.server, pytest.mark.long]

BUCKET = "lake"


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    if azurite() is None:
        pytest.skip("no Azurite: npm install --global azurite")
    with AzureServer() as server:
        server.create_container(BUCKET)
        yield server


engine = fixtures.sqlite_engine


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory) -> str:
    name = topic()
    produce(kafka, name, names(0, 6))
    return name


def load_and_replay(group: LakeGroup) -> None:
    group.load(limits=Limits(max_records=4))
    group.replay({group.topic: {0: (1, 5)}}, replace=True)
    assert group.places() == [(1, 0), (2, 5), (3, 1), (3, 2), (3, 3), (3, 4)]


def test_a_batch_is_staged_on_google_cloud_storage(inline_loader: Loader, orders: str, gcs: GcsServer) -> None:
    staging_dir = gcs.uri(f"{BUCKET}/staging")

    assert inline_loader(orders, staging=Staging(dir=staging_dir)).rows == 6

    (job,) = inline_loader.launcher.jobs
    assert job.staging_uri.startswith("gs://anonymous@lake/staging/batch-1-")
    assert_exactly_once(inline_loader.engine)
    assert not any("part-" in name for name in gcs.objects(BUCKET))


def test_files_of_a_staging_directory_on_google_cloud_storage(gcs: GcsServer) -> None:
    directory = StagingDirectory(gcs.uri(f"{BUCKET}/notes")).child("batch-1")
    directory.create()
    directory.write_text("manifest.json", '{"batch_id": 1}')
    directory.write_again("manifest.json", '{"batch_id": 2}')

    assert gcs.objects(BUCKET).count("notes/batch-1/manifest.json") == 1
    assert list(directory.notes("manifest")) == [{"batch_id": 2}]
    directory.remove()
    assert not any(name.startswith("notes/batch-1") for name in gcs.objects(BUCKET))


def test_an_iceberg_table_on_google_cloud_storage(
    inline_loader: Loader, engine: Engine, orders: str, gcs: GcsServer
) -> None:
    storage = {"gcs.service.host": gcs.url, "gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4102444800000"}
    catalog = {"type": "sql", "uri": f"sqlite:///{Path(engine.url.database or '').parent}/catalog.db"}
    sink = IcebergTable("shop.orders", {**catalog, **storage, "warehouse": f"gs://{BUCKET}/warehouse"})
    group = LakeGroup(inline_loader, orders, sink, lambda: open_table(sink, engine).scan().to_arrow())

    load_and_replay(group)

    assert any(name.startswith("warehouse/shop/orders/data/") for name in gcs.objects(BUCKET))


def test_a_delta_table_on_azure(inline_loader: Loader, orders: str, azure: AzureServer, tmp_path: Path) -> None:
    sink = DeltaTable(f"abfss://{BUCKET}@{azure.account}.dfs.core.windows.net/{tmp_path.name}", storage_conn_id="azure")
    inline_loader.connections = {"azure": azure.connection}
    options = object_store_options("azure", {"azure": azure.connection})

    def read() -> pa.Table:
        return pa.table(deltalake.DeltaTable(sink.uri, storage_options=options).to_pyarrow_table())

    load_and_replay(LakeGroup(inline_loader, orders, sink, read))
