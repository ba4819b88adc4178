"""Parameters and installations that cannot work are refused before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError, TransformError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.hooks.java import check_java
from airflow_kafka_offsets.loading.load import load
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.memory_log import MemoryLog

pytestmark = pytest.mark.server


TEMPLATE: Any = "{{ params.n }}"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"value_format": Json("_kafka_offset BIGINT")}, ConfigurationError, "'_kafka_offset' cannot be declared"),
        ({"transform": "nowhere.at.all"}, TransformError, "module 'nowhere.at' cannot be imported"),
        ({"transform": "json.nowhere"}, TransformError, "module 'json' has no function 'nowhere'"),
        ({"transform": "clean"}, ConfigurationError, "the import path of a function, 'package.module.function'"),
        ({"start": "begining"}, ConfigurationError, "got start='begining'"),
        ({"on_data_loss": "ignore"}, ConfigurationError, "got on_data_loss='ignore'"),
        ({"limits": 5}, ConfigurationError, r"limits must be Limits\(…\); got limits=5"),
        ({"limits": Limits(max_records=TEMPLATE)}, ConfigurationError, "Limits.max_records must be an int"),
        ({"group_id": ""}, ConfigurationError, "got group_id=''"),
        (
            {"staging": Staging(dir="/proc/x")},
            ConfigurationError,
            "Staging.dir: '/proc/x' cannot be written: No such file or directory. Name a directory",
        ),
        ({"staging": Staging(dir="/etc/passwd")}, ConfigurationError, "'/etc/passwd' cannot be written: "),
        (
            {"staging": Staging(dir="nosuch://b/x")},
            StagingError,
            "Staging.dir='nosuch://b/x' cannot be opened: .* Correct it, or give",
        ),
    ],
)
def test_a_wrong_parameter_is_refused_with_what_was_received(
    postgres_loader: Loader, topic: TopicFactory, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        postgres_loader(topic(), **options)

    assert postgres_loader.launcher.jobs == []
    assert sa.inspect(postgres_loader.engine).get_table_names() == []


def test_spark_that_fails_for_its_own_reasons_is_a_staging_error(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    class Broken:
        def check(self, staging_dir: str | None) -> None:
            """Nothing is missing."""

        def __call__(self, job: object) -> None:
            raise RuntimeError("no room on the cluster")

        def cancel(self) -> None:
            """Nothing runs."""

        def close(self) -> None:
            """Nothing runs."""

    with pytest.raises(StagingError, match=r"Spark did not stage batch 1: no room on the cluster"):
        load(
            loader.pipeline([name]),
            kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
            engine=loader.engine,
            launcher=Broken(),
        )


def test_missing_or_old_java_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="no java on the PATH: install a Java runtime"):
        check_java()

    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"Java 17 or newer; .*/java says: openjdk version \"11\.0\.2\""):
        check_java()

    # What another file says is not known yet.
    killed = tmp_path / "killed" / "java"
    killed.parent.mkdir()
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", str(killed.parent))
    with pytest.raises(StagingError, match=r"/java -version was killed by signal 9"):
        check_java()


@pytest.mark.parametrize(
    ("staging_dir", "message"),
    [
        ("staging/here", "must be an absolute path or a URI; got dir='staging/here'"),
        ("file://staging/here", "must be an absolute path or a URI; got dir='file://staging/here'"),
        ("s3://KEY:SECRET@bucket/staging", "must not hold credentials"),
        ("s3://SECRET@bucket/staging", "must not hold credentials"),
        ("gs://SECRET@bucket/staging", "must not hold credentials"),
        ("abfss://lake@account.dfs.core.windows.net/staging?sv=2026&sig=SECRET", "must not hold credentials"),
        (
            "abfss://lake@account.dfs.core.windows.net/staging?tenant_id=t&client_id=c&client_secret=SECRET",
            "takes only the options",
        ),
        ("s3://bucket/staging?secret_key=SECRET", "takes only the options"),
        ("file:///staging?nosuch", "takes only the options"),
        ("abfss://account:SECRET@account.dfs.core.windows.net/lake/staging", "must not hold credentials"),
    ],
)
def test_a_staging_directory_that_cannot_work_is_refused(
    postgres_loader: Loader, topic: TopicFactory, staging_dir: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        postgres_loader(topic(), staging=Staging(dir=staging_dir))

    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    "staging_dir",
    [
        "gs://anonymous@lake/staging?scheme=http&endpoint_override=127.0.0.1:1&retry_limit_seconds=60",
        "abfss://lake@account.dfs.core.windows.net/staging?client_id=of-the-machine",
        "s3://bucket/staging?region=eu-west-1&endpoint_override=minio:9000",
        "hdfs://namenode/staging?user=loader",
    ],
)
def test_a_staging_directory_without_a_login_is_taken(staging_dir: str) -> None:
    Loader(MemoryLog(), sa.create_engine("sqlite://"), None).pipeline(
        ["orders"], staging=Staging(dir=staging_dir)
    ).check()
