"""Staged files that are cut, altered, missing or swapped before they are committed: the batch is staged again, in the
same try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.exceptions import RecordError, StagedFileError, TopicRecreatedError
from airflow_kafka_offsets.replaying.bounds import OffsetBounds
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.manifest import MANIFEST
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, produce
from tests.support.damage import DAMAGES, KINDS, Damage, DamagingLauncher, cut, damage_last, flip
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.openings import ids

pytestmark = pytest.mark.server

# In slices of three offsets, each slice has rows and dead letters.
VALUES: Sequence[bytes] = [value for name in names(0, 6) for value in (name, b"{not json")]
OPTIONS: dict[str, Any] = {"on_bad_record": DeadLetters()}


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.fixture
def name(topic: TopicFactory, kafka: Kafka) -> str:
    made = topic()
    produce(kafka, made, VALUES)
    return made


def assert_loaded_once(loader: Loader, staging: Path, batches: int = 1) -> None:
    assert ids(loader) == list(range(6))
    dead_letters = rows(loader.engine, "SELECT offset_value FROM dead_letters ORDER BY offset_value")
    assert dead_letters == [(offset,) for offset in range(1, 12, 2)]
    assert rows(loader.engine, "SELECT state, row_count, dead_letters FROM offset_batches") == [("committed", 6, 6)]
    assert list(staging.iterdir()) == []


def warning(caplog: pytest.LogCaptureFixture) -> str:
    """The only one of staging and commit."""
    of_loading = (record for record in caplog.records if record.name.startswith("airflow_kafka_offsets.loading."))
    (record,) = (each for each in of_loading if each.levelname == "WARNING" and "dead letters" not in each.message)
    return record.getMessage()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_in_the_try_that_staged_them(
    inline_loader: Loader, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, damage: Damage
) -> None:
    inline_loader.launcher = launcher = DamagingLauncher(kind, damage)

    result = inline_loader(name, staging=Staging(dir=str(tmp_path / "staging"), slice_offsets=3), **OPTIONS)

    assert (result.rows, result.dead_letters, len(launcher.jobs)) == (6, 6, 2)
    assert_loaded_once(inline_loader, tmp_path / "staging")
    (damaged,) = launcher.names
    assert damaged in warning(caplog) or damage.__name__ == "swap"
    assert "Batch 1 is staged again: Staged file" in warning(caplog)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_in_a_later_try(
    inline_loader: Loader, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, damage: Damage
) -> None:
    staging = tmp_path / "staging"
    staged = staged_and_not_committed(inline_loader, name, staging)
    damaged = damage_last(staged, kind, damage)
    caplog.clear()

    result = inline_loader(name, staging=Staging(dir=str(staging), slice_offsets=3), **OPTIONS)

    assert (result.rows, result.dead_letters, len(inline_loader.launcher.jobs)) == (6, 6, 2)
    assert_loaded_once(inline_loader, staging)
    assert damaged in warning(caplog) or damage.__name__ == "swap"
    assert "atch 1 " in warning(caplog)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: cut(path, path), lambda path: flip(path, path)])
def test_the_manifest_in_the_try_that_wrote_it(
    inline_loader: Loader,
    name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path], object],
) -> None:
    inline_loader.launcher = launcher = DamagingLauncher("rows", lambda path, _: change(path.parent / MANIFEST))

    inline_loader(name, staging=Staging(dir=str(tmp_path / "staging"), slice_offsets=3), **OPTIONS)

    assert len(launcher.jobs) == 2
    assert_loaded_once(inline_loader, tmp_path / "staging")
    assert "Batch 1 is staged again: manifest.json" in warning(caplog)


def test_files_that_are_damaged_twice_are_left_to_the_next_try(
    inline_loader: Loader, name: str, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    loader = Loader(inline_loader.kafka, inline_loader.engine, DamagingLauncher("rows", flip, times=2))

    with pytest.raises(StagedFileError, match=r"Files of batch 1 were damaged twice, .*part-.* was altered"):
        loader(name, staging=Staging(dir=str(staging), slice_offsets=3), **OPTIONS)

    assert StagedFileError.retriable
    assert ids(inline_loader) == []
    inline_loader(name, staging=Staging(dir=str(staging), slice_offsets=3), **OPTIONS)
    assert_loaded_once(inline_loader, staging)


def test_files_of_a_replay(inline_loader: Loader, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inline_loader(name, **OPTIONS)
    caplog.clear()

    result = replay(
        inline_loader.pipeline(
            [name], staging=Staging(dir=str(tmp_path / "staging"), slice_offsets=3), sink=SqlTable("again"), **OPTIONS
        ),
        OffsetBounds({name: {0: (0, 12)}}),
        kafka_config=inline_loader.config,
        engine=inline_loader.engine,
        launcher=DamagingLauncher("dead letters", flip),
    )

    assert (result.rows, result.dead_letters) == (6, 6)
    assert rows(inline_loader.engine, "SELECT id FROM again ORDER BY id") == [(number,) for number in range(6)]
    assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters WHERE batch_id = 2") == [(6,)]
    assert "Batch 2 is staged again: Staged file" in warning(caplog)
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_batch_whose_records_expired_meanwhile_is_abandoned_and_leaves_no_files(
    inline_loader: Loader, name: str, tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    directory = staged_and_not_committed(inline_loader, name, staging)
    damage_last(directory, "rows", flip)
    delete_records(inline_loader.kafka.bootstrap_servers, name, 4)

    inline_loader(name, staging=Staging(dir=str(staging), slice_offsets=3), on_data_loss="skip", **OPTIONS)

    assert ids(inline_loader) == [2, 3, 4, 5]
    states = rows(inline_loader.engine, "SELECT state FROM offset_batches WHERE kind = 'load' ORDER BY batch_id")
    # Smaller batches take its place.
    assert states == [("abandoned",), *[("committed",)] * 3]
    assert list(staging.iterdir()) == []


def test_a_topic_that_was_recreated_meanwhile_is_not_read_in_place_of_the_old_one(
    inline_loader: Loader, name: str, tmp_path: Path
) -> None:
    directory = staged_and_not_committed(inline_loader, name, tmp_path / "staging")
    damage_last(directory, "rows", flip)
    delete_topic(inline_loader.kafka.bootstrap_servers, name)
    create_topic(inline_loader.kafka.bootstrap_servers, name, 1)

    with pytest.raises(TopicRecreatedError):
        inline_loader(name, staging=Staging(dir=str(tmp_path / "staging"), slice_offsets=3), **OPTIONS)

    assert len(inline_loader.launcher.jobs) == 1


def staged_and_not_committed(loader: Loader, name: str, staging: Path) -> Path:
    """Leave a staged batch whose commit failed, and what made it fail is mended.

    :return: its staging directory
    """
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way')"))
    loader.launcher = InlineLauncher()
    with pytest.raises(RecordError):
        loader(name, staging=Staging(dir=str(staging), slice_offsets=3), **OPTIONS)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))
    (directory,) = staging.iterdir()
    return directory
