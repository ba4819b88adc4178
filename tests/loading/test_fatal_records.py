"""Records that end the process which decodes or transforms them, on real Spark, and in replays without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from airflow_kafka_offsets import DeadLetters, Reading, Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import RecordError, WorkerCrashError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_connect import SparkConnectLauncher
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from devstack.kafka import KafkaBroker
from devstack.spark import SparkStandalone
from devstack.spark_connect import SparkConnectServer
from tests.support.clients import produce
from tests.support.loads import CountingLauncher, Loader, TopicFactory, positions, rows

pytestmark = pytest.mark.server

OBEY = ArrowTransform("tests.support.fatal.obey", modules=("tests",))


def deadly(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.withColumn("name", functions.udf(lambda name: end(), "string")("name"))


def end() -> str:
    import os

    os._exit(3)


def orders(*ids_and_names: tuple[int, str]) -> list[bytes]:
    return [json.dumps({"id": number, "name": name}).encode() for number, name in ids_and_names]


def letters(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(
        loader.engine,
        'SELECT "partition", offset_value, error_class, error FROM dead_letters ORDER BY "partition", offset_value',
    )


@pytest.fixture
def fatal(kafka: KafkaBroker, topic: TopicFactory) -> str:
    """A topic with a record in each partition that ends the process which transforms it."""
    name = topic(partitions=2)
    produce(kafka, name, orders((0, "a"), (1, "segfault"), (2, "b")), 0)
    produce(kafka, name, orders((3, "c"), (4, "d"), (5, "exit")), 1)
    return name


def assert_others_are_loaded(loader: Loader, topic: str) -> None:
    assert rows(loader.engine, "SELECT id FROM target ORDER BY id") == [(0,), (2,), (3,), (4,)]
    assert letters(loader) == [
        (0, 1, "crash", "decoding and transforming it ends the process by SIGSEGV"),
        (1, 2, "crash", "decoding and transforming it ends the process with exit status 3"),
    ]
    assert positions(loader.engine) == {(topic, 0): 3, (topic, 1): 3}


def test_fatal_records_are_dead_lettered_replayed_and_their_neighbours_loaded(
    postgres_loader: Loader, launcher: CountingLauncher, fatal: str
) -> None:
    result = postgres_loader(fatal, transform=OBEY, on_bad_record=DeadLetters())
    assert (result.records, result.rows, result.dead_letters) == (6, 4, 2)
    assert_others_are_loaded(postgres_loader, fatal)
    # First the slices that were being read, and all where that was not enough.
    first, *others = (job.isolated for job in launcher.jobs)
    assert first == ()
    assert others in ([(0,), (0, 1)], [(1,), (0, 1)], [(0, 1)])
    # A replay without Spark survives them, too.
    pipeline = postgres_loader.pipeline([fatal], transform=OBEY, on_bad_record=DeadLetters())
    (done,) = replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=postgres_loader.engine)
    assert (done.records, done.still_bad) == (0, 2)
    assert_others_are_loaded(postgres_loader, fatal)
    pipeline = postgres_loader.pipeline([fatal], on_bad_record=DeadLetters())
    (done,) = replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=postgres_loader.engine)
    assert (done.records, done.still_bad) == (2, 0)
    assert rows(postgres_loader.engine, "SELECT id FROM target ORDER BY id") == [(number,) for number in range(6)]


def test_a_fatal_record_fails_a_load_that_allows_none_and_is_named(postgres_loader: Loader, fatal: str) -> None:
    with pytest.raises(RecordError, match="the process") as raised:
        postgres_loader(fatal, transform=OBEY)
    error = raised.value
    assert (error.topic, (error.partition, error.offset)) in [(fatal, (0, 1)), (fatal, (1, 2))]
    assert positions(postgres_loader.engine) == {}


# It waits for the time limit of each half; `tests/spark/test_isolation.py` has the limit every day.
@pytest.mark.long
def test_a_record_that_is_never_transformed_is_bad(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, orders((0, "a"), (1, "loop")))
    reading = Reading(decode_timeout=timedelta(seconds=4))
    result = postgres_loader(name, transform=OBEY, on_bad_record=DeadLetters(), reading=reading)
    assert (result.rows, result.dead_letters) == (1, 1)
    ((*_, error),) = letters(postgres_loader)
    assert error == "decoding and transforming it takes more than 4 s"


def test_a_process_that_no_record_ends_is_an_error_that_says_what_was_read(
    postgres_loader: Loader, launcher: CountingLauncher, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, orders((0, "a")))
    with pytest.raises(WorkerCrashError, match=rf"while it had {name}\[0\] 0\.\.1, and no record"):
        postgres_loader(name, transform=f"{__name__}.deadly", on_bad_record=DeadLetters())
    # All records were decoded.
    assert [job.isolated for job in launcher.jobs] == [()]
    assert positions(postgres_loader.engine) == {}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Launcher]:
    def launcher(master: str) -> Launcher:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master}))
        return SparkSubmitLauncher("spark_default", name="fatal")

    return launcher


@pytest.fixture(params=["submitted", "cluster", "connect"])
def far_loader(
    request: pytest.FixtureRequest,
    postgres_loader: Loader,
    submitted: Callable[[str], Launcher],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Loader]:
    if request.param == "submitted":
        postgres_loader.launcher = submitted("local[2]")
    elif request.param == "cluster":
        cluster: SparkStandalone = request.getfixturevalue("spark_cluster")
        postgres_loader.launcher = submitted(cluster.master_url)
    else:
        server: SparkConnectServer = request.getfixturevalue("spark_connect")
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(server.connection))
        postgres_loader.launcher = SparkConnectLauncher("spark_remote")
    yield postgres_loader
    postgres_loader.launcher.close()


@pytest.mark.long
def test_fatal_records_end_no_application_of_any_kind(far_loader: Loader, fatal: str, tmp_path: Path) -> None:
    result = far_loader(fatal, transform=OBEY, on_bad_record=DeadLetters(), staging=Staging(dir=str(tmp_path)))
    assert (result.records, result.rows, result.dead_letters) == (6, 4, 2)
    assert_others_are_loaded(far_loader, fatal)
