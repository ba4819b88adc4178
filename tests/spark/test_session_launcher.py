"""How the package reaches the executors of a session. The sessions are fakes: those of Spark 3.5 are not installed beside 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from airflow_kafka_offsets.spark import session_launcher
from airflow_kafka_offsets.spark.session_launcher import SessionLauncher
from tests.spark.test_package import JOB


class Context:
    def __init__(self) -> None:
        self.files: list[str] = []

    def addPyFile(self, path: str) -> None:
        self.files.append(path)


class ClassicSession:
    """As in Spark 3.5."""

    def __init__(self, context: Context) -> None:
        self.sparkContext = context

    def addArtifacts(self, *path: str, pyfile: bool = False) -> NoReturn:
        raise RuntimeError("[ONLY_SUPPORTED_WITH_SPARK_CONNECT] SparkSession.addArtifact(s) is only supported")


class RemoteSession:
    """As in Spark Connect."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.files: list[str] = []

    def addArtifacts(self, *path: str, pyfile: bool = False) -> None:
        assert pyfile
        self.files += path

    @property
    def sparkContext(self) -> NoReturn:
        raise RuntimeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] Attribute `sparkContext` is not supported in Spark Connect")


class SubclassOfRemoteSession(RemoteSession):
    """A vendor's own, in a module of the vendor's."""

    __module__ = "vendor.session"


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions that jobs ran in."""
    ran: list[Any] = []
    monkeypatch.setattr(session_launcher, "run", lambda spark, job, display: ran.append(spark))
    return ran


def test_a_classic_session_of_any_version_gets_the_package_once(runs: list[Any]) -> None:
    context = Context()
    spark: Any = ClassicSession(context)
    other_session_of_the_context: Any = ClassicSession(context)
    for used in (spark, spark, other_session_of_the_context):
        SessionLauncher(used)(JOB)
    (file,) = context.files
    assert Path(file).name == "airflow_kafka_offsets.zip"
    assert Path(file).exists()
    assert runs == [spark, spark, other_session_of_the_context]


def test_the_session_of_another_context_gets_it_too() -> None:
    contexts = [Context(), Context()]
    for context in contexts:
        spark: Any = ClassicSession(context)
        SessionLauncher(spark)(JOB)
    assert [len(context.files) for context in contexts] == [1, 1]


@pytest.mark.parametrize("kind", [RemoteSession, SubclassOfRemoteSession])
def test_a_session_of_spark_connect_gets_it_as_an_artifact(runs: list[Any], kind: type[RemoteSession]) -> None:
    spark: Any = kind()
    SessionLauncher(spark)(JOB)
    assert [Path(file).name for file in spark.files] == ["airflow_kafka_offsets.zip"]
    assert runs == [spark]
