"""How the package reaches the executors of a session. The sessions are fakes: those of Spark 3.5 are not installed
beside 4.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from airflow_kafka_offsets.spark import launchers
from airflow_kafka_offsets.spark.launchers import SessionLauncher
from devstack.process import wait_until
from tests.spark.test_package import JOB


class Tags:
    """Which tags the calling thread has, and which were interrupted."""

    def __init__(self) -> None:
        self.threads = threading.local()
        self.interrupted: list[str] = []

    @property
    def of_this_thread(self) -> set[str]:
        tags: set[str] = self.threads.__dict__.setdefault("tags", set())
        return tags


class Context:
    def __init__(self) -> None:
        self.files: list[str] = []
        self.tags = Tags()

    def addJobTag(self, tag: str) -> None:
        self.tags.of_this_thread.add(tag)

    def removeJobTag(self, tag: str) -> None:
        self.tags.of_this_thread.remove(tag)

    def cancelJobsWithTag(self, tag: str) -> None:
        self.tags.interrupted.append(tag)

    def addPyFile(self, path: str) -> None:
        self.files.append(path)


class ClassicSession:
    """As in Spark 3.5."""

    def __init__(self, context: Context | None = None) -> None:
        self.sparkContext = context or Context()
        self.tags = self.sparkContext.tags

    def addArtifacts(self, *path: str, pyfile: bool = False) -> NoReturn:
        raise RuntimeError("[ONLY_SUPPORTED_WITH_SPARK_CONNECT] SparkSession.addArtifact(s) is only supported")


class RemoteSession:
    """As in Spark Connect."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self) -> None:
        self.files: list[str] = []
        self.tags = Tags()

    def addTag(self, tag: str) -> None:
        self.tags.of_this_thread.add(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.of_this_thread.remove(tag)

    def interruptTag(self, tag: str) -> list[str]:
        self.tags.interrupted.append(tag)
        return []

    def addArtifacts(self, *path: str, pyfile: bool = False) -> None:
        assert pyfile
        self.files += path
        # As PySpark's client does.
        sys.path[1:1] = path

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
    monkeypatch.setattr(launchers, "run", lambda spark, job, display: ran.append(spark))
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
    before = list(sys.path)
    for launcher in (SessionLauncher(spark), SessionLauncher(spark)):
        launcher(JOB)
    assert [Path(file).name for file in spark.files] == ["airflow_kafka_offsets.zip"]
    assert runs == [spark, spark]
    assert sys.path == before


@pytest.mark.parametrize("kind", [ClassicSession, RemoteSession])
def test_a_job_is_interrupted_by_a_tag_of_its_own_until_it_ends(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    spark = kind()
    launcher = SessionLauncher(spark)
    of_job: set[str] = set()
    entered, left = threading.Event(), threading.Event()

    def waits(*_: object, **__: object) -> None:
        of_job.update(spark.tags.of_this_thread)
        entered.set()
        assert left.wait(30)
        raise RuntimeError("[CANCELLED] a job of the tag was cancelled")

    monkeypatch.setattr(launchers, "run", waits)
    launcher.cancel()  # nothing runs
    with ThreadPoolExecutor(1) as threads:
        staged = threads.submit(launcher, JOB)
        assert entered.wait(30)
        for _ in range(3):
            launcher.cancel()
        assert len([thread for thread in threading.enumerate() if thread.name == "interrupt"]) == 1
        # Spark may not have had the job yet.
        wait_until(lambda: len(spark.tags.interrupted) > 1, 30, "another interruption")
        left.set()
        with pytest.raises(RuntimeError, match="CANCELLED"):
            staged.result()
        assert threads.submit(lambda: spark.tags.of_this_thread).result() == set()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "interrupt"], 30, "its end")
    interrupted = list(spark.tags.interrupted)
    assert set(interrupted) == of_job
    assert len(of_job) == 1

    launcher.cancel()
    monkeypatch.setattr(launchers, "run", lambda *_, **__: of_job.update(spark.tags.of_this_thread))
    launcher(JOB)
    assert spark.tags.interrupted == interrupted
    assert len(of_job) == 2
