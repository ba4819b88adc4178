"""When the files of an earlier attempt are committed, and when a batch is staged again."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, RecordError, TopicRecreatedError
from airflow_kafka_offsets.formats.simple_formats import Json
from devstack.kafka import KafkaBroker
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server

stage = import_module("airflow_kafka_offsets.loading.stage")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def test_corrected_columns_are_staged_anew(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name VARCHAR(30) CHECK (name <> 'name-7'))"))
    with pytest.raises(RecordError, match=r"offset 7 .*(CHECK|check)"):
        loader(name)

    result = loader(name, value_format=Json("id BIGINT"))

    assert result.rows == 10
    assert rows(loader.engine, "SELECT count(*), count(name) FROM target") == [(10, 0)]


def test_a_corrected_target_is_enough_where_the_rows_were_right(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way')"))
    with pytest.raises(RecordError, match="offset 3"):
        loader(name)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))

    assert loader(name).rows == 10

    assert len(loader.launcher.jobs) == 1, "the staged files were not used"


def test_missing_files_are_staged_anew(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, staging = topic(), tmp_path_factory.mktemp("staging")
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT, _kafka_offset BIGINT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way', -1)"))
    with pytest.raises(RecordError):
        loader(name, staging=Staging(dir=str(staging)))
    for part in staging.glob("*/part-*.arrow"):
        part.unlink()
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))

    assert loader(name, staging=Staging(dir=str(staging))).rows == 10

    assert list(staging.iterdir()) == []


def test_files_of_a_batch_that_could_not_be_marked_as_staged_are_committed(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    def unavailable(*_: object) -> NoReturn:
        raise DatabaseUnavailableError("Lock wait timeout exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(stage, "mark_staged", unavailable)
        with pytest.raises(DatabaseUnavailableError):
            inline_loader(name)
    assert rows(inline_loader.engine, "SELECT state FROM offset_batches") == [("planned",)]

    assert inline_loader(name).rows == 10

    assert len(inline_loader.launcher.jobs) == 1, "the staged files were not used"
    assert rows(inline_loader.engine, "SELECT state, records, staged_at IS NULL FROM offset_batches") == [
        ("committed", 10, False)
    ]


def test_files_of_a_planned_batch_whose_topic_was_recreated_are_not_committed(
    inline_loader: Loader, kafka: Any, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    def killed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage, "finish_attempt", killed)
        with pytest.raises(KeyboardInterrupt):
            inline_loader(name)
    kafka.delete(name)
    kafka.create(name, 1, {})
    produce(kafka, name, names(100, 10))

    with pytest.raises(TopicRecreatedError):
        inline_loader(name)
    assert rows(inline_loader.engine, "SELECT state FROM offset_batches") == [("planned",)]


@pytest.mark.parametrize("location", ["{staged}", "nosuch://bucket/batch-1", "{precious}"])
def test_unreadable_or_foreign_directory_is_left_and_staged_again(
    inline_loader: Loader,
    kafka: KafkaBroker,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    location: str,
) -> None:
    name, staging, precious = topic(), tmp_path / "staging", tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    produce(kafka, name, names(0, 10))
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way')"))
    with pytest.raises(RecordError):
        inline_loader(name, staging=Staging(dir=str(staging)))
    (staged,) = staging.iterdir()
    for directory in (staged, precious):
        (directory / "manifest.json").write_text('{"batch_id": 1, "from_the_future": ')
    uri = location.format(staged=staged, precious=precious)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET staging_uri = :uri"), {"uri": uri})
        conn.execute(sa.text("DELETE FROM target"))

    assert inline_loader(name, staging=Staging(dir=str(staging))).rows == 10

    assert (f"in {uri} cannot be read, and it is staged again" in caplog.text) == (uri == str(staged))
    assert (f"{uri} of batch 1 is not removed" in caplog.text) == (uri != str(staged))
    assert sorted(precious.iterdir()) == [precious / "file", precious / "manifest.json"]
    assert list(staging.iterdir()) == ([] if uri == str(staged) else [staged])
