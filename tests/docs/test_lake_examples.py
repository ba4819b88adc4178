"""The example DAGs of lake tables load into an object store what they say; one of them on a standalone cluster, with
its staging there.

Each sink has short siblings below tests/sinks.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.writers.object_files import ObjectFiles
from devstack.kafka import KafkaBroker
from devstack.mariadb import MariaDbServer
from devstack.orders import produce_orders
from devstack.s3 import S3Server
from devstack.spark import SparkStandalone
from devstack.topics import create_topic
from tests.docs.test_example_dags import EXAMPLES
from tests.support.loads import rows
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = [pytest.mark.server, pytest.mark.long]

COUNT = 500


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture
def warehouse(kafka: KafkaBroker, database: str) -> Iterator[Engine]:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    produce_orders(kafka.bootstrap_servers, "orders", COUNT)
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


def connections(kafka: KafkaBroker, **others: Any) -> dict[str, str]:
    known: dict[str, Any] = {
        "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}},
        "spark_default": {"conn_type": "spark", "host": "local[2]"},
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in (known | others).items()}


def loaded(home: WarmAirflowHome, dag: str, secret: str) -> None:
    """Run an example twice: the second run has nothing to load, and proves the same."""
    for day in ("2026-01-01", "2026-01-02"):
        run: subprocess.CompletedProcess[str] = home.run("dags", "test", dag, day)
        output = run.stdout + run.stderr
        assert run.returncode == 0, output[-8000:]
        assert "proved" in output
        assert secret not in output


def counted(engine: Engine, offsets: list[int], ids: list[int]) -> None:
    """Compare what another reader finds with the history."""
    ((records, dead_letters),) = rows(engine, "SELECT sum(row_count), sum(dead_letters) FROM offset_batches")
    assert len(ids) == len(offsets) == records
    assert records + dead_letters >= COUNT
    assert len(set(ids)) > COUNT // 2


def test_the_iceberg_example_loads_on_a_cluster_with_its_staging_on_s3(
    kafka: KafkaBroker, warehouse: Engine, s3: S3Server
) -> None:
    # As the machines of a cluster in the cloud have it.
    environment = {
        "AWS_ACCESS_KEY_ID": s3.key,
        "AWS_SECRET_ACCESS_KEY": s3.secret,
        "AWS_REGION": s3.region,
        "AWS_ENDPOINT_URL": s3.url,
    }
    properties = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    with SparkStandalone(properties=properties) as cluster:
        known = connections(
            kafka,
            spark_default={"conn_type": "spark", "host": cluster.master_url},
            lake=s3.connection,
            warehouse=warehouse.url.set(drivername="postgres").render_as_string(hide_password=False),
        )
        environment["SPARK_CONF_DIR"] = str(cluster.directory)
        with WarmAirflowHome(dags=EXAMPLES, connections=known, env=environment) as home:
            loaded(home, "load_orders_into_iceberg", s3.secret)

    catalog = load_catalog(
        "default",
        type="sql",
        uri=warehouse.url.render_as_string(hide_password=False),
        **{"s3.endpoint": s3.url, "s3.access-key-id": s3.key, "s3.secret-access-key": s3.secret},
    )
    with closing(catalog):
        table = catalog.load_table("shop.orders")
        found = table.scan().to_arrow()
    counted(warehouse, found["_kafka_offset"].to_pylist(), found["id"].to_pylist())
    assert [str(field.transform) for field in table.spec().fields] == ["day"]
    assert [key for key in s3.objects("lake") if key.startswith("staging/batch-")] == [], "staged files are left behind"


@pytest.mark.parametrize("dag", ["load_orders_into_delta", "load_orders_into_parquet"])
def test_the_example_loads(kafka: KafkaBroker, warehouse: Engine, s3: S3Server, dag: str) -> None:
    url = warehouse.url.set(drivername="postgres").render_as_string(hide_password=False)
    with WarmAirflowHome(dags=EXAMPLES, connections=connections(kafka, lake=s3.connection, warehouse=url)) as home:
        loaded(home, dag, s3.secret)

    options = {
        "aws_access_key_id": s3.key,
        "aws_secret_access_key": s3.secret,
        "aws_region": s3.region,
        "aws_endpoint": s3.url,
        "allow_http": "true",
    }
    if dag == "load_orders_into_delta":
        table = deltalake.DeltaTable("s3://lake/delta/orders", storage_options=options)
        found = pa.table(table.to_pyarrow_table())
    else:
        files = ObjectFiles("s3://lake/parquet/orders", options)
        paths = [file.path for file in files.find("") if not file.path.startswith("_")]
        found = pa.concat_tables(pq.ParquetFile(files.open(path)).read(["id", "_kafka_offset"]) for path in paths)
    counted(warehouse, found["_kafka_offset"].to_pylist(), found["id"].to_pylist())


def test_the_mariadb_example_loads(
    kafka: KafkaBroker, warehouse: Engine, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    url = sa.make_url(mariadb_database)
    shop = {
        "conn_type": "mysql",
        "host": url.host,
        "port": url.port,
        "schema": url.database,
        "login": url.username,
        "password": url.password,
    }
    with WarmAirflowHome(dags=EXAMPLES, connections=connections(kafka, shop=shop)) as home:
        loaded(home, "load_orders_into_mariadb", url.password or "no password is set")

    engine = sa.create_engine(url)
    assert rows(engine, "SELECT count(*) = count(DISTINCT id), count(*) > 100 FROM orders") == [(1, 1)]
    engine.dispose()
