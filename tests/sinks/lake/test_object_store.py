"""Tables of files on a real S3 server: loads, deaths between the commits, replays, uploads that end, and secrets that
nobody sees.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_kafka_offsets import DeltaTable, Limits, ParquetFiles
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.lake.sink import DirectorySink
from airflow_kafka_offsets.sinks.lake.storage import object_store_options, pyiceberg_properties
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.parquet.table import ParquetTarget
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from devstack.s3 import S3Server
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.lake import RUN, LakeGroup, dying
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server

BUCKET = "lake"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.create_bucket(BUCKET)
        yield server


engine = fixtures.sqlite_engine


@pytest.fixture
def options(s3: S3Server) -> dict[str, str]:
    return object_store_options("s3", {"s3": s3.connection})


@pytest.fixture(params=[DeltaTable, ParquetFiles])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> DirectorySink:
    made: DirectorySink = request.param(f"s3://{BUCKET}/{tmp_path.name}", storage_conn_id="s3")
    return made


@pytest.fixture
def group(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, sink: DirectorySink, s3: S3Server, options: dict[str, str]
) -> LakeGroup:
    name = topic()
    produce(kafka, name, names(0, 6))

    def read() -> pa.Table:
        if isinstance(sink, ParquetFiles):
            files = ObjectFiles(sink.uri, options)
            paths = [file.path for file in files.find("") if not file.path.startswith("_")]
            return pa.concat_tables(pq.ParquetFile(files.open(path)).read() for path in paths)
        return pa.table(deltalake.DeltaTable(sink.uri, storage_options=options).to_pyarrow_table())

    inline_loader.connections = {"s3": s3.connection}
    return LakeGroup(inline_loader, name, sink, read)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_loads_and_replays(group: LakeGroup, dies: str) -> None:
    is_plain = isinstance(group.sink, ParquetFiles)
    target, bounds = (ParquetTarget, (0, 4)) if is_plain else (LakeTarget, (1, 5))
    with dying(target, dies):
        group.load(RUN, limits=Limits(max_records=4))
    group.load(limits=Limits(max_records=4))
    with dying(target, dies):
        group.replay({group.topic: {0: bounds}}, RUN, replace=True)

    group.replay({group.topic: {0: bounds}}, replace=True)

    kept = [(2, 4), (2, 5)] if is_plain else [(1, 0), (2, 5)]
    assert group.places() == sorted([*kept, *((3, offset) for offset in range(*bounds))])


def test_secrets_travel_to_the_tasks_alone(group: LakeGroup, s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    group.load()
    connected = group.sink.connect(group.loader.engine, group.loader.connections)
    (job,) = group.loader.launcher.jobs

    assert job.connections["sink"]["aws_secret_access_key"] == s3.secret
    assert s3.secret not in repr([connected, job.writer, group.sink]) + caplog.text
    assert s3.secret.encode() not in pickle.dumps(group.sink)


def test_the_upload_of_a_task_that_raises_is_aborted(s3: S3Server, options: dict[str, str]) -> None:
    files = ObjectFiles(f"s3://{BUCKET}/aborted", options)

    def write(fails: bool) -> None:
        with files.create("part.parquet") as sink:
            for _ in range(3):
                sink.write(bytes(11 << 20))
            assert s3.client().list_multipart_uploads(Bucket=BUCKET)["Uploads"]
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(fails=True)
    assert files.size("part.parquet") is None
    assert "Uploads" not in s3.client().list_multipart_uploads(Bucket=BUCKET)
    write(fails=False)
    assert files.size("part.parquet") == 33 << 20


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"conn_type": "http", "extra": {}}, "is of type 'http'"),
        (
            {"conn_type": "aws", "login": None, "password": None, "extra": {"role_arn": "x"}},
            "has role_arn in its extra",
        ),
    ],
)
def test_a_connection_that_cannot_be_passed_on_is_refused(connection: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        object_store_options("s3", {"s3": connection})


def test_a_generic_connection_has_the_options_themselves() -> None:
    connection = {"conn_type": "generic", "extra": {"google_service_account": "/key.json", "allow_http": True}}
    assert object_store_options("gs", {"gs": connection}) == {
        "google_service_account": "/key.json",
        "allow_http": "true",
    }


@pytest.mark.parametrize(
    ("connection", "properties"),
    [
        (
            {"conn_type": "aws", "login": "k", "password": "s", "extra": {"endpoint_url": "http://e"}},
            {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.endpoint": "http://e"},
        ),
        (
            {"conn_type": "generic", "extra": {"aws_region": "r", "s3.connect-timeout": 1}},
            {"s3.region": "r", "s3.connect-timeout": "1"},
        ),
        ({"conn_type": "wasb", "login": "a", "password": "k"}, {"adls.account-name": "a", "adls.account-key": "k"}),
    ],
)
def test_a_connection_means_the_same_to_pyiceberg(connection: dict[str, Any], properties: dict[str, str]) -> None:
    assert pyiceberg_properties("s", {"s": connection}) == properties


def test_an_option_that_the_library_does_not_know_is_named(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="aws_nonsense") as raised:
        ObjectFiles(f"s3://{BUCKET}/x", {**options, "aws_nonsense": "a-secret"})
    assert "a-secret" not in str(raised.value)
