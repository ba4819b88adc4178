"""`kafka-offsets archive-classes`, with the machine's own Java, and loads that start from what it wrote."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.hooks.java import class_archive, class_options
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from devstack.airflow import command_line
from devstack.kafka import KafkaBroker
from devstack.paths import pyspark_home
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names

COMMAND = command_line("kafka-offsets", "archive-classes")


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of the archives. The session's own Java has an archive already."""
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__CLASS_ARCHIVES", str(tmp_path / "classes"))
    return tmp_path / "classes"


def archive_classes() -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, capture_output=True, text=True, timeout=300)


@pytest.mark.long
@pytest.mark.server
def test_loads_take_their_classes_from_the_archives(
    monkeypatch: pytest.MonkeyPatch,
    kafka: KafkaBroker,
    postgres_engine: sa.Engine,
    topic: TopicFactory,
    tmp_path: Path,
    classes: Path,
) -> None:
    done = archive_classes()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(map(str, classes.iterdir()))
    assert len(done.stdout.splitlines()) == 2

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    log = tmp_path / "classes.log"
    # Of all classes that a JVM loads, this file says where from.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Xlog:class+load:file={log}")
    name = topic()
    for transform in (None, "tests.loading.test_transforms.twice"):
        produce(kafka, name, names(0, 10))
        result = Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default"))(name, transform=transform)
        assert result.records == 10
        lines = [
            line for line in log.read_text().splitlines() if " org.apache.spark." in line and "$$Lambda" not in line
        ]
        shared = sum("shared objects file (top)" in line for line in lines)
        assert shared > 0.9 * len(lines) > 0


def test_settings_of_spark_in_the_class_path_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    done = archive_classes()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"kafka-offsets archive-classes: {tmp_path}/conf has files.")
    assert not classes.exists()


def test_options_of_the_users_own_go_over_an_archive(monkeypatch: pytest.MonkeyPatch, classes: Path) -> None:
    path = class_archive(pyspark_home(), with_sql=False).path
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    assert str(path) in class_options(pyspark_home(), {}, with_sql=False)
    own = "-XX:SharedArchiveFile=/opt/own.jsa"
    assert class_options(pyspark_home(), {"spark.driver.extraJavaOptions": own}, with_sql=False) == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", own)
    assert class_options(pyspark_home(), {}, with_sql=False) == ""


def test_without_java_or_spark_there_are_no_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, classes: Path
) -> None:
    assert class_options(None, {}, with_sql=False) == ""
    assert class_options(tmp_path / "nowhere", {}, with_sql=False) == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert class_options(pyspark_home(), {}, with_sql=False) == ""
