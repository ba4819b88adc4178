"""With the machine's own Java: the second load has it write an archive of Spark's classes, and the third starts from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.hooks.java import class_archive
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from devstack.kafka import KafkaBroker
from devstack.paths import pyspark_home
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names


@pytest.fixture
def _archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As without what the session sets for all tests."""
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__CLASS_ARCHIVES", "True")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.long
@pytest.mark.server
@pytest.mark.usefixtures("_archives")
@pytest.mark.parametrize("transform", [None, "tests.loading.test_transforms.twice"])
def test_the_third_load_takes_its_classes_from_the_archive(
    monkeypatch: pytest.MonkeyPatch,
    kafka: KafkaBroker,
    postgres_engine: sa.Engine,
    topic: TopicFactory,
    tmp_path: Path,
    transform: str | None,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    log = tmp_path / "classes.log"
    # Of all classes that a JVM loads, this file says where from. It belongs to the last JVM.
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Xlog:class+load:file={log}")
    name = topic()
    shared = []
    for _ in range(3):
        produce(kafka, name, names(0, 10))
        result = Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default"))(name, transform=transform)
        assert result.records == 10
        lines = [
            line for line in log.read_text().splitlines() if " org.apache.spark." in line and "$$Lambda" not in line
        ]
        assert lines
        shared.append(sum("shared objects file (top)" in line for line in lines) / len(lines))
    assert shared[:2] == [0, 0]
    assert shared[2] > 0.9


def a_property(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    properties["spark.driver.extraJavaOptions"] = "-Xshare:off"


def a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:SharedArchiveFile=/opt/own.jsa")


def the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__CLASS_ARCHIVES", "False")


def settings_of_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    (tmp_path / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def settings_of_hadoop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))


def a_class_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    properties["spark.driver.extraClassPath"] = str(tmp_path)


def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: dict[str, str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


Change = Callable[[pytest.MonkeyPatch, Path, dict[str, str]], None]


@pytest.mark.usefixtures("_archives")
@pytest.mark.parametrize(
    "change", [a_property, a_variable, the_option, settings_of_spark, settings_of_hadoop, a_class_path, no_java]
)
def test_there_is_none_where_java_would_not_write_it_or_the_user_does_not_want_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Change
) -> None:
    properties: dict[str, str] = {}
    assert class_archive(pyspark_home(), properties, with_sql=False) is not None
    change(monkeypatch, tmp_path, properties)
    assert class_archive(pyspark_home(), properties, with_sql=False) is None


@pytest.mark.usefixtures("_archives")
def test_applications_with_a_session_have_an_archive_of_their_own(tmp_path: Path) -> None:
    for with_sql in (False, True):
        archive = class_archive(pyspark_home(), {}, with_sql=with_sql)
        assert archive is not None
        archive.java_options()
    assert len(list((tmp_path / "cache").rglob("*.attempts"))) == 2
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["airflow-kafka-offsets"]
